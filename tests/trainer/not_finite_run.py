"""Trainings whose numbers stop being finite at a chosen step, in this process or in processes of their own."""

from __future__ import annotations

import os

import torch
from resume_run import make_trainer

from progpo_trl.faults import TrainingStopped


def spoil_gradient(trainer, step: int) -> None:
    """Make the gradient NaN in optimizer step `step`, with a finite loss."""
    weights = next(p for p in trainer.model.parameters() if p.requires_grad)
    weights.register_hook(lambda g: g * torch.nan if trainer.state.global_step == step - 1 else g)


def spoil_loss(trainer, step: int) -> None:
    """Make the loss NaN in optimizer step `step`."""
    original = trainer._scaled_loss

    def spoilt(*args):
        return original(*args) * (torch.nan if trainer.state.global_step == step - 1 else 1.0)

    trainer._scaled_loss = spoilt


def train_on_two(base: str, folder: str, what: str, ranks: int) -> int:
    """Spoil the second step on process 1 alone; exit code 3 where that stopped the training."""
    trainer = make_trainer(base, folder, updates_per_generation=1)
    assert trainer.accelerator.num_processes == ranks
    if int(os.environ["RANK"]) == 1:
        (spoil_gradient if what == "gradient" else spoil_loss)(trainer, 2)
    try:
        trainer.train()
    except TrainingStopped as error:
        print(error)
        return 3
    return 0
