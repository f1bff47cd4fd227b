"""Progress scores: one number an episode that says how far it came, without any reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from progpo_trl.advantages.observations import ObsKey, code_observations
from progpo_trl.episodes import StepBatch

Progress = Callable[[StepBatch], np.ndarray]


def coverage(
    batch: StepBatch,
    include_final_obs: bool = True,
    obs_key: ObsKey | None = None,
    ignore_obs: Sequence[str] = (),
) -> np.ndarray:
    """(n_episodes,) first-visit observation coverage P = (distinct observations - 1) / steps, in [0, 1].

    It is the share of actions whose next observation is new in the episode. Observations are compared as raw strings
    (or as what `obs_key` makes of them; those in `ignore_obs` are never new). With `include_final_obs` the
    observation after the last action counts too (an episode that has none is counted without it). An episode without
    steps has P = 0.
    Source: ProGPO (arXiv:2607.22724), Eq. 5-6; whether the last observation counts is our reading.
    """
    steps = np.bincount(batch.episode, minlength=batch.n_episodes)
    episode, position, code = _visits(batch, include_final_obs, obs_key, ignore_obs)
    new = np.bincount(episode[_first(episode, code) & (position > 0)], minlength=batch.n_episodes)
    return new / np.maximum(steps, 1)


def first_visits(
    batch: StepBatch,
    include_final_obs: bool = True,
    obs_key: ObsKey | None = None,
    ignore_obs: Sequence[str] = (),
) -> np.ndarray:
    """(n_steps,) 1.0 where the observation after the step is new in its episode; sums to `coverage` times steps."""
    episode, position, code = _visits(batch, include_final_obs, obs_key, ignore_obs)
    new = np.flatnonzero(_first(episode, code) & (position > 0))
    row = _row_of(batch)
    out = np.zeros(len(batch))
    out[row(episode[new], position[new] - 1)] = 1.0
    return out


def obs_change(
    batch: StepBatch,
    include_final_obs: bool = True,
    obs_key: ObsKey | None = None,
    ignore_obs: Sequence[str] = (),
) -> np.ndarray:
    """(n_episodes,) share of steps whose next observation differs from the one before; revisits count.

    Source: a control of the ProGPO paper, read off its name.
    """
    before, after, episode = _transitions(batch, include_final_obs, obs_key, ignore_obs)
    steps = np.bincount(batch.episode, minlength=batch.n_episodes)
    return np.bincount(episode[before != after], minlength=batch.n_episodes) / np.maximum(steps, 1)


def edit_distance(
    batch: StepBatch,
    include_final_obs: bool = True,
    obs_key: ObsKey | None = None,
    ignore_obs: Sequence[str] = (),
) -> np.ndarray:
    """(n_episodes,) mean over steps of the normalised edit distance between the observations around the step.

    The distance is Levenshtein's over the length of the longer text. Source: the control "Edit-D" of the ProGPO
    paper, which does not define it; the definition is ours.
    """
    from rapidfuzz.distance import Levenshtein

    before, after, episode = _transitions(batch, include_final_obs, obs_key, ignore_obs)
    texts = code_observations(batch, obs_key, ignore_obs).texts
    pairs, which = np.unique(np.stack([before, after]), axis=1, return_inverse=True)
    distance = np.array([Levenshtein.normalized_distance(texts[a], texts[b]) for a, b in pairs.T.tolist()])
    steps = np.bincount(batch.episode, minlength=batch.n_episodes)
    return np.bincount(episode, distance[which.ravel()], batch.n_episodes) / np.maximum(steps, 1)


SCORES = {"coverage": coverage, "obs_change": obs_change, "edit_distance": edit_distance}


@dataclass(frozen=True)
class Trajectory:
    """One episode as a progress score sees it. observations: what was seen before each action, then after the last
    (where it is known); actions: one less.
    """

    observations: list[str]
    actions: list[str]
    rewards: np.ndarray
    episode_return: float
    success: bool


def each_episode(score: Callable[[Trajectory], float]) -> Progress:
    """A progress score of a batch from a function of one episode: `ProGPO(progress=each_episode(f))`."""

    def scores(batch: StepBatch) -> np.ndarray:
        order = np.lexsort((batch.step, batch.episode))
        ends = np.searchsorted(batch.episode[order], np.arange(batch.n_episodes), side="right")
        out, start = np.zeros(batch.n_episodes), 0
        for i, end in enumerate(ends.tolist()):
            rows, start = order[start:end], end
            if len(rows) == 0:
                continue
            final = batch.final_observation[i]
            out[i] = score(
                Trajectory(
                    observations=[*batch.observation[rows], *([] if final is None else [final])],
                    actions=list(batch.action[rows]),
                    rewards=batch.reward[rows],
                    episode_return=float(batch.episode_return[i]),
                    success=bool(batch.success[i]),
                )
            )
        return out

    return scores


def _visits(batch, include_final_obs, obs_key, ignore_obs):
    """Every observation that counts, in time order within its episode: (episode, position, code)."""
    observations = code_observations(batch, obs_key, ignore_obs)
    episode, position, code = batch.episode, batch.step, observations.step
    if include_final_obs:
        steps = np.bincount(batch.episode, minlength=batch.n_episodes)
        ended = np.flatnonzero((steps > 0) & (observations.final >= 0))
        episode = np.concatenate([episode, ended])
        position = np.concatenate([position, steps[ended]])
        code = np.concatenate([code, observations.final[ended]])
    if obs_key is None and not len(ignore_obs):
        return episode, position, code
    seen = code >= 0
    return episode[seen], position[seen], code[seen]


def _first(episode: np.ndarray, code: np.ndarray) -> np.ndarray:
    """True where a code occurs for the first time in its episode."""
    out = np.zeros(len(code), bool)
    out[np.unique(episode * (code.max(initial=0) + 1) + code, return_index=True)[1]] = True
    return out


def _row_of(batch: StepBatch):
    """The function (episodes, steps) -> rows of the batch."""
    order = np.lexsort((batch.step, batch.episode))
    starts = np.searchsorted(batch.episode[order], np.arange(batch.n_episodes))
    return lambda episode, step: order[starts[episode] + step]


def _transitions(batch, include_final_obs, obs_key, ignore_obs):
    """(code before, code after, episode) of every step both of whose observations are known and not ignored."""
    observations = code_observations(batch, obs_key, ignore_obs)
    order = np.lexsort((batch.step, batch.episode))
    episode, before = batch.episode[order], observations.step[order]
    after = np.append(before[1:], -1)
    last = np.append(episode[1:] != episode[:-1], True) if len(episode) else np.zeros(0, bool)
    after = after[: len(before)]
    after[last] = observations.final[episode[last]] if include_final_obs else -1
    known = (before >= 0) & (after >= 0)
    return before[known], after[known], episode[known]
