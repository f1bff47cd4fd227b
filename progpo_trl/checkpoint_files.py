"""Checkpoint folders: what is in one, whether it is whole, which is the newest, which go.

A checkpoint is written in `output_dir/.saving/` and renamed to `output_dir/checkpoint-<step>` when it is complete, so
a folder of that name is whole, unless something else damaged it: its manifest lists every file with its size.
Nothing here needs torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from progpo_trl import atomic
from progpo_trl.settings_values import one_line

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig

PREFIX = "checkpoint-"
# Where a checkpoint or model is written before it gets its name; whatever a killed run leaves in it is rubbish.
SAVING = ".saving"
STATE = "trainer_state.json"
MANIFEST = "manifest.json"
# Weights of a whole model, of an adapter, and the folders and files of FSDP and DeepSpeed.
_WEIGHTS = re.compile(r"(model|pytorch_model|adapter_model).*\.(safetensors|bin)|pytorch_model_fsdp.*|global_step\d+")
_SHARDS = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# What a training goes on with beside its weights, as transformers names it: one file, FSDP's folder, XLA's file a
# process. DeepSpeed keeps optimizer and schedule in a folder of its own.
_OPTIMIZER = re.compile(r"optimizer\.(pt|bin)|optimizer_\d+|rank\d+-of-\d+-optimizer\.pt")
_SCHEDULE = re.compile(r"scheduler\.pt")
_GENERATORS = re.compile(r"rng_state(_\d+)?\.pth")
_DEEPSPEED = re.compile(r"global_step\d+")


def generation_updates(args: MultiTurnGRPOConfig) -> int:
    """Optimizer steps taken on the rows of one generation."""
    return args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps


def numbered(folder: str | Path) -> dict[int, Path]:
    """The checkpoints in `folder` by step, in ascending order."""
    found = {}
    for path in Path(folder).glob(f"{PREFIX}*"):
        if path.is_dir() and (number := path.name.removeprefix(PREFIX)).isdecimal():
            found[int(number)] = path
    return dict(sorted(found.items()))


def newest_complete(folder: str | Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest complete checkpoint in a folder, and the newer ones that are not, each with what is wrong."""
    skipped = []
    for path in reversed(numbered(folder).values()):
        fault = checkpoint_fault(path)
        if fault is None:
            return path, skipped
        skipped.append((path, fault))
    return None, skipped


def write_manifest(folder: Path, **facts: Any) -> None:
    """List every file of a finished checkpoint with its size, beside `facts` about the run."""
    manifest = folder / MANIFEST
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != manifest)
    sizes = {str(file.relative_to(folder)): file.stat().st_size for file in files}
    manifest.write_text(json.dumps({**facts, "files": sizes}, indent=1), encoding="utf-8")


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """What `write_manifest` wrote; empty for a checkpoint of another trainer. ValueError for a damaged one."""
    try:
        manifest = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ValueError(f"{MANIFEST} cannot be read: {one_line(error)}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError(f"{MANIFEST} lists no files")
    return manifest


def checkpoint_fault(path: Path) -> str | None:
    """What keeps `path` from being resumed from, or None. Reads headers and sizes, not weights."""
    if not path.is_dir():
        return "there is no such folder"
    if SAVING in path.parts:
        return "is half-written: the run ended while it was being saved"
    if numbered(path):
        return "is a run's folder, no checkpoint: it holds weights to use, not what training goes on with"
    try:
        manifest = read_manifest(path)
    except ValueError as error:
        return str(error)
    for name, size in manifest.get("files", {}).items():
        file = path / name
        if not file.is_file():
            return f"is no complete checkpoint: {name} is missing"
        if file.stat().st_size != size:
            return f"{name} is damaged: it has {file.stat().st_size} bytes instead of {size}"
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"is no complete checkpoint: {STATE} is missing"
    except (OSError, ValueError) as error:
        return f"{STATE} cannot be read: {one_line(error)}"
    if not isinstance(state, dict) or not isinstance(state.get("global_step"), int):
        return f"{STATE} states no global_step"
    # PEFT keeps adapters with names of their own one folder deeper.
    files = [*path.iterdir(), *(file for folder in path.iterdir() if folder.is_dir() for file in folder.iterdir())]
    if not any(_WEIGHTS.fullmatch(file.name) for file in files):
        return "there are no weights in it"
    if fault := next((fault for file in files if (fault := _file_fault(file))), None):
        return fault
    # One that says of itself that it is only a model is whole, though no run can go on from it.
    return None if manifest.get("only_model") else _training_fault(path)


def _training_fault(path: Path) -> str | None:
    """What is missing beside the weights: without it a run would go on with a fresh optimizer and schedule."""
    names = [file.name for file in path.iterdir() if not file.is_dir() or any(file.iterdir())]
    deepspeed = any(map(_DEEPSPEED.fullmatch, names))
    if deepspeed and "latest" not in names:
        return "is no complete checkpoint: latest, which names DeepSpeed's folder, is missing"
    wanted = {
        "optimizer (optimizer.pt)": deepspeed or any(map(_OPTIMIZER.fullmatch, names)),
        "learning rate schedule (scheduler.pt)": deepspeed or any(map(_SCHEDULE.fullmatch, names)),
        "random generators (rng_state.pth)": any(map(_GENERATORS.fullmatch, names)),
    }
    missing = [what for what, there in wanted.items() if not there]
    if not missing:
        return None
    return (
        f"holds weights, but no {', no '.join(missing)}: a run cannot go on from it, only begin anew with its weights "
        f"({as_model(path)})"
    )


def as_model(path: str | Path) -> str:
    """How a new run begins with the weights of a checkpoint."""
    # Weights of an adapter's own are no model that transformers could load for training.
    if (Path(path) / "adapter_config.json").is_file():
        return (
            f"merge the adapter in {path} into its base model, with PEFT's merge_and_unload(), save that and give its "
            "folder as --model_name_or_path"
        )
    return f"--model_name_or_path {path}"


def _file_fault(file: Path) -> str | None:
    from safetensors import SafetensorError, safe_open

    try:
        if file.name in _SHARDS:
            shards = set(json.loads(file.read_text(encoding="utf-8"))["weight_map"].values())
            missing = sorted(shard for shard in shards if not (file.parent / shard).is_file())
            return f"{', '.join(missing)} is missing" if missing else None
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt"):  # compares the size that the header states with the file's
                return None
        if file.suffix in (".bin", ".pt", ".pth") and not zipfile.is_zipfile(file):
            return f"{file.name} is damaged"  # torch.save writes zip archives, whose directory comes last
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        return f"{file.name} is damaged: {one_line(error)}"
    return None


def checkpoint_step(path: str | Path) -> int:
    """The optimizer step at which a complete checkpoint was taken."""
    return json.loads((Path(path) / STATE).read_text(encoding="utf-8"))["global_step"]


def rotate(folder: Path, limit: int | None, keep: Iterable[str | Path | None]) -> None:
    """Remove the oldest checkpoints in `folder` above `limit`, but none of `keep`; null or 0 is no limit."""
    if not limit or limit < 0:
        return
    found = sorted(numbered(folder).items(), key=lambda item: (item[1].stat().st_mtime_ns, item[0]))
    protected = {Path(path).resolve() for path in keep if path is not None}
    excess = len(found) - limit
    for _, path in found:
        if excess > 0 and path.resolve() not in protected:
            atomic.discard(path, folder / SAVING)
            excess -= 1
    shutil.rmtree(folder / SAVING, ignore_errors=True)


def set_aside_after(folder: Path, step: int) -> list[Path]:
    """Rename the checkpoints in `folder` beyond `step`: a run that goes on from there makes its own. Returns them."""
    aside = []
    for number, path in numbered(folder).items():
        if number > step:
            target = path.with_name(f"superseded-{path.name}")
            if target.exists():
                atomic.discard(target, folder / SAVING)
            os.rename(path, target)
            aside.append(target)
    return aside


def recover(folder: str | Path) -> None:
    """Put back a checkpoint that was about to be replaced when the run was killed."""
    for old in (Path(folder) / SAVING).glob(f"{atomic.REPLACED}{PREFIX}*"):
        target = Path(folder) / old.name.removeprefix(atomic.REPLACED)
        if not target.exists():
            with contextlib.suppress(FileNotFoundError):  # another process of the run was faster
                os.rename(old, target)


class CheckpointNotSaved(RuntimeError):
    """A checkpoint could not be written; the message says which one is complete."""


def clean(folder: Path) -> None:
    """Remove what a run that was killed while saving left behind."""
    recover(folder)
    place = folder / SAVING
    if place.exists() and not place.is_dir():
        place.unlink()
    shutil.rmtree(place, ignore_errors=True)
