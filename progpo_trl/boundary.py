"""What is kept of the last generation boundary, goes into checkpoints and comes back from them."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from progpo_trl.checkpoint_files import PREFIX, clean, generation_updates, set_aside_after
from progpo_trl.run_state import generators, run_state, write_run_state
from progpo_trl.stopping import TrainingInterrupted

logger = logging.getLogger(__name__)


def _restored(checkpoint: str, process: int) -> dict[str, Any]:
    """What a checkpoint holds for a process: what the main process knew, and the process's own metrics and loss.

    All processes know the same of what is to be done together, also where there are more of them than before.
    """
    (run,) = broadcast_object_list([run_state(checkpoint)])
    mine = run_state(checkpoint, process)
    return run and {**run, "metrics": mine.get("metrics", {}), "loss": mine.get("loss", 0.0)}


class Boundary(TrainerCallback):
    """Keeps what a checkpoint needs beyond transformers' own state, as of the last generation boundary."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.updates = generation_updates(trainer.args)
        self.start(None)

    def start(self, checkpoint: str | None) -> None:
        """Forget the last training; `checkpoint` is where the next one goes on from."""
        self.checkpoint = checkpoint
        self.restored = {} if checkpoint is None else _restored(checkpoint, self.trainer.accelerator.process_index)
        self.saved: tuple[int, str] | None = None  # (step, folder) of the newest checkpoint
        self.generators: dict[str, Any] = {}
        self.delayed = False
        self.stopping = 0  # the signal that ends the run as soon as it is saved
        # Whether the evaluation of the last boundary is still to be done, and whether a checkpoint was due after it.
        self.evaluation_due = self.save_due = False
        self._seconds = self.restored.get("seconds", [0.0, 0.0])
        self._clock = (time.perf_counter(), time.process_time())

    @property
    def inside(self) -> bool:
        """Whether some, but not all updates of a generation have been taken."""
        return self.trainer.state.global_step % self.updates != 0

    def on_train_begin(self, args, state, control, **kwargs):
        trainer = self.trainer
        output = Path(args.output_dir)
        if trainer.accelerator.is_main_process:
            clean(output)
        self._clock = (time.perf_counter(), time.process_time())
        if self.checkpoint is None:
            return
        self.saved = (state.global_step, self.checkpoint)
        # It is named as it was seen from where the run began, and transformers forgets one that is not there.
        best = output / f"{PREFIX}{state.best_global_step}"
        if state.best_global_step and best.is_dir():
            state.best_model_checkpoint = str(best)
        if trainer.accelerator.is_main_process and Path(self.checkpoint).resolve().parent == output.resolve():
            if aside := set_aside_after(output, state.global_step):
                names = ", ".join(path.name for path in aside)
                logger.warning("going on from step %d; later checkpoints are now %s", state.global_step, names)
        # transformers takes these from the checkpoint; what is asked for now counts.
        state.compute_steps(args, state.max_steps)
        if not self.restored:
            logger.warning(
                "%s holds nothing of progpo_trl's own: the run goes on, but metrics that were not logged yet are lost",
                self.checkpoint,
            )
            return
        if self.restored["processes"] != trainer.accelerator.num_processes:
            logger.warning(
                "%s was saved by %d process(es) and this run has %d: it goes on, but not bit for bit",
                self.checkpoint,
                self.restored["processes"],
                trainer.accelerator.num_processes,
            )
        trainer.carry = {**self.restored["carry"], **trainer.carry}
        trainer._metrics["train"].update(self.restored["metrics"])
        trainer._tr_loss += self.restored["loss"]
        # transformers' mean at the end is of this training's steps, of which that loss is none.
        trainer._total_loss_scalar -= self.restored["loss"]
        trainer._globalstep_last_logged = self.restored["last_logged"]
        if self.restored["evaluation_due"]:
            self._evaluate(args, state, control)

    def _evaluate(self, args, state, control) -> None:
        """The evaluation that a signal cut short, with the checkpoint that was due after it."""
        trainer = self.trainer
        self.evaluation_due, self.save_due = True, self.restored["save_due"]
        trainer._load_rng_state(self.checkpoint)
        metrics = trainer._evaluate(None, None)
        better = trainer._determine_best_metric(metrics, None)
        if better if args.save_strategy == SaveStrategy.BEST else self.save_due:
            trainer._save_checkpoint(trainer.model_wrapped, None)
            trainer.callback_handler.on_save(args, state, control)

    def on_step_end(self, args, state, control, **kwargs):
        if self.inside:
            return
        if self.delayed:
            control.should_save, self.delayed = True, False
        self.generators = generators()
        # What is due at the end of an epoch is asked for only after this.
        ends_epoch = float(state.epoch).is_integer()
        self.evaluation_due = control.should_evaluate or (ends_epoch and args.eval_strategy == IntervalStrategy.EPOCH)
        self.save_due = control.should_save or (ends_epoch and args.save_strategy == SaveStrategy.EPOCH)
        self.stopping = self.trainer.stop_signals.agree(self.trainer._largest)
        if self.stopping:
            if args.save_strategy == SaveStrategy.NO:
                raise TrainingInterrupted(self.stopping)
            # Once this step is logged, save; the evaluation may take longer than we are given.
            control.should_evaluate, control.should_save = False, True

    def on_evaluate(self, args, state, control, **kwargs):
        self.evaluation_due = False
        self.generators = generators()

    def on_save(self, args, state, control, **kwargs):
        if self.stopping:
            raise TrainingInterrupted(self.stopping, self.saved[1])

    @property
    def seconds(self) -> tuple[float, float]:
        """Wall and CPU seconds since training began, those before the checkpoint included."""
        wall, cpu = self._seconds
        return wall + time.perf_counter() - self._clock[0], cpu + time.process_time() - self._clock[1]

    def write(self, folder: Path) -> None:
        """Write this process's part of a checkpoint."""
        trainer = self.trainer
        wandb = sys.modules.get("wandb")
        run = getattr(wandb, "run", None)
        values = {
            "processes": trainer.accelerator.num_processes,
            "metrics": {name: [float(v) for v in values] for name, values in trainer._metrics["train"].items()},
            "loss": float(trainer._tr_loss),
            "last_logged": trainer._globalstep_last_logged,
            "evaluation_due": self.evaluation_due,
            "save_due": self.save_due,
            "seconds": self.seconds,
            "wandb_run_id": None if run is None else run.id,
            "carry": trainer.carry,
        }
        write_run_state(folder, trainer.accelerator.process_index, values)
