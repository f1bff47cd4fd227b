"""Intervals and tests for games that are played once or several times.

The unit that is drawn at random is the GAME: the plays of one game under several sampling seeds resemble each other,
so they never count as independent. Everything here takes one row per game. All intervals are at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from progpo_trl.metrics import Rate, wilson

RESAMPLES = 10_000
_TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Mean:
    """A mean with its 95 % interval; n units (games or runs) it was made of. low and high are None where one unit
    says nothing about its spread."""

    mean: float
    low: float | None
    high: float | None
    n: int


def repeated_rate(values: np.ndarray) -> Rate:
    """Success rate over games that were played several times, with Wilson's interval for as many independent trials
    as the games are worth.

    values: (games,) the share of plays of each game that succeeded. The worth is p(1 - p) over the variance of the
    mean of the games (Kish's effective sample size; Wilson's interval with it: Korn and Graubard 1998): one play a
    game gives Wilson's interval over games exactly, plays that always agree add nothing, independent ones count in
    full. Where all games agree, it is one trial a game. `n` of the result is the number of games.
    """
    values = np.asarray(values, float)
    if len(values) == 0:
        return wilson(0, 0)
    p, spread = float(values.mean()), float(values.var())
    trials = len(values) if spread == 0 else len(values) * p * (1 - p) / spread
    found = wilson(p * trials, trials)
    return Rate(p, found.low, found.high, len(values))


def bootstrap_mean(values: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> Mean:
    """Mean of one value per game, with the percentile interval of the bootstrap over games.

    values: (games,), each the mean over the game's plays: a game that is drawn brings all its plays along.
    Resampling the plays of a drawn game once more would count their spread twice.
    """
    values = np.asarray(values, float)
    if len(values) == 0:
        return Mean(math.nan, None, None, 0)
    if len(values) == 1:
        return Mean(float(values[0]), None, None, 1)
    low, high = np.quantile(_resampled_means(values, seed, resamples), _TAILS)
    return Mean(float(values.mean()), float(low), float(high), len(values))


def paired_difference(first: np.ndarray, second: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> Mean:
    """Mean of `second - first` over the same games, with the bootstrap's interval over games. Both (games,)."""
    return bootstrap_mean(np.asarray(second, float) - np.asarray(first, float), seed, resamples)


def _resampled_means(values: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    rng, means = np.random.default_rng(seed), []
    step = max(1, 2_000_000 // len(values))  # 16 MB at a time
    for first in range(0, resamples, step):
        drawn = rng.integers(0, len(values), (min(step, resamples - first), len(values)))
        means.append(values[drawn].mean(1))
    return np.concatenate(means)


def paired_test(first: Sequence[Fraction | int], second: Sequence[Fraction | int]) -> float:
    """Two-sided exact p value of "both agents solve the games equally well", paired by game.

    first, second: share of plays of each game that succeeded, as exact fractions. Under the hypothesis the two
    agents of a game can be exchanged, so each game's difference has either sign with probability 1/2 (sign-flip
    test); the distribution of their sum is convolved exactly. With one play a game this is McNemar's exact test.
    """
    differences = [Fraction(b) - Fraction(a) for a, b in zip(first, second, strict=True)]
    unit = math.lcm(*(d.denominator for d in differences)) if differences else 1
    sizes = [abs(int(d * unit)) for d in differences if d]
    if not sizes:
        return 1.0
    seen = abs(int(sum(differences) * unit))
    # chances[i]: of a sum of i - total, where every size has come in with one sign or the other
    total = sum(sizes)
    chances = np.zeros(2 * total + 1)
    chances[total] = 1.0
    for size in sizes:
        moved = np.zeros_like(chances)
        moved[size:] += chances[: len(chances) - size] / 2
        moved[: len(chances) - size] += chances[size:] / 2
        chances = moved
    return float(min(1.0, chances[np.abs(np.arange(-total, total + 1)) >= seen].sum()))


def mcnemar(first: np.ndarray, second: np.ndarray) -> tuple[int, int, float]:
    """(games that only the first solved, that only the second solved, two-sided exact p value of McNemar's test).

    first, second: (games,) bool.
    """
    from scipy.stats import binomtest

    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    either = only_first + only_second
    return only_first, only_second, float(binomtest(only_first, either).pvalue) if either else 1.0


def mean_over_runs(values: Sequence[float]) -> Mean:
    """Mean over training runs with Student's interval over runs; a single run has none."""
    from scipy.stats import t

    values = np.asarray(values, float)
    n = len(values)
    if n < 2:
        return Mean(float(values.mean()) if n else math.nan, None, None, n)
    half = float(t.ppf(_TAILS[1], n - 1) * values.std(ddof=1) / math.sqrt(n))
    return Mean(float(values.mean()), float(values.mean()) - half, float(values.mean()) + half, n)


def difference_of_runs(first: Sequence[float], second: Sequence[float]) -> Mean:
    """Mean of the second's runs minus the first's, with Welch's interval; `n` is the number of runs of both."""
    from scipy.stats import t

    a, b = np.asarray(first, float), np.asarray(second, float)
    difference, n = float(b.mean() - a.mean()), len(a) + len(b)
    if min(len(a), len(b)) < 2:
        return Mean(difference, None, None, n)
    parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    if parts.sum() == 0:
        return Mean(difference, difference, difference, n)
    freedom = parts.sum() ** 2 / (parts**2 / np.array([len(a) - 1, len(b) - 1])).sum()
    half = float(t.ppf(_TAILS[1], freedom) * math.sqrt(parts.sum()))
    return Mean(difference, difference - half, difference + half, n)
