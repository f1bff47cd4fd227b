"""What a model card states, as plain values; `card` turns them into text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from progpo_trl.publishing.local import is_local_path
from progpo_trl.publishing.method import Method


@dataclass(frozen=True)
class Base:
    """The model that was trained from. hub: its id on the Hub; shipped: the name of a tiny policy of this package;
    local: how a folder of this machine is called. One of them at most."""

    hub: str | None = None
    shipped: str | None = None
    local: str | None = None

    @property
    def name(self) -> str:
        """For prose, and where a setting names the model."""
        return self.hub or self.shipped or self.local or "unknown"

    def doubts(self) -> list[str]:
        """What a card warns of."""
        if self.hub or self.shipped:
            return []
        if self.local:
            return ["The base model is a folder of the author's machine, and is not published."]
        return ["It is not recorded which model this was trained from."]


def base_of(name: str | None, given: str | None = None) -> Base:
    """The base model `name` of a recipe or of an adapter; given: the id that the user says it has."""
    from progpo_trl.tiny_policy import CHECKPOINTS
    from progpo_trl.train import TINY_POLICIES

    if given:
        return Base(shipped=given) if given in TINY_POLICIES else Base(hub=given)
    if not name:
        return Base()
    if name in TINY_POLICIES:
        return Base(shipped=name)
    path = Path(name).expanduser()
    names = {checkpoint: policy for policy, checkpoint in TINY_POLICIES.items()}
    if path.name in CHECKPOINTS and path.parts[-3:-1] == ("tiny_policy", "checkpoints"):
        return Base(shipped=names[path.name])  # of this installation or of another
    if is_local_path(name) or os.path.isdir(path):  # which has an answer for any text, also one that is too long
        return Base(local=path.name or "model")
    return Base(hub=name)


@dataclass
class CardFacts:
    """name: of the model; repo: what loads it (a Hub id, or a folder's name); adapter: LoRA, not a whole model;
    settings: of the recipe, as asked for; evaluations: contents of evaluation.json files, without what is local;
    around: a run's summary.json, of whose panel before and after training the weights are; training, hardware: rows
    of a table, name -> value; warnings: what a reader must know before any number."""

    name: str
    repo: str
    adapter: bool
    base: Base
    methods: list[Method]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    evaluations: list[Mapping[str, Any]] = field(default_factory=list)
    around: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    license: Mapping[str, str] = field(default_factory=dict)
    recipe: bool = True
    tags: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


# Environment's name in settings -> (how it is called, arXiv number or None).
_ENVIRONMENTS = {
    "alfworld": ("ALFWorld", None),
    "alfworld_generated": ("generated ALFWorld games", None),
    "webshop": ("WebShop", "2207.01206"),
    "webshop_generated": ("a generated WebShop", "2207.01206"),
}


def environment_title(environment: Mapping[str, Any]) -> Method:
    """The environment as a card names it, with its paper."""
    name = str(environment.get("name", "custom"))
    return Method(*_ENVIRONMENTS.get(name, (name, None)))


def training_rows(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """What was trained and how long, of a run's settings and its summary.json."""
    rows: dict[str, Any] = {"seed": summary.get("seed", settings.get("seed", 42))}
    for name in ("episodes", "generations", "updates"):
        if summary.get(name) is not None:
            rows[name] = f"{summary[name]:,}"
    if (best := summary.get("weights_step")) is not None and best != summary.get("updates"):
        rows["weights"] = f"after update {best:,}, the best evaluation"
    for name in ("num_generations", "groups_per_generation", "learning_rate", "beta", "loss_type"):
        if settings.get(name) is not None:
            rows[name.replace("_", " ")] = settings[name]
    if settings.get("use_peft"):
        rows["LoRA"] = ", ".join(f"{n} {settings[f'lora_{n}']}" for n in ("r", "alpha") if f"lora_{n}" in settings)
    if summary.get("train_seconds") is not None:
        seconds = summary["train_seconds"]
        rows["wall time"] = f"{seconds:.0f} s" if seconds < 3600 else f"{seconds / 3600:.1f} h"
    return {name: value for name, value in rows.items() if value not in (None, "")}


def hardware_rows(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The machine of a run's summary.json."""
    machine = summary.get("machine")
    if not isinstance(machine, Mapping):
        return {}
    gpus = machine.get("gpus") or []
    rows = {"GPUs": ", ".join(map(str, gpus)) if gpus else "none"} if "gpus" in machine else {}
    return rows | {name.replace("_", " "): v for name, v in machine.items() if name != "gpus" and v is not None}
