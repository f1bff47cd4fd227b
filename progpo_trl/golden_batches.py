"""The inputs of a golden file (see `verify_estimators`) as step batches."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from progpo_trl.episodes import StepBatch


def episode_names(rows: dict[str, Any]) -> list[tuple[str, str]]:
    """(group, trajectory) of the episodes of a golden batch, in the order of first sight."""
    return list(dict.fromkeys(zip(rows["group"], rows["traj"], strict=True)))


def batch_of_rows(rows: dict[str, Any]) -> StepBatch:
    """A golden batch: flat rows, chronological within a trajectory, possibly interleaved."""
    keys = list(zip(rows["group"], rows["traj"], strict=True))
    index = {name: i for i, name in enumerate(episode_names(rows))}
    groups = {name: i for i, name in enumerate(dict.fromkeys(rows["group"]))}
    episode = np.array([index[key] for key in keys], np.int64)
    seen = np.zeros(len(index), np.int64)
    step = np.zeros(len(keys), np.int64)
    for row, i in enumerate(episode.tolist()):
        step[row] = seen[i]
        seen[i] += 1
    returns = np.zeros(len(index))
    returns[episode] = rows["episode_return"]
    return _batch(
        episode=episode,
        step=step,
        observation=rows["obs"],
        reward=rows["step_reward"],
        valid=np.array(rows["valid"], bool),
        penalty=rows["invalid_penalty"],
        group=[groups[g] for g, _ in index],
        returns=returns,
        final=[None] * len(index),
    )


def batch_of_trajectories(groups: Sequence[dict[str, Any]]) -> StepBatch:
    """Inline trajectories: T + 1 observations, the last of which is the one after the last action, and a return."""
    flat = [(g, t) for g, group in enumerate(groups) for t in group["trajectories"]]
    sizes = [len(t["obs"]) - 1 for _, t in flat]
    return _batch(
        episode=np.repeat(np.arange(len(flat)), sizes),
        step=np.concatenate([np.arange(size) for size in sizes]),
        observation=[o for _, t in flat for o in t["obs"][:-1]],
        reward=np.zeros(sum(sizes)),
        valid=np.ones(sum(sizes), bool),
        penalty=0.0,
        group=[g for g, _ in flat],
        returns=[t["episode_return"] for _, t in flat],
        final=[t["obs"][-1] for _, t in flat],
    )


def batch_of_columns(columns: dict[str, Any]) -> tuple[StepBatch, np.ndarray]:
    """Inline columns, one entry a trajectory: a batch with one step each, and the given coverage."""
    n = len(columns["group"])
    groups = {name: i for i, name in enumerate(dict.fromkeys(columns["group"]))}
    batch = _batch(
        episode=np.arange(n),
        step=np.zeros(n, np.int64),
        observation=[""] * n,  # the coverage is given, so what was seen does not matter
        reward=columns["episode_return"],
        valid=np.ones(n, bool),
        penalty=0.0,
        group=[groups[g] for g in columns["group"]],
        returns=columns["episode_return"],
        final=[""] * n,
    )
    return batch, np.array([float(Fraction(c)) for c in columns["coverage"]])


def _batch(*, episode, step, observation, reward, valid, penalty, group, returns, final) -> StepBatch:
    n = len(episode)
    return StepBatch(
        episode=np.asarray(episode, np.int64),
        step=step,
        observation=_objects(observation),
        action=_objects([""] * n),
        reward=np.array(reward, float),
        penalty=np.where(valid, 0.0, penalty),
        format_valid=valid,
        admissible=np.ones(n, bool),
        episode_group=np.array(group, np.int64),
        episode_return=np.array(returns, float),
        environment_return=np.array(returns, float),
        success=np.array(returns, float) > 0.5,
        dropped=np.zeros(len(group), bool),
        final_observation=_objects(final),
    )


def _objects(values: Sequence[Any]) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out
