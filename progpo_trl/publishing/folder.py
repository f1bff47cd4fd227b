"""The folder that is uploaded: what of a run goes into it, rewritten so that nothing in it is of this machine."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from progpo_trl import atomic
from progpo_trl.checkpoint_files import numbered
from progpo_trl.contexts import PROMPTS
from progpo_trl.evaluation.policy_files import ADAPTER_CONFIG, weights_hash
from progpo_trl.publishing import evaluations
from progpo_trl.publishing.card import render
from progpo_trl.publishing.doubts import doubts as doubts_of
from progpo_trl.publishing.errors import PublishError
from progpo_trl.publishing.facts import Base, CardFacts, base_of, hardware_rows, training_rows
from progpo_trl.publishing.files import (
    ADAPTER,
    CARD,
    MODEL,
    PROMPT,
    RECIPE,
    TOKENIZER,
    WEIGHTS,
    evaluation_name,
    is_ours,
    read_object,
)
from progpo_trl.publishing.local import PublicNames, is_local_path, scan
from progpo_trl.publishing.method import methods_of_settings
from progpo_trl.publishing.recipe import read_recipe
from progpo_trl.publishing.run_summary import read_summary
from progpo_trl.settings import without_secrets
from progpo_trl.settings_values import one_line

FOLDER = "publish"  # in the run's folder
# Settings that only mean something to whoever ran it; another person's run must not upload to this one's repository.
_PRIVATE = (
    "push_to_hub", "hub_", "resume_from_checkpoint", "run_name", "logging_dir", "log_", "project", "trackio_",
    "vllm_server_", "vllm_group_",
)  # fmt: skip


@dataclass
class Prepared:
    """A folder ready to be uploaded, its files with their bytes, and what its card warns of."""

    folder: Path
    files: dict[str, int]
    warnings: list[str]


def prepare(
    run: str | Path,
    out: str | Path,
    *,
    repo: str | None = None,
    evaluation_files: Iterable[str | Path] | None = None,
    base_model: str | None = None,
    license: Mapping[str, str] | None = None,
    config: str | Path | None = None,
    facts: CardFacts | None = None,
) -> Prepared:
    """Write the folder `out` that stands for the run (or checkpoint) `run` on the Hub.

    repo: its id there, for the card; evaluation_files: default: what `find_evaluations` finds; base_model: the Hub
    id of a base that is a local folder; license: as `license_metadata` gives it; config: the recipe, where the run has
    no config.yaml; facts: of the card, of a run that has no recipe at all.

    `out` is written beside and renamed. Raises PublishError with one line that says what to do.
    """
    source, out = _Source(Path(run), base_model, config, facts), Path(out)
    _check_free(out, source.run)
    name = (repo or source.home.resolve().name).rpartition("/")[2]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as beside:
            new = Path(beside) / out.name
            new.mkdir()
            warnings = _write(source, new, repo or name, name, evaluation_files, license)
            if found := scan(new):
                more = f", and {len(found) - 5} more" if len(found) > 5 else ""
                raise PublishError(f"nothing was written: the files would give away {'; '.join(found[:5])}{more}")
            atomic.replace_folder(new, out)
    except OSError as error:
        raise PublishError(f"{_place_of(error, out)}: {error.strerror or error}") from error
    files = {p.relative_to(out).as_posix(): p.stat().st_size for p in sorted(out.rglob("*")) if p.is_file()}
    return Prepared(out, files, warnings)


def _place_of(error: OSError, out: Path) -> Path:
    """Where an error is: in what was read, or in the folder that was to be written. A copy that fails names both."""
    place = Path(error.filename2 or error.filename or out)
    if place != out.parent and place.is_relative_to(out.parent):
        first, *rest = place.relative_to(out.parent).parts
        if first.startswith(f".{out.name}."):  # as it is called while it is written
            return out.parent.joinpath(*(rest or [out.name]))
    return place


def default_out(run: Path) -> Path:
    """The folder that is written where none is named: in the run's; for a checkpoint beside it, which holds the
    state of a training and nothing else."""
    if not _is_checkpoint(run):
        return run / FOLDER
    here = run if run.name.startswith("checkpoint-") else run.resolve()
    return here.parent / f"{FOLDER}-{here.name}"


def _is_checkpoint(run: Path) -> bool:
    return run.resolve().name.startswith("checkpoint-") and not (run / RECIPE).is_file()


class _Source:
    """A run or one of its checkpoints: what is in it. run: the folder of the weights; home: of the run."""

    def __init__(self, run: Path, base_model: str | None, config: str | Path | None, facts: CardFacts | None):
        if not run.is_dir():
            raise PublishError(f"{run}: there is no such folder")
        self.run = run
        self.is_checkpoint = _is_checkpoint(run)
        self.home = run.resolve().parent if self.is_checkpoint else run
        self.config = Path(config) if config is not None else self.home / RECIPE
        self.facts = facts
        self.settings: dict[str, Any] = {} if facts is not None else read_recipe(self.config)
        self.adapter = (run / ADAPTER_CONFIG).is_file() and not (run / "config.json").is_file()
        self.files = self._files()
        self.base = self._base(base_model)
        self.summary = read_summary(self.home / "summary.json")

    @property
    def step(self) -> int | None:
        """The update after which the weights are."""
        number = self.run.resolve().name.removeprefix("checkpoint-")
        if number.isdecimal():
            return int(number)
        return self.summary.get("weights_step", self.summary.get("updates"))

    def evaluations(self) -> list[Path]:
        """The evaluations that lie with the run."""
        found = evaluations.find_evaluations(self.run, self.step)
        return found or evaluations.find_evaluations(self.home, self.step)

    def _files(self) -> list[Path]:
        patterns = ADAPTER if self.adapter else MODEL
        named = {path for pattern in (*patterns, *TOKENIZER) for path in self.run.glob(pattern)}
        found = [path for path in named if path.is_file() and is_ours(path.name)]
        weights = [path for path in found if path.suffix in WEIGHTS]
        if not weights:
            inside = list(numbered(self.run).values())
            hint = f"; publish a checkpoint in it, such as {inside[-1]}" if inside else ""
            raise PublishError(f"{self.run}: holds neither a model nor an adapter{hint}")
        for path in weights:
            _check_weights(path)
        if not any(path.name == "tokenizer_config.json" for path in found):
            raise PublishError(f"{self.run}: holds no tokenizer (tokenizer_config.json)")
        return sorted(found)

    def _base(self, given: str | None) -> Base:
        name = self.settings.get("model_name_or_path")
        if self.adapter:
            name = self._adapter_base() or name
        base = base_of(name, given)
        if self.adapter and not (base.hub or base.shipped):
            raise PublishError(
                f"the adapter's base model is {name or 'not named'}, a folder of this machine: nobody else can load "
                "it; say which model of the Hub it is with --base-model ID"
            )
        if base.hub:
            check_repo_id(base.hub, "--base-model" if given else "the base model")
        return base

    def public_names(self, repo: str) -> PublicNames:
        """How places of this run are called in public."""
        names: dict[str | Path, str] = {self.run: repo, self.home: repo}
        template = self.template()
        if template is not None:
            names[template] = PROMPT
        for place in (self.settings.get("model_name_or_path"), self._adapter_base()):
            if place and (is_local_path(place) or os.path.isdir(place)):
                names[place] = self.base.name
        return PublicNames(names)

    def _adapter_base(self) -> str | None:
        name = read_object(self.run / ADAPTER_CONFIG).get("base_model_name_or_path") if self.adapter else None
        if not isinstance(name, str | None):
            raise PublishError(f"{self.run / ADAPTER_CONFIG}: base_model_name_or_path must be text, not {name!r:.60}")
        return name

    def template(self) -> Path | None:
        """The prompt template of the user's own, if the recipe names one."""
        name = self.settings.get("prompt_template")
        if not name or os.path.isfile(PROMPTS / f"{name}.jinja"):
            return None
        for path in (Path(name).expanduser(), self.config.parent / name):
            if os.path.isfile(path):
                return path
        raise PublishError(
            f"prompt_template {name:.200}: there is no such file, and without it nobody can run the model"
        )


def _write(source: _Source, new: Path, repo: str, name: str, evaluation_files, license: str | None) -> list[str]:
    """Write all files into the empty folder `new`; returns the card's warnings."""
    names = source.public_names(repo)
    for path in source.files:
        _copy(path, new / path.name, names)
    settings = {} if source.facts is not None else _write_recipe(source, new, names, name)
    if evaluation_files is None:
        evaluation_files = source.evaluations()
    contents = [evaluations.read(path) for path in evaluation_files]
    hashed = any(not evaluations.during_training(content) for content in contents)
    weights = weights_hash(str(new)) if hashed else None
    # The panel after training was played by the run's final weights alone.
    around = {} if source.is_checkpoint else source.summary
    known = {"weights": weights, "step": source.step, "adapter": source.adapter, "around": around}
    doubts = list(doubts_of(contents, source.settings, **known))
    public = [names.value(evaluations.public(content)) for content in contents]
    for i, content in enumerate(public):
        (new / evaluation_name(i)).write_text(evaluations.to_json(content), encoding="utf-8")
    doubts = [*source.base.doubts(), *doubts]
    facts = source.facts or CardFacts(
        name=name,
        repo=repo,
        adapter=source.adapter,
        base=source.base,
        methods=methods_of_settings(source.settings),
        environment=settings.get("environment") or {},
        settings=settings,
        data=source.summary.get("data") or {},
        evaluations=public,
        around=around,
        training=training_rows(source.settings, source.summary),
        hardware=hardware_rows(source.summary),
        versions=source.summary.get("versions") or {},
        license=license or {},
        warnings=doubts,
    )
    (new / CARD).write_text(render(facts), encoding="utf-8")
    return facts.warnings


def _copy(path: Path, target: Path, names: PublicNames) -> None:
    if path.suffix in WEIGHTS:
        try:
            os.link(path.resolve(), target)  # gigabytes, and nothing in them is changed
        except OSError:
            shutil.copyfile(path, target)
    elif path.name in (ADAPTER_CONFIG, "config.json", "tokenizer_config.json", "generation_config.json"):
        value = read_object(path)
        public = names.config(value)
        if public == value:
            shutil.copyfile(path, target)
        else:
            target.write_text(json.dumps(public, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        shutil.copyfile(path, target)


def _public_settings(source: _Source, names: PublicNames, name: str) -> tuple[dict[str, Any], list[str]]:
    """The recipe's settings without secrets, places and what is the author's own; and what was left out."""
    settings = without_secrets(source.settings)
    left_out = [key for key in settings if key.startswith(_PRIVATE)]
    settings = {key: value for key, value in settings.items() if key not in left_out}
    settings["model_name_or_path"] = source.base.name
    if source.template() is not None:
        settings["prompt_template"] = PROMPT
    if "output_dir" in settings:
        settings["output_dir"] = f"runs/{name}"
    public = {}
    for key, value in settings.items():
        # A prompt may begin as a path does (/no_think): the search for paths is for it.
        if key not in ("model_name_or_path", "output_dir", "environment", "system_prompt") and _is_place(value):
            left_out.append(key)
        elif isinstance(value, Mapping):
            places = [inner for inner, item in value.items() if _is_place(item)]
            left_out += [f"{key}.{inner}" for inner in places]
            public[key] = {inner: item for inner, item in value.items() if inner not in places}
        else:
            public[key] = names.value(value)
    return public, left_out


def _is_place(value: Any) -> bool:
    return isinstance(value, str) and is_local_path(value)


def _write_recipe(source: _Source, new: Path, names: PublicNames, name: str) -> dict[str, Any]:
    """Write the recipe, under the versions at the head of the run's own, and its prompt; returns its settings."""
    template = source.template()
    if template is not None:
        shutil.copyfile(template, new / PROMPT)
    settings, left_out = _public_settings(source, names, name)
    versions = []
    for line in source.config.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if len(line.split()) == 3:
            versions.append(line)
    notes = [f"# left out, since it is of the author's machine: {key}" for key in left_out]
    body = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=119)
    (new / RECIPE).write_text("\n".join([*versions, *notes, "", body]), encoding="utf-8")
    return settings


def _check_free(out: Path, run: Path) -> None:
    """Only a folder that an earlier call wrote is replaced."""
    if out.resolve() in (run.resolve(), *run.resolve().parents):
        raise PublishError(f"--out {out}: the folder of the run itself; choose another")
    if not out.exists():
        return
    if not out.is_dir():
        raise PublishError(f"--out {out}: is a file")
    foreign = [p.name for p in sorted(out.iterdir()) if not is_ours(p.name)]
    if foreign or (any(out.iterdir()) and not (out / CARD).is_file()):
        raise PublishError(f"--out {out}: holds other files ({', '.join(foreign[:3]) or 'no card'}); choose another")


def _check_weights(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    if path.suffix != ".safetensors":
        return
    try:
        with safe_open(path, framework="numpy"):  # compares the size that the header states with the file's
            return
    except (SafetensorError, OSError) as error:
        raise PublishError(f"{path}: is damaged: {one_line(error)}") from error


def check_repo_id(name: str, what: str) -> None:
    """PublishError unless `name` can be the id of a repository."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise PublishError(f"{what}: {one_line(error)}") from error
