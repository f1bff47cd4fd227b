"""`resume_from_checkpoint`: which checkpoint a run goes on from, checked before a model is loaded or a game played."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from progpo_trl.checkpoint_files import (
    PREFIX,
    STATE,
    as_model,
    checkpoint_fault,
    checkpoint_step,
    generation_updates,
    newest_complete,
    numbered,
    read_manifest,
    recover,
)
from progpo_trl.settings_values import SettingsError, one_line

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig

# What a person adds to the command of a run to go on with it.
RESUME = ("--resume_from_checkpoint", "last")


def resume_checkpoint(
    args: MultiTurnGRPOConfig, settings: Mapping[str, Any] | None = None, script_asked: Mapping[str, Any] | None = None
) -> str | None:
    """The folder to resume from, or None to start anew; `last` (or true) is the newest complete one in output_dir.

    A run that was trained to its end but not finished (its model not saved, say) is resumed at its last step.
    settings, script_asked: see `find_checkpoint`.
    """
    asked = args.resume_from_checkpoint
    recover(args.output_dir)
    if str(asked).lower() in ("none", "false", "no"):
        # Another run's checkpoints in the same place would later pass for this one's.
        if earlier := [path.name for path in numbered(args.output_dir).values()]:
            raise SettingsError(
                f"output_dir {args.output_dir} holds checkpoints of an earlier run ({earlier[0]}, ...): go on from "
                f"them with {' '.join(RESUME)}, or choose another --output_dir"
            )
        return None
    path = find_checkpoint(asked, args, settings, script_asked)
    output = Path(args.output_dir)
    if path.resolve().parent != output.resolve() and (others := list(numbered(output).values())):
        raise SettingsError(
            f"resume_from_checkpoint: {path} is another run's than the checkpoints in output_dir {output} "
            f"({others[0].name}, ...), which would be mixed with those to come: choose another --output_dir"
        )
    step = checkpoint_step(path)
    if 0 < args.max_steps < step or (step == args.max_steps and _finished(path, Path(args.output_dir))):
        updates = generation_updates(args)
        raise SettingsError(
            f"resume_from_checkpoint: {path} is at step {step} and max_steps is {args.max_steps}: nothing is left to "
            f"train; to train on, raise it: --max_generations {step // updates + 1} or more"
        )
    return str(path)


def find_checkpoint(
    asked: str | bool,
    args: MultiTurnGRPOConfig,
    settings: Mapping[str, Any] | None = None,
    script_asked: Mapping[str, Any] | None = None,
) -> Path:
    """The checkpoint that `asked` means: a folder, or `last` (or true). SettingsError when it cannot be resumed.

    settings: what this run is recorded as (see `settings_record`), compared with what the checkpoint records; None
    compares nothing. script_asked: what the command line asked for, compared with the config.yaml beside a checkpoint
    that records nothing.
    """
    recover(args.output_dir)
    if str(asked).lower() in ("last", "true"):
        path, skipped = newest_complete(args.output_dir)
        listed = "; ".join(f"{folder.name}: {fault}" for folder, fault in skipped)
        if path is None:
            which = f"no complete checkpoint in {args.output_dir} ({listed})"
            if not skipped:
                which = f"no checkpoint in {args.output_dir}"
            raise SettingsError(
                f"resume_from_checkpoint: there is {which}; to start anew, leave resume_from_checkpoint out"
            )
        if skipped:
            warnings.warn(f"resuming from {path.name}; newer checkpoints cannot be used ({listed})", stacklevel=2)
    else:
        path = Path(asked)
        if fault := checkpoint_fault(path):
            raise SettingsError(f"resume_from_checkpoint: {path}: {fault}{_instead(path, args)}")
    if settings is not None:
        _refuse_another_experiment(path, settings, script_asked)
    if fault := _unfit(path, args):
        raise SettingsError(f"resume_from_checkpoint: {path}: {fault}")
    return path


def _refuse_another_experiment(
    path: Path, settings: Mapping[str, Any], script_asked: Mapping[str, Any] | None
) -> None:
    """SettingsError that names every setting in which a run differs from the one that made its checkpoint."""
    from progpo_trl.settings_record import differences, not_recorded

    then, now = read_manifest(path).get("settings"), settings
    if not isinstance(then, dict):
        try:
            then, now = _as_asked(path, script_asked)
        except (ValueError, TypeError) as error:
            _warn(path, f"settings ({one_line(error)})")
            return
    if unknown := not_recorded(then, now):
        _warn(path, " and ".join(unknown))
    if changed := differences(then, now):
        raise SettingsError(
            f"resume_from_checkpoint: {path} was made with other settings: {'; '.join(changed)}. That is another "
            f"experiment: {put_back(path)}"
        )


def _as_asked(path: Path, script_asked: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the config.yaml beside a checkpoint that records nothing asked for, and what is asked for now."""
    from progpo_trl.settings_record import of_asked, read_asked

    if script_asked is None:
        raise SettingsError("checkpoints of other trainers and of older versions record none")
    return of_asked(read_asked(path.parent / "config.yaml")), of_asked(script_asked)


def _warn(path: Path, unknown: str) -> None:
    warnings.warn(
        f"{path} does not say with which {unknown} it was made: nobody can tell whether this run has the same",
        stacklevel=5,
    )


def put_back(checkpoint: str | Path) -> str:
    """What to do about settings that a run cannot go on with."""
    return (
        "a run goes on with the settings it began with; put them back, or begin a new run with these weights: "
        f"{as_model(checkpoint)} and another --output_dir, without resume_from_checkpoint"
    )


def _unfit(path: Path, args: MultiTurnGRPOConfig) -> str | None:
    """Why a run cannot go on exactly from a checkpoint that is complete, or None."""
    step, updates = checkpoint_step(path), generation_updates(args)
    manifest = read_manifest(path)
    made_with = manifest.get("updates_per_generation", updates)
    if made_with != updates:
        return (
            f"was made with {made_with} optimizer steps per generation, these settings take {updates}: keep the "
            "batch settings of the run (its config.yaml has them)"
        )
    if step % updates:
        before = step // updates * updates
        return (
            f"lies inside a generation (step {step}; generations end every {updates} steps): the rest of its episodes "
            f"is lost, so it cannot be continued exactly; use a checkpoint at a multiple of {updates}, such as "
            f"{PREFIX}{before or updates}"
        )
    if manifest.get("only_model"):
        return (
            f"was saved with save_only_model and holds no optimizer state; begin a new run with it: {as_model(path)}"
        )
    return None


def _instead(path: Path, args: MultiTurnGRPOConfig) -> str:
    """What to write instead of a checkpoint that cannot be used."""
    if not path.exists() and (inside := Path(args.output_dir) / path.name).is_dir():
        return f"; did you mean --resume_from_checkpoint {inside}"
    folder = next((near for near in (path, path.parent) if numbered(near)), Path(args.output_dir))
    good, _ = newest_complete(folder)
    return f"; the newest complete one is --resume_from_checkpoint {good}" if good else ""


def _finished(checkpoint: Path, output: Path) -> bool:
    """Whether the run went on to its end after its last checkpoint: the summary is what it writes last."""
    summary = output / "summary.json"
    return summary.is_file() and summary.stat().st_mtime_ns >= (checkpoint / STATE).stat().st_mtime_ns
