"""Reads the episodes of one generation from an episodes.jsonl, and says in words what is wrong with a line."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from progpo_trl.episodes import Episode, StopReason, episode_from_json
from progpo_trl.faults import exclude_lonely

_log = logging.getLogger(__name__)


class ExplainError(ValueError):
    """There is nothing to explain: no such file, generation or group."""


EPISODES = "episodes.jsonl"
_ASK = "give the episodes.jsonl of a training, or the run's folder"
_MEND = "take the line out, or explain another generation with --step"


def episodes_file(path: str | Path) -> Path:
    """`path`, or the episodes.jsonl of the run whose folder it is. ExplainError when there is none."""
    path = Path(path)
    if not path.is_dir():
        return path
    if not (path / EPISODES).is_file():
        raise ExplainError(f"{path}: this folder holds no {EPISODES}; {_ASK} (a run has one with save_episodes)")
    return path / EPISODES


@dataclass(frozen=True)
class Generation:
    """The episodes of one trainer step; cut: whether half a line of it was left out, with an episode that is not
    here."""

    step: int
    episodes: list[Episode]
    cut: bool


def read_generation(path: str | Path, step: int | None = None) -> tuple[int, list[Episode]]:
    """(trainer step, its episodes) from an episodes.jsonl or a run's folder; the last generation when `step` is None.

    ExplainError for a file or generation that is not there, or lines that are no episodes. Half a last line, which a
    killed run leaves, is passed over with a warning.
    """
    found = read(path, step)
    return found.step, found.episodes


def read(path: str | Path, step: int | None = None) -> Generation:
    """As `read_generation`, which see; the result knows whether half a line of the generation was passed over."""
    path = episodes_file(path)
    generations: dict[int, list[tuple[str, dict]]] = {}
    last = of_half_line = None
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}, line {number}"
                try:
                    record = _record(line, where) if line.strip() else None
                except ExplainError as error:
                    half = isinstance(error.__cause__, json.JSONDecodeError | UnicodeDecodeError)
                    if not generations or line.endswith(b"\n") or not half:
                        raise
                    _log.warning("%s, line %d: is cut off and left out", path, number)
                    # The trainer writes the step first. What is too short to say it goes on where the file was.
                    named = re.match(rb'\s*\{"step": (\d{1,18}),', line)
                    of_half_line = int(named[1]) if named else last
                    break
                if record is not None:
                    last = int(record["step"])
                    generations.setdefault(last, []).append((where, record))
    except OSError as error:
        raise ExplainError(f"{path}: {error.strerror or error}; {_ASK}") from None
    if not generations:
        raise ExplainError(f"{path}: holds no episodes; {_ASK}")
    if step is None:
        step = max(generations)
    if step not in generations:
        steps = sorted(generations)
        near = min(steps, key=lambda known: abs(known - step))
        raise ExplainError(
            f"{path}: no generation at step {step}; the nearest is {near} (they go from {steps[0]} to {steps[-1]})"
        )
    episodes = [_episode(record, where) for where, record in generations[step]]
    try:
        exclude_lonely(episodes)  # as the trainer did
    except RuntimeError:
        raise ExplainError(
            f"{path}: no advantage was given at step {step}: its episodes were lost to environment errors or have no "
            "steps; explain another generation with --step"
        ) from None
    return Generation(step, sorted(episodes, key=lambda e: (e.group, e.index)), of_half_line == step)


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ExplainError(f"{where}: is not UTF-8 text; {_ASK}") from error
    except (ValueError, RecursionError) as error:
        raise ExplainError(f"{where}: is no JSON, so no episode; {_ASK}") from error
    if not isinstance(record, dict):
        raise ExplainError(f"{where}: is no episode but {_shown(record)}; {_ASK}")
    if "step" not in record:
        raise ExplainError(f"{where}: names no step of a training (lines of an evaluation have none); {_ASK}")
    _check(record, {"step": _WHOLE}, where, "")
    return record


def _whole(value: Any) -> None:
    np.int64(int(value))  # OverflowError for a number that no array holds


def _text_or_null(value: Any) -> None:
    if not isinstance(value, str | None):
        raise TypeError


def _number_or_null(value: Any) -> None:
    if value is not None:
        float(value)


def _numbers(value: Any) -> None:
    for number in value.values():
        float(number)


def _steps(value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(step, dict) for step in value):
        raise TypeError


# (what raises for a value that cannot be used, what it should be)
_WHOLE = (_whole, "a whole number")
_ANY = (lambda value: None, "")
_OF_EPISODE = {
    "task_id": _ANY,
    "index": _WHOLE,
    "group": _WHOLE,
    "success": _ANY,
    "steps": (_steps, "a list of steps"),
}
_OF_EPISODE_IF_THERE = {
    "seed": _WHOLE,
    "final_observation": (_text_or_null, "text or null"),
    "stop_reason": (lambda value: value is None or StopReason(value), f"one of {', '.join(StopReason)}, or null"),
    "extra_rewards": (_numbers, "names with numbers"),
}
_OF_STEP = dict.fromkeys(("observation", "response", "action", "format_valid", "admissible"), _ANY)
_OF_STEP |= {"reward": (float, "a number")}
_OF_STEP_IF_THERE = {"advantage": (_number_or_null, "a number or null")}


def _episode(record: dict[str, Any], where: str) -> Episode:
    _check(record, _OF_EPISODE, where, "")
    _check(record, {k: v for k, v in _OF_EPISODE_IF_THERE.items() if k in record}, where, "")
    for i, step in enumerate(record["steps"]):
        _check(step, _OF_STEP, where, f" of step {i}")
        _check(step, {k: v for k, v in _OF_STEP_IF_THERE.items() if k in step}, where, f" of step {i}")
    return episode_from_json(record)


def _check(record: dict[str, Any], fields_: dict[str, tuple], where: str, of: str) -> None:
    for name, (use, what) in fields_.items():
        if name not in record:
            raise ExplainError(f"{where}: is a damaged episode: `{name}`{of} is missing; {_MEND}")
        try:
            use(record[name])
        except (TypeError, ValueError, OverflowError, AttributeError):
            said = f"`{name}`{of} must be {what}, got {_shown(record[name])}"
            raise ExplainError(f"{where}: is a damaged episode: {said}; {_MEND}") from None


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
