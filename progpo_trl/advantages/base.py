"""The estimator interface, its construction from YAML, and the group statistics that estimators share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from progpo_trl.episodes import StepBatch

Estimator = Callable[[StepBatch], np.ndarray]

# Values whose spread is below this fraction of their size are one value: what is left is rounding.
RELATIVE_SPREAD = 1e-9


def make_estimator(
    advantage: Mapping[str, Any] | None = None, progress_fallback: Mapping[str, Any] | None = None
) -> Estimator:
    """An estimator from its YAML form: `advantage: {name: grpo, ...}`, `progress_fallback: {lambda_aux: 0.3, ...}`.

    Unknown names raise ValueError with the nearest valid one; unknown or bad options raise from the constructor.
    """
    from progpo_trl.advantages import ESTIMATORS, ProGPO

    options = dict(advantage or {})
    name = options.pop("name", "grpo")
    if name not in ESTIMATORS:
        near = get_close_matches(str(name), ESTIMATORS, n=1, cutoff=0.0)
        raise ValueError(f"no advantage estimator {name!r}; did you mean {near[0]!r}? There are {sorted(ESTIMATORS)}")
    estimator = ESTIMATORS[name](**options)
    return estimator if progress_fallback is None else ProGPO(estimator, **progress_fallback)


def check_choice(owner: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ValueError with the nearest choice when `value` is none of them."""
    if value not in choices:
        near = get_close_matches(str(value), choices, n=1, cutoff=0.0)
        raise ValueError(f"{owner}: {name}={value!r} is not one of {', '.join(choices)}; did you mean {near[0]!r}?")


def check_at_least(owner: str, name: str, value: float, low: float) -> None:
    """Raise ValueError when a number is below its range or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value) or value < low:
        raise ValueError(f"{owner}: {name} must be a number >= {low}, got {value!r}")


def group_statistics(code: np.ndarray, values: np.ndarray, n_groups: int, ddof: int):
    """Size, mean, standard deviation and constancy of `values` within each group.

    code: (n,) group of each value in 0..n_groups-1; ddof: 1 for Bessel's correction, 0 for the population.
    Returns (count, mean, std, constant), each (n_groups,). A constant group has exactly its value as mean and std 0,
    so that no rounding noise survives a division by a small number.
    """
    count = np.bincount(code, minlength=n_groups)
    low, high = np.full(n_groups, np.inf), np.full(n_groups, -np.inf)
    np.minimum.at(low, code, values)
    np.maximum.at(high, code, values)
    size = np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    with np.errstate(invalid="ignore"):
        constant = (high - low <= RELATIVE_SPREAD * size) | (count < 1)
    mean = np.bincount(code, values, n_groups) / np.maximum(count, 1)
    mean = np.where(constant & (count > 0), low, mean)
    squares = np.bincount(code, (values - mean[code]) ** 2, n_groups)
    std = np.sqrt(squares / np.maximum(count - ddof, 1))
    return count, mean, np.where(constant, 0.0, std), constant
