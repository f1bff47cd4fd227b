"""The recipe itself: whether its settings can be used, how it is launched, whether its model is there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from progpo_trl.doctor.findings import OK, PROBLEM, WARNING, Case, Finding
from progpo_trl.settings import load_recipe
from progpo_trl.settings_values import SettingsError, one_line, said_of


def read_case(recipe: str | None, launcher: str | None) -> Case:
    """The case of a recipe and an accelerate config. SettingsError or OSError when one cannot be read."""
    case = Case(recipe=recipe, settings={} if recipe is None else load_recipe(recipe))
    path = Path(launcher) if launcher else _default_launcher()
    if launcher or path.is_file():
        import yaml

        try:
            case.launcher = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (ValueError, yaml.YAMLError) as error:
            raise SettingsError(f"--accelerate-config {path}: is not valid YAML: {one_line(error)}") from error
        except OSError as error:
            raise SettingsError(f"--accelerate-config {said_of(path, error)}") from error
        if not isinstance(case.launcher, dict):
            raise SettingsError(f"--accelerate-config {path}: is no accelerate config")
        case.launcher_file = str(path)
    return case


def _default_launcher() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "accelerate" / "default_config.yaml"


def check_recipe(case: Case) -> Iterator[Finding]:
    """Every setting, as `progpo train` reads it."""
    if case.recipe is None:
        return
    from progpo_trl.advantages import make_estimator
    from progpo_trl.settings import parse

    words = ["--config", case.recipe]
    if not _gpus():
        # That there is none is a finding of its own, and would hide what else is wrong with the settings.
        words += ["--use_cpu", "true", "--bf16", "false", "--fp16", "false", "--tf32", "false"]
    try:
        script, _, _ = parse(words, "progpo doctor")
        make_estimator(script.advantage, script.progress_fallback)
    except (SettingsError, ValueError, TypeError) as error:
        yield Finding(PROBLEM, "recipe", one_line(error), "change this setting; `progpo train --help` explains each")
        return
    yield Finding(OK, "recipe", f"{case.recipe}: its settings can be used")


def processes(case: Case) -> int:
    """How many processes the run would have: those that were launched, or that the accelerate config says."""
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    count = case.launcher.get("num_processes")
    return count if isinstance(count, int) and count > 0 else 1


def check_launch(case: Case) -> Iterator[Finding]:
    """How many processes there would be, and whether a generation can be shared out to them."""
    n = processes(case)
    source = "WORLD_SIZE" if "WORLD_SIZE" in os.environ else case.launcher_file
    text = f"{n} process{'es' if n > 1 else ''}" + (f" ({source})" if source else " (no accelerate config)")
    groups, each = case.settings.get("groups_per_generation"), case.settings.get("num_generations", 8)
    if case.recipe and isinstance(groups, int) and isinstance(each, int):
        updates = case.settings.get("updates_per_generation") or 1
        fitting = [p for p in range(1, 65) if groups * each % (p * updates) == 0]
        if n not in fitting:
            said = f"{text} cannot share {groups * each} episodes a generation and {updates} updates evenly"
            fit = ", ".join(map(str, fitting)) or "no number of processes"
            yield Finding(PROBLEM, "launch", said, f"--num_processes: {fit}; or change updates_per_generation")
            return
        text += f"; the recipe runs on {', '.join(map(str, fitting))}"
    yield Finding(OK, "launch", text)
    gpus = _gpus()
    if gpus and not case.settings.get("use_cpu") and n > gpus and case.launcher.get("num_machines", 1) == 1:
        yield Finding(PROBLEM, "launch", f"{n} processes for {gpus} GPUs", f"--num_processes {gpus}")
    elif gpus > n:
        advice = f"accelerate launch --config_file accelerate_configs/multi_gpu.yaml --num_processes {gpus} -m ..."
        yield Finding(WARNING, "launch", f"{gpus} GPUs, of which {n} would be used", advice)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_model(case: Case) -> Iterator[Finding]:
    """Its files are here, or in the cache, or have to be downloaded."""
    name = case.settings.get("model_name_or_path")
    if name is None:
        return
    from huggingface_hub import constants

    config = model_config(str(name))
    if config is None:
        if str(name).startswith((".", "/", "~")):
            advice = "check model_name_or_path: a folder with config.json, weights and tokenizer"
            yield Finding(PROBLEM, "model", f"{name}: there is no model in such a folder", advice)
        elif constants.is_offline_mode():
            yield Finding(
                PROBLEM, "model", f"{name} is not in the cache, and HF_HUB_OFFLINE is set", f"hf download {name}"
            )
        else:
            yield Finding(
                WARNING, "model", f"{name} is not in the cache: it is downloaded first", f"hf download {name}"
            )
        return
    yield Finding(OK, "model", f"{name}: {config.get('model_type', 'a model')}, on this machine")


def model_config(name: str) -> dict[str, Any] | None:
    """The config.json of a model that is on this machine: a folder, a shipped policy, or in the Hub's cache."""
    from progpo_trl.train import TINY_POLICIES

    if name in TINY_POLICIES:
        from progpo_trl.tiny_policy import checkpoint_path

        path = checkpoint_path(TINY_POLICIES[name]) / "config.json"
    elif Path(name).expanduser().is_dir():
        path = Path(name).expanduser() / "config.json"
    elif name.startswith((".", "/", "~")):
        return None
    else:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, "config.json")
        if not isinstance(found, str):
            return None
        path = Path(found)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
