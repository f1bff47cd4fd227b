"""ProGPO: a progress score, by default observation coverage, as the advantage where every episode of a group fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from progpo_trl.advantages.base import (
    Estimator,
    StepEstimator,
    check_at_least,
    check_choice,
    check_finite,
    check_flag,
    check_whole,
    group_statistics,
    load_function,
)
from progpo_trl.advantages.controls import CONTROLS, apply_control
from progpo_trl.advantages.grpo import GRPO
from progpo_trl.advantages.observations import check_observation_options
from progpo_trl.advantages.progress import SCORES, first_visits
from progpo_trl.episodes import StepBatch

GATES = ("env_return", "row_score", "success")


@dataclass(frozen=True)
class ProGPO(StepEstimator):
    """The base estimator, and coverage where every episode of a group failed.

        all_fail(x)   max_i |R[i]| < tau_R
        q_fail        all-fail groups / groups, over the whole generation batch of all processes
        lambda_eff    lambda_aux * q_fail   (scale_by_q_fail=False: lambda_aux)
        A[i,t] = base[i,t]                                             if not all_fail(x): untouched, bit for bit
        A[i,t] = base[i,t] + lambda_eff * (P[i] - mean P) / sd P       if all_fail(x) and sd P >= tau_P
        A[i,t] = base[i,t]                                             if all_fail(x) and sd P <  tau_P

    with the population sd over the group's episodes, the same value on every step of an episode, and coverage
    P = (distinct observations - 1) / steps.

    Source: ProGPO (arXiv:2607.22724), Eq. 7 and Eq. 30. Choices where the sources leave room: the main text has a
    constant lambda, the deployed algorithm scales by q_fail (default); Eq. 7 read literally would also zero groups in
    which all succeed, which would delete the step signal of GiGPO and HGPO, so only all-fail groups are changed; the
    gate looks at the environment's return (gate="row_score": at penalised scores, which never opens while an action
    is invalid; "success": at the success flag, for partial rewards; or a function batch -> (n_episodes,) outcomes);
    the fallback is added to the base, which carries the format signal of the invalid-action penalty
    (combine="replace": the literal Eq. 7; without penalties the base is 0 there and both agree). eps_P is added to
    sd P (one third-party port uses 1e-6). lambda_aux: the paper's sweep has 0.1 ahead of its default of 0.3.

    progress: "coverage", "obs_change", "edit_distance", or a function batch -> (n_episodes,) scores; any cheap
    necessary condition of success will do (`progress.each_episode` makes one from a function of an episode).
    include_final_obs, obs_key, ignore_obs: of the named scores, see `progress.coverage`.
    control: "shuffle", "random" or "neg" spoil the scores, with `seed` (see `controls`).
    always_on: A = base + lambda_aux * z(P) on every group, without gate and q_fail.
    level="step" (ours, no source): in place of the broadcast the base itself on surrogate rewards R := P[i],
    r[i,t] := [o[i,t+1] is new] / T_i, times lambda_eff; for coverage only.
    """

    base: Estimator = GRPO()
    lambda_aux: float = 0.3
    tau_R: float = 1e-3
    tau_P: float = 1e-4
    eps_P: float = 0.0
    scale_by_q_fail: bool = True
    include_final_obs: bool = True
    gate: str | Callable = "env_return"
    combine: str = "add"
    progress: str | Callable = "coverage"
    control: str = "none"
    seed: int = 0
    always_on: bool = False
    level: str = "trajectory"
    obs_key: str | Callable | None = None
    ignore_obs: tuple[str, ...] = ()

    PAPER: ClassVar[str] = "2607.22724"

    def __post_init__(self):
        if not callable(self.base):
            raise ValueError(f"progpo: base must be an estimator (a callable), got {self.base!r}")
        for name, choices in (("gate", GATES), ("progress", tuple(SCORES))):
            value = getattr(self, name)
            if isinstance(value, str) and ":" not in value:
                check_choice("progpo", name, value, choices)
            else:
                object.__setattr__(self, name, load_function("progpo", name, value))
        check_choice("progpo", "combine", self.combine, ("add", "replace"))
        check_choice("progpo", "control", self.control, CONTROLS)
        check_choice("progpo", "level", self.level, ("trajectory", "step"))
        for name in ("lambda_aux", "tau_R", "tau_P", "eps_P"):
            check_at_least("progpo", name, getattr(self, name), 0.0)
        for name in ("scale_by_q_fail", "include_final_obs", "always_on"):
            check_flag("progpo", name, getattr(self, name))
        check_whole("progpo", "seed", self.seed, 0)
        check_observation_options("progpo", self)
        if self.level == "step" and (self.progress != "coverage" or self.control not in ("none", "neg")):
            raise ValueError("progpo: level='step' is defined for progress='coverage' with control none or neg only")
        if self.always_on and self.combine == "replace":
            raise ValueError("progpo: always_on with combine='replace' would silence the base everywhere; use 'add'")

    def __call__(self, batch: StepBatch) -> np.ndarray:
        """(n_steps,) float32 advantages of `batch`."""
        check_finite(batch)  # the base may be a function that does not
        advantage = np.asarray(self.base(batch), np.float32)
        if len(batch) == 0:
            return advantage
        added, rows = self._added(batch, *self.fallback(batch, self.scores(batch)))
        if not rows.any():
            return advantage
        advantage = advantage.copy()
        advantage[rows] = added[rows] + advantage[rows] if self.combine == "add" else added[rows]
        return advantage

    def scores(self, batch: StepBatch) -> np.ndarray:
        """(n_episodes,) progress of each episode, after the control."""
        if callable(self.progress):
            progress = np.asarray(self.progress(batch), float)
            if progress.shape != (batch.n_episodes,):
                raise ValueError(
                    f"progpo: progress returned shape {progress.shape} for {batch.n_episodes} episodes; it must "
                    "return one number an episode (each_episode(f) makes that of a function of one episode)"
                )
            bad = np.flatnonzero(~np.isfinite(progress) & ~batch.dropped)
            if len(bad):
                raise ValueError(f"progpo: the progress of episode {bad[0]} of the batch is {progress[bad[0]]}")
        else:
            missing = [o is None for o in batch.final_observation[~batch.dropped]]
            if self.include_final_obs and any(missing):
                warnings.warn(
                    f"{sum(missing)} of {len(missing)} episodes have no final observation: their {self.progress} is "
                    "computed without it (include_final_obs=False leaves it out for all)"
                )
            score = SCORES[self.progress]
            options = (self.include_final_obs, self.obs_key, self.ignore_obs)
            progress = np.concatenate([score(block, *options) for block in batch.blocks])
        return apply_control(self.control, batch, progress, self.seed)

    def all_fail(self, batch: StepBatch) -> tuple[np.ndarray, np.ndarray, float]:
        """Groups of the batch, whether each is all-fail, and q_fail. Dropped episodes are left out."""
        kept = ~batch.dropped
        groups, code = np.unique(batch.episode_group[kept], return_inverse=True)
        if len(groups) == 0:
            return groups, np.zeros(0, bool), 0.0
        largest = np.zeros(len(groups))
        np.maximum.at(largest, code, np.abs(self._outcome(batch))[kept])
        all_fail = largest < self.tau_R
        return groups, all_fail, float(all_fail.mean())

    def _outcome(self, batch: StepBatch) -> np.ndarray:
        """(n_episodes,) what the gate looks at."""
        if self.gate == "env_return":
            return batch.environment_return
        if self.gate == "success":
            return batch.success.astype(float)
        if self.gate == "row_score":
            size = np.zeros(batch.n_episodes)
            np.maximum.at(size, batch.episode, np.abs(batch.row_score))
            return size
        outcome = np.asarray(self.gate(batch), float)
        if outcome.shape != (batch.n_episodes,):
            raise ValueError(f"progpo: gate returned shape {outcome.shape} for {batch.n_episodes} episodes")
        return outcome

    def effective_lambda(self, q_fail: float) -> float:
        """What the standardised score is multiplied with."""
        return self.lambda_aux * (q_fail if self.scale_by_q_fail and not self.always_on else 1.0)

    def fallback(self, batch: StepBatch, progress: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The auxiliary advantage of each episode and whether it applies, both (n_episodes,).

        progress: (n_episodes,) score of each episode, by default its coverage.
        """
        groups, open_, q_fail = self.all_fail(batch)
        if self.always_on:
            open_ = np.ones(len(groups), bool)
        out, active = np.zeros(batch.n_episodes), np.zeros(batch.n_episodes, bool)
        if not open_.any():
            return out, active
        kept = np.flatnonzero(~batch.dropped)
        code = np.searchsorted(groups, batch.episode_group[kept])
        _, mean, std, _ = group_statistics(code, progress[kept], len(groups), ddof=0)
        scale = self.effective_lambda(q_fail)
        use = open_[code] & (std[code] >= self.tau_P) & (std[code] > 0)
        standard = (progress[kept] - mean[code]) / np.where(use, std[code] + self.eps_P, 1.0)
        out[kept[use]] = scale * standard[use]
        # Where the fallback is zero "add" leaves the base as it is; "replace" still silences the base.
        active[kept] = open_[code] if self.combine == "replace" else use & (scale > 0)
        return out, active

    def _added(self, batch: StepBatch, fallback: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is put on each step, and the steps it is put on, both (n_steps,)."""
        rows = active[batch.episode]
        added = fallback[batch.episode]
        used = (active & (fallback != 0))[batch.episode]
        if self.level == "trajectory" or not used.any():
            return added, rows
        # Steps of groups with a fallback; an episode at the group's mean has fallback 0 but steps that differ.
        groups = np.unique(batch.episode_group[active & (fallback != 0)])
        chosen = np.flatnonzero(np.isin(batch.group, groups) & ~batch.dropped[batch.episode])
        sub = batch.select(chosen)
        sign = -1.0 if self.control == "neg" else 1.0
        new = sign * first_visits(sub, self.include_final_obs, self.obs_key, self.ignore_obs)
        steps = np.bincount(sub.episode, minlength=batch.n_episodes)
        reward = new / steps[sub.episode]
        surrogate = replace(
            sub,
            reward=reward,
            penalty=np.zeros(len(sub)),
            episode_return=np.bincount(sub.episode, reward, batch.n_episodes),
        )
        added = np.zeros(len(batch))
        q_fail = self.all_fail(batch)[2]
        added[chosen] = self.effective_lambda(q_fail) * np.asarray(self.base(surrogate), float)
        return added, rows

    def terms(self, batch: StepBatch) -> dict[str, np.ndarray]:
        """The base's terms, then gate, progress, and what it adds."""
        terms = dict(self.base.terms(batch)) if isinstance(self.base, StepEstimator) else {}
        terms.pop("advantage", None)
        groups, all_fail, _ = self.all_fail(batch)
        progress = self.scores(batch)
        added, rows = self._added(batch, *self.fallback(batch, progress))
        kept = np.flatnonzero(~batch.dropped)
        every, code = np.unique(batch.episode_group, return_inverse=True)
        _, mean, std, _ = group_statistics(code[kept], progress[kept], len(every), ddof=0)
        step_group = code[batch.episode]
        return {
            **terms,
            "base advantage": np.asarray(self.base(batch), np.float32),
            "all-fail": np.isin(batch.group, groups[all_fail]),
            "progress": progress[batch.episode],
            "progress mean": mean[step_group],
            "progress sd": std[step_group],
            "fallback": np.where(rows, added, 0.0),
            "advantage": self(batch),
        }

    def diagnostics(self, batch: StepBatch) -> dict[str, float]:
        """The base's numbers, q_fail, the effective lambda, and where the fallback acts."""
        out = self.base.diagnostics(batch) if isinstance(self.base, StepEstimator) else {}
        if len(batch) == 0:
            return out
        q_fail = self.all_fail(batch)[2]
        fallback, active = self.fallback(batch, self.scores(batch))
        return out | {
            "progpo/q_fail": q_fail,
            "progpo/lambda_eff": self.effective_lambda(q_fail),
            "progpo/fallback_steps": float((active & (fallback != 0))[batch.episode].mean()),
        }
