"""What `progpo run` shows: text as it is sampled, and nothing that acts on a terminal."""

import numpy as np

from progpo_trl.cli import main
from progpo_trl.environments import load_environment
from progpo_trl.environments.base import Observation, StepResult
from progpo_trl.run_agent import Show


def show(decode) -> Show:
    shown = Show(load_environment("alfworld_generated", level="easy"), decode)
    shown._max_turns, shown._turn = 3, 0
    return shown


def test_control_characters_never_reach_the_terminal(capsys):
    shown = show(lambda ids: "".join(map(chr, ids)))
    shown.start(Observation("a\x1b[31m room\x07", task="find\x9b2J it"))
    for character in "\x1b]0;title\x07<think>a\r\u202eb\x08</think>":
        shown.tokens(np.array([ord(character)]))
    shown.act("go\x1b[2J")
    shown.see(StepResult("you\x1b[H see", reward=1.0))
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x07\x9b\r\u202e\x08")
    for text in (
        "a\ufffd[31m room\ufffd",
        "Task: find\ufffd2J it",
        "<think>a\ufffd\ufffdb\ufffd</think>",
        "> go\ufffd[2J",
        "reward 1",
    ):
        assert text in out


def test_what_cannot_be_run_is_one_line(capsys):
    for words, message in (
        (["tiny", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["tiny", "--episodes", "0"], "--episodes must be at least 1, got 0"),
        (["tiny", "--temperature", "nan"], "--temperature must be at least 0 and finite, got nan"),
        ([".", "--config", "nowhere.yaml"], "--config nowhere.yaml: no such file"),
        ([".", "--config", "quickstart", "--learning_rate", "1"], "there is no option --learning_rate"),
    ):
        assert main(["run", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("progpo run: error: ")
        assert message in line


def test_standard_input_that_was_read_from_is_taken_as_it_is(capsys, monkeypatch, tmp_path):
    (tmp_path / "typed").write_text("y\nq\n")
    with open(tmp_path / "typed") as typed:
        assert typed.readline() == "y\n"
        monkeypatch.setattr("sys.stdin", typed)
        show(str).screen.say("here")
    assert capsys.readouterr().out == "here\n"


def test_text_appears_as_soon_as_it_is_whole(capsys):
    shown = show(lambda ids: bytes(ids).decode("utf-8", "replace"))
    for byte, expected in zip("aé<".encode(), ("a", "", "é", "<"), strict=True):
        shown.tokens(np.array([byte]))
        assert capsys.readouterr().out == expected
    shown.tokens(np.array([0xC3]))  # the response is cut inside a character
    shown.act("")
    assert capsys.readouterr().out == "\ufffd\n(no action could be read)\n"
