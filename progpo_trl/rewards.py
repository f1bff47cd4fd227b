"""Reward functions of whole episodes: named, checked, and added to the environment's return."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from progpo_trl.episodes import Episode

ENVIRONMENT = "environment_return"
# What a weight other than 1 adds to (or takes from) the environment's return.
ENVIRONMENT_WEIGHT = "environment_weight"


def environment_return(episodes: Sequence[Episode], **_: Any) -> list[float]:
    """The first reward function of every run: the undiscounted sum of the environment's rewards."""
    return [e.environment_return for e in episodes]


def checked_rewards(functions: Sequence[Callable]) -> list[Callable]:
    """`functions` with distinct names, each refusing values that are no numbers.

    TRL keys its metrics by name, so the second function of a name gets a number. None means that a function cannot
    judge an episode; TRL turns None into NaN, so a function's own NaN has to be caught before.
    """
    taken = {ENVIRONMENT, ENVIRONMENT_WEIGHT}
    out = []
    for function in functions:
        name = base = _name(function)
        number = 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        out.append(_checked(function, name))
    return out


def add_rewards(episode: Episode, names: Sequence[str], values: Sequence[float], environment_weight: float) -> None:
    """Put one episode's weighted rewards (the environment's first) into `episode.extra_rewards`."""
    if episode.dropped:
        return
    extra = dict(zip(names[1:], values[1:], strict=True))
    if environment_weight != 1.0:
        extra[ENVIRONMENT_WEIGHT] = values[0] - episode.environment_return
    episode.extra_rewards = {name: value for name, value in extra.items() if not math.isnan(value)}


def _name(function: Callable) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return "reward" if name == "<lambda>" else name


def _checked(function: Callable, name: str) -> Callable:
    def check(values: Any, n: int) -> list[float | None]:
        values = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(values, (list, tuple)):
            raise TypeError(f"reward function {name!r} returned {values!r}; it must return one number per episode")
        if len(values) != n:
            # TRL checks this for plain functions only, and would spread a single number over all episodes.
            raise ValueError(f"reward function {name!r} returned {len(values)} rewards for {n} episodes")
        return [number(value, i) for i, value in enumerate(values)]

    def number(value: Any, i: int) -> float | None:
        value = value.item() if hasattr(value, "item") and getattr(value, "size", 1) != 0 else value
        if value is None or (isinstance(value, (int, float)) and math.isfinite(value)):
            return value
        raise ValueError(
            f"reward function {name!r} returned {value!r} for episode {i}; return a finite number, or None where it "
            "cannot judge"
        )

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        async def reward(**kwargs):
            return check(await function(**kwargs), len(kwargs["episodes"]))

    else:

        def reward(**kwargs):
            return check(function(**kwargs), len(kwargs["episodes"]))

    reward.__name__ = name
    return reward
