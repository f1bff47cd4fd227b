"""Reward functions of whole episodes: named, checked, and added to the environment's return."""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from progpo_trl.episodes import Episode

ENVIRONMENT = "environment_return"


def environment_return(episodes: Sequence[Episode], **_: Any) -> list[float]:
    """The first reward function of every run: the undiscounted sum of the environment's rewards."""
    return [e.environment_return for e in episodes]


def checked_rewards(functions: Sequence[Callable]) -> list[Callable]:
    """`functions` with distinct names, each refusing values that are no numbers.

    TRL keys its metrics by name, so two functions of one name get a number each. None means that a function cannot
    judge an episode; TRL turns None into NaN, so a function's own NaN has to be caught before.
    """
    names = [_name(f) for f in functions]
    taken = Counter([*names, ENVIRONMENT])
    seen: Counter[str] = Counter()
    out = []
    for function, name in zip(functions, names, strict=True):
        seen[name] += 1
        out.append(_checked(function, f"{name}_{seen[name]}" if taken[name] > 1 else name))
    return out


def add_rewards(episode: Episode, names: Sequence[str], values: Sequence[float], environment_weight: float) -> None:
    """Put one episode's weighted rewards (the environment's first) into `episode.extra_rewards`."""
    if episode.dropped:
        return
    extra = dict(zip(names[1:], values[1:], strict=True))
    if environment_weight != 1.0:
        extra["environment_weight"] = values[0] - episode.environment_return
    episode.extra_rewards = {name: value for name, value in extra.items() if not math.isnan(value)}


def _name(function: Callable) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return "reward" if name == "<lambda>" else name


def _checked(function: Callable, name: str) -> Callable:
    def check(values: Any) -> list[float | None]:
        if not isinstance(values, (list, tuple)) and not hasattr(values, "tolist"):
            raise TypeError(f"reward function {name!r} returned {values!r}; it must return one number per episode")
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        for i, value in enumerate(values):
            known = value is None or (isinstance(value, (int, float)) and math.isfinite(value))
            if not known:
                raise ValueError(
                    f"reward function {name!r} returned {value!r} for episode {i}; return a finite number, or None "
                    "where it cannot judge"
                )
        return values

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        async def reward(**kwargs):
            return check(await function(**kwargs))

    else:

        def reward(**kwargs):
            return check(function(**kwargs))

    reward.__name__ = name
    return reward
