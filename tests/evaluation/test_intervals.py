"""Intervals cover what they say they cover; tests give the p values that other software gives."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from progpo_trl.evaluation.intervals import (
    bootstrap_mean,
    difference_of_runs,
    mcnemar,
    mean_over_runs,
    paired_difference,
    paired_test,
    repeated_rate,
)
from progpo_trl.metrics import wilson

TRIALS = 1500  # a coverage of 95 % is then estimated with a standard error of 0.56 %


def games(rng, n, plays, a, b):
    """(n,) shares of `plays` won, of games whose own chance of success is drawn from Beta(a, b)."""
    return rng.binomial(plays, rng.beta(a, b, n)) / plays


def coverage(draw, interval, truth, trials=TRIALS, seed=0):
    rng, hits = np.random.default_rng(seed), 0
    for _ in range(trials):
        found = interval(draw(rng))
        hits += found.low <= truth <= found.high
    return hits / trials


@pytest.mark.parametrize(("n", "p"), [(140, 0.5), (140, 0.85), (134, 0.95), (500, 0.7), (35, 0.5)])
def test_wilson_covers(n, p):
    found = coverage(lambda rng: int(rng.binomial(n, p)), lambda wins: wilson(wins, n), p)
    assert 0.93 <= found <= 0.97, found


# 134 and 140 games as in ALFWorld's panels; chances that vary little, much, and near one end
MIXES = [(134, 3, 1, 1), (140, 3, 8, 1), (140, 5, 2, 6), (140, 3, 40, 20), (500, 3, 3, 2)]


@pytest.mark.parametrize(("n", "plays", "a", "b"), MIXES)
def test_the_rate_of_repeated_games_covers(n, plays, a, b):
    found = coverage(lambda rng: games(rng, n, plays, a, b), repeated_rate, a / (a + b))
    assert 0.93 <= found <= 0.97, found


@pytest.mark.parametrize(("n", "plays", "a", "b"), [MIXES[0], MIXES[1], MIXES[3]])
def test_the_bootstrap_over_games_covers(n, plays, a, b):
    found = coverage(
        lambda rng: games(rng, n, plays, a, b), lambda v: bootstrap_mean(v, resamples=600), a / (a + b), trials=1000
    )
    assert 0.93 <= found <= 0.97, found


def test_the_bootstrap_of_a_paired_difference_covers():
    """Two agents on the same games, one better by 0.1 on each; both depend on the game's difficulty."""

    def draw(rng):
        chance = rng.beta(3, 2, 140) * 0.9
        return rng.binomial(3, chance) / 3, rng.binomial(3, chance + 0.1) / 3

    found = coverage(draw, lambda pair: paired_difference(*pair, resamples=600), 0.1, trials=1000)
    assert 0.93 <= found <= 0.97, found


def test_repeats_that_were_taken_as_independent_would_not_cover():
    """Why the game is the unit: Wilson over all plays is far too narrow where games differ."""
    plays = 5
    found = coverage(
        lambda rng: games(rng, 140, plays, 1, 1), lambda v: wilson(round(v.sum() * plays), 140 * plays), 0.5
    )
    assert found < 0.85


def test_one_play_a_game_gives_wilson_itself():
    values = np.repeat([1.0, 0.0], [37, 103])
    assert repeated_rate(values) == pytest.approx(wilson(37, 140))
    # plays that always agree add nothing; where all games agree it is a trial a game
    assert repeated_rate(np.ones(20)) == wilson(20, 20)
    assert repeated_rate(np.zeros(20)) == wilson(0, 20)


def test_independent_plays_count_in_full():
    """Games that are all alike, played three times, are worth three times as many games."""
    rng = np.random.default_rng(0)
    widths = [(r := repeated_rate(rng.binomial(3, 0.6, 140) / 3)).high - r.low for _ in range(300)]
    want = wilson(252, 420)
    assert np.mean(widths) == pytest.approx(want.high - want.low, rel=0.03)


def test_the_bootstrap_repeats_and_has_its_edges():
    values = np.random.default_rng(1).random(50)
    assert bootstrap_mean(values) == bootstrap_mean(values)
    assert bootstrap_mean(values, seed=1) != bootstrap_mean(values)
    assert bootstrap_mean([]).low is None
    assert bootstrap_mean([0.5]).low is None
    assert bootstrap_mean([0.5, 0.5]).low == 0.5


@pytest.mark.parametrize(("b", "c"), [(0, 0), (3, 0), (5, 6), (10, 2), (40, 21)])
def test_the_paired_test_of_one_play_is_mcnemars(b, c):
    first = np.repeat([1, 0, 1, 0], [b, c, 20, 30]).astype(bool)
    second = np.repeat([0, 1, 1, 0], [b, c, 20, 30]).astype(bool)
    assert mcnemar(first, second)[:2] == (b, c)
    want = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(first, second)[2] == pytest.approx(want)
    assert paired_test(first.astype(int).tolist(), second.astype(int).tolist()) == pytest.approx(want)


def test_the_paired_test_of_several_plays_is_the_sign_flip_test():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 4, 12), rng.integers(0, 6, 12)
    a, b = [Fraction(int(x), 3) for x in first], [Fraction(int(x), 5) for x in second]
    differences = second / 5 - first / 3
    want = stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    ).pvalue
    assert paired_test(a, b) == pytest.approx(want)


def test_the_paired_test_holds_its_level():
    rng, rejected = np.random.default_rng(0), 0
    for _ in range(400):
        chance = rng.beta(1, 1, 60)
        a, b = (rng.binomial(3, chance) for _ in range(2))
        rejected += paired_test([Fraction(int(x), 3) for x in a], [Fraction(int(x), 3) for x in b]) < 0.05
    assert rejected / 400 < 0.08


def test_means_over_runs_are_students_and_welchs():
    first, second = [0.5, 0.62, 0.55], [0.7, 0.66, 0.81, 0.72]
    found = mean_over_runs(first)
    low, high = stats.t.interval(0.95, 2, loc=np.mean(first), scale=stats.sem(first))
    assert (found.mean, found.low, found.high, found.n) == pytest.approx((np.mean(first), low, high, 3))
    gap = difference_of_runs(first, second)
    want = stats.ttest_ind(second, first, equal_var=False).confidence_interval()
    assert (gap.low, gap.high) == pytest.approx((want.low, want.high))
    assert mean_over_runs([0.5]).low is None
    assert difference_of_runs([0.5], second).low is None
