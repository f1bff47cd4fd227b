"""`explain` says why, from live episodes and from episodes.jsonl, and its page runs nothing that a model wrote."""

import json
import os
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "advantages"))

from small_disk import files_of_at_most
from test_properties import ESTIMATORS, batch_of, by_episode, episode

from progpo_trl.advantages import GRPO, HGPO, GiGPO, ProGPO, ProxMO
from progpo_trl.cli import main
from progpo_trl.episodes import episode_from_json
from progpo_trl.explain import ExplainError, explain, read_generation
from progpo_trl.reporting.explanation import as_html, as_text

EVIL = "<script>alert('&')</script>\"><img src=x onerror=alert(1)>\x07"


def generation(estimator=None):
    episodes = [
        episode(0, ["on the desk", "on the shelf", EVIL], 10.0),
        episode(0, ["on the desk", "on the desk"], valid=[True, False]),
        episode(0, ["on the desk", EVIL], dropped=True),
        episode(1, ["on the desk", "near it"]),
        episode(1, ["on the desk", "on the desk"], final="on the desk"),
    ]
    for i, e in enumerate(episodes):
        e.index, e.task = 10 + i, f"do {EVIL}"
        for s in e.steps:
            s.action = s.response = f"go {EVIL}"
    if estimator is not None:
        batch = batch_of(episodes)
        for e, values in zip(episodes, by_episode(batch, estimator(batch)), strict=True):
            e.advantages = values
    return episodes


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_account_holds_the_advantages_of_every_estimator(name, fallback):
    estimator = ProGPO(ESTIMATORS[name]) if fallback else ESTIMATORS[name]
    episodes = generation(estimator)
    expected = by_episode(batch_of(episodes), estimator(batch_of(episodes)))
    for group, members in ((0, [0, 1, 2]), (1, [3, 4])):
        account = explain(episodes, estimator, group)
        assert [e.index for e in account.episodes] == [10 + i for i in members]
        for e, i in zip(account.episodes, members, strict=True):
            if not episodes[i].dropped:
                assert [s.advantage for s in e.steps] == np.float32(expected[i]).tolist()
            assert all(s.because for s in e.steps)
        assert account.largest_difference < 1e-6
        assert as_text(account)
        assert as_html(account)


def account_of(estimator, group=0):
    return explain(generation(), estimator, group)


def test_words_of_grpo_and_dropped_episodes():
    account = account_of(GRPO())
    assert account.notes[0] == "2 episodes, 1 successes, 1 dropped"
    assert account.columns["group mean"] == 5
    assert account.episodes[0].steps[0].because == "score 10 against the group's mean 5 (sd 7.071)"
    assert account.episodes[2].outcome == "dropped"
    assert account.episodes[2].steps[0].because == "left out: the episode was dropped"


def test_words_of_gigpo():
    steps = account_of(GiGPO(norm="mean", gamma=1.0)).episodes[0].steps
    assert "return 10 against 3.3 of the 3 steps that saw this" in steps[0].because
    assert steps[0].peers == "11:0, 11:1"
    assert "no other step of the group saw this" in steps[1].because


def test_words_of_hgpo():
    steps = account_of(HGPO(norm="mean", gamma=1.0)).episodes[0].steps
    assert "1.00 x +6.7 (depth 0: mean 3.3 of 3 steps)" in steps[0].because
    assert steps[1].because == "no set of two steps or more in which returns differ"
    assert "(score 10 against" in account_of(HGPO(base_group=True)).episodes[0].steps[1].because


def test_words_of_proxmo():
    account = account_of(ProxMO())
    assert "W 1 (success at p 0.5)" in account.episodes[0].steps[0].because
    assert "% like 10:0, " in account.episodes[0].steps[0].peers
    exact = account_of(ProxMO(aggregation="exact")).episodes[0].steps[0]
    assert exact.peers == "11:0, 11:1"
    assert "against the same state" in exact.because


def test_nearest_states_are_the_weights_of_the_baseline():
    episodes = generation()
    batch = batch_of(episodes)
    for options in ({}, {"exclude_self": True}, {"tau": 0.0}):
        estimator = ProxMO(**options)
        terms = estimator.terms(batch)
        for row, near in estimator.nearest(batch, 0, count=99).items():
            assert sum(share for _, share in near) == pytest.approx(1)
            if options.get("exclude_self"):
                continue
            means = []
            for first, share in near:  # of all steps that saw this text
                same = (batch.observation == batch.observation[first]) & (batch.group == 0)
                means.append(share * terms["return"][same].mean())
            assert sum(means) == pytest.approx(terms["baseline"][row])


def test_words_of_progpo():
    account = account_of(ProGPO(), group=1)
    assert "gate (env_return): every episode fails: the fallback acts" in account.notes
    assert "q_fail 0.5 (1 of 2 groups)" in account.notes
    assert "lambda_eff 0.15" in account.notes
    assert account.episodes[0].steps[0].because == (
        "base +0 (score 0 is the group's mean); fallback +0.15: progress 1, mean 0.5 (sd 0.5)"
    )
    assert "some episode has a reward: the base alone acts" in account_of(ProGPO()).notes[2]
    assert "always_on" in account_of(ProGPO(always_on=True)).notes[2]


def test_no_such_group():
    with pytest.raises(ExplainError, match=r"no group 5; there are 0, 1$"):
        account_of(GRPO(), group=5)


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.data = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)

    def handle_data(self, data):
        self.data.append(data)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_everything_a_model_or_an_environment_wrote_is_escaped(name):
    page = as_html(explain(generation(), ESTIMATORS[name], 0), 3)
    tags = Tags()
    tags.feed(page)
    assert not {"script", "img", "iframe"} & set(tags.tags)
    assert "alert(1)" in "".join(tags.data)  # as text
    assert "\x07" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page


# ------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def run_folder(tmp_path):
    """A run that used GiGPO with ProGPO: two generations and its settings."""
    estimator = ProGPO(GiGPO(stats="steps"))
    with open(tmp_path / "episodes.jsonl", "w") as file:
        for step in (4, 8):
            file.writelines(json.dumps({"step": step, **e.to_json()}) + "\n" for e in generation(estimator))
    (tmp_path / "config.yaml").write_text("advantage: {name: gigpo, stats: steps}\nprogress_fallback: {}\n")
    return tmp_path


def test_command_with_the_settings_of_the_run(run_folder, capsys):
    assert main(["explain", str(run_folder / "episodes.jsonl"), "--group", "1"]) == 0
    out = capsys.readouterr().out
    assert "group 1 of step 8" in out
    assert "ProGPO(base=GiGPO(stats='steps'))" in out
    assert "fallback +0.15" in out
    assert "recorded" not in out
    page = run_folder / "explain-step8-group1.html"
    assert out.splitlines()[-1] == str(page)
    assert "Group 1 of step 8" in page.read_text()


def test_command_with_the_folder_of_a_run(run_folder, capsys, tmp_path, monkeypatch):
    assert main(["explain", str(run_folder / "episodes.jsonl"), "--group", "1"]) == 0
    of_file, page = capsys.readouterr().out, (run_folder / "explain-step8-group1.html").read_text()
    (run_folder / "explain-step8-group1.html").unlink()
    assert main(["explain", str(run_folder), "--group", "1"]) == 0
    assert capsys.readouterr().out == of_file
    assert (run_folder / "explain-step8-group1.html").read_text() == page
    monkeypatch.chdir(run_folder)
    assert main(["explain", ".", "--group", "1", "--html", "x.html"]) == 0
    assert capsys.readouterr().out.endswith("x.html\n")
    (run_folder / "none").mkdir()
    assert main(["explain", "none", "--group", "1"]) == 2
    assert "none: this folder holds no episodes.jsonl; give" in capsys.readouterr().err


def test_command_with_another_estimator(run_folder, capsys):
    path, page = str(run_folder / "episodes.jsonl"), run_folder / "x.html"
    words = ["--step", "4", "--advantage", "{name: hgpo}", "--progress_fallback", "null", "--html", str(page)]
    assert main(["explain", path, "--group", "0", *words]) == 0
    out = capsys.readouterr().out
    assert "HGPO()" in out
    assert "(recorded " in out
    assert "The run recorded other advantages" in out
    assert page.is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--group", "9"], "there is no group 9"),
        (["--group", "0", "--step", "5"], "no generation at step 5; the nearest is 4"),
        (["--group", "0", "--advantage", "{name: gigo}"], "did you mean 'gigpo'"),
        (["--group", "0", "--advantage", "{name: gigpo, norm: x}"], "norm='x' is not one of"),
        (["--group", "0", "--config", "nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["--group", "0", "--html", "nowhere/x.html"], "nowhere/x.html: the page cannot be written: No such file"),
        (["--group", "0", "--html", "."], ".: the page cannot be written: Is a directory; name another file"),
    ],
)
def test_wrong_use_is_one_line(run_folder, words, message, capsys):
    assert main(["explain", str(run_folder / "episodes.jsonl"), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("progpo explain: error: ")
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert "Errno" not in captured.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no episodes"),
        (b"{", "line 1: is no JSON, so no episode; give the episodes.jsonl of a training"),
        (b"[1, 2]", r"line 1: is no episode but \[1, 2\]; give"),
        (b'{"game": {}}', r"line 1: names no step of a training \(lines of an evaluation have none\)"),
        (b'{"step": 1}', "line 1: is a damaged episode: `task_id` is missing; take the line out, or"),
        (b'\n{"step": "x"}', 'line 2: is a damaged episode: `step` must be a whole number, got "x"'),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "is no JSON"),
        (
            b'{"step": 1, "task_id": "a", "index": 0, "group": 0, "success": true, "steps": []}',
            "no advantage was given",
        ),
        (b'{"step": Infinity}', "line 1: is a damaged episode: `step` must be a whole number, got Infinity"),
    ],
)
def test_unusable_files(tmp_path, content, message):
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(content)
    with pytest.raises(ExplainError, match=message):
        read_generation(path)
    with pytest.raises(ExplainError, match="No such file"):
        read_generation(tmp_path / "nothing")


STEP = {
    "observation": "a",
    "response": "b",
    "action": "c",
    "format_valid": True,
    "admissible": True,
    "reward": 0,
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"final_observation": 5}, "`final_observation` must be text or null, got 5"),
        ({"final_observation": ["x"]}, '`final_observation` must be text or null, got ["x"]'),
        ({"step": float("inf")}, "`step` must be a whole number, got Infinity"),
        ({"index": float("inf")}, "`index` must be a whole number, got Infinity"),
        ({"group": 10**30}, "`group` must be a whole number, got 1000"),
        ({"group": None}, "`group` must be a whole number, got null"),
        ({"stop_reason": "tired"}, "`stop_reason` must be one of success, failure, step_limit, "),
        ({"stop_reason": ["x"]}, "`stop_reason` must be one of "),
        ({"extra_rewards": 3}, "`extra_rewards` must be names with numbers, got 3"),
        ({"steps": "abc"}, '`steps` must be a list of steps, got "abc"'),
        ({"steps": [1]}, "`steps` must be a list of steps, got [1]"),
        ({"steps": [{}]}, "`observation` of step 0 is missing"),
        ({"steps": [STEP, {**STEP, "reward": "much"}]}, '`reward` of step 1 must be a number, got "much"'),
        ({"steps": [{**STEP, "advantage": [1]}]}, "`advantage` of step 0 must be a number or null, got [1]"),
    ],
)
def test_a_damaged_episode_is_one_line(run_folder, changed, message, capsys):
    with open(run_folder / "episodes.jsonl", "a") as file:
        file.write(json.dumps({"step": 9, **generation()[0].to_json(), **changed}) + "\n")
    assert main(["explain", str(run_folder / "episodes.jsonl"), "--group", "0"]) == 2
    err = capsys.readouterr().err
    assert f"episodes.jsonl, line 11: is a damaged episode: {message}" in err
    assert err.endswith("; take the line out, or explain another generation with --step\n")
    assert len(err.splitlines()) == 1


def test_an_unknown_kind_of_invalid_action_is_one_line(run_folder, capsys):
    (run_folder / "config.yaml").write_text("invalid_action: nope\n")
    assert main(["explain", str(run_folder / "episodes.jsonl"), "--group", "0"]) == 2
    err = capsys.readouterr().err
    assert all(name in err for name in ("invalid_action", "nope", "format", "admissible", "either"))
    assert len(err.splitlines()) == 1


def test_texts_that_no_terminal_should_get(tmp_path, capfd):
    evil = "go \x1b[31m\ud800 \x9b1m"
    episodes = [episode(0, ["a", evil], 1.0), episode(0, [evil, "b"], final=evil)]
    for e in episodes:
        e.task = evil
        for s in e.steps:
            s.action = s.response = evil
    (tmp_path / "e.jsonl").write_text("".join(json.dumps({"step": 0, **e.to_json()}) + "\n" for e in episodes))
    assert main(["explain", str(tmp_path / "e.jsonl"), "--group", "0"]) == 0
    out = capfd.readouterr().out
    assert out.startswith("group 0 of step 0: go ")
    assert not {"\x1b", "\x9b", "\ud800"} & set(out)
    for estimator in ESTIMATORS.values():
        account = explain(episodes, estimator, 0)
        assert not {"\x1b", "\x9b", "\ud800"} & set(as_text(account))
        assert "\x1b" not in as_html(account)


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_half_a_last_line_is_left_out(run_folder, cut, caplog):
    path = run_folder / "episodes.jsonl"
    before = [e.to_json() for e in read_generation(path)[1]]
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[0][:cut])
    assert [e.to_json() for e in read_generation(path)[1]] == before
    assert "is cut off and left out" in caplog.text
    path.write_bytes(whole + b'{"task": "\xc3')  # cut within a letter
    assert len(read_generation(path)[1]) == len(before)
    path.write_bytes(whole.splitlines()[0][:cut] + b"\n" + whole)
    with pytest.raises(ExplainError, match="line 1: is no JSON"):
        read_generation(path)


def test_an_episode_that_was_cut_off_is_a_reason_for_other_advantages(run_folder, capsys):
    path = run_folder / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    command = ["explain", str(path), "--step", str(last["step"]), "--group", str(last["group"])]
    assert main(command) == 0
    assert "other advantages" not in capsys.readouterr().out
    path.write_bytes(b"".join(lines)[:-30])
    assert main(command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "an episode is missing here (the file's last line is cut off), or it used another estimator" in said


def test_episodes_survive_the_file(tmp_path):
    episodes = generation(GRPO())
    for e in episodes:
        back = episode_from_json(json.loads(json.dumps(e.to_json())))
        assert back.to_json() | {"steps": None} == e.to_json() | {"steps": None}
        assert [s.observation for s in back.steps] == [s.observation for s in e.steps]
        if not e.dropped:
            np.testing.assert_array_equal(back.advantages, e.advantages)


def test_a_group_that_lost_all_but_one_episode_is_left_out(tmp_path):
    episodes = [episode(0, "ab", 1.0), episode(0, "ab", dropped=True), episode(1, "ab"), episode(1, "ab", 1.0)]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps({"step": 0, **e.to_json()}) + "\n" for e in episodes))
    read = read_generation(tmp_path / "e.jsonl")[1]
    assert [e.dropped for e in read] == [True, True, False, False]


OTHER = ["--advantage", "{name: grpo}", "--progress_fallback", "null"]  # than what the run recorded
MISSING = "an episode is missing here (the file's last line is cut off)"


def test_an_episode_is_missing_only_where_it_is(run_folder, capsys):
    path = run_folder / "episodes.jsonl"
    whole = path.read_bytes()

    def said(content: bytes, step: int) -> str:
        path.write_bytes(content)
        assert main(["explain", str(path), "--group", "1", "--step", str(step), *OTHER]) == 0
        out = capsys.readouterr().out
        assert "The run recorded other advantages" in out
        return out

    assert MISSING in said(whole[:-30], 8)
    assert MISSING not in said(whole[:-30], 4)  # an earlier generation, which is complete
    assert MISSING not in said(whole.rstrip(b"\n"), 8)  # all of the last line but its end
    assert MISSING not in said(whole + b'{"step": 12, "task_id"', 8)  # of a generation that began
    assert MISSING in said(whole + b'{"st', 8)  # nobody knows


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_episodes_through_a_pipe(run_folder, capsys):
    content = (run_folder / "episodes.jsonl").read_bytes()[:-30]
    pipe = run_folder / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[content])
    writer.start()
    assert main(["explain", str(pipe), "--group", "1", *OTHER, "--html", str(run_folder / "x.html")]) == 0
    writer.join()
    assert MISSING in capsys.readouterr().out


def test_a_page_is_whole_or_not_there(run_folder, capsys):
    page, link = run_folder / "x.html", run_folder / "link.html"
    link.symlink_to(page)
    words = ["explain", str(run_folder), "--group", "1", "--html"]
    assert main([*words, str(link)]) == 0
    before = page.read_bytes()
    capsys.readouterr()
    for place in (page, link, run_folder / "new.html"):
        with files_of_at_most(len(before) // 2):
            assert main([*words, str(place)]) == 2
        assert f"{place}: the page cannot be written: File too large" in capsys.readouterr().err
    assert page.read_bytes() == before
    assert link.is_symlink()
    assert {p.name for p in run_folder.iterdir()} == {"episodes.jsonl", "config.yaml", "x.html", "link.html"}
    assert main([*words, os.devnull]) == 0
    assert not os.path.isfile(os.devnull)
