"""YAML settings and command line overrides -> the dataclasses of a training run.

A settings file is flat YAML with the field names of `ScriptArguments`, `MultiTurnGRPOConfig` and TRL's `ModelConfig`,
and three nested sections: `environment`, `advantage` and `progress_fallback`. Everything can be overridden with
`--name value` and `--section.option value`. Both are merged before TRL's parser makes the dataclasses, and every name
at every depth is checked against what takes it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import yaml

from progpo_trl import atomic
from progpo_trl.secret_values import is_secret_name
from progpo_trl.settings_sections import (
    DEFAULT_ESTIMATOR,
    SECTIONS,
    convert_section,
    environments,
    section_options,
    split_defaults,
)
from progpo_trl.settings_unused import refuse_idle
from progpo_trl.settings_values import (
    COMMAND_LINE,
    Setting,
    SettingsError,
    check_choice,
    convert,
    nearest,
    one_line,
    read_argument,
    read_file,
)

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.model_arguments import ModelArguments

__all__ = ["ScriptArguments", "SettingsError", "dump", "find_recipe", "load_recipe", "parse", "recipes"]

_PACKAGE = Path(__file__).resolve().parent
# In a wheel the recipes lie inside the package, in a checkout beside it.
RECIPES = _PACKAGE / "recipes" if (_PACKAGE / "recipes").is_dir() else _PACKAGE.parent / "recipes"

# What people write who know other trainers, and what to write here.
_HINTS = {
    "lr": "it is learning_rate",
    "resume": "go on from the newest checkpoint of output_dir with --resume_from_checkpoint last",
    "model": "it is model_name_or_path",
    "batch_size": "set groups_per_generation and updates_per_generation",
    "env": "set environment variables in the shell, for example WANDB_PROJECT=agents progpo train ...",
    "dataset_name": "the tasks come from the environment: see environment.split",
    "reward_funcs": "reward functions are Python: pass reward_funcs= to MultiTurnGRPOTrainer in a script of your own",
    "config": "give --config once",
}


@dataclass
class ScriptArguments:
    """What a training run is made of beside the trainer's and the model's own arguments."""

    environment: dict = field(
        default_factory=dict,
        metadata={
            "help": "Section. `name` of the environment, the `split` to train on, the `eval_split` to evaluate on, "
            "and the options of the environment."
        },
    )
    advantage: dict = field(
        default_factory=lambda: {"name": DEFAULT_ESTIMATOR},
        metadata={"help": "Section. `name` of the advantage estimator and its options."},
    )
    progress_fallback: dict | None = field(
        default=None,
        metadata={
            "help": "Section. Options of ProGPO, the advantage of groups in which every episode fails; {} takes its "
            "defaults, null leaves it off."
        },
    )
    evaluate_around_training: bool = field(
        default=False,
        metadata={
            "help": "Evaluate the panel before and after training at eval_temperature and greedily on the same tasks "
            "with the same sampling seeds; write summary.json and learning_curve.png."
        },
    )
    # What the file and the command line asked for, for `dump`; no setting itself.
    asked: dict = field(default_factory=dict, init=False, repr=False, compare=False)


def parse(
    argv: Sequence[str] | None = None,
    prog: str = "progpo train",
    only: Collection[str] | None = None,
    own: Collection[str] = (),
) -> tuple[ScriptArguments, MultiTurnGRPOConfig, ModelArguments]:
    """The dataclasses for `argv` (default: this process's arguments): `--config FILE` and overrides.

    only: for commands that use a part of the settings: these are taken from the file, others refused on the command
    line. own: names of the command's own options, which a misspelt name may have meant. `--help` prints every setting
    and exits. Anything wrong raises SettingsError with a one-line message.
    """
    import sys

    config, overrides, wants_help = _read_command_line(sys.argv[1:] if argv is None else argv)
    if wants_help:
        from progpo_trl.settings_help import print_help

        print_help(prog)
        raise SystemExit(0)
    settings = {} if config is None else _with_prompt(read_file(find_recipe(config)), find_recipe(config).parent)
    if only is not None:
        settings = {name: setting for name, setting in settings.items() if name in only}
    for name, setting in overrides:
        if only is not None and name.partition(".")[0] not in only:
            raise SettingsError(f"{COMMAND_LINE}: {prog} has no use for --{name}{nearest(name, [*only, *own])}")
        _override(settings, name, setting)
    return _build(settings, config)


def _with_prompt(settings: dict[str, Setting], folder: Path) -> dict[str, Setting]:
    """A prompt template that lies beside the file (as published agents bring one) is found from anywhere."""
    prompt = settings.get("prompt_template")
    if prompt is not None and isinstance(prompt.value, str) and prompt.value.endswith(".jinja"):
        beside = folder / prompt.value
        if beside.is_file():
            settings["prompt_template"] = Setting(str(beside), prompt.place, str(beside))
    return settings


def load_recipe(path: str | Path) -> dict[str, Any]:
    """The settings in a recipe file as plain Python values, not checked against any class."""
    return {name: setting.value for name, setting in read_file(find_recipe(str(path))).items()}


def recipes() -> list[str]:
    """Names of the recipes that ship with the package, as `--config` takes them."""
    return sorted(str(path.relative_to(RECIPES).with_suffix("").as_posix()) for path in RECIPES.rglob("*.yaml"))


def summary(name: str) -> str:
    """The first line of a recipe's header comment."""
    first = find_recipe(name).read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def find_recipe(name: str) -> Path:
    """The settings file for `--config name`: a path, or the name of a shipped recipe."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    # `recipes/quickstart.yaml` as the README writes it also works where there is no checkout.
    inside = re.sub(r"^(\./)?recipes/|\.ya?ml$", "", name)
    if inside in recipes():
        return RECIPES / f"{inside}.yaml"
    if path.is_dir():
        raise SettingsError(f"--config {name}: is a folder, not a YAML file")
    raise SettingsError(f"--config {name}: no such file, and no recipe of that name{nearest(inside, recipes())}")


def _read_command_line(argv: Sequence[str]) -> tuple[str | None, list[tuple[str, Setting]], bool]:
    """(--config, [(dotted name, value)] in the order given, whether help is wanted)."""
    config, overrides = None, []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            return None, [], True
        if not word.startswith("--") or len(word) == 2:
            raise SettingsError(f"{COMMAND_LINE}: unexpected {word!r}; write --config FILE and --name value")
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        while not equals and words and not words[0].startswith("--") and words[0] != "-h":
            values.append(words.pop(0))
        name = name.replace("-", "_")
        if name != "config":
            overrides.append((name, read_argument(values)))
        elif config is not None or len(values) != 1 or not values[0]:
            raise SettingsError(f"{COMMAND_LINE}: --config takes one file or recipe, and only once")
        else:
            config = values[0]
    return config, overrides, False


def _override(settings: dict[str, Setting], name: str, setting: Setting) -> None:
    """Put one command line value into the settings; dots lead into sections."""
    path = name.split(".")
    if not all(path):
        raise SettingsError(f"{COMMAND_LINE}: --{name}: a name is missing beside a dot")
    _put(settings, path, setting, name)


def _put(settings: dict[str, Setting], path: list[str], setting: Setting, name: str) -> None:
    first, *rest = path
    if not rest:
        settings[first] = setting
        return
    section = settings.get(first)
    if section is None or section.value is None:
        section = settings[first] = Setting({}, COMMAND_LINE, children={})
    if section.children is None:
        raise SettingsError(
            f"{COMMAND_LINE}: --{name}: {first!r} is no section but {section.value!r} ({section.place})"
        )
    _put(section.children, rest, setting, name)
    section.value = {key: child.value for key, child in section.children.items()}


def _build(
    settings: dict[str, Setting], config: str | None
) -> tuple[ScriptArguments, MultiTurnGRPOConfig, ModelArguments]:
    from trl import TrlParser

    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.model_arguments import ModelArguments

    classes = (ScriptArguments, MultiTurnGRPOConfig, ModelArguments)
    fields = {f.name: (f, get_type_hints(cls)[f.name]) for cls in classes for f in dataclasses.fields(cls) if f.init}
    settings = dict(_without_negations(settings, fields))
    for name, setting in settings.items():
        if name not in fields:
            raise SettingsError(f"{setting.place}: unknown setting {name!r}{_suggest(name, fields)}")
    values = {}
    for name, setting in settings.items():
        if name in SECTIONS:
            values[name] = convert_section(name, setting)
            continue
        field_, hint = fields[name]
        values[name] = convert(name, setting, hint)
        if values[name] is not None and field_.metadata.get("choices"):
            check_choice(name, setting, values[name], field_.metadata["choices"])
    _require(values)
    refuse_idle(settings, values)
    if values.get("groups_per_generation") is not None and "per_device_train_batch_size" in settings:
        # The dataclass cannot tell TRL's default from the same number asked for; here it can be told.
        raise settings["per_device_train_batch_size"].fail(
            "per_device_train_batch_size",
            "follows from groups_per_generation and updates_per_generation: remove it, or set rows_per_forward to "
            "bound memory",
        )
    try:
        script, training, model = TrlParser(classes).parse_dict(values)
    except (ValueError, OSError, ImportError) as error:
        raise SettingsError(f"{config or COMMAND_LINE}: {one_line(error)}") from error
    script.environment = {**split_defaults(script.environment.get("name")), **script.environment}
    script.asked = values
    return script, training, model


def _without_negations(settings: dict[str, Setting], fields: dict) -> Iterator[tuple[str, Setting]]:
    """TRL's parser has --no_flag for flags whose default is true: the same as `--flag false`."""
    for name, setting in settings.items():
        positive = name.removeprefix("no_")
        if name not in fields and positive in fields and setting.place == COMMAND_LINE:
            if setting.value is not True or setting.text is not None:
                raise SettingsError(f"{COMMAND_LINE}: --{name} takes no value")
            yield positive, Setting(False, COMMAND_LINE, "false")
        else:
            yield name, setting


def _require(values: dict[str, Any]) -> None:
    if not values.get("environment", {}).get("name"):
        raise SettingsError(
            "no environment: give --config RECIPE (`progpo recipes` lists them) or set environment.name to one of "
            + ", ".join(sorted(environments()))
        )
    if not values.get("model_name_or_path"):
        raise SettingsError("no model: set model_name_or_path to a folder, a model of the Hub, or `tiny`")


def _suggest(name: str, fields: dict) -> str:
    if name in _HINTS:
        return f": {_HINTS[name]}"
    for section in SECTIONS:
        if name in section_options(section, None):
            return f"; did you mean '{section}.{name}'?"
    return nearest(name, fields)


def dump(script: ScriptArguments, path: str | Path) -> None:
    """Write what was asked for to a YAML file that `--config` reads again, with the versions as a comment.

    Secrets such as hub_token are left out. SettingsError when the file cannot be written.
    """
    lines = [f"# {name} {version}" for name, version in versions().items()]
    # Where this process began is not what the run is: the file is the same for a run that was resumed.
    asked = {name: value for name, value in script.asked.items() if name != "resume_from_checkpoint"}
    body = yaml.safe_dump(without_secrets(asked), sort_keys=False, allow_unicode=True, width=119)
    try:
        atomic.write_text(path, "\n".join([*lines, "", body]))
    except OSError as error:
        where = error.filename2 or error.filename or path
        raise SettingsError(
            f"output_dir: {where} cannot be written: {error.strerror}; make way for it, or choose another --output_dir"
        ) from error


def versions() -> dict[str, str]:
    """Versions of what decides the numbers of a run."""
    import platform

    from progpo_trl import __version__

    found = {"progpo_trl": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "trl", "peft", "accelerate", "numpy", "vllm", "deepspeed", "alfworld"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items() if not is_secret_name(str(key))}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item) for item in value]
    return str(value) if isinstance(value, Path) else value
