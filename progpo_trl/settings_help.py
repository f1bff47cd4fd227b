"""`progpo train --help`: every setting, grouped, and the options of every nested section."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import textwrap
from typing import Any, get_type_hints

from progpo_trl.settings_sections import (
    DEFAULT_ESTIMATOR,
    REQUIRED,
    environments,
    estimators,
    section_class,
    section_options,
)
from progpo_trl.settings_values import describe

_HEAD = """\
usage: {prog} --config FILE [--name value ...] [--section.option value ...]

Train an agent. FILE is a YAML file or the name of a shipped recipe (`progpo recipes`). Every setting below can stand
in the file and on the command line, which wins: `--learning_rate 1e-5`, `--environment.split valid_seen`,
`--report_to wandb trackio` (a list), `--bf16` or `--bf16 false`, `--progress_fallback null`. Names are checked at
every depth."""


def print_help(prog: str) -> None:
    """Print the complete help to standard output."""
    from trl import GRPOConfig

    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.model_arguments import ModelArguments
    from progpo_trl.settings import ScriptArguments

    ours = [f for f in dataclasses.fields(MultiTurnGRPOConfig) if f.name in MultiTurnGRPOConfig.__annotations__]
    rest = [f for f in dataclasses.fields(GRPOConfig) if f.name not in MultiTurnGRPOConfig.__annotations__]
    print(_HEAD.format(prog=prog))
    _fields("Run", ScriptArguments, dataclasses.fields(ScriptArguments))
    _sections()
    _fields("Multi-turn training", MultiTurnGRPOConfig, ours)
    _fields("Model (TRL's ModelConfig)", ModelArguments, dataclasses.fields(ModelArguments))
    _fields("Training (TRL's GRPOConfig and transformers' TrainingArguments)", MultiTurnGRPOConfig, rest)


def _fields(title: str, cls: type, fields: Any) -> None:
    hints = get_type_hints(cls)
    print(f"\n{title}\n")
    for field in fields:
        if not field.init:
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        choices = field.metadata.get("choices")
        kind = "one of " + ", ".join(map(str, choices)) if choices else describe(hints[field.name])
        # transformers doubles its percent signs, for argparse
        text = field.metadata.get("help", "").replace("%%", "%")
        _entry(f"--{field.name}", kind, default, text)


def _sections() -> None:
    groups = [("environment", name, f"environment, with name: {name}") for name in sorted(environments())]
    groups += [("advantage", name, f"advantage, with name: {name}") for name in sorted(estimators())]
    groups.append(("progress_fallback", None, "progress_fallback (ProGPO)"))
    for section, name, title in groups:
        print(f"\nSection {title}\n")
        # The class explains its options; an indented copy is always the current one.
        print(textwrap.indent(inspect.getdoc(section_class(section, name)) or "", "  ") + "\n")
        for option, (hint, default) in section_options(section, name).items():
            note = "the default estimator" if option == "name" and name == DEFAULT_ESTIMATOR else ""
            note = "default, or released_code: as the authors' released code" if option == "preset" else note
            _entry(f"--{section}.{option}", describe(hint), default, note)


def _entry(name: str, kind: str, default: Any, text: str) -> None:
    width = min(shutil.get_terminal_size((119, 24)).columns, 119)
    shown = "required" if default in (REQUIRED, dataclasses.MISSING) else f"default: {_as_yaml(default)}"
    print(f"  {name}  [{kind}; {shown}]")
    if text:
        print(textwrap.fill(" ".join(text.split()), width, initial_indent=" " * 6, subsequent_indent=" " * 6))


def _as_yaml(value: Any) -> str:
    """A default as one would write it in a settings file."""
    value = getattr(value, "value", value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_as_yaml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_as_yaml(item)}" for key, item in value.items()) + "}"
    return str(value)
