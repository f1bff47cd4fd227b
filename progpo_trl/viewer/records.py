"""One line of an episodes.jsonl: its numbers for the index, and its texts for a page.

Files of other versions and by other hands are read as well: what a line lacks has a defined value, and only what
contradicts the format (a number where a text belongs) makes it damaged.
"""

from __future__ import annotations

import json
import math
from array import array
from typing import Any, NamedTuple

from progpo_trl.episodes import StopReason

_LARGEST = 2**53  # whole numbers beyond are not exact in a browser


class LineError(ValueError):
    """A line that is no episode; the message says why."""


class Row(NamedTuple):
    """The numbers of one episode. offset, length: its line in the file, in bytes (0, 0: no steps are on record).

    section: the trainer's step in training, the number of the part (split and temperature) in an evaluation; task,
    task_type, stop: codes in the index's tables. episode_return, environment_return: nan where they are not known;
    coverage: nan where observations are missing. bad_format, inadmissible: counts of steps known to be so.
    advantage_at: where its advantages begin in the index, `steps` of them, or -1 when none are recorded.
    """

    offset: int
    length: int
    line: int
    section: int
    group: int
    index: int
    seed: int
    task: int
    task_type: int
    stop: int
    success: bool
    dropped: bool
    episode_return: float
    environment_return: float
    coverage: float
    steps: int
    bad_format: int
    inadmissible: int
    advantage_at: int


class Facts(NamedTuple):
    """What a line says, before the index gives it codes and a place: names as in `Row` and in the file."""

    step: int
    group: int | None
    index: int | None
    seed: int
    task_id: str
    task: str
    task_type: str
    stop: str
    success: bool
    dropped: bool
    episode_return: float
    environment_return: float
    coverage: float
    steps: int
    bad_format: int
    inadmissible: int
    advantages: array | None
    game: dict[str, Any]


def parse(line: bytes) -> dict[str, Any]:
    """The object of a line. LineError for anything else."""
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise LineError("is not UTF-8 text") from None
    except RecursionError:
        raise LineError("is nested too deeply") from None
    except ValueError as error:
        raise LineError(f"is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise LineError(f"holds {type(record).__name__}, no episode")
    return record


def facts(record: dict[str, Any]) -> Facts:
    """The numbers of an episode's record. LineError where the record contradicts the format."""
    steps = record.get("steps")
    if not isinstance(steps, list):
        raise LineError("has no list of steps")
    rewards, advantages = [], array("f")
    seen: set[str] = set()
    bad_format = inadmissible = 0
    covered = True
    for number, step in enumerate(steps):
        try:
            reward, advantage = step.get("reward"), step.get("advantage")
            # The usual case first: this loop is most of the time that opening a run takes.
            rewards.append(reward if type(reward) is float else _number(step, "reward", 0.0))
            if advantage is not None:
                advantages.append(advantage if type(advantage) is float else _number(step, "advantage", 0.0))
            bad_format += step.get("format_valid") is False
            inadmissible += step.get("admissible") is False
            observation = step.get("observation")
            if type(observation) is str:
                seen.add(observation)
            else:
                covered = False
                _text(step, "observation")
        except AttributeError:
            raise LineError(f"step {number} is no object") from None
        except LineError as error:
            raise LineError(f"step {number}: {error}") from None
        except OverflowError:
            raise LineError(f"step {number}: a number is too large") from None
    final = record.get("final_observation")
    if final is not None:
        seen.add(_text(record, "final_observation"))
    environment = _sum(rewards)
    extra = record.get("extra_rewards") or {}
    if not isinstance(extra, dict):
        raise LineError("extra_rewards is no object")
    stop = _text(record, "stop_reason")
    total = _number(record, "return", math.nan)
    if record.get("return") is None:
        total = environment + _sum([_number(extra, name, 0.0) for name in extra])
    return Facts(
        step=_whole(record, "step", 0),
        group=_whole(record, "group", None),
        index=_whole(record, "index", None),
        seed=_whole(record, "seed", 0),
        task_id=_text(record, "task_id"),
        task=_text(record, "task"),
        task_type=_text(record, "task_type") or "all",
        stop=stop,
        success=_flag(record, "success", stop == StopReason.SUCCESS),
        dropped=stop == StopReason.ENVIRONMENT_ERROR or (not steps and stop != StopReason.CONTEXT_LIMIT),
        episode_return=total,
        environment_return=environment,
        # As `progpo_trl.advantages.coverage`: (distinct observations - 1) / steps.
        coverage=(len(seen) - 1) / len(steps) if steps and covered else 0.0 if not steps else math.nan,
        steps=len(steps),
        bad_format=bad_format,
        inadmissible=inadmissible,
        advantages=advantages if steps and len(advantages) == len(steps) else None,
        game=record["game"] if isinstance(record.get("game"), dict) else {},
    )


def game_facts(record: Any) -> Facts:
    """The numbers of a game's record in an evaluation.json, which has no texts. LineError as `facts`."""
    if not isinstance(record, dict):
        raise LineError("is no object")
    stop = _text(record, "stop_reason")
    total = _number(record, "return", math.nan)
    return Facts(
        step=0,
        group=None,
        index=None,
        seed=_whole(record, "seed", 0),
        task_id=_text(record, "task_id"),
        task=_text(record, "task"),
        task_type=_text(record, "task_type") or "all",
        stop=stop,
        success=_flag(record, "success", stop == StopReason.SUCCESS),
        dropped=stop == StopReason.ENVIRONMENT_ERROR,
        episode_return=total,
        environment_return=total,
        coverage=math.nan,
        steps=_count(record, "steps"),
        bad_format=_count(record, "format_invalid"),
        inadmissible=_count(record, "inadmissible"),
        advantages=None,
        game=record,
    )


def part_name(game: dict[str, Any]) -> str:
    """The part of an evaluation that a game belongs to: its split and temperature."""
    split, temperature = game.get("split"), game.get("temperature")
    names = [str(split)] if split is not None else []
    if isinstance(temperature, int | float):
        names.append("greedy" if temperature == 0 else f"temperature {temperature:g}")
    return ", ".join(names) or "games"


def for_page(value: Any, longest: int) -> Any:
    """The record as JSON that every parser reads: numbers that are not finite as "NaN", "Infinity" or "-Infinity",
    and texts of more than `longest` characters as {"cut": their beginning, "length": all of their characters}."""
    if isinstance(value, str):
        return value if len(value) <= longest else {"cut": value[:longest], "length": len(value)}
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, dict):
        return {name: for_page(item, longest) for name, item in value.items()}
    if isinstance(value, list):
        return [for_page(item, longest) for item in value]
    return value


def json_number(value: float) -> float | str:
    """A number as JSON and JavaScript's Number() read it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def texts(record: dict[str, Any]) -> list[str]:
    """All that a search looks through: the task, and of every step what was seen, asked, said and done."""
    found = [record.get(name) for name in ("task_id", "task_type", "task", "error", "final_observation")]
    for step in record.get("steps") or []:
        if isinstance(step, dict):
            found += [step.get(name) for name in ("observation", "prompt", "response", "action")]
    return [text for text in found if isinstance(text, str)]


def _sum(numbers: list[float]) -> float:
    """The exact sum; inf and nan where the numbers are so (fsum would raise for inf - inf)."""
    return math.fsum(numbers) if all(map(math.isfinite, numbers)) else sum(numbers)


def _text(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise LineError(f"{name} is {type(value).__name__}, no text")
    return value


def _flag(record: dict[str, Any], name: str, default: bool) -> bool:
    value = record.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise LineError(f"{name} is {type(value).__name__}, neither true nor false")
    return value


def _number(record: dict[str, Any], name: str, default: float) -> float:
    value = record.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float):
        raise LineError(f"{name} is {type(value).__name__}, no number")
    try:
        return float(value)
    except OverflowError:
        raise LineError(f"{name} is too large") from None


def _whole(record: dict[str, Any], name: str, default: int | None) -> int | None:
    value = record.get(name)
    if value is None:
        return default
    number = _number(record, name, 0.0)
    if not abs(number) < _LARGEST or number != int(number):
        raise LineError(f"{name} is {number:g}, no whole number in range")
    return int(number)


def _count(record: dict[str, Any], name: str) -> int:
    value = _whole(record, name, 0)
    if value < 0:
        raise LineError(f"{name} is {value}, no count")
    return value
