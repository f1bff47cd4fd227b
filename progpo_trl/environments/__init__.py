"""Text environments: the contract in `base`, ALFWorld in `alfworld`, WebShop in `webshop`."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from progpo_trl.environments.base import (
    Environment,
    EnvironmentTasks,
    Observation,
    OpenCommand,
    StepResult,
    TaskSet,
    is_admissible,
)

# name in YAML -> "module:class" of its TaskSet; modules are imported when used
ENVIRONMENTS: dict[str, str] = {
    "alfworld": "progpo_trl.environments.alfworld:AlfworldTasks",
    "alfworld_generated": "progpo_trl.environments.alfworld:GeneratedAlfworldTasks",
    "webshop": "progpo_trl.environments.webshop:WebshopTasks",
    "webshop_generated": "progpo_trl.environments.webshop:GeneratedWebshopTasks",
}

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "EnvironmentTasks",
    "Observation",
    "OpenCommand",
    "StepResult",
    "TaskSet",
    "environment_class",
    "is_admissible",
    "load_environment",
]


def environment_class(name: str) -> type[TaskSet]:
    """The TaskSet class behind a name. Raises ValueError with the nearest name when there is none."""
    if name not in ENVIRONMENTS:
        near = get_close_matches(str(name), ENVIRONMENTS, n=1, cutoff=0.0)
        raise ValueError(f"no environment {name!r}; did you mean {near[0]!r}? There are {sorted(ENVIRONMENTS)}")
    module, _, attribute = ENVIRONMENTS[name].partition(":")
    return getattr(import_module(module), attribute)


def load_environment(name: str, **options: Any) -> TaskSet:
    """The TaskSet `name` with its constructor's options. Unknown options raise ValueError with the nearest one."""
    cls = environment_class(name)
    known = list(inspect.signature(cls).parameters)
    for option in options:
        if option not in known:
            near = get_close_matches(option, known, n=1, cutoff=0.0)
            raise ValueError(f"environment {name!r} has no option {option!r}; did you mean {near[0]!r}?")
    return cls(**options)
