"""A training log a person can read: one short line a generation instead of a dictionary of sixty numbers."""

from __future__ import annotations

from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from progpo_trl.checkpoint_files import generation_updates

# metric -> (label, format); shown in this order where they are logged
COLUMNS = {
    "rollout/success": ("success", "{:4.0%}"),
    "groups/all_fail": ("all-fail", "{:4.0%}"),
    "coverage/mean": ("coverage", "{:.2f}"),
    "rollout/steps": ("steps", "{:4.1f}"),
    "rollout/format_invalid": ("bad format", "{:4.1%}"),
    "rollout/inadmissible": ("inadmissible", "{:4.1%}"),
    "entropy": ("entropy", "{:.2f}"),
    "kl": ("kl", "{:.3f}"),
    "grad_norm": ("grad", "{:.2f}"),
    "step_time": ("s/step", "{:.1f}"),
}


def log_line(logs: dict[str, float], step: int, steps_per_generation: int, since: int | None = None) -> str | None:
    """One line for a training log with rollout metrics; None for any other log.

    since: the step of the log before it, where it is known: the numbers are means over all generations after it.
    """
    shown = [f"{label} {fmt.format(float(logs[k]))}" for k, (label, fmt) in COLUMNS.items() if logs.get(k) is not None]
    if "rollout/success" not in logs:
        return None
    last = -(-step // steps_per_generation)
    first = last if since is None else since // steps_per_generation + 1
    which = f"generation {last:4d}" if first >= last else f"generations {first}-{last}"
    return f"{which}  " + "  ".join(shown)


class CompactConsole(TrainerCallback):
    """A bar over optimizer steps in a terminal, and `log_line` for every log; main process only."""

    def __init__(self, updates_per_generation: int):
        self.updates_per_generation = updates_per_generation
        self._bar = None
        self._logged = 0

    def on_train_begin(self, args, state, control, **kwargs):
        self._logged = state.global_step
        if state.is_world_process_zero:
            off = True if args.disable_tqdm else None
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, unit="update", disable=off)

    def on_step_end(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or not logs:
            return
        line = log_line(logs, state.global_step, self.updates_per_generation, self._logged)
        if line is not None:
            self._logged = state.global_step
        if line is None and any(key.startswith("eval_") for key in logs):
            line = "evaluation  " + "  ".join(
                f"{key.removeprefix('eval_')} {value:.3f}" for key, value in logs.items() if key.startswith("eval_")
            )
        if line is not None:
            tqdm.write(line)

    def on_train_end(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def use_compact_console(trainer) -> None:
    """Put CompactConsole in the place of transformers' own progress output."""
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(CompactConsole(generation_updates(trainer.args)))
