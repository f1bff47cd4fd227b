"""`evaluate()`: plays panels with an agent, every game once per sampling seed, and keeps what happened."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from progpo_trl.environments.base import TaskSet
from progpo_trl.episodes import Episode
from progpo_trl.evaluation.agents import Agent, Game
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.journal import Journal, finished_lines, write_episodes
from progpo_trl.evaluation.locks import only_one_in
from progpo_trl.evaluation.panel import Panel, panel_of
from progpo_trl.evaluation.processes import Processes
from progpo_trl.evaluation.results import (
    EVALUATION,
    FORMAT,
    game_record,
    is_lost,
    key_of,
    summaries,
    write_json,
)

# Published for ALFWorld and WebShop, and greedy.
TEMPERATURES = (0.4, 0.0)


def evaluate(
    agent: Agent,
    tasks: TaskSet,
    *,
    splits: Sequence[str] | None = None,
    temperatures: Sequence[float] = TEMPERATURES,
    seeds: Sequence[int] = (0,),
    n_tasks: int | None = None,
    max_turns: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    environment: Mapping[str, Any] | None = None,
    environment_retries: int = 1,
    max_dropped_fraction: float = 0.25,
    command: Sequence[str] | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Play the panels of `splits` (default: the task set's eval_split) and return what `evaluation.json` holds.

    temperatures: 0 is greedy; an agent that has none plays once per seed. seeds: the sampling seeds; where they make
    no difference (greedy decoding) only the first is played. n_tasks: games per split, spread over the sorted ids.
    max_turns: actions an episode may take, at most the environment's. out: folder for evaluation.json and
    episodes.jsonl; resume: keep the games that are finished there. environment: its name and options, to be recorded.
    environment_retries: how often a game whose environment failed is played again; max_dropped_fraction: share of
    games that may be lost so before the evaluation stops.

    All processes of a distributed run call it together and get the same result; each game is played on one of them.
    Raises EvaluationError when there is nothing to play, or `out` holds something else; RuntimeError when too many
    games are lost.
    """
    check_plays(temperatures, seeds, n_tasks)
    panels = _panels(tasks, splits, n_tasks)
    limit = min(max_turns or tasks.max_steps, tasks.max_steps)
    games = _games(agent, panels, temperatures, seeds)
    processes = Processes()
    agent.prepare(tasks)
    header = {
        "format": FORMAT,
        "complete": False,
        "agent": agent.facts(),
        "environment": dict(environment or {"name": tasks.name}),
        "conditions": conditions_of(tasks, limit),
        "panels": [panel.facts() for panel in panels],
    }
    folder = None if out is None else Path(out)
    with contextlib.ExitStack() as held:
        done = processes.from_main(lambda: _start(folder, header, games, resume, held))
        todo = [game for game in games if game.key not in done]
        started = time.time()
        run = _Run(agent, tasks, limit, environment_retries, folder, processes, progress, len(done))
        mine = run.play(todo[processes.rank :: processes.count])
        lines = processes.gather(mine)
        if processes.rank:
            return processes.from_main(None)
        return processes.from_main(
            lambda: _finish(
                folder, header, games, done, lines, agent, processes, started, command, max_dropped_fraction
            )
        )


def conditions_of(tasks: TaskSet, max_turns: int) -> dict[str, Any]:
    """What must be equal beside the data for two results to be comparable, as JSON."""
    mode = {"mode": tasks.mode} if hasattr(tasks, "mode") else {}  # of WebShop: which purchases count
    return {"max_turns": max_turns, "action_format": tasks.action_format, **mode}


def check_plays(temperatures: Sequence[float], seeds: Sequence[int], n_tasks: int | None) -> None:
    """Raises EvaluationError for plays that there cannot be."""
    if n_tasks is not None and n_tasks < 1:
        raise EvaluationError(f"the number of tasks must be at least 1, got {n_tasks}")
    if not seeds or not temperatures:
        raise EvaluationError("at least one sampling seed and one temperature are needed")
    for seed in seeds:
        if seed < 0:
            raise EvaluationError(f"a sampling seed must be at least 0, got {seed}")
    for temperature in temperatures:
        if not (math.isfinite(temperature) and temperature >= 0):
            raise EvaluationError(f"a temperature must be a number of at least 0, got {temperature:g}")


def check_folder(folder: Path) -> None:
    """Raises EvaluationError for a place where no folder can be."""
    for place in (folder, *folder.parents):
        if os.path.lexists(place):
            if not place.is_dir():
                what = "is a file" if place.exists() else "is a link to nothing"
                below = "" if place == folder else f" ({folder} would lie in it)"
                raise EvaluationError(f"{place} {what}{below}, and results need a folder: choose another --out")
            return


def _panels(tasks: TaskSet, splits: Sequence[str] | None, n_tasks: int | None) -> list[Panel]:
    panels = []
    for split in dict.fromkeys(splits or [tasks.eval_split]):
        panel_exists(tasks, split)
        panels.append(panel_of(tasks, split, n_tasks))
    return panels


def panel_exists(tasks: TaskSet, split: str) -> None:
    """Raises EvaluationError for a split that the task set has not."""
    try:
        tasks.task_ids(split)
    except KeyError as error:
        raise EvaluationError(str(error.args[0])) from None


def already_there(folder: Path) -> EvaluationError:
    """The error for a folder that holds an evaluation, which nobody asked to go on with."""
    return EvaluationError(
        f"{folder / EVALUATION} is there already: go on with it (--resume), or choose another --out"
    )


def _games(agent: Agent, panels: Sequence[Panel], temperatures: Sequence[float], seeds: Sequence[int]) -> list[Game]:
    games = []
    for panel in panels:
        for temperature in dict.fromkeys(map(float, temperatures)) if agent.samples else (None,):
            for seed in dict.fromkeys(seeds[:1] if agent.deterministic(temperature) else seeds):
                games += [
                    Game(panel.split, task_id, task_type, place, temperature, int(seed))
                    for place, (task_id, task_type) in enumerate(zip(panel.task_ids, panel.task_types, strict=True))
                ]
    return games


def _start(
    folder: Path | None, header: dict[str, Any], games: list[Game], resume: bool, held: contextlib.ExitStack
) -> dict[tuple, dict]:
    """Make `folder` ready and hold it for `held`; what is finished there, by key. Main process only."""
    if folder is None:
        return {}
    check_folder(folder)
    path = folder / EVALUATION
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(only_one_in(folder))
        if not path.exists():
            write_json(path, header)
            return {}
    except OSError as error:
        raise EvaluationError(f"{error.filename or folder}: cannot be written: {error.strerror}") from None
    if not resume:
        raise already_there(folder)
    _check_same(path, header)
    done = finished_lines(folder)
    foreign = next((key for key in done if key not in {game.key for game in games}), None)
    if foreign is not None:
        split, temperature, seed, task_id = foreign
        raise EvaluationError(
            f"{folder} holds a game that is not asked for now (split {split}, temperature {temperature}, seed {seed}, "
            f"{task_id}): ask for it too, or choose another --out"
        )
    return done


def _check_same(path: Path, header: dict[str, Any]) -> None:
    """A resumed evaluation must be of the same agent, environment and games."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"{path}: cannot be read, it is no JSON document: {error}") from None
    if not isinstance(before, dict) or not isinstance(before.get("panels", []), list):
        raise EvaluationError(f"{path}: cannot be read, it is no evaluation")
    now = json.loads(json.dumps(header, default=str))
    for name in ("format", "agent", "environment", "conditions"):
        if before.get(name) != now[name]:
            raise EvaluationError(f"{path} is of another evaluation: {difference(before.get(name), now[name], name)}")
    known = {str(panel.get("split")): panel for panel in before.get("panels", []) if isinstance(panel, dict)}
    for panel in now["panels"]:
        if panel["split"] in known and known[panel["split"]] != panel:
            what = difference(known[panel["split"]], panel, f"panel {panel['split']}")
            raise EvaluationError(f"{path} is of another evaluation: {what}")


def difference(first: Any, second: Any, name: str) -> str:
    """Where two JSON values first differ, in words."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in dict.fromkeys([*first, *second]):
            if first.get(key) != second.get(key):
                return difference(first.get(key), second.get(key), f"{name}.{key}")
    return f"{name} is {first!r} there and {second!r} here"


class _Run:
    """Plays the games of one process; failed environments get another try."""

    def __init__(self, agent, tasks, max_turns: int, retries: int, folder, processes: Processes, progress: bool, done):
        self._agent, self._tasks, self._max_turns, self._retries = agent, tasks, max_turns, retries
        self._journal = None if folder is None else Journal(folder, processes.rank)
        self._shown = progress and processes.rank == 0
        self._lines: list[dict[str, Any]] = []
        self._again: list[Game] = []
        self._wins = 0

    def play(self, games: list[Game]) -> list[dict[str, Any]]:
        """The lines of all games."""
        off = None if self._shown else True
        with tqdm(total=len(games), desc="Evaluating", unit="game", disable=off, leave=False) as self._bar:
            try:
                while games:
                    self._again = []
                    self._agent.play(games, self._tasks, self._on_done, max_turns=self._max_turns)
                    games = self._again
            finally:
                if self._journal is not None:
                    self._journal.close()
        return self._lines

    def _on_done(self, game: Game, episode: Episode, notes: Mapping[str, Any] | None) -> None:
        record = game_record(game, episode, notes)
        if is_lost(record) and game.attempt < self._retries:
            self._again.append(replace(game, attempt=game.attempt + 1))
            return
        line = {**episode.to_json(), "game": record}
        self._lines.append(line)
        if self._journal is not None:
            self._journal.add(line)
        self._wins += record["success"]
        self._bar.set_postfix_str(f"success {self._wins / len(self._lines):.0%}", refresh=False)
        self._bar.update()


def _finish(folder, header, games, done, lines, agent, processes, started, command, max_dropped_fraction):
    from progpo_trl.settings import versions

    found = done | {key_of(line["game"]): line for line in lines}
    ordered = [found[game.key] for game in games]
    records = [line["game"] for line in ordered]
    content = {
        **header,
        "complete": True,
        "results": summaries(records),
        **({"totals": totals} if (totals := agent.totals(records)) else {}),
        "games": records,
        "versions": versions(),
        "machine": {**agent.machine(), "processes": processes.count},
        "command": None if command is None else list(command),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(time.time() - started, 1),
        "games_kept_from_before": len(done),
    }
    _stop_when_too_many_are_lost(records, max_dropped_fraction)
    if folder is not None:
        write_episodes(folder, ordered)
        write_json(folder / EVALUATION, content)
    return content


def _stop_when_too_many_are_lost(records: list[dict[str, Any]], most: float) -> None:
    lost = [r for r in records if is_lost(r)]
    if len(lost) > most * len(records) or len(lost) == len(records):
        raise RuntimeError(
            f"{len(lost)} of {len(records)} games were lost to environment errors, more than "
            f"max_dropped_fraction={most:g} allows. The first: {lost[0]['task_id']!r}: {lost[0]['error']}"
        )
