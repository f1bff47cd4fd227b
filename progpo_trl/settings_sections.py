"""The nested sections of a settings file: each names a class and holds options of its constructor."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, get_type_hints

from progpo_trl.settings_values import COMMAND_LINE, Setting, SettingsError, check_choice, convert, nearest

SECTIONS = ("environment", "advantage", "progress_fallback")
REQUIRED = inspect.Parameter.empty
DEFAULT_ESTIMATOR = "grpo"


def environments() -> dict[str, str]:
    """Name -> "module:Class" of the environments that a settings file can name."""
    from progpo_trl.environments import ENVIRONMENTS

    return ENVIRONMENTS


def estimators() -> dict[str, type]:
    """Name -> class of the advantage estimators that a settings file can name."""
    from progpo_trl.advantages import ESTIMATORS

    return ESTIMATORS


def section_class(section: str, name: str | None) -> type | None:
    """The class whose options a section holds; None for a name there is not."""
    if section == "progress_fallback":
        from progpo_trl.advantages import ProGPO

        return ProGPO
    if section == "advantage":
        return estimators().get(name)
    target = environments().get(name) if name else None
    if target is None:
        return None
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def split_defaults(name: str | None) -> dict[str, str]:
    """The splits that an environment is trained and evaluated on when a file names none."""
    from progpo_trl.environments import TaskSet

    return {
        "split": "train",
        "eval_split": getattr(section_class("environment", name), "eval_split", TaskSet.eval_split),
    }


def section_options(section: str, name: str | None) -> dict[str, tuple[Any, Any]]:
    """Option -> (type, default) of a section; the default is `REQUIRED` where one must be given.

    Read from the constructor, so that an estimator's or an environment's own signature is all there is to maintain.
    """
    options: dict[str, tuple[Any, Any]] = {}
    if section in ("environment", "advantage"):
        options["name"] = (str, name)
    if section == "environment":
        # eval_split: null trains without an evaluation panel
        options.update({key: (str | None, default) for key, default in split_defaults(name).items()})
    cls = section_class(section, name)
    if cls is None:
        return options
    if section == "advantage":
        options["preset"] = (str, "default")
    hints = get_type_hints(cls.__init__)
    for parameter in inspect.signature(cls).parameters.values():
        # `base` of ProGPO is the estimator of the section `advantage`.
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and parameter.name != "base":
            options[parameter.name] = (hints.get(parameter.name, Any), parameter.default)
    return options


def convert_section(section: str, setting: Setting) -> dict[str, Any] | None:
    """The checked options of a section, typed by the constructor that takes them."""
    if setting.value is None and section == "progress_fallback":
        return None
    if setting.children is None:
        raise setting.fail(section, f"is a section, got {setting.value!r}; {_how_to_write(section, setting)}")
    chosen = _chosen_name(section, setting)
    options = section_options(section, chosen)
    values = {}
    for key, child in setting.children.items():
        if key not in options:
            owner = f" of {chosen}" if chosen else ""
            near = nearest(key, options).replace("'", f"'{section}.", 1)
            there = ", ".join(options)
            raise SettingsError(f"{child.place}: unknown setting '{section}.{key}'{owner}{near} (there are {there})")
        values[key] = convert(f"{section}.{key}", child, options[key][0])
        if not _finite(values[key]):
            # A reward or a weight of nan would pass every comparison and train on nothing.
            raise child.fail(f"{section}.{key}", f"numbers must be finite, got {values[key]}")
    missing = [key for key, (_, default) in options.items() if default is REQUIRED and key not in values]
    if missing:
        raise setting.fail(section, f"needs {', '.join(missing)}")
    if section != "environment":  # an environment reads files when it is made; an estimator only checks its options
        try:
            _make(section, chosen, values)
        except ValueError as error:
            # Name the option's own place when the message names the option.
            words = re.findall(r"\w+", str(error))
            culprit = next((child for key, child in setting.children.items() if key in words), setting)
            raise culprit.fail(section, str(error)) from None
    return values


def _finite(value: Any) -> bool:
    """Whether every number in an option's value, at any depth, is finite."""
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _make(section: str, chosen: str | None, values: dict[str, Any]) -> None:
    """Make the estimator of a section once, for its checks."""
    from progpo_trl.advantages import make_estimator

    if section == "advantage":
        make_estimator({"name": chosen, **values})
    else:
        make_estimator(None, values)


def _chosen_name(section: str, setting: Setting) -> str | None:
    if section == "progress_fallback":
        return None
    known = sorted(environments() if section == "environment" else estimators())
    if "name" in setting.children:
        name = setting.children["name"]
        check_choice(f"{section}.name", name, name.value, known)
        return name.value
    if section == "advantage":
        return DEFAULT_ESTIMATOR
    raise setting.fail(section, f"`name` is missing: one of {', '.join(known)}")


def _how_to_write(section: str, setting: Setting) -> str:
    if section == "progress_fallback":
        return "write {} for its defaults, null to leave it off"
    return f"write --{section}.name VALUE" if setting.place == COMMAND_LINE else f"write `{section}: {{name: ...}}`"
