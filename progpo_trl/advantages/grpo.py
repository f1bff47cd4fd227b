"""GRPO for episodes of several steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from progpo_trl.advantages.base import check_at_least, check_choice, group_statistics
from progpo_trl.episodes import StepBatch


@dataclass(frozen=True)
class GRPO:
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
    A group whose sample is constant gets exactly 0 on steps that equal it (the released code divides rounding noise by
    eps there, up to 1e5); other steps of such a group get their plain difference.
    """

    stats: str = "trajectories"
    norm: str = "mean_std"
    eps: float = 1e-6
    singleton: str = "zero"

    def __post_init__(self):
        check_choice("grpo", "stats", self.stats, ("trajectories", "steps"))
        check_choice("grpo", "norm", self.norm, ("mean_std", "mean"))
        check_choice("grpo", "singleton", self.singleton, ("zero", "raw"))
        check_at_least("grpo", "eps", self.eps, 0.0)

    def __call__(self, batch: StepBatch) -> np.ndarray:
        """(n_steps,) float32 advantages of `batch`."""
        if len(batch) == 0:
            return np.zeros(0, np.float32)
        score = batch.row_score
        groups, code = np.unique(batch.group, return_inverse=True)
        sample = slice(None) if self.stats == "steps" else np.unique(batch.episode, return_index=True)[1]
        count, mean, std, constant = group_statistics(code[sample], score[sample], len(groups), ddof=1)
        advantage = score - mean[code]
        # A constant sample leaves only exact differences; those below the spread's rounding are zero.
        advantage[constant[code] & (np.abs(advantage) <= 1e-9 * np.maximum(1.0, np.abs(score)))] = 0.0
        if self.norm == "mean_std":
            advantage = advantage / np.where(constant[code], 1.0, std[code] + self.eps)
        single = (count == 1)[code]
        advantage[single] = (
            score[single] / (1.0 + self.eps * (self.norm == "mean_std")) if self.singleton == "raw" else 0
        )
        return advantage.astype(np.float32)
