"""What transformers' checkpoints leave out of a run's state: what is pending, the tasks' order, the W&B run."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

_FILE = "run_state_{}.json"


def write_run_state(folder: Path, process: int, values: dict[str, Any]) -> None:
    """Write one process's part of a checkpoint in the making."""
    (folder / _FILE.format(process)).write_text(json.dumps(values), encoding="utf-8")


def run_state(checkpoint: str | Path, process: int = 0) -> dict[str, Any]:
    """What a process added to a checkpoint; empty where there is nothing of it."""
    file = Path(checkpoint) / _FILE.format(process)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


class EpochOrder(Sampler):
    """The order in which TRL's RepeatSampler visits the tasks, also for a run that begins after the first epoch.

    RepeatSampler draws one permutation an epoch from a generator of its own, which a resumed run starts anew.
    """

    def __init__(self, sampler, epoch: Callable[[], int]):
        self.sampler, self.epoch = sampler, epoch

    def __iter__(self) -> Iterator[int]:
        generator = self.sampler.generator.manual_seed(self.sampler.seed)
        for _ in range(self.epoch()):
            torch.randperm(self.sampler.num_samples, generator=generator)
        return iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


def generators() -> dict[str, Any]:
    """The states of the global random generators."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_generators(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])


@contextmanager
def wandb_run(run_id: str | None) -> Iterator[None]:
    """Inside, wandb.init() goes on with the run `run_id`, unless the user chose one."""
    if run_id is None or "WANDB_RUN_ID" in os.environ:
        yield
        return
    chosen = {"WANDB_RUN_ID": run_id} | ({} if "WANDB_RESUME" in os.environ else {"WANDB_RESUME": "allow"})
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name in chosen:
            os.environ.pop(name, None)
