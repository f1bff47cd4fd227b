"""Train an agent: `progpo train --config RECIPE`, or `accelerate launch -m progpo_trl.train --config RECIPE`.

The same code runs the quickstart on a laptop and a 7B model on a GPU box; only the settings differ.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from progpo_trl import atomic
from progpo_trl.checkpoint_files import CheckpointNotSaved, checkpoint_step, generation_updates, newest_complete
from progpo_trl.faults import TrainingStopped
from progpo_trl.publishing.errors import PublishError
from progpo_trl.secret_values import without_secret_options
from progpo_trl.settings import ScriptArguments, SettingsError, dump, parse
from progpo_trl.settings_record import of_run
from progpo_trl.settings_resume import RESUME, resume_checkpoint
from progpo_trl.settings_values import nearest, one_line

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.environments import TaskSet
    from progpo_trl.model_arguments import ModelArguments
    from progpo_trl.trainer import MultiTurnGRPOTrainer

# model_name_or_path of the policies that ship with the package -> their names in progpo_trl.tiny_policy
TINY_POLICIES = {"tiny": "base", "tiny-hard": "base-hard", "tiny-shop": "base-shop"}

# Where the config.yaml of the updates up to a step goes when a run goes on from there with another.
_UNTIL = "config-until-step-{}.yaml"

# What people put into model_init_kwargs, to guess what a misspelt name was meant to be.
_LOADING = (
    "attn_implementation",
    "cache_dir",
    "device_map",
    "dtype",
    "local_files_only",
    "max_memory",
    "quantization_config",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
    "use_cache",
    "use_kernels",
    "use_safetensors",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one training; returns the exit code. Settings errors raise SettingsError."""
    # TRL 1.16 sets and reads fields that newer transformers renamed; nobody who runs a recipe can act on that.
    warnings.filterwarnings("ignore", r".*gradient_checkpointing` is deprecated", FutureWarning)
    argv = list(sys.argv[1:] if argv is None else argv)
    with _sigterm_interrupts():
        try:
            script, args, model_args = parse(argv, "progpo train")
            settings = of_run(script, args, model_args)
            checkpoint = resume_checkpoint(args, settings, script.asked)
            trainer = build_trainer(script, args, model_args)
            trainer.run_settings = settings
        except KeyboardInterrupt as stop:
            return _stopped(stop, "before training; nothing was saved")
        return run(trainer, script, args, argv, checkpoint)


def build_trainer(
    script: ScriptArguments, args: MultiTurnGRPOConfig, model_args: ModelArguments
) -> MultiTurnGRPOTrainer:
    """The trainer that the settings describe."""
    from safetensors import SafetensorError
    from trl import get_peft_config, get_quantization_config

    from progpo_trl.advantages import make_estimator
    from progpo_trl.reporting.console import use_compact_console
    from progpo_trl.trainer import MultiTurnGRPOTrainer

    tasks, train_ids, eval_ids = _load_tasks(script)
    _make_output_dir(args)
    try:
        advantage = make_estimator(script.advantage, script.progress_fallback)
    except (ValueError, TypeError) as error:
        raise SettingsError(str(error)) from error
    asked = args.model_init_kwargs or {}
    args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **asked,
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
    except (OSError, SafetensorError) as error:
        if args.use_vllm and "vLLM server" in str(error):
            raise SettingsError(one_line(error)) from error
        # Nothing but the model is read here.
        raise SettingsError(f"model_name_or_path: {model_args.model_name_or_path}: {one_line(error)}") from error
    except (ValueError, ImportError) as error:
        # Settings that contradict each other or the model, or a package that is not there; the message says which.
        raise SettingsError(one_line(error)) from error
    except TypeError as error:
        # Any option of a model's configuration is allowed in model_init_kwargs, so only the model can tell.
        named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if named is None or named[1] not in asked:
            raise
        near = nearest(named[1], _LOADING)
        raise SettingsError(f"model_init_kwargs: the model takes no {named[1]!r}{near}") from error
    use_compact_console(trainer)
    return trainer


def _make_output_dir(args: MultiTurnGRPOConfig) -> None:
    """Find out that nothing can be saved before hours are spent."""
    try:
        Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"output_dir: {args.output_dir} cannot be made: {error.strerror}") from error
    if not os.access(args.output_dir, os.W_OK | os.X_OK):
        raise SettingsError(f"output_dir: {args.output_dir} is not writable")


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
        # transformers would take a missing folder for a malformed name on the Hub.
        if name.startswith((".", "/", "~")) and not os.path.isdir(os.path.expanduser(name)):
            raise SettingsError(f"model_name_or_path: there is no folder {name}")
        return name
    from progpo_trl.tiny_policy import checkpoint_path

    return str(checkpoint_path(TINY_POLICIES[name]))


def run(
    trainer: MultiTurnGRPOTrainer,
    script: ScriptArguments,
    args: MultiTurnGRPOConfig,
    argv: Sequence[str],
    checkpoint: str | None = None,
) -> int:
    """Evaluate, train (on from `checkpoint`), evaluate again, save, and say where everything is; the exit code."""
    from progpo_trl.reporting.summary import RunSummary

    main_process = trainer.accelerator.is_main_process
    output = Path(args.output_dir)
    saved = False
    try:
        if script.evaluate_around_training and not trainer.eval_task_ids:
            raise SettingsError("evaluate_around_training needs environment.eval_split")
        if main_process:
            if checkpoint is None or Path(checkpoint).resolve().parent != output.resolve():
                _set_aside(output, script)
                dump(script, output / "config.yaml")
            else:
                _replace_settings(output, script, checkpoint_step(checkpoint))
        summary = RunSummary(trainer, script, argv, checkpoint)
        summary.announce()
        if script.evaluate_around_training:
            summary.evaluate_before()
        with trainer.save_on_signals():
            trainer.train(resume_from_checkpoint=checkpoint)
        summary.trained()
        trainer.save_final_model(args.output_dir)
        trainer.save_state()  # trainer_state.json: every logged metric, for `progpo view` and `progpo plots`
        saved = True
        if script.evaluate_around_training:
            summary.evaluate("after")
        if main_process:
            summary.write(output)
        pushed = not args.push_to_hub or _push(trainer)
        end = getattr(trainer, "end", None)
        if end is not None:
            # Newer transformers close the trackers and the process group here; older ones do it at exit.
            end()
    except CheckpointNotSaved as error:
        go_on = f" Make room there, then go on with: {_again(argv)}" if newest_complete(args.output_dir)[0] else ""
        print(f"progpo train: {error}.{go_on}", file=sys.stderr)
        return 1
    except TrainingStopped as error:
        if main_process:  # all have it
            kept = f". The trained model is in {output}" if saved else ""
            print(f"progpo train: error: {one_line(error)}{kept}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        if saved:
            return _stopped(stop, f"after training; the trained model is in {output}")
        updates = generation_updates(args)
        at = f"at generation {trainer.state.global_step // updates + 1}"
        return _stopped(stop, f"{at}; {_kept(stop, args, argv)}")
    return 0 if pushed else 1


def _set_aside(output: Path, script: ScriptArguments) -> None:
    """A run that stops early must not be taken for the model and the numbers that lie in its folder."""
    from progpo_trl.earlier_run import PARTIAL, set_aside_earlier_run
    from progpo_trl.evaluation.errors import EvaluationError
    from progpo_trl.viewer.sources import evaluations_beside

    try:
        earlier = set_aside_earlier_run(output, _model_path(str(script.asked["model_name_or_path"])))
    except EvaluationError as error:
        raise SettingsError(f"output_dir: {output} holds an earlier run, and {error}") from error
    except OSError as error:
        # Moving back may have failed as well.
        kept = f"are in {output / PARTIAL} in part" if (output / PARTIAL).is_dir() else "stay where they were"
        raise SettingsError(
            f"output_dir: {output}: an earlier run's files cannot be moved, and {kept}: {one_line(error)}; mend that "
            "and begin again, or choose another --output_dir"
        ) from error
    if earlier is None:
        return
    print(f"{output} held an earlier run: it is in {earlier} now, where it can be viewed, evaluated and published")
    for place in evaluations_beside(output):
        print(f"{place} seems to be an evaluation of that run; it stays, and `progpo view {output}` would show it")


def _replace_settings(output: Path, script: ScriptArguments, step: int) -> None:
    """Write the config.yaml of a run that goes on; one that says anything else is kept under a name of its own.

    What makes the run the experiment it is, is the same; how long it is, where its logs go and which versions made
    the first updates may not be.
    """
    config, kept = output / "config.yaml", output / _UNTIL.format(step)
    try:
        before = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else None
        keep = before is not None and not kept.exists()  # the first one is of the updates up to that step
        if keep:
            atomic.write_text(kept, before)
        dump(script, config)
        if keep and config.read_text(encoding="utf-8") == before:
            kept.unlink()
    except OSError as error:
        raise SettingsError(f"output_dir: {error.filename or output} cannot be written: {error.strerror}") from error


def _push(trainer: MultiTurnGRPOTrainer) -> bool:
    """Publish the trained model; False, with one line that says why, when it could not be."""
    try:
        trainer.push_to_hub()
    except PublishError as error:
        print(f"progpo train: the training is done, the upload failed: {error}", file=sys.stderr)
        return False
    return True


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as schedulers send it before they end a job."""


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """While inside, SIGTERM unwinds the run like Ctrl-C instead of ending it on the spot."""

    def stop(*_: Any) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():  # Python refuses handlers there
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stopped(stop: KeyboardInterrupt, message: str) -> int:
    """Say on one process how the run was stopped; returns the exit code that shells give the signal."""
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"\nprogpo train: interrupted {message}", file=sys.stderr)
    number = signal.SIGTERM if isinstance(stop, _Terminated) else getattr(stop, "signum", signal.SIGINT)
    return 128 + number


def _kept(stop: KeyboardInterrupt, args: MultiTurnGRPOConfig, argv: Sequence[str]) -> str:
    """What is saved of a run that was interrupted, and the command that goes on with it."""
    checkpoint = getattr(stop, "checkpoint", None) or newest_complete(args.output_dir)[0]
    if checkpoint is not None:
        return f"saved {checkpoint}; go on with: {_again(argv)}"
    if args.save_strategy == "no":
        return "no checkpoint was saved: save_strategy is no (--save_every_generations 1 saves every generation)"
    return "no checkpoint was saved: not one generation was complete"


def _again(argv: Sequence[str]) -> str:
    """The command line of this run, to go on from its newest checkpoint; its secrets are named, for a value of stars
    would be used."""
    if "WORLD_SIZE" in os.environ:  # the launcher's own words are not known here
        return f"the same command and {' '.join(RESUME)}"
    words, skip = [], False
    for word in argv:
        name = word.partition("=")[0].replace("-", "_")
        if name == "__resume_from_checkpoint":
            skip = "=" not in word
        elif not (skip and not word.startswith("--")):
            words.append(word)
            skip = False
    kept, left_out = without_secret_options(words)
    yours = f" (and your {', '.join(dict.fromkeys(left_out))})" if left_out else ""
    return shlex.join(["progpo", "train", *kept, *RESUME]) + yours


if __name__ == "__main__":
    from progpo_trl.cli import main as command

    # One place decides about errors, exit codes and closed pipes.
    raise SystemExit(command(["train", *sys.argv[1:]]))
