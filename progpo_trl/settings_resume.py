"""`resume_from_checkpoint`: which checkpoint a run goes on from, checked before a model is loaded or a game played."""

from __future__ import annotations

import json
import re
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from progpo_trl.settings_values import SettingsError, one_line

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig

_STATE = "trainer_state.json"
# Weights of a whole model, of an adapter, and the folders and files of FSDP and DeepSpeed.
_WEIGHTS = re.compile(r"(model|pytorch_model|adapter_model).*\.(safetensors|bin)|pytorch_model_fsdp.*|global_step\d+")
_SHARDS = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def resume_checkpoint(args: MultiTurnGRPOConfig) -> str | None:
    """The folder to resume from, or None to start anew; `last` (or true) is the newest complete one in output_dir."""
    asked = args.resume_from_checkpoint
    word = str(asked).lower()
    if word in ("none", "false", "no"):
        # Another run's checkpoints in the same place would later pass for this one's.
        if earlier := sorted(p.name for p in Path(args.output_dir).glob("checkpoint-*")):
            raise SettingsError(
                f"output_dir {args.output_dir} holds checkpoints of an earlier run ({earlier[0]}, ...): go on from "
                "them with --resume_from_checkpoint last, or choose another output_dir"
            )
        return None
    if word in ("last", "true"):
        path, skipped = newest_complete(args.output_dir)
        listed = "; ".join(f"{folder.name}: {fault}" for folder, fault in skipped)
        if path is None:
            which = f"no complete checkpoint in {args.output_dir} ({listed})"
            if not skipped:
                which = f"no checkpoint in {args.output_dir}"
            raise SettingsError(f"resume_from_checkpoint: there is {which}; to start anew, leave it out")
        if skipped:
            warnings.warn(f"resuming from {path.name}; newer checkpoints cannot be used ({listed})", stacklevel=2)
    else:
        path = Path(asked)
        if fault := checkpoint_fault(path):
            raise SettingsError(f"resume_from_checkpoint: {path}: {fault}")
    step = json.loads((path / _STATE).read_text(encoding="utf-8"))["global_step"]
    if 0 < args.max_steps <= step:
        raise SettingsError(
            f"resume_from_checkpoint: {path} is at step {step} and max_steps is {args.max_steps}: nothing is left to "
            "train; raise max_generations or max_steps"
        )
    return str(path)


def newest_complete(folder: str | Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest complete checkpoint in a folder, and the newer ones that are not, each with what is wrong."""
    found = {}
    for path in Path(folder).glob("checkpoint-*"):
        if path.is_dir() and (number := path.name.removeprefix("checkpoint-")).isdecimal():
            found[int(number)] = path
    skipped = []
    for _, path in sorted(found.items(), reverse=True):
        fault = checkpoint_fault(path)
        if fault is None:
            return path, skipped
        skipped.append((path, fault))
    return None, skipped


def checkpoint_fault(path: Path) -> str | None:
    """What keeps `path` from being resumed from, or None. Reads headers, not weights."""
    if not path.is_dir():
        return "there is no such folder"
    try:
        # Written last: without it the run ended while the checkpoint was being saved.
        state = json.loads((path / _STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"is no complete checkpoint: {_STATE} is missing"
    except (OSError, ValueError) as error:
        return f"{_STATE} cannot be read: {one_line(error)}"
    if not isinstance(state, dict) or not isinstance(state.get("global_step"), int):
        return f"{_STATE} states no global_step"
    # PEFT keeps adapters with names of their own one folder deeper.
    files = [*path.iterdir(), *(file for folder in path.iterdir() if folder.is_dir() for file in folder.iterdir())]
    if not any(_WEIGHTS.fullmatch(file.name) for file in files):
        return "there are no weights in it"
    return next((fault for file in files if (fault := _file_fault(file))), None)


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
