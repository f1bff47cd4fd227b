"""GRPO exactly as TRL computes it: one advantage an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from progpo_trl.advantages.base import StepEstimator, check_at_least, check_choice, group_codes, group_statistics
from progpo_trl.advantages.grpo import trajectory_sample
from progpo_trl.episodes import StepBatch


@dataclass(frozen=True)
class TRLGRPO(StepEstimator):
    """TRL's advantage of an episode, on each of its steps.

        A[i,t] = (S[i] - mean of the group) / (sd + eps)

    with Bessel's sd over the group (scale_rewards="group"), over all episodes of the batch ("batch", the mean still
    the group's), or not divided at all ("none"). A group (or batch) of one episode has sd 0, so A = 0.

    Source: TRL's GRPOTrainer. Differences to `GRPO`: eps 1e-4 instead of 1e-6, always over episodes, and nothing is
    known of steps. TRL has no invalid-action penalty: penalty="none" leaves it out, S[i] = R[i], as TRL would;
    "mean" (default; the same where no action is invalid or `invalid_action_penalty` is 0) subtracts the mean penalty
    of the episode's steps, so that the setting is never silently without effect; S[i] is then the mean row score.
    Episodes that could not be scored (TRL: every reward function returned None) are left out, as in TRL.
    """

    scale_rewards: str = "group"
    eps: float = 1e-4
    penalty: str = "mean"

    PAPER: ClassVar[str] = "2402.03300"

    def __post_init__(self):
        check_choice("trl_grpo", "scale_rewards", self.scale_rewards, ("group", "batch", "none"))
        check_choice("trl_grpo", "penalty", self.penalty, ("mean", "none"))
        check_at_least("trl_grpo", "eps", self.eps, 0.0)

    @property
    def group_wise(self) -> bool:
        """Unless the sd is that of the batch."""
        return self.scale_rewards != "batch"

    def terms(self, batch: StepBatch) -> dict[str, np.ndarray]:
        """Score of the episode, group mean, the sd divided by, advantage."""
        score = batch.episode_return.astype(float)
        if self.penalty == "mean":
            steps = np.bincount(batch.episode, minlength=batch.n_episodes)
            score = score - np.bincount(batch.episode, batch.penalty, batch.n_episodes) / np.maximum(steps, 1)
        n_groups, code = group_codes(batch)
        first, unplayed, their_code = trajectory_sample(batch)
        members = np.concatenate([batch.episode[first], unplayed])
        codes = np.concatenate([code[first], their_code])
        _, mean, std, constant = group_statistics(codes, score[members], n_groups, ddof=1)
        advantage = np.where(constant[code], 0.0, score[batch.episode] - mean[code])
        if self.scale_rewards == "batch":
            _, _, everyone, _ = group_statistics(np.zeros(len(members), np.int64), score[members], 1, ddof=1)
            std = np.full(n_groups, everyone[0])
        if self.scale_rewards != "none":
            advantage = advantage / (std[code] + (self.eps or np.finfo(float).tiny))
        return {
            "score": score[batch.episode],
            "group mean": mean[code],
            "group sd": std[code],
            "advantage": advantage,
        }
