"""The command that measures again what an evaluation measured, and in what it played otherwise than the recipe."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from progpo_trl.publishing.local import is_local_path

# Options of an environment that do not change its games, or only mean something where it ran.
_NOT_COMPARED = {"split", "eval_split", "games", "data", "store", "engine", "on_error"}
_SETTINGS = (
    "context", "history", "system_prompt", "max_completion_length", "max_context_length", "chat_template_kwargs",
    "top_p", "top_k", "min_p",
)  # fmt: skip

Content = Mapping[str, Any]


def asked_otherwise(content: Content, settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings of prompts, sampling and length that were not the recipe's: name -> (trained, evaluated).

    What a recipe does not say has its default. Nothing is known without a recipe (empty `settings`).
    """
    if not settings:
        return {}
    from progpo_trl.config import MultiTurnGRPOConfig

    fields = MultiTurnGRPOConfig.__dataclass_fields__
    how = content["agent"].get("settings") or {}
    out = {}
    for key in _SETTINGS:
        trained = settings.get(key, fields[key].default)
        if key in how and (how[key] or None) != (trained or None):
            out[key] = (trained, how[key])
    trained = settings.get("max_turns") or (settings.get("environment") or {}).get("max_steps")
    played = content["conditions"]["max_turns"]
    if played != trained and (trained is not None or _has_option(content, "max_turns")):
        out["max_turns"] = (trained, played)
    return out


def environment_otherwise(content: Content, settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options of the environment, its name first, that were not the recipe's: name -> (trained, evaluated).

    What one of them does not say has the environment's default. Nothing is known without a recipe.
    """
    asked, played = settings.get("environment") or {}, content["environment"]
    if not asked:
        return {}
    trained, evaluated = (_with_defaults(section) for section in (asked, played))
    names = sorted((set(asked) | set(played)) - _NOT_COMPARED, key=lambda name: (name != "name", name))
    return {n: (trained.get(n), evaluated.get(n)) for n in names if trained.get(n) != evaluated.get(n)}


def _with_defaults(section: Mapping[str, Any]) -> dict[str, Any]:
    from progpo_trl.settings_sections import REQUIRED, section_options

    options = section_options("environment", section.get("name"))
    return {name: default for name, (_, default) in options.items() if default is not REQUIRED} | dict(section)


def repeat_command(content: Content, folder: str, settings: Mapping[str, Any]) -> str | None:
    """The command that plays the same games again, in the same way, with the downloaded folder and its recipe.

    None where there is none: the recipe has options that the evaluated environment does not take, or the games came
    from a place on the author's machine.
    """
    other = environment_otherwise(content, settings)
    if any(isinstance(now, str) and (is_local_path(now) or now.startswith(".../")) for _, now in other.values()):
        return None
    if "name" in other:
        from progpo_trl.settings_sections import section_options

        known = section_options("environment", content["environment"].get("name"))
        if not set(settings["environment"]) <= set(known):
            return None
    # A panel of all games and one of as many as there are is the same.
    games = max(panel["games"] for panel in content["panels"])
    words = ["progpo", "evaluate", "--model", folder]
    words += [word for panel in content["panels"] for word in ("--split", panel["split"])]
    words += ["--temperatures", *dict.fromkeys(f"{part['temperature'] or 0:g}" for part in content["results"])]
    words += ["--seeds", *sorted({seed for part in content["results"] for seed in part["seeds"]})]
    words += ["--tasks", games]
    words += [word for key, (_, played) in other.items() for word in (f"--environment.{key}", _word(played))]
    asked = asked_otherwise(content, settings)
    words += [word for key, (_, played) in asked.items() for word in (f"--{key}", _word(played))]
    return shlex.join(map(str, words))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _has_option(content: Content, name: str) -> bool:
    """Whether the command of an evaluation has an option, in any of the ways in which it can be written."""
    words = (str(word).partition("=")[0] for word in content.get("command") or [])
    return any(word.startswith("--") and word[2:].replace("-", "_") == name for word in words)
