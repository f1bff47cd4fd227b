"""The estimator interface, its construction from YAML, and the group statistics that estimators share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from progpo_trl.episodes import StepBatch

Estimator = Callable[[StepBatch], np.ndarray]

# Values whose spread is below this fraction of their size are one value: what is left is rounding.
RELATIVE_SPREAD = 1e-9

PRESETS = ("default", "released_code")


class StepEstimator(ABC):
    """What the estimators of this package share: one writes `terms()`, the rest follows.

    RELEASED: the options with which it computes what the authors' released code computes; empty where the defaults
    do. PAPER: its arXiv number, for the model card.
    """

    RELEASED: ClassVar[dict[str, Any]] = {}
    PAPER: ClassVar[str | None] = None

    @property
    def group_wise(self) -> bool:
        """True when the advantages of a group depend on nothing outside it: `terms` then gets a few groups a call."""
        return False

    @classmethod
    def released_code(cls, **options: Any):
        """The estimator as in the authors' released code; `options` change single things."""
        return cls(**{**cls.RELEASED, **options})

    @abstractmethod
    def terms(self, batch: StepBatch) -> dict[str, np.ndarray]:
        """What the advantage is made of, one (n_steps,) column a quantity; the last, "advantage", is the result."""

    def __call__(self, batch: StepBatch) -> np.ndarray:
        """(n_steps,) float32 advantages of `batch`; steps of dropped episodes get 0 and count nowhere."""
        check_finite(batch)
        blocks = batch.blocks if self.group_wise else [batch]
        return np.concatenate([self._of_kept(block) for block in blocks])

    def _of_kept(self, batch: StepBatch) -> np.ndarray:
        out = np.zeros(len(batch), np.float32)
        rows = np.flatnonzero(~batch.dropped[batch.episode])
        if len(rows) == len(batch) > 0:
            out[:] = self.terms(batch)["advantage"]
        elif len(rows):
            out[rows] = self.terms(batch.select(rows))["advantage"]
        return out

    def diagnostics(self, batch: StepBatch) -> dict[str, float]:
        """Numbers worth a curve in the log, of one generation."""
        return {}


def make_estimator(
    advantage: Mapping[str, Any] | None = None, progress_fallback: Mapping[str, Any] | None = None
) -> Estimator:
    """An estimator from its YAML form: `advantage: {name: grpo, ...}`, `progress_fallback: {lambda_aux: 0.3, ...}`.

    `preset: released_code` starts from what the authors' released code does instead of our defaults. Unknown names
    raise ValueError with the nearest valid one; bad values raise ValueError from the constructor.
    """
    from progpo_trl.advantages import ESTIMATORS, ProGPO

    options = dict(advantage or {})
    name = options.pop("name", "grpo")
    if name not in ESTIMATORS:
        near = get_close_matches(str(name), ESTIMATORS, n=1, cutoff=0.0)
        raise ValueError(f"no advantage estimator {name!r}; did you mean {near[0]!r}? There are {sorted(ESTIMATORS)}")
    preset = options.pop("preset", "default")
    check_choice(name, "preset", preset, PRESETS)
    cls = ESTIMATORS[name]
    check_options(name, cls, options)
    estimator = cls.released_code(**options) if preset == "released_code" else cls(**options)
    if progress_fallback is None:
        return estimator
    check_options("progress_fallback", ProGPO, progress_fallback)
    return ProGPO(estimator, **progress_fallback)


def check_options(owner: str, cls: type, options: Mapping[str, Any]) -> None:
    """Raise ValueError with the nearest option of the dataclass `cls` for a name that is none."""
    known = cls.__dataclass_fields__
    for option in options:
        if option not in known:
            near = get_close_matches(str(option), known, n=1, cutoff=0.0)
            raise ValueError(f"{owner} has no option {option!r}; did you mean {near[0]!r}? There are {sorted(known)}")


def check_choice(owner: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ValueError with the nearest choice when `value` is none of them."""
    if not isinstance(value, str) or value not in choices:
        near = get_close_matches(str(value), choices, n=1, cutoff=0.0)
        raise ValueError(f"{owner}: {name}={value!r} is not one of {', '.join(choices)}; did you mean {near[0]!r}?")


def check_at_least(owner: str, name: str, value: float, low: float, high: float | None = None) -> None:
    """Raise ValueError when a number is outside [low, high] or not finite; it names the nearest valid value."""
    number = not isinstance(value, bool) and isinstance(value, (int, float, np.integer, np.floating))
    if not number or not np.isfinite(value) or value < low or (high is not None and value > high):
        between = f"a number >= {low}" if high is None else f"a number from {low} to {high}"
        nearest = high if number and high is not None and value > high else low
        raise ValueError(f"{owner}: {name} must be {between}, got {value!r}; the nearest valid value is {nearest}")


def check_whole(owner: str, name: str, value: Any, low: int) -> None:
    """Raise ValueError when `value` is no whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise ValueError(
            f"{owner}: {name} must be a whole number >= {low}, got {value!r}; the nearest valid value is {low}"
        )


def check_flag(owner: str, name: str, value: Any) -> None:
    """Raise ValueError when `value` is neither true nor false."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}: {name} must be true or false, got {value!r}")


def load_function(owner: str, name: str, value: Any) -> Callable | None:
    """A callable as it is; "module:function" (how a settings file names one) imported; None stays None."""
    if value is None or callable(value):
        return value
    module, colon, attribute = str(value).partition(":")
    if not colon or not isinstance(value, str) or module.startswith("."):  # import_module knows no relative names
        raise ValueError(f"{owner}: {name} must be a function or its name as 'module:function', got {value!r}")
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{owner}: {name}={value!r} cannot be imported: {error}") from None
    if not callable(function):
        raise ValueError(f"{owner}: {name}={value!r} is not a function")
    return function


def check_finite(batch: StepBatch) -> None:
    """Raise ValueError naming the episode when a reward, penalty or return of a kept episode is not finite."""
    bad = ~np.isfinite(batch.episode_return)
    bad[batch.episode[~np.isfinite(batch.reward) | ~np.isfinite(batch.penalty)]] = True
    bad &= ~batch.dropped
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"episode {first} of the batch (group {batch.episode_group[first]}) has a reward that is not finite "
            f"(return {batch.episode_return[first]}); {int(bad.sum())} such episode(s)"
        )


def group_codes(batch: StepBatch) -> tuple[int, np.ndarray]:
    """Number of groups, and (n_steps,) the group of each step as 0..n_groups-1."""
    groups, code = np.unique(batch.episode_group, return_inverse=True)
    return len(groups), code[batch.episode]


def fold(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One code 0.. for each distinct pair of codes; -1 where either is negative."""
    width = int(second.max(initial=0)) + 1
    member = (first >= 0) & (second >= 0)
    key = first * width + second
    if member.all():
        return np.unique(key, return_inverse=True)[1]
    out = np.full(len(key), -1, np.int64)
    out[member] = np.unique(key[member], return_inverse=True)[1]
    return out


def group_statistics(code: np.ndarray, values: np.ndarray, n_groups: int, ddof: int, spread: float = RELATIVE_SPREAD):
    """Size, mean, standard deviation and constancy of `values` within each group.

    code: (n,) group of each value in 0..n_groups-1; ddof: 1 for Bessel's correction, 0 for the population; spread:
    what counts as constant, as a fraction of the largest value (at least of 1).
    Returns (count, mean, std, constant), each (n_groups,). A constant group has exactly its value as mean and std 0,
    so that no rounding noise survives a division by a small number.
    """
    count = np.bincount(code, minlength=n_groups)
    low, high = np.full(n_groups, np.inf), np.full(n_groups, -np.inf)
    np.minimum.at(low, code, values)
    np.maximum.at(high, code, values)
    size = np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    with np.errstate(invalid="ignore"):
        constant = (high - low <= spread * size) | (count < 1)
    mean = np.bincount(code, values, n_groups) / np.maximum(count, 1)
    mean = np.where(constant & (count > 0), low, mean)
    squares = np.bincount(code, (values - mean[code]) ** 2, n_groups)
    std = np.sqrt(squares / np.maximum(count - ddof, 1))
    return count, mean, np.where(constant, 0.0, std), constant


def normalise_in_sets(
    values: np.ndarray, sets: np.ndarray, *, norm: str, eps: float, ddof: int, spread: float = RELATIVE_SPREAD
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Each value against the others of its set: (size, mean, sd, advantage), each (n,).

    sets: (n,) code of the set, -1 for values in none. advantage = (value - mean) / (sd + eps), or value - mean with
    norm="mean"; exactly 0 in sets of one, in constant sets, and where the value is the mean but for rounding.
    """
    inside = np.maximum(sets, 0)
    member = sets >= 0
    n_sets = int(sets.max(initial=-1)) + 1
    if n_sets == 0:
        zero = np.zeros(len(values))
        return zero.astype(np.int64), zero, zero.copy(), zero.copy()
    everyone = member.all()
    counted, of = (values, sets) if everyone else (values[member], sets[member])
    count, mean, std, constant = group_statistics(of, counted, n_sets, ddof, spread)
    advantage = values - mean[inside]
    equal = np.abs(advantage) <= RELATIVE_SPREAD * np.maximum(1.0, np.abs(values))
    advantage[equal | constant[inside] | ~member] = 0.0
    if norm == "mean_std":
        advantage /= std[inside] + (eps or np.finfo(float).tiny)
    size = count[inside]
    advantage[size < 2] = 0.0
    if not everyone:
        size = np.where(member, size, 0)
    return size, mean[inside], std[inside], advantage
