"""Learning curves of a run from its episodes, and histograms of its advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from progpo_trl.viewer.groups import Group
from progpo_trl.viewer.index import EpisodeIndex

RANGES = 4  # of generations, for the histograms
BINS = 41  # odd, so that zero is in the middle of one


@dataclass(frozen=True)
class Curves:
    """One value a generation. update: (n,) the trainer's step; values: name -> (n,), nan where there is none;
    success_by_type: task type -> (n,). Names are those of the metrics that a run logs."""

    update: np.ndarray
    values: dict[str, np.ndarray]
    success_by_type: dict[str, np.ndarray]


@dataclass(frozen=True)
class Histogram:
    """Advantages in ranges of generations. edges: (BINS + 1,); shares: a range's name -> (BINS,), summing to 1.

    What lies beyond the first and the last edge is counted in the first and the last bin. counts: steps of each range;
    left_out: advantages that are not finite.
    """

    edges: np.ndarray
    shares: dict[str, np.ndarray]
    counts: dict[str, int]
    left_out: int


def curves_of(index: EpisodeIndex, groups: Sequence[Group]) -> Curves:
    """The curves of an index; dropped episodes do not count, as in the metrics of the run."""
    update = np.unique([group.section for group in groups]).astype(np.int64)
    n = len(update)
    rows = [index.rows[i] for group in groups for i in group.kept]
    place = np.searchsorted(update, [row.section for row in rows])
    success = np.array([row.success for row in rows], float)
    steps = np.array([row.steps for row in rows], float)
    judged = [group for group in groups if group.kept]
    where = np.searchsorted(update, [group.section for group in judged])
    n_steps = _sums(place, steps, n)
    values = {
        "rollout/success": _means(place, success, n),
        "groups/all_fail": _means(where, np.array([group.all_fail for group in judged], float), n),
        "groups/all_success": _means(where, np.array([group.all_success for group in judged], float), n),
        "coverage/mean": _means(place, np.array([row.coverage for row in rows], float), n),
        "rollout/return": _means(place, np.array([row.episode_return for row in rows], float), n),
        "rollout/steps": _means(place, steps, n),
    }
    for name, column in (("rollout/format_invalid", "bad_format"), ("rollout/inadmissible", "inadmissible")):
        wrong = _sums(place, np.array([getattr(row, column) for row in rows], float), n)
        values[name] = np.divide(wrong, n_steps, out=np.full(n, np.nan), where=n_steps > 0)
    kinds = np.array([row.task_type for row in rows], np.int64)
    by_type = {
        index.task_types.texts[kind]: _means(place[kinds == kind], success[kinds == kind], n)
        for kind in np.unique(kinds).tolist()
    }
    return Curves(update, values, dict(sorted(by_type.items())))


def histogram_of(index: EpisodeIndex, groups: Sequence[Group]) -> Histogram | None:
    """The advantages of the kept episodes in up to four ranges of generations; None where none are recorded."""
    sections = sorted({group.section for group in groups})
    parts = [
        part for part in np.array_split(np.array(sections, np.int64), min(RANGES, len(sections) or 1)) if len(part)
    ]
    all_values = np.array(index.advantages, np.float32)
    found, left_out = {}, 0
    for part in parts:
        chosen = [
            index.rows[i]
            for g in groups
            if part[0] <= g.section <= part[-1]
            for i in g.kept
            if index.rows[i].advantage_at >= 0
        ]
        pieces = [all_values[row.advantage_at : row.advantage_at + row.steps] for row in chosen]
        values = np.concatenate(pieces).astype(float) if pieces else np.zeros(0)
        finite = values[np.isfinite(values)]
        left_out += len(values) - len(finite)
        if len(finite):
            name = f"update {part[0]}" if len(part) == 1 else f"updates {part[0]} to {part[-1]}"
            found[name] = finite
    if not found:
        return None
    widest = max(float(np.quantile(np.abs(values), 0.995)) for values in found.values()) or 1.0
    edges = np.linspace(-widest, widest, BINS + 1)
    shares = {name: np.histogram(np.clip(v, -widest, widest), edges)[0] / len(v) for name, v in found.items()}
    return Histogram(edges, shares, {name: len(v) for name, v in found.items()}, left_out)


def _sums(place: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    return np.bincount(place, values, n) if len(place) else np.zeros(n)


def _means(place: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    """(n,) means of the finite values at each place; nan where there are none."""
    known = np.isfinite(values)
    counts = _sums(place[known], np.ones(int(known.sum())), n)
    return np.divide(_sums(place[known], values[known], n), counts, out=np.full(n, np.nan), where=counts > 0)
