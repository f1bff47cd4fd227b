"""ProGPO: observation coverage as the advantage of groups in which every episode fails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from progpo_trl.advantages.base import Estimator, check_at_least, check_choice, group_statistics
from progpo_trl.advantages.grpo import GRPO
from progpo_trl.episodes import StepBatch


def coverage(batch: StepBatch, include_final_obs: bool = True) -> np.ndarray:
    """(n_episodes,) first-visit observation coverage P = (distinct observations - 1) / steps, in [0, 1].

    Observations are compared as raw strings. With `include_final_obs` the observation after the last action counts
    too (an episode that has none is counted without it). An episode without steps has P = 0.
    Source: ProGPO (arXiv:2607.22724), Eq. 5-6; whether the last observation counts is our reading.
    """
    steps = np.bincount(batch.episode, minlength=batch.n_episodes)
    seen: list[set[str]] = [set() for _ in range(batch.n_episodes)]
    for episode, observation in zip(batch.episode.tolist(), batch.observation, strict=True):
        seen[episode].add(observation)
    if include_final_obs:
        for episode, observation in enumerate(batch.final_observation):
            if observation is not None and steps[episode]:
                seen[episode].add(observation)
    distinct = np.array([len(s) for s in seen], np.float64)
    return np.where(steps > 0, (distinct - 1) / np.maximum(steps, 1), 0.0)


@dataclass(frozen=True)
class ProGPO:
    """The base estimator, and coverage where every episode of a group failed.

        all_fail(x)   max_i |R[i]| < tau_R
        q_fail        all-fail groups / groups, over the whole generation batch of all processes
        lambda_eff    lambda_aux * q_fail   (scale_by_q_fail=False: lambda_aux)
        A[i,t] = base[i,t]                                             if not all_fail(x): untouched, bit for bit
        A[i,t] = base[i,t] + lambda_eff * (P[i] - mean P) / sd P       if all_fail(x) and sd P >= tau_P
        A[i,t] = base[i,t]                                             if all_fail(x) and sd P <  tau_P

    with the population sd over the group's episodes, the same value on every step of an episode, and coverage P from
    `coverage()`.

    Source: ProGPO (arXiv:2607.22724), Eq. 7 and Eq. 30. Choices where the sources leave room: the main text has a
    constant lambda, the deployed algorithm scales by q_fail (default); Eq. 7 read literally would also zero groups in
    which all succeed, which would delete the step signal of GiGPO and HGPO, so only all-fail groups are changed; the
    gate looks at the environment's return (gate="row_score": at penalised scores, which never opens while an action
    is invalid); the fallback is added to the base, which carries the format signal of the invalid-action penalty
    (combine="replace": the literal Eq. 7; without penalties the base is 0 there and both agree). eps_P is added to
    sd P (one third-party port uses 1e-6).
    """

    base: Estimator = GRPO()
    lambda_aux: float = 0.3
    tau_R: float = 1e-3
    tau_P: float = 1e-4
    eps_P: float = 0.0
    scale_by_q_fail: bool = True
    include_final_obs: bool = True
    gate: str = "env_return"
    combine: str = "add"

    def __post_init__(self):
        if not callable(self.base):
            raise ValueError(f"progpo: base must be an estimator (a callable), got {self.base!r}")
        check_choice("progpo", "gate", self.gate, ("env_return", "row_score"))
        check_choice("progpo", "combine", self.combine, ("add", "replace"))
        for name in ("lambda_aux", "tau_R", "tau_P", "eps_P"):
            check_at_least("progpo", name, getattr(self, name), 0.0)
        for name in ("scale_by_q_fail", "include_final_obs"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"progpo: {name} must be true or false, got {getattr(self, name)!r}")

    def __call__(self, batch: StepBatch) -> np.ndarray:
        """(n_steps,) float32 advantages of `batch`."""
        advantage = np.asarray(self.base(batch), np.float32)
        if len(batch) == 0:
            return advantage
        fallback, active = self.fallback(batch, coverage(batch, self.include_final_obs))
        rows = active[batch.episode]
        if not rows.any():
            return advantage
        advantage = advantage.copy()
        added = fallback[batch.episode][rows]
        advantage[rows] = added + advantage[rows] if self.combine == "add" else added
        return advantage

    def all_fail(self, batch: StepBatch) -> tuple[np.ndarray, np.ndarray, float]:
        """Groups of the batch, whether each is all-fail, and q_fail. Dropped episodes are left out."""
        kept = ~batch.dropped
        groups, code = np.unique(batch.episode_group[kept], return_inverse=True)
        if len(groups) == 0:
            return groups, np.zeros(0, bool), 0.0
        if self.gate == "env_return":
            size = np.abs(batch.episode_return[kept])
        else:
            size = np.zeros(batch.n_episodes)
            np.maximum.at(size, batch.episode, np.abs(batch.row_score))
            size = size[kept]
        largest = np.zeros(len(groups))
        np.maximum.at(largest, code, size)
        all_fail = largest < self.tau_R
        return groups, all_fail, float(all_fail.mean())

    def fallback(self, batch: StepBatch, progress: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The auxiliary advantage of each episode and whether it applies, both (n_episodes,).

        progress: (n_episodes,) score of each episode, here its coverage.
        """
        groups, all_fail, q_fail = self.all_fail(batch)
        out, active = np.zeros(batch.n_episodes), np.zeros(batch.n_episodes, bool)
        if not all_fail.any():
            return out, active
        kept = np.flatnonzero(~batch.dropped)
        code = np.searchsorted(groups, batch.episode_group[kept])
        _, mean, std, _ = group_statistics(code, progress[kept], len(groups), ddof=0)
        scale = self.lambda_aux * (q_fail if self.scale_by_q_fail else 1.0)
        use = all_fail[code] & (std[code] >= self.tau_P) & (std[code] > 0)
        standard = (progress[kept] - mean[code]) / np.where(use, std[code] + self.eps_P, 1.0)
        out[kept[use]] = scale * standard[use]
        # Where the fallback is zero "add" leaves the base as it is; "replace" still silences the base.
        active[kept] = all_fail[code] if self.combine == "replace" else use & (scale > 0)
        return out, active
