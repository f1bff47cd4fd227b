"""What a run's own summary.json says for a card: its panel before and after training, as far as it was played."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from progpo_trl.evaluation.results import percent, sampling_name
from progpo_trl.markdown import Markdown, escaped, table
from progpo_trl.publishing.errors import PublishError
from progpo_trl.publishing.evaluations import SMALL_PANEL
from progpo_trl.publishing.files import read_object

Summary = Mapping[str, Any]

_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("data", "versions", "machine", "environment", "panel"), (dict,)),
    **dict.fromkeys(("episodes", "generations", "updates", "weights_step", "seed"), (int,)),
    "train_seconds": (int, float),
}


def read_summary(path: Path) -> dict[str, Any]:
    """The content of a summary.json; empty where there is none. PublishError when it is damaged."""
    if not path.is_file():
        return {}
    value = read_object(path)
    found = {name: value.get(name) for name in _KINDS}
    for name, kinds in _KINDS.items():
        # To Python true is a number.
        if found[name] is not None and (type(found[name]) is bool or not isinstance(found[name], kinds)):
            raise _damaged(path, name, found[name])
    seconds, gpus = found["train_seconds"], (found["machine"] or {}).get("gpus")
    if seconds is not None and not 0 <= seconds < _LONGEST:
        raise _damaged(path, "train_seconds", seconds)
    if not isinstance(gpus, list | None):
        raise _damaged(path, "machine.gpus", gpus)
    return value


_LONGEST = 1e12  # seconds
_HOTTEST = 1e6


def _damaged(path: Path, name: str, value: Any) -> PublishError:
    return PublishError(f"{path}: is damaged: {name} is {value!r:.60}; move it away to publish without it")


def measured_games(summary: Summary) -> int:
    """Games on which the trained weights were measured by their own training; 0 where they were not."""
    return max((after["n"] for key in ("success", "greedy") if (after := _rate(summary, f"{key}_after"))), default=0)


def around_doubts(summary: Summary) -> Iterator[str]:
    """What a reader must know when this is all that was measured."""
    games = measured_games(summary)
    yield f"Evaluated by its own training alone, on {games} games of {_split(summary)}; the single games are not here."
    if games < SMALL_PANEL:
        yield f"Only {games} games of {_split(summary)} were evaluated: the intervals are wide."
    if _split(summary) == "train":
        yield "The evaluation is on training games."


def around_section(summary: Summary) -> Markdown | None:
    """The panel before and after training; None where the trained weights were not measured."""
    games = measured_games(summary)
    if not games:
        return None
    rows = []
    for key, temperature in (("success", (summary.get("panel") or {}).get("temperature")), ("greedy", 0.0)):
        if _rate(summary, f"{key}_after") is None:
            continue
        known = isinstance(temperature, (int, float)) and 0 <= temperature < _HOTTEST
        how = sampling_name(temperature) if known else "sampled"
        rows.append([how, Markdown("**all**"), *(_shown(_rate(summary, f"{key}_{when}")) for when in _WHEN)])
        types = summary.get(f"{key}_after_by_task_type")
        if isinstance(types, Mapping) and len(types) > 1:
            for name in types:
                found = [summary.get(f"{key}_{when}_by_task_type") or {} for when in _WHEN]
                rows.append([how, name, *(_shown(_rate(of, name)) for of in found)])
    said = f"Before and after training, the same {games} games of {_split(summary)} with the same sampling seed"
    return Markdown(f"{escaped(said)}:\n\n{table(['sampling', 'tasks', 'before', 'after'], rows)}")


_WHEN = ("before", "after")


def _split(summary: Summary) -> str:
    return str((summary.get("environment") or {}).get("eval_split") or "the panel")


def _rate(of: Any, name: str) -> Mapping[str, Any] | None:
    """A rate with its interval; None where there is none, as when every game was lost."""
    value = of.get(name) if isinstance(of, Mapping) else None
    if not isinstance(value, Mapping) or type(value.get("n")) is not int or value["n"] < 1:
        return None
    ends = [value.get(key) for key in ("rate", "low", "high")]
    good = all(type(x) in (int, float) and 0 <= x <= 1 for x in ends)
    return value if good else None


def _shown(rate: Mapping[str, Any] | None) -> str:
    return "-" if rate is None else f"{percent(rate['rate'])} ({percent(rate['low'])} to {percent(rate['high'])})"
