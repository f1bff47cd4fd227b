"""Time and peak memory by phase of a training, and the trainers that gpu_check.py measures."""

from __future__ import annotations

import functools
import time
from collections import defaultdict

import numpy as np
import torch
from gpu_models import synchronize
from transformers import PrinterCallback
from update_memory import peak, restart_peak

from progpo_trl.episodes import Episode, Step, StopReason
from progpo_trl.trainer import MultiTurnGRPOTrainer


class Phases:
    """Wall seconds inside wrapped calls, without those of wrapped calls inside them, and the memory peak of each.

    The device is waited for at both ends of a call. Peaks are of the process on a CPU, of the allocator on a GPU.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.clear()
        self._open: list[list] = []

    def clear(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.peaks: dict[str, float] = defaultdict(float)

    def wrap(self, owner, name: str, label: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args, **kwargs):
            self._note_peak()
            synchronize(self.device)
            self._open.append([label, time.perf_counter(), 0.0])
            try:
                return original(*args, **kwargs)
            finally:
                synchronize(self.device)
                self._note_peak()
                _, started, inner = self._open.pop()
                spent = time.perf_counter() - started
                self.seconds[label] += spent - inner
                if self._open:
                    self._open[-1][2] += spent

        setattr(owner, name, timed)

    def _note_peak(self) -> None:
        """What was held at most since the last call goes to the innermost open phase."""
        if self.device.type == "cuda":
            most = torch.cuda.max_memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            most = peak()
            restart_peak()
        label = self._open[-1][0] if self._open else "between"
        self.peaks[label] = max(self.peaks[label], most)


def held_by_others(device: torch.device) -> float:
    """Bytes that a peak on `device` will hold besides what is made from now on: on a CPU, the libraries."""
    return 0.0 if device.type == "cuda" else restart_peak()


class MeasuredTrainer(MultiTurnGRPOTrainer):
    """Trains two generations in silence and measures the second. Its advantages are random: a policy that never
    solves anything would have no gradient.
    """

    played: list[Episode]
    started: float

    def compute_advantages(self, batch):
        return np.random.default_rng(1).normal(size=len(batch)).astype(np.float32)

    def train_measured(self) -> Phases:
        """Run the training; the phases of its last generation."""
        self.phases = phases = Phases(self.accelerator.device)
        phases.wrap(self, "rollout", "rollout")
        phases.wrap(self, "_generate_and_score_completions", "rows and scoring")
        phases.wrap(self, "_compute_loss", "update: forward and loss")
        phases.wrap(self.accelerator, "backward", "update: backward")
        self.remove_callback(PrinterCallback)
        self.train()
        synchronize(phases.device)
        self.seconds = time.perf_counter() - self.started
        return phases

    def _prepare_inputs(self, generation_batch):
        if self.state.global_step == self.args.steps_per_generation and not hasattr(self, "started"):
            # The optimizer exists only once training has begun; the first generation was the warm-up.
            self.phases.wrap(self.optimizer, "step", "update: optimizer")
            self.phases.clear()
            synchronize(self.phases.device)
            self.started = time.perf_counter()
        return super()._prepare_inputs(generation_batch)

    def _gather_episodes(self, episodes):
        self.played, self.generating = episodes, self.rollout_log.clock.wall.get("generation", 0.0)
        return super()._gather_episodes(episodes)


class FrozenTrainer(MeasuredTrainer):
    """Plays nothing: one step of random tokens an episode, `shape` = (prompt, response) tokens."""

    shape: tuple[int, int]

    def rollout(self, inputs):
        rng, (prompt, response) = np.random.default_rng(0), self.shape
        episodes = []
        for row in inputs:
            ids = rng.integers(0, len(self._tokenizer), prompt + response).astype(np.int32)
            step = Step("seen", ids[:prompt], ids[prompt:], None, "said", "done", True, True)
            episodes.append(Episode(row["task_id"], steps=[step], stop_reason=StopReason.STEP_LIMIT))
        return episodes
