"""GRPO for episodes of several steps, as in verl-agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from progpo_trl.advantages.base import (
    RELATIVE_SPREAD,
    StepEstimator,
    check_at_least,
    check_choice,
    check_flag,
    group_codes,
    group_statistics,
)
from progpo_trl.episodes import StepBatch

STATS = ("trajectories", "steps")
NORMS = ("mean_std", "mean")
SINGLETONS = ("zero", "raw")


@dataclass(frozen=True)
class GRPO(StepEstimator):
    """Group-normalised score of every step.

        A[i,t] = (s[i,t] - m) / (sd + eps)      norm="mean_std"
        A[i,t] =  s[i,t] - m                    norm="mean" (Dr. GRPO)

    s[i,t] = R[i] - penalty[i,t] is the episode's return less the step's own invalid-action penalty; m and sd (Bessel)
    are taken over the group's sample: every step (stats="steps") or the first step of every episode
    (stats="trajectories").

    Source: GRPO (arXiv:2402.03300) and verl-agent's multi-turn form. Where they differ: the paper (and GiGPO's Eq. 3)
    averages over trajectories, which is the default here; the released code, and so the published agent numbers,
    average over steps, where long episodes weigh more: the recipes that reproduce tables set stats="steps".
    singleton: a sample of one value has no baseline; "zero" gives advantage 0, "raw" is the released code's
    s / (1 + eps).
    zero_spread_guard: a group whose sample is constant gets exactly 0 on steps that equal it, and its other steps get
    their plain difference. False divides that difference by eps, as the released code does: up to 1e5.
    preset released_code: stats="steps", singleton="raw", zero_spread_guard=False.
    """

    stats: str = "trajectories"
    norm: str = "mean_std"
    eps: float = 1e-6
    singleton: str = "zero"
    zero_spread_guard: bool = True

    PAPER: ClassVar[str] = "2402.03300"
    RELEASED: ClassVar[dict[str, Any]] = {"stats": "steps", "singleton": "raw", "zero_spread_guard": False}

    def __post_init__(self):
        check_episode_options("grpo", self)

    @property
    def group_wise(self) -> bool:
        """Yes."""
        return True

    def terms(self, batch: StepBatch) -> dict[str, np.ndarray]:
        """Score, group mean, group sd, advantage."""
        terms = episode_terms(batch, self)
        return {**terms, "advantage": terms["episode term"]}


def check_episode_options(owner: str, estimator: Any) -> None:
    """Check the options that `episode_terms` reads."""
    check_choice(owner, "stats", estimator.stats, STATS)
    check_choice(owner, "norm", estimator.norm, NORMS)
    check_choice(owner, "singleton", estimator.singleton, SINGLETONS)
    check_at_least(owner, "eps", estimator.eps, 0.0)
    check_flag(owner, "zero_spread_guard", estimator.zero_spread_guard)


def trajectory_sample(batch: StepBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What statistics over trajectories are taken from: (first step of each played episode, episodes that count
    without a step, the groups of the latter as codes like `group_codes`).

    An episode whose first prompt did not fit has no step, but it is a failure of its group like any other.
    """
    first = np.unique(batch.episode, return_index=True)[1]
    played = np.zeros(batch.n_episodes, bool)
    played[batch.episode] = True
    unplayed = np.flatnonzero(~played & ~batch.dropped)
    return first, unplayed, np.searchsorted(np.unique(batch.episode_group), batch.episode_group[unplayed])


def episode_terms(batch: StepBatch, options: Any) -> dict[str, np.ndarray]:
    """The episode term of GRPO, GiGPO, ProxMO and of HGPO's base group, float64, with what it is made of.

    options: anything with the fields stats, norm, eps, singleton and zero_spread_guard of `GRPO`.
    """
    score = batch.row_score
    n_groups, code = group_codes(batch)
    if options.stats == "steps":
        count, mean, std, constant = group_statistics(code, score, n_groups, ddof=1)
    else:
        first, unplayed, their_code = trajectory_sample(batch)
        sample = np.concatenate([score[first], batch.episode_return[unplayed]])
        codes = np.concatenate([code[first], their_code])
        count, mean, std, constant = group_statistics(codes, sample, n_groups, ddof=1)
    advantage = score - mean[code]
    # The mean but for rounding is the mean: whether HGPO's base group counts must not depend on the episodes' order.
    advantage[np.abs(advantage) <= RELATIVE_SPREAD * np.maximum(1.0, np.abs(score))] = 0.0
    if options.norm == "mean_std":
        flat = 1.0 if options.zero_spread_guard else options.eps or 1.0
        advantage = advantage / np.where(constant[code], flat, std[code] + options.eps)
    single = (count == 1)[code]
    raw = score[single] / (1.0 + options.eps * (options.norm == "mean_std"))
    advantage[single] = raw if options.singleton == "raw" else 0.0
    return {"score": score, "group mean": mean[code], "group sd": std[code], "episode term": advantage}
