"""`progpo verify alfworld` on recordings of a small game of our own; the real ones are in test_alfworld_real.py."""

import argparse
import gzip
import json

import pytest
from alfworld_games import GAMES, shard_line, write_shard

from progpo_trl import verify
from progpo_trl.environments.alfworld import AlfworldTasks

GAME = "train/a/b"


@pytest.fixture
def games(tmp_path):
    return write_shard(tmp_path / "games.jsonl.xz", [shard_line(GAME), shard_line("train/c/d")])


def recording(games, game=GAME, commands=GAMES["pick_and_place_simple"][2], max_steps=50):
    """What the engine says now, in the format of the recordings."""
    environment = AlfworldTasks(games, max_steps=max_steps).make()
    first = environment.reset(game)
    steps = []
    for command in commands:
        result = environment.step(command)
        step = {"command": command, "feedback": result.text, "admissible": list(result.admissible)}
        steps.append({**step, "won": result.success, "score": environment.score, "done": result.done})
    reset = {"feedback": first.text, "admissible": list(first.admissible), "won": False}
    return {"game": game, "task_type": "pick_and_place_simple", "reset": reset, "steps": steps}


@pytest.fixture
def check(games, tmp_path, capsys):
    """Run the command on recordings (objects, or the file's bytes): (exit status, stdout, stderr)."""

    def run(*recordings, content=None, name="t.jsonl.gz", extra=(), games=games):
        path = tmp_path / name
        text = "".join(json.dumps(entry) + "\n" for entry in recordings).encode()
        content = text if content is None else content
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") and content is text else content)
        parser = argparse.ArgumentParser()
        verify.add_arguments(parser)
        arguments = parser.parse_args(["alfworld", "--games", str(games), "--transcripts", str(path), *extra])
        status = verify.run(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_identical_recordings(check, games, name):
    status, out, _ = check(recording(games), recording(games, "train/c/d", ["look", "nonsense"]), name=name)
    assert status == 0
    assert out.splitlines()[-1] == "identical: 2/2 games, 6 steps"


def test_one_changed_word_is_shown_with_game_step_and_both_texts(check, games):
    changed = recording(games)
    changed["steps"][1]["feedback"] = "You grab the mug 1 from the countertop 1."
    status, out, _ = check(recording(games, "train/c/d"), changed)
    assert status == 1
    assert "game train/a/b, step 2, 'take mug 1 from countertop 1', feedback" in out
    assert "recorded: 'You grab the mug 1 from the countertop 1.'" in out
    assert "ours:     'You pick up the mug 1 from the countertop 1.'" in out
    assert out.splitlines()[-1] == "identical: 1/2 games, 6 steps"


@pytest.mark.parametrize(
    ("step", "field", "value"),
    [
        *((0, "feedback", "Hello"), (0, "won", True), (0, "admissible", ["look"])),
        *((4, "admissible", []), (4, "won", False), (4, "score", 0), (4, "done", False)),
        *((1, "done", True), (1, "score", 1)),
    ],
)
def test_every_recorded_field_counts(check, games, step, field, value):
    changed = recording(games)
    (changed["steps"][step - 1] if step else changed["reset"])[field] = value
    status, out, _ = check(changed)
    assert status == 1
    assert f"{f'step {step}' if step else 'reset'}, " in out
    assert f", {field}" in out


def test_differing_commands_are_listed(check, games):
    changed = recording(games)
    changed["steps"][0]["admissible"][0] = "climb desk 1"
    out = check(changed)[1]
    assert "only recorded: ['climb desk 1']" in out
    assert "only ours:     ['examine countertop 1']" in out


def test_the_step_limit_of_the_recording(check, games):
    long = recording(games, commands=["look"] * 60, max_steps=100)
    status, out, _ = check(long)
    assert status == 1
    assert "step 50" in out
    assert "--max-steps" in out
    assert check(long, extra=["--max-steps", "100"])[0] == 0


def without(entry, *keys):
    copy = json.loads(json.dumps(entry))
    inner = copy
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return copy


def test_shards_below_the_folder_that_was_named_are_pointed_at(games, tmp_path):
    (tmp_path / "all" / "shards").mkdir(parents=True)
    (tmp_path / "all" / "shards" / "train.jsonl.xz").write_bytes(b"")
    (tmp_path / "all" / "json_2.1.1" / "train").mkdir(parents=True)
    assert (
        verify._elsewhere(tmp_path / "all")
        == f"; there are shards of games in {tmp_path / 'all' / 'shards'}: give that"
    )
    assert verify._elsewhere(tmp_path / "all" / "shards") == ""


def test_unusable_recordings_are_clear_errors(check, games):
    good = recording(games)
    for bad, message in [
        (without(good, "game"), "line 1: the transcript needs 'game' of type str"),
        (without(good, "reset", "won"), "its reset needs 'won' of type bool"),
        (without(good, "steps", 2, "feedback"), "its step 3 needs 'feedback' of type str"),
        ({**good, "steps": [3]}, "its step 1 is not an object"),
        ({**good, "reset": {**good["reset"], "admissible": [3]}}, "admissible command that is not text"),
        ([], "the transcript is not an object"),
        ({**good, "game": "train/no/such"}, "line 1: its game 'train/no/such' is not in"),
    ]:
        status, out, err = check(bad)
        assert (status, out) == (2, "")
        assert message in err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.jsonl", b'{"game": "train'),
        ("t.jsonl", b"\xff\xfe"),
        ("t.jsonl", b""),
        ("t.jsonl", b"[" * 100_000),
        ("t.jsonl.gz", b"not gzip"),
        ("t.jsonl.gz", gzip.compress(b"{}" * 9999, mtime=0)[:30]),
        ("t.jsonl.xz", b"not xz"),
    ],
    ids=["cut", "not-utf8", "empty", "deep", "not-gzip", "cut-gzip", "not-xz"],
)
def test_unreadable_recordings_are_clear_errors(check, name, content):
    status, out, err = check(content=content, name=name)
    assert (status, out) == (2, "")
    assert name in err


def test_missing_files_are_clear_errors(check, games, tmp_path):
    status, _, err = check(recording(games), games=tmp_path / "nowhere")
    assert status == 2
    assert "nowhere: does not exist" in err
    with pytest.raises(verify.TranscriptError, match="there is no such file"):
        verify.verify_alfworld(games, tmp_path / "nothing.jsonl")


# ------------------------------------------------------------------------------------------------------- estimators

ROWS = {
    "group": ["g"] * 4,
    "traj": ["a", "a", "b", "b"],
    "obs": ["s0", "s1", "s0", "s2"],
    "step_reward": [0.0, 1.0, 0.0, 0.0],
    "valid": [1, 1, 1, 0],
    "episode_return": [1.0, 1.0, 0.0, 0.0],
    "gamma": 0.5,
    "invalid_penalty": 0.1,
    "derived": {"row_score": [1.0, 1.0, 0.0, -0.1], "row_return": [0.5, 1.0, 0.0, -0.1]},
}
CASE = {
    "name": "by hand",
    "estimator": "grpo",
    "params": {"norm_by_std": False, "stats": "trajectories", "eps": 1e-6},
    "inputs": "rows",
    "expected": {"adv": [0.5, 0.5, -0.5, -0.6]},
}


COVERAGE = {
    "name": "divides by zero",
    "estimator": "progpo",
    "params": {
        **{"lambda_aux": 0.3, "tau_R": 0.0, "tau_P": 0.0, "eps_P": 1e-6, "scale_by_q_fail": True},
        **{"include_final_obs": True, "base_stats": "trajectories", "base_eps": 1e-6},
    },
    "inputs": {"group": ["g", "g"], "episode_return": [0.0, 0.0], "coverage": ["1/0", "1/2"]},
    "expected": {"adv": [0.0, 0.0]},
}


def golden(*cases, **batches):
    return {"schema": {}, "sources": {}, "batches": {"rows": ROWS, **batches}, "cases": list(cases)}


@pytest.fixture
def check_estimators(tmp_path, capsys):
    """Run the command on a golden file (an object, or its text): (exit status, stdout, stderr)."""

    def run(content):
        path = tmp_path / "golden.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        parser = argparse.ArgumentParser()
        verify.add_arguments(parser)
        status = verify.run(parser.parse_args(["estimators", str(path)]))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_estimators_that_agree(check_estimators):
    status, out, _ = check_estimators(golden(CASE, {**CASE, "name": "again"}))
    assert status == 0
    assert out.splitlines()[-1].startswith("passed: 2/2, worst difference ")


def test_one_wrong_number_is_named(check_estimators):
    wrong = {**CASE, "name": "wrong", "expected": {"adv": [0.5, 0.5, -0.5, -0.5]}}
    status, out, _ = check_estimators(golden(CASE, wrong))
    assert status == 1
    assert "failed: wrong: adv differs by 0.1" in out
    assert out.splitlines()[-1] == "passed: 1/2, worst difference 0.1"


def test_derived_rows_and_tolerances_count(check_estimators):
    returns = {**ROWS, "derived": {**ROWS["derived"], "row_return": [0.5, 1.0, 0.0, 0.0]}}
    assert check_estimators(golden({**CASE, "inputs": "other"}, other=returns))[0] == 1
    loose = {**CASE, "expected": {"adv": [0.5, 0.5, -0.5, -0.5], "atol": 0.1}}
    assert check_estimators(golden(loose))[0] == 0


def test_noisy_cases_are_held_to_the_exact_numbers(check_estimators):
    noisy = {**CASE, "float_noise": True, "expected": {"adv": [9.0] * 4, "adv_exact": [0.5, 0.5, -0.5, -0.6]}}
    assert check_estimators(golden(noisy))[0] == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no golden file"),
        ("[]", "is no golden file"),
        (golden(), "holds no cases"),
        (golden({**CASE, "estimator": "grpoo"}), "there is no estimator 'grpoo'"),
        (golden({**CASE, "params": {}}), "by hand cannot be run"),
        (golden({**CASE, "inputs": "nowhere"}), "by hand cannot be run"),
        (golden({**CASE, "expected": {"adv": [0.0]}}), "4 of ours for 1 expected values"),
        ({**golden(), "cases": 5}, "holds no cases"),
        ({**golden(), "cases": {"a": CASE}}, "holds no cases"),
        (golden({**CASE, "expected": {"adv": ["1/0", 0.5, -0.5, -0.6]}}), "by hand cannot be run: ZeroDivisionError"),
        (
            golden({**CASE, "expected": {"adv": [float("inf"), 0.5, -0.5, -0.6]}}),
            "adv: an expected value is not finite",
        ),
        (golden({**CASE, "expected": {}}), "by hand cannot be run: KeyError: 'adv'"),
        (golden({**CASE, "expected": {"adv": {}}}), "it expects no advantages"),
        (golden({**CASE, "expected": {"adv": []}}), "it expects no advantages"),
        (golden({**CASE, "expected": {"adv": None}}), "by hand cannot be run"),
        (
            golden({**CASE, "expected": {**CASE["expected"], "atol": float("inf")}}),
            "atol must be from 0 to 0.1, got inf",
        ),
        (
            golden({**CASE, "expected": {**CASE["expected"], "atol": float("nan")}}),
            "atol must be from 0 to 0.1, got nan",
        ),
        (golden({**CASE, "expected": {**CASE["expected"], "atol": 0.2}}), "atol must be from 0 to 0.1, got 0.2"),
        (golden({**CASE, "expected": {**CASE["expected"], "atol": "x"}}), "by hand cannot be run"),
        (golden(COVERAGE), "divides by zero cannot be run: ZeroDivisionError"),
    ],
)
def test_unusable_golden_files_are_clear_errors(check_estimators, content, message):
    status, out, err = check_estimators(content)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_missing_golden_file(capsys):
    parser = argparse.ArgumentParser()
    verify.add_arguments(parser)
    assert verify.run(parser.parse_args(["estimators", "nowhere.json"])) == 2
    assert "nowhere.json" in capsys.readouterr().err
