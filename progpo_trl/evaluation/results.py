"""What is kept of an evaluation: one record per game, sums over them, evaluation.json and its table."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from progpo_trl import atomic
from progpo_trl.episodes import Episode, StopReason
from progpo_trl.evaluation.agents import Game
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.intervals import bootstrap_mean, repeated_rate
from progpo_trl.metrics import wilson
from progpo_trl.settings_values import one_line

FORMAT = "progpo_trl evaluation 1"
EVALUATION, EPISODES = "evaluation.json", "episodes.jsonl"
# An episode loops when it is in the same visible situation and does the same thing this often.
LOOP = 3

Record = dict[str, Any]


def game_record(game: Game, episode: Episode, notes: Mapping[str, Any] | None = None) -> Record:
    """The numbers of one play: JSON, without texts. Counts are of steps; `tokens` of the responses."""
    steps = episode.steps
    visits = Counter((s.observation, s.action) for s in steps)
    record = {
        "split": game.split,
        "task_id": game.task_id,
        "task_type": game.task_type,
        "temperature": game.temperature,
        "seed": game.seed,
        "success": bool(episode.success),
        "score": _score(episode),
        "return": episode.environment_return,
        "steps": len(steps),
        "stop_reason": episode.stop_reason.value if episode.stop_reason else None,
        "format_invalid": sum(not s.format_valid for s in steps),
        "inadmissible": sum(not s.admissible for s in steps),
        "truncated": sum(s.truncated for s in steps),
        "repeated": sum(visits.values()) - len(visits),
        "loop": max(visits.values(), default=0) >= LOOP,
        "tokens": sum(len(s.completion_ids) for s in steps),
        "error": episode.error,
    }
    return record | ({"notes": dict(notes)} if notes else {})


def _score(episode: Episode) -> float | None:
    """The environment's own score of the episode, where it gives one in the last step's info."""
    value = episode.steps[-1].info.get("score") if episode.steps else None
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def is_lost(record: Mapping[str, Any]) -> bool:
    """Whether the game could not be scored: its environment failed."""
    return record["stop_reason"] == StopReason.ENVIRONMENT_ERROR.value


def key_of(record: Mapping[str, Any]) -> tuple[str, float | None, int, str]:
    """As `Game.key`."""
    return record["split"], record["temperature"], record["seed"], record["task_id"]


def check_record(record: Any) -> None:
    """Raises KeyError, TypeError, ValueError or OverflowError, which say what is wrong, for what is no record."""
    if not isinstance(record, dict):
        raise TypeError(f"a game must be an object, not {_shown(record)}")
    for name, (kinds, what) in _OF_RECORD.items():
        value = record[name]
        # To Python true is a number.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError(f"{name} of a game must be {what}, not {_shown(value)}")
        if isinstance(value, (int, float)) and name != "seed" and not math.isfinite(float(value)):
            raise ValueError(f"{name} of a game must be finite, not {_shown(value)}")


_NONE = type(None)
_COUNTS = ("seed", "steps", "format_invalid", "inadmissible", "truncated", "repeated", "tokens")
_OF_RECORD: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("split", "task_id", "task_type"), ((str,), "text")),
    **dict.fromkeys(("temperature", "score"), ((int, float, _NONE), "a number or null")),
    **dict.fromkeys(("success", "loop"), ((bool,), "true or false")),
    **dict.fromkeys(_COUNTS, ((int,), "a whole number")),
    **dict.fromkeys(("stop_reason", "error"), ((str, _NONE), "text or null")),
    "return": ((int, float), "a number"),
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def summaries(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Sums over the games of each split and temperature, in their order of appearance; see docs/evaluation.md."""
    parts: dict[tuple, list[Record]] = {}
    for record in records:
        parts.setdefault((record["split"], record["temperature"]), []).append(record)
    return [{"split": split, "temperature": t, **summary(part)} for (split, t), part in parts.items()]


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Sums over the plays of one split and temperature; games that were lost are counted and left out."""
    kept = [r for r in records if not is_lost(r)]
    seeds = sorted({r["seed"] for r in records})
    scored = any(r["score"] is not None for r in kept)
    out: dict[str, Any] = {
        "seeds": seeds,
        "games": len({r["task_id"] for r in records}),
        "lost": len(records) - len(kept),
        "success": _success(kept),
        "by_seed": [{"seed": seed, **_of_seed([r for r in kept if r["seed"] == seed], scored)} for seed in seeds],
        "by_task_type": {
            name: {"games": len({r["task_id"] for r in of_type}), "success": _success(of_type)}
            | ({"score": _mean(of_type, "score")} if scored else {})
            for name in sorted({r["task_type"] for r in kept})
            for of_type in [[r for r in kept if r["task_type"] == name]]
        },
    }
    if scored:
        out["score"] = _mean(kept, "score")
    out["steps"] = _mean(kept, "steps")
    steps = sum(r["steps"] for r in kept)
    for name in ("format_invalid", "inadmissible", "truncated", "repeated"):
        out[name] = _share(sum(r[name] for r in kept), steps)
    out["loops"] = _share(sum(r["loop"] for r in kept), len(kept))
    for reason in (StopReason.STEP_LIMIT, StopReason.CONTEXT_LIMIT):
        out[reason.value] = _share(sum(r["stop_reason"] == reason.value for r in kept), len(kept))
    out["tokens_per_step"] = _share(sum(r["tokens"] for r in kept), steps)
    return out


def per_game(records: Iterable[Record], name: str) -> dict[str, list[float]]:
    """Task id -> the values of its plays, by ascending seed. A score that was never given is 0."""
    found: dict[str, list[tuple[int, float]]] = {}
    for r in records:
        found.setdefault(r["task_id"], []).append((r["seed"], float(r[name] or 0.0)))
    return {task_id: [value for _, value in sorted(plays)] for task_id, plays in sorted(found.items())}


def game_means(records: Iterable[Record], name: str) -> np.ndarray:
    """(games,) the mean over each game's plays, by task id."""
    return np.array([np.mean(values) for values in per_game(records, name).values()])


def _success(records: Sequence[Record]) -> dict[str, Any]:
    return _json(asdict(repeated_rate(game_means(records, "success"))))


def _of_seed(records: Sequence[Record], scored: bool) -> dict[str, Any]:
    wins = sum(r["success"] for r in records)
    return {"success": _json(asdict(wilson(wins, len(records))))} | (
        {"score": _mean(records, "score")} if scored else {}
    )


def _mean(records: Sequence[Record], name: str) -> dict[str, Any]:
    return _json(asdict(bootstrap_mean(game_means(records, name))))


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _json(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no nan."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in values.items()}


def write_json(path: Path, value: Any) -> None:
    """As JSON; a killed process leaves the old file or the new one, never half of one."""
    atomic.write_text(path, json.dumps(value, indent=1, default=str) + "\n")


def read_evaluation(path: str | Path) -> dict[str, Any]:
    """The content of an evaluation.json, or of the one in a folder (or in its `evaluation` folder).

    Raises EvaluationError when there is none, or it is damaged or unfinished.
    """
    path = Path(path)
    if path.is_dir():
        places = [path / EVALUATION, path / "evaluation" / EVALUATION]
        path = next((place for place in places if place.is_file()), places[0])
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "; make it with progpo evaluate" if isinstance(error, FileNotFoundError) else ""
        raise EvaluationError(f"{path}: cannot be read: {error.strerror}{hint}") from None
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"{path}: is no JSON document: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise EvaluationError(f"{path}: is not an evaluation of this version ({FORMAT!r})")
    if not content.get("complete"):
        raise EvaluationError(f"{path}: the evaluation was interrupted; finish it with --resume")
    try:
        for name, kind in (("agent", dict), ("environment", dict), ("conditions", dict), ("panels", list)):
            if not isinstance(content[name], kind):
                raise TypeError(f"{name} must be a {kind.__name__}")
        _check_parts(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise EvaluationError(f"{path}: is damaged: {one_line(ValueError(said))}; make it again") from None
    return content


def _check_parts(content: Mapping[str, Any]) -> None:
    for panel in content["panels"]:
        panel["split"] + panel["panel_sha256"] + (panel["data_sha256"] or ""), int(panel["games"])
    int(content["conditions"]["max_turns"])
    for name in ("weights_sha256", "adapter_sha256"):
        if not isinstance(content["agent"].get(name), str | None):
            raise TypeError(f"{name} of the agent must be text or null, not {_shown(content['agent'][name])}")
    seen = set()
    for record in content["games"]:
        check_record(record)
        if key_of(record) in seen:
            raise ValueError(f"game {record['task_id']!r} is there twice under seed {record['seed']}")
        seen.add(key_of(record))
    table(content)


def table(content: Mapping[str, Any]) -> str:
    """The evaluation as text for a terminal: one block per split and temperature."""
    return "\n\n".join("\n".join(_block(part)) for part in content["results"])


def _block(part: Mapping[str, Any]) -> Iterable[str]:
    seeds = f"{len(part['seeds'])} sampling seeds" if len(part["seeds"]) > 1 else f"sampling seed {part['seeds'][0]}"
    how = sampling_name(part["temperature"])
    yield f"{part['split']}, {how}: {part['games']} games, {'one play' if how == 'greedy' else seeds}"
    if part["lost"]:
        yield f"  {part['lost']} play(s) could not be scored: the environment failed (see `error` of the games)"
    rows = [("success", part["success"], part["games"])]
    rows += [
        (f"  seed {s['seed']}", s["success"], s["success"]["n"]) for s in part["by_seed"] if len(part["seeds"]) > 1
    ]
    types = part["by_task_type"]
    rows += [(f"  {name}", of["success"], of["games"]) for name, of in types.items() if len(types) > 1]
    width = max(len(name) for name, _, _ in rows)
    for name, rate, n in rows:
        ends = f"[{percent(rate['low'])}, {percent(rate['high'])}]"
        yield f"  {name:<{width}}  {percent(rate['rate']):>7}  {ends}  of {n}"
    if "score" in part:
        yield f"  {'score':<{width}}  {interval(part['score'])}"
    yield f"  {'steps':<{width}}  {interval(part['steps'], 1)}"
    shares = {
        "format-invalid": "format_invalid",
        "inadmissible": "inadmissible",
        "repeated": "repeated",
        "truncated": "truncated",
    }
    yield "  of steps:    " + ", ".join(f"{label} {percent(part[name])}" for label, name in shares.items())
    ends = {"looping": "loops", "cut at the step limit": "step_limit", "cut at the context limit": "context_limit"}
    yield "  of episodes: " + ", ".join(f"{label} {percent(part[name])}" for label, name in ends.items())


def sampling_name(temperature: float | None) -> str:
    """ "greedy", "temperature 0.4", or "no temperature" for agents that have none."""
    if temperature is None:
        return "no temperature"
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def percent(value: float | None) -> str:
    """A share in [0, 1] as percent with one decimal; a dash for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def interval(value: Mapping[str, Any], digits: int = 3) -> str:
    """ "mean [low, high]" of a `Mean` as JSON."""
    if value["mean"] is None:
        return "-"
    ends = "" if value["low"] is None else f"  [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"
    return f"{value['mean']:.{digits}f}{ends}"


def differing_games(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[list[Any]]:
    """[split, temperature, seed, task id] of the plays of both evaluations that came out differently in any number;
    what the same policy shows on another machine, in another batch or number format."""
    known = {key_of(r): r for r in first["games"]}
    return [list(key_of(r)) for r in second["games"] if key_of(r) in known and known[key_of(r)] != r]
