"""Numbers that describe a set of episodes. Pure Python and numpy; the trainer and the evaluation share them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from progpo_trl.advantages import coverage
from progpo_trl.episodes import Episode, StepBatch, StopReason

# What `episode_metrics` always gives, beside success by task type and the environment's own numbers.
EVALUATION_METRICS = (
    "success", "return", "steps", "format_invalid", "inadmissible", "step_limit", "context_limit", "dropped",
)  # fmt: skip
LESS_IS_BETTER = frozenset(EVALUATION_METRICS) - {"success", "return"}


@dataclass(frozen=True)
class Rate:
    """A success rate with its Wilson 95 % interval. rate, low, high in [0, 1]; n trials."""

    rate: float
    low: float
    high: float
    n: int


def wilson(successes: int, n: int, z: float = 1.959963984540054) -> Rate:
    """Wilson score interval of `successes` out of `n` (Wilson 1927); (nan, 0, 1) without trials."""
    if n == 0:
        return Rate(math.nan, 0.0, 1.0, 0)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # Of no or of all successes one end is the rate itself, from which rounding would part it.
    return Rate(p, min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half)), n)


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Success (overall and by task type), length and validity of the episodes that were not dropped."""
    kept = [e for e in episodes if not e.dropped]
    out = {"dropped": (len(episodes) - len(kept)) / max(1, len(episodes))}
    if not kept:
        return out | {"success": math.nan}
    steps = [s for e in kept for s in e.steps]
    by_type = defaultdict(list)
    for e in kept:
        by_type[e.task_type].append(e.success)
    out["success"] = _mean(e.success for e in kept)
    if len(by_type) > 1:
        out |= {f"success/{name}": _mean(values) for name, values in sorted(by_type.items())}
    out["return"] = _mean(e.episode_return for e in kept)
    out["steps"] = len(steps) / len(kept)
    out["format_invalid"] = _mean(not s.format_valid for s in steps)
    out["inadmissible"] = _mean(not s.admissible for s in steps)
    for reason in (StopReason.STEP_LIMIT, StopReason.CONTEXT_LIMIT):
        out[reason.value] = _mean(e.stop_reason is reason for e in kept)
    return out | _info_means(kept)


def group_metrics(batch: StepBatch, advantages: np.ndarray) -> dict[str, float]:
    """All-fail and all-success groups (by the success flag), coverage, and how many steps carry an advantage.

    coverage/return_correlation is the mean over groups of Spearman's correlation of coverage with return, where both
    differ; without such a group it is missing. coverage/group_std is what ProGPO's fallback divides by.
    """
    kept = ~batch.dropped
    groups, code = np.unique(batch.episode_group[kept], return_inverse=True)
    if len(groups) == 0:
        return {}
    share = np.bincount(code, batch.success[kept]) / np.bincount(code)
    progress = np.concatenate([coverage(block) for block in batch.blocks])[kept]
    returns = batch.episode_return[kept]
    members = [np.flatnonzero(code == group) for group in range(len(groups))]
    correlations = [c for m in members if (c := rank_correlation(progress[m], returns[m])) is not None]
    out = {"coverage/return_correlation": float(np.mean(correlations))} if correlations else {}
    return out | {
        "groups/all_fail": float((share == 0).mean()),
        "groups/all_success": float((share == 1).mean()),
        "coverage/mean": float(progress.mean()),
        "coverage/std": float(progress.std()),
        "coverage/group_std": float(np.mean([progress[m].std() for m in members])),
        "advantages/nonzero_steps": float((advantages != 0).mean()) if len(advantages) else 0.0,
        "advantages/abs_mean": float(np.abs(advantages).mean()) if len(advantages) else 0.0,
    }


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Spearman's rank correlation, ties with their mean rank; None where either is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def response_lengths(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of every response, and whether it was cut at the token limit; both (n_responses,)."""
    steps = [s for e in episodes if not e.dropped for s in e.steps]
    return np.array([len(s.completion_ids) for s in steps], int), np.array([s.truncated for s in steps], bool)


def _info_means(episodes) -> dict[str, float]:
    """Means of the numbers environments put into `StepResult.info`, and of those an episode never reported."""
    values = defaultdict(list)
    for e in episodes:
        for info in (*(s.info for s in e.steps), e.unreported):
            for key, value in info.items():
                if (number := _finite(value)) is not None:
                    values[str(key)].append(number)
    return {f"info/{key}": _mean(v) for key, v in sorted(values.items())}


def _finite(value) -> float | None:
    """A number of any type, numpy's included, as a float; None for what is none or not finite."""
    if not isinstance(value, (Real, np.bool_)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond every float
        return None
    return number if math.isfinite(number) else None


def _mean(values) -> float:
    values = list(values)
    return float(sum(values) / len(values)) if values else math.nan
