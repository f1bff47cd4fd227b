"""When two observations are the same: integer codes, canonical forms and observations that count for nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from progpo_trl.advantages.base import load_function
from progpo_trl.episodes import StepBatch

ObsKey = Callable[[str], str]


@dataclass(frozen=True)
class Observations:
    """step: (n_steps,) code of the observation before each action; final: (n_episodes,) of the one after the last;
    -1 where there is none or it is ignored. texts: the text of each code, after `obs_key`.
    """

    step: np.ndarray
    final: np.ndarray
    texts: list[str]


def code_observations(batch: StepBatch, obs_key: ObsKey | None = None, ignore_obs: Sequence[str] = ()) -> Observations:
    """The observations of `batch` as codes.

    obs_key: text -> canonical text, called once for every distinct text, for observations that carry a step counter,
    a clock or a session id. ignore_obs: observations, after obs_key, that say nothing of the state ("Nothing
    happens."): they get code -1.
    """
    step, final, texts = batch.observation_codes
    if obs_key is None and not ignore_obs:
        return Observations(step, final, texts)
    index: dict[str, int] = {}
    code = np.empty(len(texts) + 1, np.int64)
    code[-1] = -1  # what a missing final observation, -1, is looked up as
    for i, text in enumerate(texts):
        key = text if obs_key is None else obs_key(text)
        if not isinstance(key, str):
            raise TypeError(f"obs_key returned {type(key).__name__} for {text[:80]!r}; it must return text")
        code[i] = -1 if key in ignore_obs else index.setdefault(key, len(index))
    return Observations(code[step], code[final], list(index))


def check_observation_options(owner: str, estimator: object) -> None:
    """Check and import the fields `obs_key` and `ignore_obs` of a frozen dataclass."""
    object.__setattr__(estimator, "obs_key", load_function(owner, "obs_key", estimator.obs_key))
    ignored = estimator.ignore_obs
    if isinstance(ignored, str) or not all(isinstance(text, str) for text in ignored):
        raise ValueError(f"{owner}: ignore_obs must be a list of observations, got {ignored!r}")
    object.__setattr__(estimator, "ignore_obs", tuple(ignored))
