"""What a run left: its episodes, its evaluations, its settings and its log."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from progpo_trl.run_files import is_previous
from progpo_trl.viewer.groups import Gate
from progpo_trl.viewer.index import EpisodeIndex

EPISODES, EVALUATION = "episodes.jsonl", "evaluation.json"
_MOST_SOURCES = 64
_LARGEST_RATE = 1e9  # a damaged file may hold whole numbers that no float can
_LARGEST = 64 * 1024 * 1024  # bytes of a settings or log file


class NothingToViewError(ValueError):
    """There is no run at this path."""


@dataclass
class Source:
    """A set of episodes. name: for people; kind: "training" or "evaluation"."""

    name: str
    kind: str
    index: EpisodeIndex

    @property
    def damage(self) -> list[str]:
        """What of its file could not be read, for people."""
        index, found = self.index, []
        if index.n_damaged:
            named = "; ".join(f"line {line} {problem}" for line, problem in index.damaged)
            lines = f"{index.n_damaged} damaged line{'s' if index.n_damaged > 1 else ''} of {index.path.name}"
            more = index.n_damaged - len(index.damaged)
            found.append(f"{self.name}: {lines} left out: {named}" + (f"; and {more} more" if more else ""))
        if index.pending:
            found.append(f"{self.name}: the last line is not complete yet ({index.pending} bytes) and left out.")
        return found


@dataclass
class RunFolder:
    """The files of one run. config: of config.yaml; summary: of summary.json; log: the trainer's log history, as far
    as a checkpoint holds it; notices: what of these could not be read."""

    path: Path
    sources: list[Source]
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the run's folder; of a run that was set aside, with the name of the folder around it."""
        path = self.path.resolve()
        return "/".join(path.parts[-2:]) if is_previous(path.name) else path.name or str(self.path)

    @property
    def damage(self) -> list[str]:
        """What of its files could not be read, for people."""
        return [*self.notices, *(line for source in self.sources for line in source.damage)]

    @property
    def training(self) -> Source | None:
        """The episodes of the training, where there are any."""
        return next((source for source in self.sources if source.kind == "training"), None)

    @property
    def fallback(self) -> dict[str, Any] | None:
        """The settings of ProGPO; None where the run has none or its settings are not known."""
        section = self.config.get("progress_fallback")
        return section if isinstance(section, dict) else None

    @property
    def gate(self) -> Gate:
        """ProGPO's gate with the run's options, or its defaults."""
        section = self.fallback or {}
        tau = section.get("tau_R", Gate.tau_R)
        number = isinstance(tau, int | float) and not isinstance(tau, bool)
        return Gate(str(section.get("gate", Gate.kind)), float(tau) if number else Gate.tau_R)

    @property
    def held_out(self) -> dict[str, tuple[float, float, float]]:
        """Of "before" and "after" training: (rate, low, high) on held-out games, where summary.json has them."""
        found = {}
        for when in ("before", "after"):
            value = self.summary.get(f"success_{when}")
            if isinstance(value, dict):
                numbers = tuple(value.get(name) for name in ("rate", "low", "high"))
                if all(type(x) in (int, float) and abs(x) <= _LARGEST_RATE for x in numbers):
                    found[when] = numbers
        return found

    @property
    def method(self) -> str:
        """The estimator in words, for example "GRPO + ProGPO"."""
        section = self.config.get("advantage")
        if not self.config:
            return "unknown method (no config.yaml)"
        name = str(section.get("name", "grpo") if isinstance(section, dict) else "grpo").upper()
        return f"{name} + ProGPO" if self.fallback is not None else name


def open_run(path: str | Path, evaluations: Sequence[Path] = ()) -> RunFolder:
    """The run at `path`: its folder, or a file of episodes. NothingToViewError where there is neither.

    evaluations: further folders or files to show beside those inside the folder (`evaluation*`, at most one folder
    deeper) and those beside it whose name begins with the run's.
    """
    path = Path(path)
    if not path.exists():
        raise NothingToViewError(f"{path}: there is no such file or folder")
    folder = path if path.is_dir() else path.parent
    training = path / EPISODES if path.is_dir() else path
    sources, seen = [], set()
    if training.is_file() and not _is_evaluation(training):
        sources.append(Source("training", "training", EpisodeIndex(training)))
        seen.add(training.resolve())
    if training.is_file() and _is_evaluation(training):
        found = [training]
    else:
        found = list(_evaluations(folder)) if path.is_dir() else []
    for extra in evaluations:
        there = list(_in_folder(extra)) if extra.is_dir() else [extra] if extra.is_file() else []
        if not there:
            raise NothingToViewError(f"{extra}: holds no {EPISODES} and no {EVALUATION}")
        found += there
    for file in found[:_MOST_SOURCES]:
        if file.resolve() not in seen:
            seen.add(file.resolve())
            sources.append(Source(_name(file, folder), "evaluation", EpisodeIndex(file, evaluation=True)))
    if not sources:
        raise NothingToViewError(
            f"{path}: holds no {EPISODES} (a training with save_episodes writes it) and no {EVALUATION}"
        )
    run = RunFolder(folder if path.is_dir() else path, sources)
    if len(found) > _MOST_SOURCES:
        run.notices.append(f"{len(found) - _MOST_SOURCES} of {len(found)} evaluations are not shown.")
    run.config = _read(run, folder / "config.yaml", lambda text: yaml.load(text, _SafeLoader))
    run.summary = _read(run, folder / "summary.json", json.loads)
    state = _newest_state(folder)
    history = _read(run, state, json.loads).get("log_history") if state else None
    run.log = [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []
    return run


def _is_evaluation(path: Path) -> bool:
    """Whether an episodes file is one that an evaluation wrote: its lines name their game."""
    with open(path, "rb") as file:
        first = file.readline(1 << 20)
    try:
        return isinstance(json.loads(first), dict) and "game" in json.loads(first)
    except (ValueError, RecursionError):
        return False


def _evaluations(folder: Path) -> Iterator[Path]:
    """Evaluations inside and beside a run's folder."""
    yield from sorted(folder.glob("evaluation*.json"))
    inside = [p for p in sorted(folder.glob("eval*")) if p.is_dir()]
    for place in (*inside, *evaluations_beside(folder)):
        yield from _in_folder(place)
        for deeper in sorted(p for p in place.iterdir() if p.is_dir()):
            yield from _in_folder(deeper)


def evaluations_beside(folder: Path) -> list[Path]:
    """The folders beside a run's that are called like it and an evaluation."""
    run = folder.resolve()
    return [p for p in sorted(run.parent.glob("*eval*")) if p.is_dir() and p.name.startswith(f"{run.name}-")]


def _in_folder(folder: Path) -> Iterator[Path]:
    """An evaluation's episodes in its folder: all, or those of one that still runs, or only its games' numbers."""
    for pattern in (EPISODES, "episodes.part-*.jsonl", "evaluation*.json"):
        found = sorted(folder.glob(pattern))
        if found:
            yield from found
            return


def _name(file: Path, folder: Path) -> str:
    """A short name of an evaluation: where it is, seen from the run."""
    place = file.parent if file.name in (EPISODES, EVALUATION) else file.with_suffix("")
    relative = os.path.relpath(place, folder)
    return folder.resolve().name if relative == "." else relative


def _newest_state(folder: Path) -> Path | None:
    """The trainer_state.json that was written last: the run's own or that of its last checkpoint."""
    found = [
        p for p in (folder / "trainer_state.json", *folder.glob("checkpoint-*/trainer_state.json")) if p.is_file()
    ]
    return max(found, key=lambda p: p.stat().st_mtime, default=None)


def _read(run: RunFolder, path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """The object of a small file; empty, and noted, where it cannot be read."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST} bytes")
        content = parse(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no settings or numbers by name")
        return content
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        run.notices.append(f"{path.name} could not be read: {' '.join(str(error).split())[:300]}")
        return {}


class _SafeLoader(yaml.SafeLoader):
    """Without aliases, a few of which unfold to gigabytes."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)
