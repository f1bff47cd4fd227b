"""`progpo run`: a published agent plays games in the terminal, token by token.

The games are played by the evaluation's own agent (`evaluation.PolicyAgent`), so what is seen here is what is
measured there: the same prompt, the same sampling stream, greedy the same actions.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import math
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from progpo_trl.environments.base import Environment, Observation, StepResult, TaskSet
from progpo_trl.environments.webshop.pages import SEPARATOR
from progpo_trl.episodes import Episode, StopReason
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.play.terminal import Screen
from progpo_trl.reporting.explanation import printable
from progpo_trl.settings_values import SettingsError, nearest, one_line

RECIPE = "config.yaml"


class RunError(ValueError):
    """Something that cannot be run; the message is one line."""


def parser() -> argparse.ArgumentParser:
    """The command's own options; settings of the recipe may follow, by their names."""
    text = argparse.ArgumentParser(
        prog="progpo run",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Let a published agent play in the terminal. What it plays and how it is asked is in its recipe.",
        epilog=(
            "Settings of the recipe can be overridden by their names, such as --environment.games DIR or\n"
            "--environment.level hard. With HF_HUB_OFFLINE=1 only what is in the cache is used.\n"
            "--trust_remote_code lets a model that needs it run code of its own repository; the recipe that comes\n"
            "with an agent cannot turn it on, nor choose kernels.\n\n"
            "  progpo run USER/NAME\n"
            "  progpo run runs/quickstart --task easy/valid_unseen/000003\n"
        ),
    )
    text.add_argument("model", metavar="REPO_OR_DIR", help="a published agent: its id on the Hub or its folder; a run")
    text.add_argument("--task", metavar="ID", help="what to play (default: random tasks of the split)")
    text.add_argument("--split", metavar="NAME", help="of the tasks (default: what the recipe evaluates)")
    text.add_argument("--environment", metavar="NAME", help="another environment than the recipe's")
    text.add_argument("--config", metavar="FILE", help=f"the recipe (default: {RECIPE} of the agent)")
    text.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0, greedy")
    text.add_argument("--seed", type=int, default=0, metavar="N", help="draws tasks and tokens (default: 0)")
    text.add_argument("--episodes", type=int, default=1, metavar="N", help="how many games (default: 1)")
    text.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="of the weights")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 played, 2 asked wrongly, 130 interrupted."""
    options, settings = parser().parse_known_args(sys.argv[1:] if argv is None else list(argv))
    try:
        return _run(options, settings)
    except KeyboardInterrupt:
        print()
        return 128 + signal.SIGINT
    except (RunError, SettingsError, EvaluationError) as error:
        print(f"progpo run: error: {printable(str(error))}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace, settings: Sequence[str]) -> int:
    if not (math.isfinite(options.temperature) and options.temperature >= 0):
        raise RunError(f"--temperature must be at least 0 and finite, got {options.temperature:g}")
    if options.episodes < 1:
        raise RunError(f"--episodes must be at least 1, got {options.episodes}")
    if options.seed < 0:
        raise RunError(f"--seed must be at least 0, got {options.seed}")
    agent, tasks, split, max_turns = load(options, settings)
    games = _games(options, tasks, split)
    show = Show(tasks, _decoder(agent))
    agent.on_tokens = show.tokens
    try:
        solved = sum(show.play(agent, game, max_turns) for game in games)
    except RuntimeError as error:
        raise RunError(one_line(error)) from error
    if len(games) > 1:
        show.screen.say(f"\nSolved {solved} of {len(games)}.", "bold")
    return 0


def load(options: argparse.Namespace, settings: Sequence[str]) -> tuple[Any, TaskSet, str, int]:
    """(agent, task set, split, most actions of an episode) that the options ask for."""
    from progpo_trl import evaluate

    config = options.config or _recipe(options.model)
    _check_settings(settings)
    words = [*settings, *(["--environment.name", options.environment] if options.environment else [])]
    asked = evaluate.parser().parse_args([])
    asked.model, asked.config, asked.dtype, asked.batch_size = options.model, config, options.dtype, 1
    # A downloaded recipe must not decide that downloaded code is run.
    job = evaluate.read_job(asked, words, None, trusted=options.config is not None, prog="progpo run")
    if job.note:
        print(f"progpo run: {printable(job.note)}", file=sys.stderr)
    tasks = evaluate.load_tasks(job.script)
    split = options.split or job.script.environment["eval_split"] or tasks.eval_split
    try:
        ids = tasks.task_ids(split)
    except KeyError as error:
        raise RunError(f"--split {split}: {error.args[0]}") from None
    if options.task is not None:
        _check_task(tasks, options.task, ids)
    agent = evaluate.load_agent(job, tasks)
    agent.prepare(tasks)
    return agent, tasks, split, min(job.config.max_turns or tasks.max_steps, tasks.max_steps)


def _check_settings(words: Sequence[str]) -> None:
    """Only settings that decide what is played may follow the command's own options."""
    from progpo_trl.evaluate import SETTINGS

    own = [option.removeprefix("--") for action in parser()._actions for option in action.option_strings]
    for word in words:
        name = word.removeprefix("--").partition("=")[0].partition(".")[0].replace("-", "_")
        if not word.startswith("--") and word is words[0]:
            raise RunError(f"unexpected {word!r}; one agent is run at a time")
        if word.startswith("--") and name not in SETTINGS:
            raise RunError(f"there is no option --{name}{nearest(name, [*own, *SETTINGS])}")


def _recipe(model: str) -> str:
    """The recipe of a published agent: in its folder, beside its checkpoint, or on the Hub."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        for place in (folder, folder.resolve().parent):
            if (place / RECIPE).is_file():
                return str(place / RECIPE)
        raise RunError(f"{model}: holds no {RECIPE}; name the recipe with --config FILE")
    if folder.is_file() or model.startswith((".", "/", "~")):
        raise RunError(f"{model}: there is no such folder")
    return _from_hub(model)


def _from_hub(model: str) -> str:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    from progpo_trl.publishing.folder import PROMPT

    try:
        path = hf_hub_download(model, RECIPE)
    except LocalEntryNotFoundError:
        raise RunError(
            f"{model}: is no folder here, not in the cache of the Hub, and the Hub cannot be reached (offline?)"
        ) from None
    except EntryNotFoundError:
        raise RunError(f"{model}: has no {RECIPE}: was not published by progpo; name a recipe with --config") from None
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise RunError(f"{model}: {one_line(error)}") from error
    with contextlib.suppress(EntryNotFoundError, HfHubHTTPError, OSError):
        # It lies beside the recipe then; only agents with a prompt of their own have one.
        hf_hub_download(model, PROMPT)
    return path


def _check_task(tasks: TaskSet, task: str, ids: Sequence[str]) -> None:
    try:
        tasks.task_type(task)
        tasks.make().reset(task)
    except (KeyError, ValueError):
        near = nearest(task, ids) if len(ids) <= 20_000 else ""
        raise RunError(f"--task {task}: there is no such task{near or f'; {ids[0]} is one'}") from None


def _games(options: argparse.Namespace, tasks: TaskSet, split: str) -> list:
    """The games asked for: one task under several sampling seeds, or several tasks of the split."""
    from progpo_trl.evaluation.agents import Game

    if options.task is not None:
        chosen = [(options.task, options.seed + i) for i in range(options.episodes)]
    else:
        ids = tasks.task_ids(split)
        order = random.Random(options.seed)
        some = order.sample(range(len(ids)), min(options.episodes, len(ids)))
        chosen = [(ids[i], options.seed) for i in some]
    temperature = float(options.temperature)
    return [Game(split, task, tasks.task_type(task), i, temperature, seed) for i, (task, seed) in enumerate(chosen)]


def _decoder(agent):
    return lambda ids: agent.tokenizer.decode(ids, skip_special_tokens=True)


class Show:
    """Shows one episode at a time: observations as the environment gives them, responses as they are sampled."""

    def __init__(self, tasks: TaskSet, decode):
        self.tasks, self.screen = tasks, Screen()
        self._decode = decode
        self._ids: list[int] = []
        self._shown = ""

    def play(self, agent, game, max_turns: int) -> bool:
        """Play `game` with `agent` on the screen; whether it was solved."""
        self._max_turns, self._turn = max_turns, 0
        self.screen.say(f"{self.tasks.name}: task {game.task_id} ({game.task_type}), at most {max_turns} actions.")
        ended: list[Episode] = []
        on_done = lambda game, episode, notes: ended.append(episode)  # noqa: E731
        agent.play([game], watched(self.tasks, self), on_done, max_turns=max_turns)
        self._end(ended[0])
        return ended[0].success

    def tokens(self, ids: np.ndarray) -> None:
        """One more token of the response."""
        self._ids.append(int(ids[0]))
        text = self._decode(self._ids)
        # A character may take several tokens, and is a replacement character until the last of them.
        whole = text.removesuffix("\ufffd")
        if whole.startswith(self._shown) and len(whole) > len(self._shown):
            self._write(whole[len(self._shown) :])
            self._shown = whole

    def _write(self, piece: str) -> None:
        self.screen.write(piece, "bold" if "<action>" in self._shown else "dim")

    def start(self, first: Observation) -> None:
        """The episode begins."""
        if first.task and first.task not in first.text:
            self.screen.say(f"Task: {first.task}", "bold")
        self._observation(first.text)
        self._rule()

    def act(self, action: str) -> None:
        """The response is complete and was read as `action`."""
        rest = self._decode(self._ids)[len(self._shown) :]
        self._write(rest)
        self.screen.say()
        self._ids, self._shown = [], ""
        self.screen.say(f"> {action}" if action else "(no action could be read)", "bold green" if action else "yellow")

    def see(self, result: StepResult) -> None:
        """What the action led to."""
        self._observation(result.text)
        if result.reward:
            self.screen.say(f"reward {result.reward:g}", "bold")
        self._turn += 1
        if not result.done and self._turn < self._max_turns:
            self._rule()

    def _observation(self, text: str) -> None:
        # A page of a shop is one long line with separators.
        self.screen.say("\n" + (text.replace(SEPARATOR, "\n") if self.tasks.name.startswith("webshop") else text))

    def _rule(self) -> None:
        self.screen.say(f"\n--- action {self._turn + 1} of {self._max_turns} ---", "dim")

    def _end(self, episode: Episode) -> None:
        n = len(episode.steps)
        score = episode.steps[-1].info.get("score") if episode.steps else None
        words = [f"{n} action{'' if n == 1 else 's'}", f"return {episode.environment_return:g}"]
        words += [f"score {score:g}"] if isinstance(score, (int, float)) else []
        if episode.stop_reason is not StopReason.SUCCESS:
            words.append(str(episode.stop_reason.value).replace("_", " "))
        words += [episode.error] if episode.error else []
        how = ("SOLVED", "bold green") if episode.success else ("not solved", "bold yellow")
        self.screen.say(f"\n{how[0]}: {', '.join(words)}", how[1])


def watched(tasks: TaskSet, show: Show) -> TaskSet:
    """A copy of `tasks` whose episodes are shown."""
    shown = copy.copy(tasks)
    shown.make = lambda: _WatchedEnvironment(tasks.make(), show)
    return shown


class _WatchedEnvironment(Environment):
    def __init__(self, environment: Environment, show: Show):
        self._environment, self._show = environment, show

    def reset(self, task_id: str, seed: int = 0) -> Observation:
        first = self._environment.reset(task_id, seed)
        self._show.start(first)
        return first

    def step(self, action: str) -> StepResult:
        self._show.act(action)
        result = self._environment.step(action)
        self._show.see(result)
        return result
