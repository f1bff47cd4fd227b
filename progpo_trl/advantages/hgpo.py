"""HGPO: step-level groups by observation and by the observations before it, from coarse to fine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from progpo_trl.advantages.base import (
    StepEstimator,
    check_at_least,
    check_flag,
    check_whole,
    fold,
    group_codes,
    normalise_in_sets,
)
from progpo_trl.advantages.gigpo import set_sizes
from progpo_trl.advantages.grpo import check_episode_options, episode_terms
from progpo_trl.advantages.observations import check_observation_options, code_observations
from progpo_trl.advantages.returns import step_returns
from progpo_trl.episodes import StepBatch

# A level whose returns differ by less than this (relative) is "zero" and keeps no weight, as in exact arithmetic.
_LEVEL_SPREAD = 1e-7


@dataclass(frozen=True)
class HGPO(StepEstimator):
    """Weighted mean of step advantages over context depths d = 0..history_length.

        a_d[i,t] = (G[i,t] - mean) / (sd + eps)   norm="mean_std" (population sd)
        a_d[i,t] =  G[i,t] - mean                 norm="mean"
        A[i,t]   = sum_d w_d a_d / (sum_d w_d + eps)
        w_d      = (d + 1 + weight_offset)^length_weight_alpha

    The set at depth d holds the steps of the same group whose last d+1 observations (o[i,t-d], ..., o[i,t]) are the
    same texts; actions do not count. The sums run over the depths that exist (t >= d), whose set has two steps or
    more, and whose a_d is not 0; a step without any has A = 0. G as in `GiGPO`.
    base_group: adds the episode term of `GRPO` (Bessel's sd) as one more item of weight 1; otherwise there is no
    trajectory-level signal at all, and a step that shares no observation gets 0.
    obs_key, ignore_obs: see `observations.code_observations`; an ignored observation is in no set, nor is a context
    that holds one.

    Source: HGPO (arXiv:2602.22817) and its public code. Where they differ: Eq. 7, as three independent notes quote
    it, has w_d = (d + 1)^alpha (weight_offset=0), the code (d + 2)^alpha (weight_offset=1, the default). The code
    drops levels whose advantage is exactly 0 in float32, so that rounding noise decides; here a set whose returns
    spread by less than 1e-7 of their size is zero, as in exact arithmetic. stats="trajectories" (default) and
    singleton="zero" concern only the base group; the code has "steps" and "raw".
    preset released_code: stats="steps", singleton="raw", zero_spread_guard=False.
    """

    history_length: int = 2
    length_weight_alpha: float = 1.0
    weight_offset: float = 1.0
    base_group: bool = False
    gamma: float = 0.95
    norm: str = "mean_std"
    stats: str = "trajectories"
    eps: float = 1e-6
    singleton: str = "zero"
    zero_spread_guard: bool = True
    obs_key: str | Callable | None = None
    ignore_obs: tuple[str, ...] = ()

    PAPER: ClassVar[str] = "2602.22817"
    RELEASED: ClassVar[dict[str, Any]] = {"stats": "steps", "singleton": "raw", "zero_spread_guard": False}

    def __post_init__(self):
        check_episode_options("hgpo", self)
        check_whole("hgpo", "history_length", self.history_length, 0)
        check_at_least("hgpo", "length_weight_alpha", self.length_weight_alpha, 0.0)
        check_at_least("hgpo", "weight_offset", self.weight_offset, 0.0)
        check_flag("hgpo", "base_group", self.base_group)
        check_at_least("hgpo", "gamma", self.gamma, 0.0, 1.0)
        check_observation_options("hgpo", self)

    def levels(self, batch: StepBatch) -> list[np.ndarray]:
        """For each depth, (n_steps,) the set of each step; -1 where the context does not reach that far back.

        Built by folding: the last d+1 observations are the last d of the step before and one more.
        """
        group = group_codes(batch)[1]
        observation = fold(group, code_observations(batch, self.obs_key, self.ignore_obs).step)
        order = np.lexsort((batch.step, batch.episode))
        before = np.full(len(batch), -1)
        same = batch.episode[order[1:]] == batch.episode[order[:-1]]
        before[order[1:][same]] = order[:-1][same]
        levels = [observation]
        for _ in range(self.history_length):
            shorter = np.where(before >= 0, levels[-1][before], -1)
            levels.append(fold(shorter, observation))
        return levels

    @property
    def group_wise(self) -> bool:
        """Yes."""
        return True

    def terms(self, batch: StepBatch) -> dict[str, np.ndarray]:
        """Size, advantage and normalised weight of every depth, and of the base group."""
        returns = step_returns(batch, self.gamma)
        terms: dict[str, np.ndarray] = {"return": returns}
        items, logs, names = [], [], []
        for depth, sets in enumerate(self.levels(batch)):
            size, mean, _, advantage = normalise_in_sets(
                returns, sets, norm=self.norm, eps=self.eps, ddof=0, spread=_LEVEL_SPREAD
            )
            terms |= {f"depth {depth} size": size, f"depth {depth} mean": mean}
            items.append(advantage)
            logs.append(self.length_weight_alpha * np.log(depth + 1 + self.weight_offset))
            names.append(f"depth {depth}")
        if self.base_group:
            episode = episode_terms(batch, self)
            terms |= {name: episode[name] for name in ("score", "group mean", "group sd")}
            items.append(episode["episode term"])
            logs.append(0.0)  # weight 1
            names.append("base group")
        advantage, weights = self._combine(np.array(items), np.array(logs))
        for name, item, weight in zip(names, items, weights, strict=True):
            terms |= {f"{name} term": item, f"{name} weight": weight}
        return {**terms, "advantage": advantage}

    def _combine(self, items: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean of the non-zero items of each step and the weights it took; logs: of the items' weights.

        Weights are divided by the largest of the step, which changes nothing but lets alpha grow without overflow.
        """
        used = items != 0
        log = np.where(used, logs[:, None], -np.inf)
        largest = log.max(axis=0, initial=-np.inf)
        some = np.isfinite(largest)
        largest = np.where(some, largest, 0.0)
        weights = np.exp(log - largest)
        total = weights.sum(axis=0) + self.eps * np.exp(-largest)
        weights = weights / np.where(some, total, 1.0)
        return (weights * items).sum(axis=0), weights

    def diagnostics(self, batch: StepBatch) -> dict[str, float]:
        """Sizes of the groups at depth 0 and at the full depth."""
        levels = [self.levels(block) for block in batch.blocks]
        out = set_sizes("anchors", [level[0] for level in levels])
        if self.history_length:
            deepest = set_sizes("anchors_full_depth", [level[-1] for level in levels])
            out |= {name: value for name, value in deepest.items() if name.endswith(("singletons", "mean_size"))}
        return out
