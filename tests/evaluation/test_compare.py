"""Comparisons: what they say is what the games say; what cannot be compared is named."""

import copy
import html
import json
import re
import sys

import pytest
from scipy import stats
from worlds import Scripted, doors

from progpo_trl.cli import main
from progpo_trl.evaluation import EvaluationError, evaluate
from progpo_trl.evaluation.compare import compare, compare_groups
from progpo_trl.evaluation.comparison_report import as_markdown, draw
from progpo_trl.markdown import printed


def played(when, n=24, seeds=(0, 1), **options):
    return evaluate(Scripted(when), doors(n), seeds=seeds, **options)


# A player solves a door when it looks fewer than four times before.
def even(number, seed):
    return 4 * (number % 2)


def nearly_all(number, seed):
    return 4 * (number % 8 == 1 + seed)


@pytest.fixture(scope="module")
def pair():
    return [("even", played(even)), ("more", played(nearly_all))]


def test_the_numbers_are_those_of_the_games(pair):
    found = compare(pair)
    (part,) = found["parts"]
    first, second = part["agents"]
    assert (first["success"]["rate"], second["success"]["rate"]) == pytest.approx((0.5, 21 / 24))
    (gap,) = part["pairs"]
    assert gap["games"] == 24
    assert gap["difference"]["mean"] == pytest.approx(21 / 24 - 0.5)
    assert gap["difference"]["low"] < gap["difference"]["mean"] < gap["difference"]["high"]
    # seed 0: doors 1, 9, 17 are lost; they are odd. seed 1: doors 2, 10, 18, which the other opens.
    assert [(s["only_first"], s["only_second"]) for s in gap["by_seed"]] == [(0, 9), (3, 12)]
    assert gap["by_seed"][0]["p"] == pytest.approx(stats.binomtest(0, 9).pvalue)
    assert gap["p"] < 0.05
    assert gap["score_difference"]["mean"] > 0
    text = as_markdown(found)
    assert "| even | 50.0 % [" in text
    assert "| 0 / 9; 3 / 12 |" in text


def test_one_seed_is_mcnemar(pair):
    one = [("a", played(even, seeds=(0,))), ("b", played(nearly_all, seeds=(0,)))]
    (gap,) = compare(one)["parts"][0]["pairs"]
    assert gap["p"] == pytest.approx(gap["by_seed"][0]["p"])


def test_several_are_each_against_the_first_and_corrected():
    entries = [(name, played(when)) for name, when in (("a", even), ("b", nearly_all), ("c", lambda n, s: 0))]
    pairs = compare(entries)["parts"][0]["pairs"]
    assert [(p["first"], p["second"]) for p in pairs] == [("a", "b"), ("a", "c")]
    low, high = sorted(p["p"] for p in pairs)
    assert sorted(p["p_holm"] for p in pairs) == pytest.approx(sorted([2 * low, max(high, 2 * low)]))


def test_an_agent_is_no_better_than_itself(pair):
    (gap,) = compare([pair[0], ("again", pair[0][1])])["parts"][0]["pairs"]
    assert gap["p"] == 1.0
    assert (gap["difference"]["low"], gap["difference"]["high"]) == (0, 0)


def changed(content, path, value):
    content = copy.deepcopy(content)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("panels", 0, "panel_sha256"), "ab", "the games of split eval differ"),
        (("panels", 0, "data_sha256"), "ab", "the data version of split eval differ"),
        (("panels", 0, "games"), 23, r"the number of games of split eval differ \(24 and 23\)"),
        (("conditions", "max_turns"), 9, r"the step limit \(max_turns\) is 4 in one and 9 in the other"),
        (("conditions", "mode"), "strict", "mode is None in one and strict in the other"),
        (("environment", "name"), "alfworld", "the environment is doors in one and alfworld"),
        (("panels", 0, "split"), "test", "has no split 'eval', only test"),
    ],
)
def test_other_panels_data_and_limits_are_refused(pair, path, value, message):
    with pytest.raises(EvaluationError, match=message):
        compare([pair[0], ("other", changed(pair[1][1], path, value))])


def at(content, *temperatures):
    """`content` as if it had been sampled at these temperatures."""
    out = copy.deepcopy(content)
    out["results"] = [{**out["results"][0], "temperature": t} for t in temperatures]
    out["games"] = [{**g, "temperature": t} for t in temperatures for g in out["games"]]
    return out


def test_temperatures_must_agree_and_can_be_chosen(pair):
    a, b = pair[0][1], pair[1][1]
    with pytest.raises(EvaluationError, match=r"the temperatures differ \(x: 0.4, 0; y: 0.4\); choose"):
        compare([("x", at(a, 0.4, 0.0)), ("y", at(b, 0.4))])
    chosen = compare([("x", at(a, 0.4, 0.0)), ("y", at(b, 0.4))], temperatures=[0.4])
    assert [p["temperature"] for p in chosen["parts"]] == [0.4]
    with pytest.raises(EvaluationError, match="y has no temperature 0, only 0.4"):
        compare([("x", at(a, 0.4, 0.0)), ("y", at(b, 0.4))], temperatures=[0.0])
    # an agent without temperature, such as an expert, can be held against any
    both = compare([("x", at(a, 0.4, 0.0)), ("rule", b)])
    assert [p["temperature"] for p in both["parts"]] == [0.4, 0.0]
    assert [p["pairs"][0]["games"] for p in both["parts"]] == [24, 24]


def test_games_that_were_lost_are_left_out_and_said(pair):
    lost = copy.deepcopy(pair[1][1])
    for game in lost["games"][:1]:
        game["stop_reason"] = "environment_error"
    only_seed_0 = compare([pair[0], ("other", lost)])
    assert only_seed_0["parts"][0]["pairs"][0]["left_out"] == 0  # its other play counts
    for game in lost["games"]:
        if game["task_id"] == "door-00":
            game["stop_reason"] = "environment_error"
    found = compare([pair[0], ("other", lost)])
    assert found["parts"][0]["pairs"][0]["games"] == 23
    assert "1 game(s) that one of the two could not be scored on" in as_markdown(found)


def run_of(wins, seed):
    """A training run that opens the first `wins` of 20 doors."""
    content = played(lambda number, _: 4 * (number >= wins), n=20)
    content["agent"] = {"kind": "policy", "weights_sha256": f"w{seed}-{wins}", "training_seed": seed}
    return content


def test_training_runs_count_once_each():
    groups = {
        "grpo": [("g0", run_of(8, 0)), ("g1", run_of(10, 1)), ("g2", run_of(12, 2))],
        "progpo": [("p0", run_of(13, 0)), ("p1", run_of(16, 1)), ("p2", run_of(16, 2))],
    }
    found = compare_groups(groups)
    (part,) = found["parts"]
    mean = part["groups"]["grpo"]["success"]
    low, high = stats.t.interval(0.95, 2, loc=0.5, scale=stats.sem([0.4, 0.5, 0.6]))
    assert (mean["mean"], mean["low"], mean["high"], mean["n"]) == pytest.approx((0.5, low, high, 3))
    want = stats.ttest_ind([0.65, 0.8, 0.8], [0.4, 0.5, 0.6], equal_var=False).confidence_interval()
    gap = part["pairs"][0]["difference"]
    assert (gap["low"], gap["high"]) == pytest.approx((want.low, want.high))
    text = as_markdown(found)
    assert "| grpo | g1 | 1 | 50.0 % [" in text
    assert "**mean over 3 training runs**" in text
    single = compare_groups({"grpo": groups["grpo"][:1]})["parts"][0]["groups"]["grpo"]["success"]
    assert single["low"] is None  # one run says nothing about the next
    with pytest.raises(EvaluationError, match="g0 and again are evaluations of the same weights"):
        compare_groups({"grpo": [groups["grpo"][0], ("again", groups["grpo"][0][1])]})


def test_names_are_text_in_the_table_and_in_the_picture(tmp_path, pair):
    entries = [("a|b $x_{", pair[0][1]), ("<b>\x1b[31m", pair[1][1])]
    found = compare(entries)
    assert "| a\\|b \\$x\\_{ |" in as_markdown(found)
    assert "\x1b" not in as_markdown(found)
    draw(found, tmp_path / "a.png")
    groups = {"$": [(n, changed(c, ("agent",), {"weights_sha256": n})) for n, c in entries]}
    draw(compare_groups(groups), tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


EVIL = "`x` | <img src=x onerror=alert(1)>\n\n# h **b** [l](http://a) ![i](//b) $m$ \\"


def test_texts_of_files_are_no_markup(pair):
    """Names, task types, splits and seeds, in both kinds of tables: no renderer may see anything but text."""
    contents = [json.loads(json.dumps(content)) for _, content in pair]
    for i, content in enumerate(contents):
        content["agent"] = {"weights_sha256": str(i), "training_seed": EVIL, "settings": {"trials": i + 1}}
        content["panels"][0]["split"] = EVIL
        for record in (*content["games"], *content["results"]):
            record["split"] = EVIL
        for g, record in enumerate(content["games"]):
            record["task_type"] = f"{EVIL}{g % 2}"
    entries = [(EVIL, contents[0]), (f"{EVIL} 2", contents[1])]
    renderer = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True}).enable("table")
    for found in (compare(entries), compare_groups({EVIL: entries[:1], f"{EVIL}!": entries[1:]})):
        page = renderer.render(as_markdown(found))
        tags = set(re.findall(r"</?([a-z0-9]+)", page))
        assert tags <= {"h3", "p", "table", "thead", "tbody", "tr", "th", "td", "strong"}
        assert page.count("<h3") == 1
        assert html.unescape(page).count(printed(EVIL)) > 5  # shown as they are
        for table in re.findall(r"(?:^\|.*\n)+", as_markdown(found), re.MULTILINE):
            # No border of a cell came from a name.
            assert len({re.sub(r"\\.", "", row).count("|") for row in table.splitlines()}) == 1


def test_several_tries_against_one_are_said(pair):
    (name, one), (other, two) = pair
    assert compare(pair)["warnings"] == []
    assert "Warning" not in as_markdown(compare(pair))
    trials = changed(two, ("agent",), {"kind": "prompted", "style": "reflexion", "settings": {"trials": 3}})
    found = compare([(name, one), (other, trials)])
    (warning,) = found["warnings"]
    assert "Tries of each game: even: one try; more: up to 3. " in warning
    assert as_markdown(found).startswith("**Warning**: several tries against fewer. ")
    assert compare([(name, trials), (other, trials)])["warnings"] == []
    once = changed(trials, ("agent", "settings", "trials"), 1)
    assert compare([(name, once), (other, one)])["warnings"] == []
    assert compare_groups({"a": [(name, one)], "b": [(other, trials)]})["warnings"] == [warning]


def test_the_command(tmp_path, pair, capsys):
    for name, content in pair:
        (tmp_path / name / "evaluation").mkdir(parents=True)
        (tmp_path / name / "evaluation" / "evaluation.json").write_text(json.dumps(content))
    files = [str(tmp_path / name) for name, _ in pair]
    assert main(["compare", *files, "--out", str(tmp_path / "out")]) == 0
    assert "| even | 50.0 % [" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "comparison.json",
        "comparison.md",
        "comparison.png",
    ]
    (tmp_path / "file").touch()
    capsys.readouterr()
    assert main(["compare", *files, "--out", str(tmp_path / "file")]) == 2
    assert f"{tmp_path}/file is a file, and results need a folder" in capsys.readouterr().err
    (tmp_path / "out" / ".comparison.json.partial").mkdir()
    assert main(["compare", *files, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.endswith("/.comparison.json.partial: Is a directory\n")
    assert main(["compare", *files, "--temperature", "0.4"]) == 2
    assert capsys.readouterr().err.endswith("none of these agents has a temperature: leave out --temperature\n")
    assert main(["compare", *files, "--names", "x"]) == 2
    assert main(["compare", files[0]]) == 2
    assert main(["compare", files[0], files[0]]) == 2
    assert main(["compare", "--group", "a", *files]) == 0
    assert "mean over 2 training runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no JSON document"),
        ("[]", "is not an evaluation of this version"),
        ('{"format": "progpo_trl evaluation 1", "complete": false}', "was interrupted; finish it with --resume"),
        ('{"format": "progpo_trl evaluation 1", "complete": true, "games": [{}]}', "is damaged: "),
        (
            '{"format": "progpo_trl evaluation 1", "complete": true, "games": [], "agent": [], "environment": {}}',
            "is damaged: agent must be a dict",
        ),
    ],
)
def test_damaged_files_are_one_line(tmp_path, capsys, text, message):
    if text is not None:
        (tmp_path / "evaluation.json").write_text(text)
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("progpo compare: error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("games", 1, "task_id"), None, "task_id of a game must be text, not None"),
        (("games", 1, "task_type"), [], "task_type of a game must be text, not []"),
        (("games", 1, "seed"), True, "seed of a game must be a whole number, not True"),
        (("games", 1, "seed"), "0", "seed of a game must be a whole number, not '0'"),
        (("games", 1, "success"), 3, "success of a game must be true or false, not 3"),
        (("games", 1, "success"), "\x1b[2J", "success of a game must be true or false, not '"),
        (("games", 1, "score"), "1", "score of a game must be a number or null, not '1'"),
        (("games", 1, "score"), float("nan"), "score of a game must be finite, not nan"),
        (("games", 1, "score"), 10**400, "is damaged: "),
        (("games", 1, "temperature"), [0.4], "temperature of a game must be a number or null"),
        (("games", 1, "task_id"), "door-00", "game 'door-00' is there twice under seed 0"),
        (("games", 1), 5, "a game must be an object, not 5"),
        (("conditions", "max_turns"), float("inf"), "is damaged: "),
        (("panels", 0, "games"), float("inf"), "is damaged: "),
        (("panels", 0), {"split": "eval", "panel_sha256": "x", "games": 24}, "'data_sha256' is missing"),
        (("agent", "weights_sha256"), [1], "weights_sha256 of the agent must be text or null, not [1]"),
    ],
)
def test_a_damaged_number_is_named(tmp_path, pair, capsys, path, value, message):
    (tmp_path / "evaluation.json").write_text(json.dumps(changed(pair[0][1], path, value)))
    (tmp_path / "good.json").write_text(json.dumps(pair[1][1]))
    for files in (("evaluation.json", "good.json"), ("good.json", "evaluation.json")):
        assert main(["compare", *(str(tmp_path / file) for file in files)]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert error.startswith(f"progpo compare: error: {tmp_path}/evaluation.json: is damaged: ")
        assert message in error
        assert "\x1b" not in error


def test_comparing_needs_no_torch():
    import subprocess

    code = "import sys, progpo_trl.compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
