"""GiGPO: a second, step-level group of everything that was done at the same observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from progpo_trl.advantages.base import StepEstimator, check_at_least, fold, group_codes, normalise_in_sets
from progpo_trl.advantages.grpo import check_episode_options, episode_terms
from progpo_trl.advantages.observations import check_observation_options, code_observations
from progpo_trl.advantages.returns import step_returns
from progpo_trl.advantages.similarity import cluster_similar
from progpo_trl.episodes import StepBatch


@dataclass(frozen=True)
class GiGPO(StepEstimator):
    """Episode term of GRPO plus w times a step term within anchor groups.

        A[i,t]   = A_E[i,t] + w * A_S[i,t]
        A_E      the advantage of `GRPO` with the same norm, stats, eps and singleton
        A_S[i,t] = (G[i,t] - mean_g) / (sd_g + eps)     norm="mean_std" (Bessel's sd)
        A_S[i,t] =  G[i,t] - mean_g                     norm="mean"
        G[i,t]   = sum over k >= t of gamma^(k-t) r[i,k]  -  penalty[i,t]

    g is the anchor group: all steps of the same group of episodes, of any episode at any time, whose observation
    before the action is the same text. An observation met once has A_S = 0.

    similarity: a threshold in (0, 1) joins observations that are nearly the same: in the order of the batch a step
    joins the first leader whose difflib ratio to it reaches the threshold, else it becomes a leader. The result
    depends on that order. None compares exactly.
    obs_key, ignore_obs: see `observations.code_observations`; an ignored observation has A_S = 0.

    Source: GiGPO (arXiv:2505.10978), Eq. 3-8, and the verl-agent code. Where they differ: Eq. 3 averages over
    trajectories (our default), the code over steps (stats="steps"); the code counts a group of one step with its raw
    score (singleton="raw"); the code divides rounding noise of constant sets by eps, here they are exactly 0. The
    ALFWorld scripts use norm="mean_std", the WebShop scripts norm="mean". Not reproduced: verl-agent copies random
    steps before this computation to reach a divisible batch, which changes the statistics.
    preset released_code: stats="steps", singleton="raw", zero_spread_guard=False.
    """

    w: float = 1.0
    gamma: float = 0.95
    norm: str = "mean_std"
    stats: str = "trajectories"
    similarity: float | None = None
    eps: float = 1e-6
    singleton: str = "zero"
    zero_spread_guard: bool = True
    obs_key: str | Callable | None = None
    ignore_obs: tuple[str, ...] = ()

    PAPER: ClassVar[str] = "2505.10978"
    RELEASED: ClassVar[dict[str, Any]] = {"stats": "steps", "singleton": "raw", "zero_spread_guard": False}

    def __post_init__(self):
        check_episode_options("gigpo", self)
        check_at_least("gigpo", "w", self.w, 0.0)
        check_at_least("gigpo", "gamma", self.gamma, 0.0, 1.0)
        if self.similarity is not None:
            check_at_least("gigpo", "similarity", self.similarity, 0.0, 1.0)
            if self.similarity in (0.0, 1.0):
                raise ValueError("gigpo: similarity must lie between 0 and 1; null compares observations exactly")
        check_observation_options("gigpo", self)

    def anchors(self, batch: StepBatch) -> np.ndarray:
        """(n_steps,) number of each step's anchor group; -1 where the observation is ignored."""
        observations = code_observations(batch, self.obs_key, self.ignore_obs)
        group = group_codes(batch)[1]
        if self.similarity is None:
            return fold(group, observations.step)
        return cluster_similar(group, observations.step, observations.texts, self.similarity)

    @property
    def group_wise(self) -> bool:
        """Yes."""
        return True

    def terms(self, batch: StepBatch) -> dict[str, np.ndarray]:
        """The episode term and the step term with their statistics."""
        terms = episode_terms(batch, self)
        returns, anchors = step_returns(batch, self.gamma), self.anchors(batch)
        size, mean, std, step = normalise_in_sets(returns, anchors, norm=self.norm, eps=self.eps, ddof=1)
        terms |= {
            "return": returns,
            "anchor group": anchors,
            "anchor size": size,
            "anchor mean": mean,
            "anchor sd": std,
            "step term": step,
        }
        return {**terms, "advantage": terms["episode term"] + self.w * step}

    def diagnostics(self, batch: StepBatch) -> dict[str, float]:
        """Sizes of the anchor groups."""
        return set_sizes("anchors", [self.anchors(block) for block in batch.blocks])


def set_sizes(name: str, blocks: list[np.ndarray]) -> dict[str, float]:
    """Share of the steps whose set has 1, 2-3, 4-7, 8-15, and 16 or more members, and the mean over steps.

    blocks: arrays of the code of each step's set; a step in none (-1) counts as alone.
    """
    size = np.concatenate([_members(sets) for sets in blocks])
    if len(size) == 0:
        return {}
    edges = [1, 2, 4, 8, 16]
    share = np.bincount(np.searchsorted(edges, size, side="right") - 1, minlength=len(edges)) / len(size)
    labels = ["singletons", "size_2_3", "size_4_7", "size_8_15", "size_16_up"]
    return {f"{name}/{label}": float(s) for label, s in zip(labels, share, strict=True)} | {
        f"{name}/mean_size": float(size.mean())
    }


def _members(sets: np.ndarray) -> np.ndarray:
    inside = np.maximum(sets, 0)
    return np.where(sets >= 0, np.bincount(inside, sets >= 0)[inside], 1) if len(sets) else np.zeros(0)
