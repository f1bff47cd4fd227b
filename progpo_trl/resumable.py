"""What makes a run resumable bit for bit: atomic checkpoints at generation boundaries with everything that is pending.

`Resumable` goes before a GRPO trainer in the list of base classes. transformers saves weights, optimizer, scheduler,
generators and its own state; what it leaves out is here: metrics and loss that are not logged yet, the order of the
tasks after the first epoch, the W&B run, an evaluation that a signal cut short.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers.trainer_utils import SaveStrategy

from progpo_trl import atomic
from progpo_trl.boundary import Boundary
from progpo_trl.checkpoint_files import (
    PREFIX,
    SAVING,
    STATE,
    CheckpointNotSaved,
    clean,
    generation_updates,
    newest_complete,
    rotate,
    write_manifest,
)
from progpo_trl.run_state import EpochOrder, set_generators, wandb_run
from progpo_trl.settings_record import of_trainer
from progpo_trl.settings_resume import find_checkpoint, put_back
from progpo_trl.settings_values import SettingsError
from progpo_trl.stopping import StopSignals, TrainingInterrupted

logger = logging.getLogger(__name__)


class Resumable:
    """Mixin for a GRPO trainer with `Publishing`; see the module's docstring.

    carry: JSON values of the caller's own that travel with checkpoints; `train()` on from one brings them back.
    run_settings: what checkpoints record the run as (see `settings_record.of_run`), for a caller that knows more of it
    than the trainer, and has compared it with the checkpoint; None: what the trainer knows.
    """

    def __init__(self, *args, **kwargs):
        self._saving = False
        self._best_step: int | None = None
        super().__init__(*args, **kwargs)
        self.carry: dict[str, Any] = {}
        self.run_settings: dict[str, Any] | None = None
        self.stop_signals = StopSignals()
        self._boundary = Boundary(self)
        self.add_callback(self._boundary)

    # ----------------------------------------------------------------------------------------------- train, stop

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        """As in transformers. True (or "last") goes on from the newest complete checkpoint in output_dir.

        Raises ValueError for a checkpoint that cannot be continued exactly or was made with other settings, and inside
        `save_on_signals()` TrainingInterrupted after a signal.
        """
        checkpoint = None
        if resume_from_checkpoint:
            to_compare = self._recorded_settings() if self.run_settings is None else None
            checkpoint = str(find_checkpoint(resume_from_checkpoint, self.args, to_compare))
        self._best_step = None
        self._boundary.start(checkpoint)
        starts_with_evaluation = self.args.eval_on_start
        # It has been done at the start of the run.
        self.args.eval_on_start = starts_with_evaluation and checkpoint is None
        try:
            with wandb_run(self._boundary.restored.get("wandb_run_id")):
                return super().train(checkpoint, *args, **kwargs)
        except TrainingInterrupted as stop:
            if stop.checkpoint is None:
                stop.checkpoint = self._save_at_stop()
            raise
        finally:
            self.args.eval_on_start = starts_with_evaluation

    def _recorded_settings(self) -> dict[str, Any]:
        adapters = getattr(self.model, "peft_config", {})
        return self.run_settings or of_trainer(self.args, self.advantage, self.reward_func_names, adapters)

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        """As in transformers; an evaluation that lacks the metric (all games of a task type were lost) is no best."""
        name = self.args.metric_for_best_model
        if name is not None and f"eval_{name.removeprefix('eval_')}" not in metrics:
            logger.warning("this evaluation gave no %s (metric_for_best_model): it cannot be the best one", name)
            return False
        return super()._determine_best_metric(metrics, trial)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self._best_step = int(Path(self.state.best_model_checkpoint).name.removeprefix(PREFIX))

    @property
    def weights_step(self) -> int:
        """The update after which the weights are: the last one, unless the best checkpoint was loaded at the end."""
        return self.state.global_step if self._best_step is None else self._best_step

    @property
    def training_seconds(self) -> tuple[float, float]:
        """Wall and CPU seconds since `train()` began, those before the checkpoint it went on from included."""
        return self._boundary.seconds

    def save_on_signals(self) -> contextlib.AbstractContextManager[None]:
        """Inside `with trainer.save_on_signals():`, SIGINT and SIGTERM stop `train()` without losing a generation.

        A rollout or an evaluation in progress is dropped, updates in progress are finished; then the state is saved
        as of the end of the last complete generation (unless save_strategy is "no") and `train()` raises
        TrainingInterrupted, whose `checkpoint` is where to go on from. A second signal ends the process at once.
        All processes stop together if any of them gets a signal. Main thread only; elsewhere nothing is handled.
        """
        return self.stop_signals.handled()

    @contextlib.contextmanager
    def _until_stopped(self) -> Iterator[None]:
        """Around an attempt to play episodes: however a process leaves it, all go on together, or stop together."""
        if not self.stop_signals.active or self._boundary.inside:
            yield
            return
        with contextlib.suppress(TrainingInterrupted):
            yield
        self._agree_to_stop()

    def _agree_to_stop(self) -> None:
        """Raise TrainingInterrupted on all processes if one of them is to stop; called where all are in step."""
        if not self._boundary.inside and (signum := self.stop_signals.agree(self._largest)):
            raise TrainingInterrupted(signum)

    def _abandonable(self) -> contextlib.AbstractContextManager[None]:
        """Around the part of a rollout in which this process waits for no other: a signal ends it on the spot."""
        return contextlib.nullcontext() if self._boundary.inside else self.stop_signals.abandonable()

    def _any_live(self, flag: bool) -> bool:
        """`_any`, once a turn: where processes generate together, a signal must end the rollout on all at one turn."""
        self._agree_to_stop()
        return self._any(flag)

    def _largest(self, number: int) -> int:
        if self.accelerator.num_processes == 1:
            return number
        return int(self.accelerator.gather(torch.tensor([number], device=self.accelerator.device)).max())

    def _save_at_stop(self) -> str | None:
        """Save the state as of the last boundary, after which nothing but episodes and randomness was used."""
        boundary = self._boundary
        if boundary.saved is None or boundary.saved[0] != self.state.global_step:
            if self.args.save_strategy == SaveStrategy.NO or self.state.global_step == 0:
                return None
            set_generators(boundary.generators)
            self._save_checkpoint(self.model_wrapped, None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        return boundary.saved[1]

    def set_initial_training_values(self, *args, **kwargs):
        """As in transformers; a share of an epoch ends with a generation, or its last checkpoint would lie inside."""
        *values, max_steps = super().set_initial_training_values(*args, **kwargs)
        updates = generation_updates(self.args)
        return (*values, -(-max_steps // updates) * updates)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As in transformers; then the next update takes the learning rate that this run's schedule has for it.

        An optimizer brings back the rate of its checkpoint, which a schedule over more updates has left behind: at
        the end of a linear one it is 0. Raises SettingsError where the schedule's height is another: the one of the
        checkpoint would win over `learning_rate`, and nobody would be told.
        """
        asked = _heights(self.lr_scheduler)
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or asked is None:
            return
        schedule = _lambda_schedule(self.lr_scheduler)
        if (held := _heights(self.lr_scheduler)) != asked:
            raise SettingsError(
                f"resume_from_checkpoint: {checkpoint} was made with learning_rate {_list(held)}, and "
                f"{_list(asked)} is asked for: {put_back(checkpoint)}"
            )
        # For the schedule of the checkpoint this is what the optimizer holds, to the last bit.
        step = schedule.last_epoch
        rates = [height * factor(step) for height, factor in zip(held, schedule.lr_lambdas, strict=True)]
        before = [float(group["lr"]) for group in schedule.optimizer.param_groups]
        if before != rates:
            logger.warning(
                "the learning rate goes on with %s instead of %s: the schedule is over another number of updates now",
                _list(rates),
                _list(before),
            )
        for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        schedule._last_lr = rates  # what is logged

    def _run_epoch(self, *args, **kwargs) -> None:
        if self.state.global_step >= self.state.max_steps:
            # Resumed at its last step; transformers would take one more.
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _get_train_sampler(self, dataset=None) -> Sampler:
        sampler = super()._get_train_sampler(dataset)
        return EpochOrder(sampler, lambda: int(self.state.epoch or 0)) if self.shuffle_dataset else sampler

    # ------------------------------------------------------------------------------------------------------ save

    def _save_checkpoint(self, model, trial) -> None:
        """Write beside, rename when every process has written its part, and only then remove older checkpoints."""
        if self._boundary.inside:
            logger.warning(
                "step %d lies inside a generation: the checkpoint is saved at its end", self.state.global_step
            )
            self._boundary.delayed = True
            return
        run_dir = Path(self._get_output_dir(trial))
        target = run_dir / f"{PREFIX}{self.state.global_step}"
        folder = run_dir / SAVING / target.name
        if self.args.should_save:
            clean(run_dir)
        self.accelerator.wait_for_everyone()
        self._saving, self._to_push = True, False
        with _or_say_what_is_saved(run_dir, f"step {self.state.global_step}"):
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._saving = False
            if (best := self.state.best_model_checkpoint) and Path(best) == folder:
                self.state.best_model_checkpoint = str(target)
                if self.args.should_save:
                    self.state.save_to_json(str(folder / STATE))
            self._boundary.write(folder)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            with _or_say_what_is_saved(run_dir, f"step {self.state.global_step}"):
                write_manifest(
                    folder,
                    updates_per_generation=generation_updates(self.args),
                    processes=self.accelerator.num_processes,
                    only_model=self.args.save_only_model,
                    settings=self._recorded_settings(),
                )
                atomic.replace_folder(folder, target)
            rotate(run_dir, self.args.save_total_limit, keep=(target, self.state.best_model_checkpoint))
            clean(run_dir)
        self.accelerator.wait_for_everyone()
        self._boundary.saved = (self.state.global_step, str(target))
        if self._to_push:
            self.push_checkpoint(str(target))

    def _get_output_dir(self, trial) -> str:
        run_dir = super()._get_output_dir(trial)
        return os.path.join(run_dir, SAVING) if self._saving else run_dir

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        # Uploads run in the background and read the folder, which is about to be renamed.
        self._to_push = True

    def save_final_model(self, folder: str) -> None:
        """`save_model`, the tokenizer and the card, every file written beside and renamed; all processes take part."""
        new = Path(folder) / SAVING / "model"
        if self.args.should_save:
            clean(Path(folder))
        self.accelerator.wait_for_everyone()
        with _or_say_what_is_saved(Path(folder), "the final model"):
            self.save_model(str(new), _internal_call=True)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            with _or_say_what_is_saved(Path(folder), "the final model"):
                self.processing_class.save_pretrained(new)
                (new / "README.md").unlink(missing_ok=True)  # PEFT's form of a card; ours follows
                atomic.move_files(new, Path(folder))
            clean(Path(folder))
        self.create_model_card()


def _lambda_schedule(schedule: Any) -> LambdaLR | None:
    """The schedule inside accelerate's wrapper; None for one without a formula (reduce_lr_on_plateau)."""
    inner = getattr(schedule, "scheduler", schedule)
    return inner if isinstance(inner, LambdaLR) else None


def _heights(schedule: Any) -> list[float] | None:
    """The rates that a schedule multiplies, one per parameter group: `learning_rate`."""
    inner = _lambda_schedule(schedule)
    return None if inner is None else [float(rate) for rate in inner.base_lrs]


def _list(rates: list[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates))


@contextlib.contextmanager
def _or_say_what_is_saved(run_dir: Path, what: str) -> Iterator[None]:
    """Around writing `what`: CheckpointNotSaved if that fails. What was begun is removed, it may be what fills the
    disk."""
    try:
        yield
    except Exception as error:
        # A full disk is a RuntimeError of torch, a SafetensorError and, from tokenizers, an Exception.
        with contextlib.suppress(OSError):
            clean(run_dir)
        newest = newest_complete(run_dir)[0]
        kept = f"the newest complete checkpoint is {newest}" if newest else "there is no complete checkpoint yet"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointNotSaved(f"cannot save {what} in {run_dir}: {reason}; {kept}") from error
