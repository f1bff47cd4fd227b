"""`progpo play` in the terminal: piped, at a real terminal, and asked wrongly."""

import argparse
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from play_sites import EVIL, exit_code, hostile_tasks
from webshop_shop import item, write_shop

from progpo_trl.cli import main
from progpo_trl.environments import Environment, EnvironmentTasks, Observation, StepResult, load_environment
from progpo_trl.environments.webshop.store import build_store, generated_source
from progpo_trl.play.command import add_arguments
from progpo_trl.play.hints import hint
from progpo_trl.play.player import Player
from progpo_trl.play.terminal import SHOWN, Terminal

ROOMS = ["play", "alfworld_generated", "--seed", "1"]


@pytest.fixture
def play(monkeypatch, capsys):
    """Runs `progpo play` with lines on standard input; (exit status, output, error output)."""

    def run(words, *lines):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        status = main(["play", *words] if words[:1] != ["play"] else words)
        return (status, *capsys.readouterr())

    return run


def test_an_episode_by_number_and_by_text(play, tmp_path):
    tasks = load_environment("alfworld_generated")
    player = Player(tasks, tasks.task_ids("valid_unseen")[0])
    file = tmp_path / "played.jsonl"
    words = ["alfworld_generated", "--task", player.task_id, "--expert", "--save", str(file)]
    status, out, err = play(words, "1", "?", "LOOK", "99", "0", "wibble", "s")
    assert (status, err) == (0, "")
    first, second = player.turn.admissible[0], None
    player.play(first)
    second = player.turn.observation
    assert f"Task: {player.episode.task}" in out
    assert f"> 1\n\n--- after step 1 of 12 ---\n{second}\n" in out
    assert re.search(r"The expert: (go to|take|open) ", out)
    assert out.count("There is no command") == 2
    assert "('wibble' is not one of the commands; u takes it back)" in out
    assert out.endswith(
        f"Steps so far:\n  1 {first}\n  2 look\n  3 wibble  (not one of the commands)\n"
        f"Saved to {file}.\nLeft after 3 steps; the episode was not over.\n"
    )
    record = json.loads(file.read_text())
    assert [s["action"] for s in record["steps"]] == [first, "look", "wibble"]
    assert record["stop_reason"] is None


def test_to_the_end_and_on(play, tmp_path):
    file = tmp_path / "played.jsonl"
    words = [
        "webshop_generated",
        "--option",
        "products=100",
        "--option=max_steps=6",
        "--seed",
        "3",
        "--save",
        str(file),
    ]
    lines = ["search[classic]", "3", "click[buy now]", "p", "3", "u", "u", "r", "n", "q", "1"]
    status, out, _ = play(words, *lines)
    assert status == 0
    assert re.search(r"The end after 3 steps: failure, return 0, score 0(\.\d+)?\nbought 1, r_type ", out)
    assert "Type it with your own words: search[<your query>]" not in out
    assert "The episode is over: a policy gets no prompt." in out
    assert "The episode is over: u takes the last step back" in out
    assert out.count("Commands:") == 3 + 2 + 1 + 1  # u shows the page again, r and n the first one
    assert len(set(re.findall(r"task (full-100-0-\d+-\w+)", out))) == 2
    assert out.endswith("Left after 0 steps; the episode was not over.\n")
    ends = [json.loads(line)["stop_reason"] for line in file.read_text().splitlines()]
    assert ends == ["failure", None]  # what was bought; what was left after two steps back


def test_success_is_named(play):
    tasks = load_environment("webshop_generated", products=100)
    lines, player = [], Player(tasks, tasks.task_ids("dev")[0])
    while not player.done:
        lines.append(hint(player))
        player.play(lines[-1])
    assert player.score == 1.0
    status, out, _ = play(["webshop_generated", "--option", "products=100", "--task", player.task_id], *lines)
    assert status == 0
    assert f"The end after {len(lines)} steps: success, return 10, score 1\n" in out
    assert "reward 10" in out
    assert out.endswith("the episode is over.\n")


def test_filter_help_prompt_and_open_commands(play):
    status, out, _ = play([*ROOMS, "--show-prompt", "--template", "alfworld"], "/go to", "/zebra", "/", "h", "u", "?")
    assert status == 0
    listed = re.search(r"Commands with 'go to':\n(.*?)\n>", out, re.S)[1].splitlines()
    assert listed
    assert all(re.fullmatch(r" +\d+ go to .*", line) for line in listed)
    assert "No command contains 'zebra'." in out
    assert "the prompt that a policy would get" in out
    assert "There is no step to take back." in out
    assert "Hints need --expert" in out
    prompt = re.search(r"--- the prompt ---\n(.*?)\n--- end of the prompt ---", out, re.S)[1]
    assert prompt.startswith("You are an expert agent")
    assert "<action> </action>" in prompt
    _, out, _ = play(["webshop_generated", "--option", "products=50"], "1", "2", "")
    assert "Type it with your own words: search[<your query>]" in out
    assert "There is no command 2: they go from 1 to 1." in out


class Corridor(Environment):
    doors = SHOWN + 17

    def reset(self, task_id, seed=0):
        return Observation("A corridor.", tuple(f"open door {i}" for i in range(self.doors)))

    def step(self, action):
        return StepResult("It is locked.")


def test_long_lists_are_cut(monkeypatch, capsys):
    player, n = Player(EnvironmentTasks(Corridor, ["corridor"]), "corridor"), Corridor.doors
    monkeypatch.setattr("sys.stdin", io.StringIO("/\n"))
    assert Terminal(lambda: player).run() == 0
    short, whole = capsys.readouterr().out.split("> /\n")
    assert f"and {n - SHOWN} more: / lists all" in short
    assert re.findall(r"^ +(\d+) ", short, re.M) == [str(i) for i in range(1, SHOWN + 1)]
    assert re.findall(r"^ +(\d+) ", whole, re.M) == [str(i) for i in range(1, n + 1)]


def test_hostile_text_does_not_act_on_the_terminal(monkeypatch, capsys):
    tasks = hostile_tasks()
    monkeypatch.setattr("sys.stdin", io.StringIO("p\n\x1b[2J\x00\nend\n"))
    assert Terminal(lambda: Player(tasks, f"task-{EVIL}"), show_prompt=True).run() == 0
    out = capsys.readouterr().out
    assert "<script>" in out
    assert "return 1" in out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]", out)


def test_a_line_without_an_action_plays_nothing(play):
    status, out, err = play(ROOMS, "</action>", " <action> </action>", "look")
    assert (status, err) == (0, "")
    assert out.count("Nothing was played: no action is in this.") == 1
    assert "after step 2 of 12" in out  # an action that is only an opening tag is one, as for a policy
    assert out.endswith("Left after 2 steps; the episode was not over.\n")


def test_damaged_files_end_it_with_one_line(play, tmp_path):
    store = build_store(generated_source(60), tmp_path / "store")
    words = ["webshop_generated", "--option", "products=60", "--option", f"store={store}", "--seed", "1"]
    path, saved = store / "products.npy", tmp_path / "played.jsonl"
    task = load_environment("webshop_generated", products=60)
    goal = task.catalogue.goals[task.ids.goal(task.task_ids("dev")[0])]
    words += ["--task", task.task_ids("dev")[0], "--save", str(saved)]
    ends = np.load(store / "product_ends.npy")
    content = bytearray(path.read_bytes())
    for position in set(range(60)) - {goal.position}:
        content[128 + int(ends[position]) - 9] ^= 1  # 128 bytes are the file's header
    path.write_bytes(content)
    status, out, err = play(words, "click[nothing]", f"search[{goal.instruction}]", "look")
    assert status == 2
    assert re.fullmatch(rf"progpo play: error: {re.escape(str(path))}, record \d+: is damaged: .*\n", err)
    assert out.endswith(f"Saved to {saved}.\nLeft after 1 step; the episode was not over.\n")


def test_spaces_of_any_kind_are_shown_as_spaces(play, tmp_path):
    every = "".join(c for c in map(chr, range(0x10000)) if unicodedata.category(c) == "Zs")
    record = item("A1", f"Oak{every}\tChair\u200b", product_category="Chairs")
    wish = {"attributes": [], "instruction": "Find me", "instruction_attributes": ["x"]}
    write_shop(tmp_path, items=[record], attributes={"A1": wish}, nouns={"A1": []}, human={})
    status, out, _ = play(["webshop", "--data", str(tmp_path), "--split", "train"], "search[chair]")
    assert status == 0
    assert f"\nOak{' ' * len(every)} Chair\ufffd\n" in out


def test_ids_of_lists_do_not_act_on_the_terminal(play, tmp_path):
    asin = "C\u202e\x1b[2J\ud800"
    record, wish = item(asin, "Oak"), {"attributes": [], "instruction": "Find me", "instruction_attributes": ["x"]}
    write_shop(tmp_path, items=[record], attributes={asin: wish}, nouns={asin: []}, human={})
    status, out, _ = play(["webshop", "--data", str(tmp_path), "--list", "--split", "train"])
    assert (status, out) == (0, "goal-00000-C\ufffd\ufffd[2J\ufffd  garden\n")


def test_a_pipe_of_bytes_is_no_crash():
    words = [sys.executable, "-m", "progpo_trl", *ROOMS]
    done = subprocess.run(words, input=b"\xff\xfe\x00look\n1\n", capture_output=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Left after 2 steps" in done.stdout
    assert b"\x1b" not in done.stdout


def test_a_reader_that_leaves_early_ends_it_quietly():
    words = [sys.executable, "-m", "progpo_trl", "play", "alfworld_generated", "--list", "--split", "train"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "easy/train/000000  pick_and_place_simple\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


class Typist:
    """`progpo play` at a pseudo-terminal."""

    def __init__(self, *words):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(sys.executable, [sys.executable, "-m", "progpo_trl", *words], os.environ | {"TERM": "xterm"})
        self.seen = ""

    def until(self, text: str, seconds: float = 240) -> str:
        """Read until `text` was printed; what came until then."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, f"{text!r} did not come: {self.seen!r}"
            if select.select([self.terminal], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.terminal, 65536).decode(errors="replace")
                except OSError:  # closed by the program's end
                    assert text in self.seen, self.seen
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def status(self) -> int:
        status = exit_code(self.pid)
        os.close(self.terminal)  # not before: that would end the program
        return status


@pytest.mark.parametrize(("key", "status"), [("\x03", 130), ("\x04", 0), ("q\r", 0)])
def test_at_a_terminal(key, status):
    typist = Typist(*ROOMS)
    assert "\x1b[" in typist.until("> ")  # colours
    if key == "\x04":
        typist.type("inv\t\r")  # Tab completes
        assert "You are not carrying anything" in typist.until("> ")
        typist.type("\x1b[A\r")  # the last line again
        assert "You are not carrying anything" in typist.until("> ")
    typist.type(key)
    typist.until("Left after ")
    rest = typist.until("not over.")
    assert "Traceback" not in rest
    assert typist.status() == status


def test_wrong_use_is_one_line(play, monkeypatch, tmp_path):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    other = tmp_path / "other.txt"
    other.write_text("something else\n")
    for words, said in {
        ("webshop",): "set WEBSHOP_DATA or give the folder.*webshop_generated",
        ("webshop", "--data", str(tmp_path)): "items_shuffle",
        ("alfworld",): "set ALFWORLD_DATA.*alfworld_generated",
        ("alfworld_generated", "--task", "easy/valid_unseen/00068"): "nearest|one of valid_unseen is .*--list",
        ("alfworld_generated", "--split", "test"): "no split 'test'; there are train",
        ("alfworld_generated", "--option", "levl=easy"): "levl.*did you mean .*level",
        ("alfworld_generated", "--option", "level"): "is not KEY=VALUE",
        ("alfworld_generated", "--option", "split=train"): "--split",
        ("alfworld_generated", "--option", "n_train=many"): "n_train.*whole number",
        ("alfworld_generated", "--data", "x"): "needs no data",
        ("alfworld_generated", "--option", "level=easy", "--option", "level=hard"): "--option level is given twice",
        ("webshop", "--data", "x", "--option", "data=y"): "--data and --option data are the same",
        ("alfworld_generated", "--list", "--task", "x"): "--task has no use with --list",
        ("alfworld_generated", "--list", "--show-prompt"): "--show-prompt has no use with --list",
        ("alfworld_generated", "--list", "--history", "2"): "--history has no use with --list",
        ("alfworld_generated", "--list", "--save", str(tmp_path / "new")): "--save has no use with --list",
        ("alfworld_generated", "--template", "alfwrld"): "did you mean 'alfworld'",
        ("alfworld_generated", "--port", "80"): "--port needs --serve",
        ("alfworld_generated", "--serve", "--port", "70000"): "65535",
        ("alfworld_generated", "--history", "-1"): "negative",
        ("alfworld_generated", "--save", str(other)): "other.txt, line 1: no episode",
        ("alfworld_generated", "--save", str(tmp_path / "no" / "file")): "No such file",
    }.items():
        status, out, err = play(list(words))
        assert (status, out) == (2, ""), words
        assert err.count("\n") == 1
        assert err.startswith("progpo play: error: ")
        assert re.search(said, err), err
    for words in (["tetris"], ["webshop", "--list", "--serve"]):
        with pytest.raises(SystemExit) as caught:
            main(["play", *words])
        assert caught.value.code == 2


def test_the_page_on_playing_names_every_option_and_key():
    page = Path(__file__).parents[1] / "docs" / "playing.md"
    text = page.read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = [action.option_strings[-1] for action in parser._actions if action.option_strings]
    assert {option for option in options if option not in text} == {"--help"}
    assert all(f"`{key}`" in text for key in ("?", "p", "s", "u", "r", "n", "q"))
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / target).exists(), target
    assert all(len(line) <= 119 for line in text.splitlines() if not line.startswith("|"))


def test_data_splits_and_lists(play, tmp_path):
    data = str(write_shop(tmp_path / "shop"))
    status, out, _ = play(["webshop", "--data", data, "--list", "--split", "train"])
    assert status == 0
    assert re.match(r"goal-0000\d-[CL]0000000\d\d  \w+\n", out)
    status, out, _ = play(["webshop", "--data", data, "--seed", "1"], "search[chair]")
    assert status == 0
    assert "Page 1 (Total results: " in out
    again = play(["webshop", "--data", data, "--seed", "1"], "search[chair]")[1]
    assert again == out
