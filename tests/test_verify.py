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
        ("t.jsonl.gz", gzip.compress(b"{}" * 9999)[:30]),
        ("t.jsonl.xz", b"not xz"),
    ],
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
