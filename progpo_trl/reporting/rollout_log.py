"""Logging of one trainer: metrics in TRL's names and ours, episodes.jsonl, the progress bar, and one clear warning
when nothing is learned.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from progpo_trl import atomic
from progpo_trl.advantages import StepEstimator
from progpo_trl.earlier_run import set_aside_episodes
from progpo_trl.episodes import Episode, StepBatch
from progpo_trl.metrics import episode_metrics, group_metrics, response_lengths
from progpo_trl.reporting.trackers import Trackers
from progpo_trl.rollout import RolloutClock

logger = logging.getLogger(__name__)

# Generations without any reward, or without any well-formed action, before the warning.
SILENT_GENERATIONS = 2


class RolloutLog:
    """Writes what a generation of episodes was; owned by a MultiTurnGRPOTrainer."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.clock = RolloutClock()
        self._trackers = Trackers(trainer)
        self._silent = {"reward": 0, "format": 0}
        self._warned: set[str] = set()
        self._write_failed = False
        self._file_ready = False
        self._first_step: int | None = None
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def progress(self, total: int, label: str | None):
        """A bar over the episodes of this process, with live success; yields the function to call on each end."""
        trainer = self.trainer
        shown = label is not None and trainer.args.show_rollout_progress and trainer.accelerator.is_main_process
        wins = done = 0
        # disable=None: a bar in a terminal, silence in a log file
        off = None if shown else True
        with tqdm(total=total, desc=f"{label} episodes", unit="ep", leave=False, disable=off) as bar:

            def on_done(episode: Episode) -> None:
                nonlocal wins, done
                done, wins = done + 1, wins + episode.success
                bar.set_postfix_str(f"success {wins / done:.0%}", refresh=False)
                bar.update(min(1, total - bar.n))

            yield on_done

    def training_batch(
        self,
        episodes: list[Episode],
        batch: StepBatch,
        advantages: np.ndarray,
        rewards: torch.Tensor,
        rows: int,
    ) -> None:
        """Record a generation: `episodes` of all processes, their advantages, rewards (n_episodes, n_functions)."""
        trainer = self.trainer
        metrics = trainer._metrics["train"]
        for name, value in self._trl_metrics(episodes, rewards).items():
            # TRL has just appended its own value, which was computed from rows; what is logged is what was used.
            if metrics[name]:
                metrics[name][-1] = value
            else:
                metrics[name].append(value)
        ours = {f"rollout/{name}": value for name, value in episode_metrics(episodes).items()}
        ours |= group_metrics(batch, advantages)
        ours["rollout/rows"] = float(rows)
        if isinstance(trainer.advantage, StepEstimator):  # a function of the user's own has no numbers to show
            ours |= trainer.advantage.diagnostics(batch)
        ours |= self._times()
        for name, value in ours.items():
            metrics[name].append(value)
        self._completions_table(episodes, rewards)
        if trainer.accelerator.is_main_process:
            self._log_episodes(episodes)
            self._trackers.generation(episodes, batch)
            self._warn_when_silent(episodes)

    def _trl_metrics(self, episodes: list[Episode], rewards: torch.Tensor) -> dict[str, float]:
        """TRL's own names, from episodes and responses instead of rows and padding."""
        trainer = self.trainer
        kept = np.array([not e.dropped for e in episodes])
        values = rewards.cpu().double().numpy()[kept]
        out = {}
        for i, name in enumerate(trainer.reward_func_names):
            column = values[:, i][~np.isnan(values[:, i])]
            out[f"rewards/{name}/mean"] = float(column.mean()) if len(column) else math.nan
            out[f"rewards/{name}/std"] = float(column.std(ddof=1)) if len(column) > 1 else math.nan
        returns = np.array([e.episode_return for e in episodes if not e.dropped])
        groups = np.array([e.group for e in episodes if not e.dropped])
        constant = [np.ptp(returns[groups == g]) == 0 for g in np.unique(groups)]
        out["reward"] = float(returns.mean()) if len(returns) else math.nan
        out["reward_std"] = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
        out["frac_reward_zero_std"] = float(np.mean(constant)) if constant else math.nan
        lengths, cut = response_lengths(episodes)
        ended = lengths[~cut]
        if len(lengths):
            for kind, of in (("", lengths), ("terminated_", ended if len(ended) else np.zeros(1))):
                for stat in ("mean", "min", "max"):
                    out[f"completions/{stat}_{kind}length"] = float(getattr(np, stat)(of))
            out["completions/clipped_ratio"] = float(cut.mean())
        return out

    def _times(self) -> dict[str, float]:
        """Wall seconds of the phases of this generation, and the clock for the next one."""
        times = {f"time/{name}": seconds for name, seconds in self.clock.wall.items()}
        self.clock.wall.clear()
        return times

    def _completions_table(self, episodes: list[Episode], rewards: torch.Tensor) -> None:
        """The rows of TRL's completions table (`log_completions`): one episode each, with the advantage it got."""
        logs = self.trainer._logs
        for column in (logs["prompt"], logs["completion"], logs["advantages"], *logs["rewards"].values()):
            column.clear()
        if not self.trainer.log_completions:
            return
        for e, values in zip(episodes, rewards.tolist(), strict=True):
            logs["prompt"].append(e.task or e.task_id)
            logs["completion"].append("\n".join(f"> {s.action}\n{s.observation}" for s in e.steps))
            weighed = e.advantages is not None and len(e.advantages) > 0
            logs["advantages"].append(float(np.mean(e.advantages)) if weighed else 0.0)
            for name, value in zip(self.trainer.reward_func_names, values, strict=True):
                logs["rewards"][name].append(value)

    def _log_episodes(self, episodes: list[Episode]) -> None:
        """One JSON line an episode (`save_episodes`); an earlier run's are moved out of the way in any case.

        Logging never stops a run: a full disk is reported once.
        """
        args, step = self.trainer.args, self.trainer.state.global_step
        path = os.path.join(args.output_dir, "episodes.jsonl")
        try:
            if not self._file_ready:
                self._start_file(path, step)
                self._file_ready = True
            if args.save_episodes:
                lines = [json.dumps({"step": step, **e.to_json()}, default=str) + "\n" for e in episodes]
                _append(path, "".join(lines).encode("utf-8", "replace"))
        except OSError as error:
            if not self._write_failed:
                logger.warning("episodes are not being saved: %s: %s", path, error)
            self._write_failed = True

    def _start_file(self, path: str, step: int) -> None:
        """Make `path` ready for the episodes of `step` and later ones."""
        args = self.trainer.args
        os.makedirs(args.output_dir, exist_ok=True)
        if self._first_step is None:
            self._first_step = step
        if self._first_step == 0:
            # `progpo train` has moved the whole earlier run before it began, and its recipe is the new run's.
            ours = bool(self.trainer.run_facts)
            earlier = set_aside_episodes(Path(args.output_dir), recipe=not ours, evaluations=step == 0)
            if earlier is not None:
                logger.warning("%s held an earlier run's episodes: they are in %s now", args.output_dir, earlier)
        elif args.save_episodes:
            _cut_file(path, step)

    def _warn_when_silent(self, episodes: list[Episode]) -> None:
        kept = [e for e in episodes if e.steps and not e.dropped]
        if not kept:
            return
        silent = {
            "reward": all(e.episode_return == 0 for e in kept),
            "format": not any(s.format_valid for e in kept for s in e.steps),
        }
        meaning = {
            "reward": "not one episode got any reward",
            "format": "not one response had the required form, so no action was read from any",
        }
        for kind, quiet in silent.items():
            self._silent[kind] = self._silent[kind] + 1 if quiet else 0
            if self._silent[kind] == SILENT_GENERATIONS and kind not in self._warned:
                self._warned.add(kind)
                step = kept[0].steps[0]
                prompt = self.trainer._tokenizer.decode(step.context_ids)
                logger.warning(
                    "In %d generations in a row %s. The first prompt and response of the last one:\n%s\n--- response "
                    "---\n%s",
                    SILENT_GENERATIONS,
                    meaning[kind],
                    prompt,
                    step.response,
                )


def _cut_file(path: str, step: int) -> None:
    """A resumed run keeps what was played before its checkpoint, and plays the rest again."""
    if not os.path.exists(path):
        return
    with (
        atomic.replacing(path) as partial,
        open(path, encoding="utf-8", errors="replace") as old,
        open(partial, "w", encoding="utf-8") as new,
    ):
        new.writelines(line for line in old if _step_of(line) < step)


def _append(path: str, lines: bytes) -> None:
    """Append all of `lines`, which end with a line break, or nothing: a full disk leaves no half line."""
    # Unbuffered: what a buffer could not write would be written once more when the file is closed.
    with open(path, "a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the half line of a process that was killed
                lines = b"\n" + lines
        left = memoryview(lines)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def _step_of(line: str) -> float:
    """The step of a line; infinite for the half line a killed run leaves."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
