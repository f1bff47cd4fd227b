"""Discounted returns of single steps, which GiGPO, HGPO and ProxMO compare."""

from __future__ import annotations

import numpy as np

from progpo_trl.episodes import StepBatch


def discounted_rewards(batch: StepBatch, gamma: float) -> np.ndarray:
    """(n_steps,) sum over k >= t of gamma^(k-t) r[i,k], float64. Episodes may be interleaved.

    All episodes take one step of the recursion together, from the last step index to the first.
    """
    out = np.empty(len(batch))
    if len(batch) == 0:
        return out
    order = np.argsort(batch.step, kind="stable")
    bounds = np.searchsorted(batch.step[order], np.arange(int(batch.step.max()) + 2))
    after = np.zeros(batch.n_episodes)
    episode, reward = batch.episode[order], batch.reward[order]
    for t in range(len(bounds) - 2, -1, -1):
        rows = slice(bounds[t], bounds[t + 1])
        members = episode[rows]
        after[members] = reward[rows] + gamma * after[members]
        out[rows] = after[members]
    returns = np.empty_like(out)
    returns[order] = out
    return returns


def step_returns(batch: StepBatch, gamma: float) -> np.ndarray:
    """(n_steps,) G[i,t] = discounted rewards from step t on, less the step's own invalid-action penalty.

    Source: verl-agent, where the penalty is applied after discounting and is not propagated to earlier steps.
    """
    return discounted_rewards(batch, gamma) - batch.penalty
