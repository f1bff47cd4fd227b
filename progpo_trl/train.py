"""Train an agent: `progpo train --config RECIPE`, or `accelerate launch -m progpo_trl.train --config RECIPE`.

The same code runs the quickstart on a laptop and a 7B model on a GPU box; only the settings differ.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from progpo_trl.settings import ScriptArguments, SettingsError, dump, parse

if TYPE_CHECKING:
    from trl import ModelConfig

    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.environments import TaskSet
    from progpo_trl.trainer import MultiTurnGRPOTrainer

# model_name_or_path of the policies that ship with the package -> their names in progpo_trl.tiny_policy
TINY_POLICIES = {"tiny": "base", "tiny-hard": "base-hard"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one training; returns the exit code. Settings errors raise SettingsError."""
    # TRL 1.16 sets and reads fields that newer transformers renamed; nobody who runs a recipe can act on that.
    warnings.filterwarnings("ignore", r".*gradient_checkpointing` is deprecated", FutureWarning)
    argv = list(sys.argv[1:] if argv is None else argv)
    script, args, model_args = parse(argv, "progpo train")
    trainer = build_trainer(script, args, model_args)
    run(trainer, script, args, argv)
    return 0


def build_trainer(script: ScriptArguments, args: MultiTurnGRPOConfig, model_args: ModelConfig) -> MultiTurnGRPOTrainer:
    """The trainer that the settings describe."""
    from trl import get_peft_config, get_quantization_config

    from progpo_trl.advantages import make_estimator
    from progpo_trl.reporting.console import use_compact_console
    from progpo_trl.trainer import MultiTurnGRPOTrainer

    tasks, train_ids, eval_ids = _load_tasks(script)
    try:
        advantage = make_estimator(script.advantage, script.progress_fallback)
    except (ValueError, TypeError) as error:
        raise SettingsError(str(error)) from error
    args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(args.model_init_kwargs or {}),
    }
    try:
        trainer = MultiTurnGRPOTrainer(
            model=_model_path(model_args.model_name_or_path),
            args=args,
            environment=tasks,
            advantage=advantage,
            train_dataset=train_ids,
            eval_dataset=eval_ids,
            peft_config=get_peft_config(model_args),
            quantization_config=get_quantization_config(model_args),
        )
    except ValueError as error:
        # Settings that contradict each other or the model; the message says which.
        raise SettingsError(str(error)) from error
    use_compact_console(trainer)
    return trainer


def _load_tasks(script: ScriptArguments) -> tuple[TaskSet, list[str], list[str]]:
    from progpo_trl.environments import load_environment

    options: dict[str, Any] = dict(script.environment)
    name, split, eval_split = options.pop("name"), options.pop("split", "train"), options.pop("eval_split", None)
    try:
        tasks = load_environment(name, **options)
        train_ids = list(tasks.task_ids(split))
        eval_ids = list(tasks.task_ids(eval_split)) if eval_split else []
    except KeyError as error:
        raise SettingsError(f"environment: {error.args[0]}") from error
    except (ValueError, OSError, ImportError) as error:
        raise SettingsError(f"environment: {error}") from error
    if not train_ids:
        raise SettingsError(f"environment: split {split!r} of {name!r} has no tasks")
    return tasks, train_ids, eval_ids


def _model_path(name: str) -> str:
    if name not in TINY_POLICIES:
        return name
    from progpo_trl.tiny_policy import checkpoint_path

    return str(checkpoint_path(TINY_POLICIES[name]))


def run(
    trainer: MultiTurnGRPOTrainer, script: ScriptArguments, args: MultiTurnGRPOConfig, argv: Sequence[str]
) -> None:
    """Evaluate, train, evaluate again, save, and say where everything is."""
    from progpo_trl.reporting.summary import RunSummary

    main_process = trainer.accelerator.is_main_process
    output = Path(args.output_dir)
    if main_process:
        output.mkdir(parents=True, exist_ok=True)
        dump(script, output / "config.yaml")
    summary = RunSummary(trainer, script, argv)
    if script.evaluate_around_training:
        if not trainer.eval_task_ids:
            raise SettingsError("evaluate_around_training needs environment.eval_split")
        summary.evaluate("before")
    wall, cpu = time.perf_counter(), time.process_time()
    trainer.train(resume_from_checkpoint=_checkpoint(args))
    summary.trained(time.perf_counter() - wall, time.process_time() - cpu)
    trainer.save_model(args.output_dir)
    if main_process:
        trainer.processing_class.save_pretrained(args.output_dir)
    if script.evaluate_around_training:
        summary.evaluate("after")
    if main_process:
        summary.write(output)
    if args.push_to_hub:
        trainer.push_to_hub()
    end = getattr(trainer, "end", None)
    if end is not None:
        # Newer transformers close the trackers and the process group here; older ones do it at exit.
        end()


def _checkpoint(args: MultiTurnGRPOConfig) -> str | None:
    """`resume_from_checkpoint: last` (or true) is the newest checkpoint in output_dir."""
    from transformers.trainer_utils import get_last_checkpoint

    asked = args.resume_from_checkpoint
    if str(asked).lower() not in ("last", "true"):
        return asked
    found = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    if found is None:
        raise SettingsError(f"resume_from_checkpoint: there is no checkpoint in {args.output_dir}")
    return found


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except SettingsError as failure:
        print(f"progpo train: error: {failure}", file=sys.stderr)
        raise SystemExit(2) from None
