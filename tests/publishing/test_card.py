"""The card as text: nothing in it acts, its metadata is what the Hub reads, every estimator is cited rightly."""

import math
import re
import shlex

import pytest
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from progpo_trl.advantages import GRPO, HGPO, TRLGRPO, GiGPO, ProGPO, ProxMO
from progpo_trl.markdown import code, escaped, fenced, table
from progpo_trl.publishing.card import render
from progpo_trl.publishing.doubts import doubts
from progpo_trl.publishing.errors import PublishError
from progpo_trl.publishing.evaluations import check_numbers, find_evaluations
from progpo_trl.publishing.facts import Base, CardFacts, base_of
from progpo_trl.publishing.license import license_metadata
from progpo_trl.publishing.method import methods_of, methods_of_settings
from progpo_trl.publishing.repeat import repeat_command
from progpo_trl.publishing.run_summary import read_summary
from progpo_trl.settings_sections import section_options
from progpo_trl.tiny_policy import checkpoint_path

HOSTILE = "a|b\n# h <script>alert(1)</script> [x](javascript:y) `c` **d** https://e.example \x1b[2J\u202e"


def rate(value: float, n: int = 140) -> dict:
    return {"rate": value, "low": max(0.0, value - 0.1), "high": min(1.0, value + 0.1), "n": n}


def part(temperature: float, **changes) -> dict:
    number = {"mean": 9.5, "low": 9.0, "high": 10.0, "n": 140}
    types = {"pick": {"games": 70, "success": rate(0.8, 70)}, HOSTILE: {"games": 70, "success": rate(0.5, 70)}}
    shares = dict.fromkeys(("format_invalid", "inadmissible", "truncated", "repeated", "loops", "step_limit"), 0.01)
    out = {"split": "valid_seen", "temperature": temperature, "seeds": [0, 1], "games": 140, "lost": 0}
    out |= {"success": rate(0.65), "by_seed": [{"seed": s, "success": rate(0.65)} for s in (0, 1)]}
    return out | {"by_task_type": types, "steps": number} | shares | changes


def evaluation(**changes) -> dict:
    panel = {"split": "valid_seen", "games": 140, "panel_sha256": "ab" * 32, "data_sha256": "cd" * 32}
    out = {"agent": {"kind": "policy", "weights_sha256": "w", "training_seed": 3}, "environment": {"name": "alfworld"}}
    out |= {"conditions": {"max_turns": 50}, "panels": [panel], "results": [part(0.4), part(0.0)]}
    return out | {"command": ["progpo", "evaluate", "x"], "versions": {"torch": "2.13"}} | changes


def facts(**changes) -> CardFacts:
    values = {"name": "agent", "repo": "alice/agent", "adapter": True, "base": Base(hub="Qwen/Qwen2.5-1.5B-Instruct")}
    values |= {"methods": methods_of(ProGPO(GiGPO())), "environment": {"name": "alfworld"}}
    return CardFacts(**(values | {"evaluations": [evaluation()]} | changes))


def test_metadata_is_what_the_hub_reads(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(render(facts(license={"license": "mit"})))
    data = metadata_load(path)
    assert data["base_model"] == "Qwen/Qwen2.5-1.5B-Instruct"
    assert data["base_model_relation"] == "adapter"
    assert data["pipeline_tag"] == "text-generation"
    assert data["license"] == "mit"
    name, results = model_index_to_eval_results(data["model-index"])
    assert name == "agent"
    by_name = {r.metric_name: r for r in results}
    assert len(results) == len(by_name) == 2 * 3  # all, and two task types, at two temperatures
    overall = by_name["success rate, greedy"]
    assert (overall.metric_value, overall.dataset_split, overall.dataset_revision) == (0.65, "valid_seen", "cd" * 32)
    assert overall.metric_args["sampling_seeds"] == [0, 1]
    ModelCard(path.read_text())  # raises where model-index is not valid


def test_a_score_is_beside_the_success():
    score = {"mean": 0.71, "low": 0.6, "high": 0.8, "n": 140}
    text = render(facts(evaluations=[evaluation(results=[part(0.4, score=score)])]))
    assert "| valid_seen, temperature 0.4 | score | 140 | 0.710 | 0.600 to 0.800 |" in text
    assert {r.metric_type for r in ModelCard(text).data.eval_results} == {"success_rate", "score"}


def test_names_and_texts_never_act():
    text = render(facts(name=HOSTILE, warnings=[HOSTILE], evaluations=[evaluation(command=["x", "```", HOSTILE])]))
    body = text.split("---\n", 2)[2]
    outside = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", body)
    assert "<script" not in re.sub(r"\\<", "", outside)
    assert not re.search(r"(?<!\\)\[x", outside)
    assert "https://e" not in outside
    assert "\x1b" not in text
    assert "\u202e" not in body
    rows = [line for line in outside.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows if "valid" in row} == {6}
    assert "\n````bash\n" in body  # the command holds a fence of three


@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("pick_and_place", "pick_and_place"),
        ("_x_", r"\_x\_"),
        ("50.0 %", "50.0 %"),
        ("1. one", r"1\. one"),
        ("12) one", r"12\) one"),
        ("1.5 or 12.x", "1.5 or 12.x"),
        ("- x", r"\- x"),
        ("a\nb", "a b"),
        ("www.e.example", r"www\.e.example"),
        ("<b>&", r"\<b\>\&"),
    ],
)
def test_escaped(text, out):
    assert escaped(text) == out


def test_code_and_tables():
    assert code("a`b") == "``a`b``"
    assert code("`") == "`` ` ``"
    assert fenced("x", "bash") == "```bash\nx\n```"
    assert table(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |"


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (GRPO(), [("GRPO", "2402.03300")]),
        (TRLGRPO(), [("GRPO (as TRL computes it)", "2402.03300")]),
        (HGPO(), [("HGPO", "2602.22817")]),
        (ProGPO(ProxMO()), [("ProGPO", "2607.22724"), ("ProxMO", "2602.19225")]),
        (ProGPO(GiGPO()), [("ProGPO", "2607.22724"), ("GiGPO", "2505.10978")]),
        (lambda batch: None, [("<lambda>", None)]),
    ],
)
def test_each_method_is_cited(estimator, expected):
    assert [(m.name, m.paper) for m in methods_of(estimator)] == expected
    text = render(facts(methods=methods_of(estimator)))
    for _, paper in expected:
        assert paper is None or f"[arXiv:{paper}](https://arxiv.org/abs/{paper})" in text
    assert ("arXiv" in text) == (expected[0][1] is not None)


def test_methods_of_a_recipe():
    found = methods_of_settings({"advantage": {"name": "gigpo"}, "progress_fallback": {}})
    assert [m.name for m in found] == ["ProGPO", "GiGPO"]
    assert [m.name for m in methods_of_settings({"progress_fallback": None})] == ["GRPO"]


def test_the_base(tmp_path):
    assert base_of("Qwen/Qwen2.5-7B") == Base(hub="Qwen/Qwen2.5-7B")
    assert base_of("tiny") == base_of(str(checkpoint_path("base"))) == Base(shipped="tiny")
    assert base_of("/elsewhere/progpo_trl/tiny_policy/checkpoints/base-hard") == Base(shipped="tiny-hard")
    assert base_of(str(tmp_path)) == Base(local=tmp_path.name)
    assert base_of(str(tmp_path), "a/b") == Base(hub="a/b")
    assert "None" not in render(facts(base=base_of(None), adapter=False))


def check(content: dict, settings=None, **changes) -> str:
    known = {"weights": "w", "step": 5, "adapter": False} | changes
    return "\n".join(doubts([content], settings or {}, **known))


def test_doubts():
    assert check(evaluation()) == ""
    assert "of other weights" in check(evaluation(), weights="v")
    assert "not known of which weights" in check(evaluation(agent={"kind": "policy"}))
    in_training = evaluation(agent={"kind": "policy", "step": 5})
    assert check(in_training) == ""
    assert "after update 5" in check(in_training, step=9)
    train = {"split": "train", "games": 200, "panel_sha256": "", "data_sha256": None}
    assert "on training games" in check(evaluation(panels=[train]))
    assert "2 plays of valid_seen were lost" in check(evaluation(results=[part(0.0, lost=2)]))
    other = {"environment": {"name": "webshop", "split": "train"}}
    assert "name 'webshop' trained, 'alfworld' evaluated" in check(evaluation(), other)


def test_which_evaluations_belong_to_a_run(tmp_path):
    for step in (2, 10):
        (tmp_path / f"evaluation-{step}.json").touch()
    (tmp_path / "evaluation-notes.json").touch()
    assert [p.name for p in find_evaluations(tmp_path)] == ["evaluation-10.json"]
    assert [p.name for p in find_evaluations(tmp_path, 2)] == ["evaluation-2.json"]
    for name in ("evaluation", "evaluation-seeds"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "evaluation.json").touch()
    assert [p.parent.name for p in find_evaluations(tmp_path, 2)] == ["evaluation", "evaluation-seeds"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("My Own License (c)",), "the Hub knows no such id; for a licence that is not on its list: --license other"),
        (("Apache-2.0",), "no such id (did you mean 'apache-2.0'?); for a licence that is not on its list: "),
        (("other",), "needs --license-name ID and --license-link URL"),
        (("other", "My Own", "https://e.example/l"), "--license-name 'My Own': must be small letters"),
        (("other", "my-own", "LICENSE\nx: y"), "--license-link"),
        (("mit", "my-own", None), "--license-name: only goes with --license other"),
    ],
)
def test_licences_that_the_hub_does_not_know(words, said):
    with pytest.raises(PublishError) as caught:
        license_metadata(*words)
    assert said in str(caught.value)


def test_a_licence_of_ones_own():
    values = license_metadata("other", "my-own-1.0", "https://e.example/licence")
    data = ModelCard(render(facts(license=values))).data
    assert (data.license, data.license_name, data.license_link) == tuple(values.values())
    assert license_metadata(None) == {}


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("success", "rate"), math.nan, "the rate of a success must be from 0 to 1, not nan"),
        (("success", "rate"), 7, "the rate of a success must be from 0 to 1, not 7"),
        (("success", "low"), -0.1, "the low of a success must be from 0 to 1"),
        (("success", "n"), 12.5, "n must be a whole number"),
        (("by_seed", 1, "success", "high"), 1.5, "the high of a success"),
        (("by_task_type", "pick", "games"), True, "games must be a whole number"),
        (("lost",), -1, "lost must be a whole number of at least 0"),
        (("seeds", 0), "0", "a sampling seed must be a whole number"),
        (("steps", "mean"), "9", "the mean of a score or of steps must be a number"),
        (("loops",), 2, "loops must be from 0 to 1"),
        (("temperature",), -1, "temperature must be at least 0"),
    ],
)
def test_numbers_that_are_none_are_refused(where, value, said):
    content = evaluation()
    check_numbers(content)
    *path, last = where
    place = content["results"][1]
    for key in path:
        place = place[key]
    place[last] = value
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        check_numbers(content)


def test_no_number_of_a_published_file_is_nan():
    with pytest.raises(ValueError, match="a number in it is not finite"):
        check_numbers(evaluation(games=[{"return": math.inf}]))


def test_a_game_that_is_lost_has_no_rate():
    none = dict.fromkeys(("rate", "low", "high")) | {"n": 0}
    check_numbers(evaluation(results=[part(0.0, success=none, steps=dict.fromkeys(("mean", "low", "high")))]))


RECIPE = {"environment": {"name": "alfworld_generated", "level": "easy", "n_eval": 128}}


def again(settings=RECIPE, **changes) -> list[str] | None:
    command = repeat_command(evaluation(**changes), "agent", settings)
    return None if command is None else shlex.split(command)


def played(**options) -> dict:
    return {"environment": RECIPE["environment"] | options}


def test_the_command_that_measures_again():
    start = ["progpo", "evaluate", "--model", "agent", "--split", "valid_seen", "--temperatures", "0.4", "0"]
    start += ["--seeds", "0", "1", "--tasks", "140"]
    assert again(**played()) == start
    # a limit is in the panel, however it was asked for, or by a script that has no command at all
    assert again(**played(), command=["progpo", "evaluate", "x", "--tasks=140"]) == start
    assert again(**played(), command=None) == start
    assert again(**played(level="hard")) == [*start, "--environment.level", "hard"]
    assert again(**played(games="/data/alice")) == start  # a place is no other game
    few = {"conditions": {"max_turns": 3}, "command": ["progpo", "evaluate", "x", "--max_turns=3"]}
    assert again(**played(), **few) == [*start, "--max_turns", "3"]


def test_what_is_not_said_has_its_default():
    short = {"environment": {"name": "alfworld_generated"}}
    options = section_options("environment", "alfworld_generated")
    default = {"environment": short["environment"] | {"level": options["level"][1]}}
    assert again(short, **default)[-2] == "--tasks"
    assert check(evaluation(**default), short) == ""
    assert again(**short)[-2:] == ["--environment.n_eval", str(options["n_eval"][1])]
    assert "n_eval 128 trained" in check(evaluation(**short), RECIPE)


def test_no_command_rather_than_a_wrong_one():
    assert again(**played(index=".../index")) is None  # as a place on the author's machine is written
    assert again(environment={"name": "webshop"}) is None  # its recipe has options that WebShop does not take
    text = render(facts(settings=RECIPE, evaluations=[evaluation(environment={"name": "webshop"})]))
    assert "To measure again" not in text


SUMMARY = {
    "success_before": rate(0.125, 128), "success_after": rate(0.5, 128), "greedy_before": rate(0.25, 128),
    "greedy_after": rate(0.6, 128), "environment": {"name": "alfworld", "eval_split": "valid_seen"},
    "panel": {"temperature": 1.0},
}  # fmt: skip


def test_the_panel_around_training():
    text = render(facts(evaluations=[], around=SUMMARY))
    assert "Not evaluated." not in text
    assert "| temperature 1 | **all** | 12.5 % (2.5 % to 22.5 %) | 50.0 % (40.0 % to 60.0 %) |" in text
    assert "| greedy | **all** | 25.0 % (15.0 % to 35.0 %) | 60.0 % (50.0 % to 70.0 %) |" in text
    said = list(doubts([], {}, weights=None, step=1, adapter=True, around=SUMMARY))
    assert said == ["Evaluated by its own training alone, on 128 games of valid_seen; the single games are not here."]
    for around in ({}, SUMMARY | {key: {"rate": math.nan, "n": 0} for key in ("success_after", "greedy_after")}):
        assert "Not evaluated." in render(facts(evaluations=[], around=around))
        said = list(doubts([], {}, weights=None, step=1, adapter=True, around=around))
        assert said == ["This model was not evaluated: nothing is known of how well it plays."]


def test_a_damaged_summary_is_named(tmp_path):
    path = tmp_path / "summary.json"
    assert read_summary(path) == {}
    for value, said in (("[]", "is no JSON object"), ("{", "cannot be read"), ('{"updates": "x"}', "updates is 'x'")):
        path.write_text(value)
        with pytest.raises(PublishError, match=said):
            read_summary(path)
