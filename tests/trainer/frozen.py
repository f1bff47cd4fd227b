"""Frozen episodes and the gradient the trainer takes on them; a module for tests, and a script for several processes.

As a script: `torchrun --nproc_per_node 2 frozen.py OUT CASES.json FOLDER` runs every case and saves the gradients.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2ForCausalLM, TrainerCallback

sys.path.insert(0, str(Path(__file__).parent))
import toy

from progpo_trl.episodes import Episode, Step, StopReason
from progpo_trl.trainer import MultiTurnGRPOTrainer

EPISODES, GROUP = 8, 2
EPSILON_HIGH = {"cispo": 1.1}  # for cispo the bound of the ratio itself, for the others of its distance from 1


@dataclasses.dataclass(frozen=True)
class Case:
    """One configuration of the trainer.

    layout: "even" episodes all have three turns, of "mixed" ones the first half is longer, of "uneven" ones the first
    has 24 turns and all others one. rows, tokens: bounds of a forward pass. updates: optimizer steps per generation.
    iterations 2: the second pass over the generation is off-policy, and its gradient is the one compared. duplicate:
    every row so many times. delta, off_policy_mask, plain_kl: TRL's delta, off_policy_mask_threshold and
    use_bias_correction_kl=False. crash: the first episode is lost, and with
    it its group of two.
    """

    context: str = "window"
    loss_type: str = "dapo"
    level: str = "token"
    layout: str = "mixed"
    rows: int | None = None
    tokens: int | None = None
    updates: int = 1
    accumulation: int = 1
    beta: float = 0.0
    iterations: int = 1
    duplicate: int = 1
    delta: float | None = None
    off_policy_mask: float | None = None
    plain_kl: bool = False
    crash: bool = False

    def __str__(self):
        values = dataclasses.asdict(self)
        changed = [f"{k}={v}" for k, v in values.items() if k not in ("context", "loss_type", "level")]
        defaults = {f"{f.name}={f.default}" for f in dataclasses.fields(self)}
        return "-".join([self.context, self.loss_type, self.level, *(c for c in changed if c not in defaults)])


def turns_of(layout: str, episode: int, rng: np.random.Generator) -> int:
    if layout == "even":
        return 3
    if layout == "uneven":
        return 24 if episode == 0 else 1
    return int(rng.integers(2, 7)) if episode < EPISODES // 2 else int(rng.integers(1, 3))


@functools.cache
def material(context: str, layout: str, vocabulary: int) -> list[list[tuple[np.ndarray, np.ndarray, float]]]:
    """Per episode its turns: (what the environment adds, what is sampled, advantage)."""
    rng = np.random.default_rng(7)
    out = []
    for i in range(EPISODES):
        turns = turns_of(layout, i, rng)
        out.append(
            [
                (
                    rng.integers(0, vocabulary, int(rng.integers(5, 40 if context == "window" or k == 0 else 15))),
                    rng.integers(0, vocabulary, int(rng.integers(1, 20))),
                    float(rng.normal()),
                )
                for k in range(turns)
            ]
        )
    return out


class FrozenTrainer(MultiTurnGRPOTrainer):
    """Plays nothing: every rollout returns the same episodes, with the same advantages."""

    case: Case

    def rollout(self, inputs):
        start = self.accelerator.process_index * len(inputs)
        return [self._episode(i) for i in range(start, start + len(inputs))]

    def _material(self):
        return material(self.case.context, self.case.layout, len(self._tokenizer))

    def _episode(self, number: int) -> Episode:
        context, steps = np.zeros(0, np.int64), []
        for added, sampled, _ in self._material()[number]:
            context = added if self.case.context == "window" else np.concatenate([context, added])
            steps.append(Step("o", context.astype(np.int32), sampled.astype(np.int32), None, "", "", True, True))
            context = np.concatenate([context, sampled])
        episode = Episode(f"{number}", steps=steps, stop_reason=StopReason.STEP_LIMIT)
        if self.case.crash and number == 0:
            episode.stop_reason = StopReason.ENVIRONMENT_ERROR
        return episode

    def compute_advantages(self, batch):
        turns = self._material()
        return np.array([turns[e][s][2] for e, s in zip(batch.episode, batch.step, strict=True)], np.float32)

    def _make_rows(self, weighed):
        return super()._make_rows(weighed * self.case.duplicate)


class Grab(TrainerCallback):
    """Keeps the gradients of every optimizer step and the weights they were taken at."""

    def __init__(self):
        self.gradients, self.weights = [], []

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        model = getattr(model, "module", model)
        self.weights.append({n: p.detach().clone() for n, p in model.named_parameters()})

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        model = getattr(model, "module", model)
        self.gradients.append({n: p.grad.detach().clone() for n, p in model.named_parameters()})


def policy(folder: str, beta: float) -> Qwen2ForCausalLM:
    model = Qwen2ForCausalLM.from_pretrained(folder)
    if beta > 0:  # away from the reference, or the KL term would have no gradient
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=generator) * 0.02)
    return model


def save_base(folder: str):
    tokenizer = toy.make_tokenizer()
    toy.make_model(tokenizer).save_pretrained(folder)
    return tokenizer


def trainer_gradient(case: Case, folder: str) -> dict:
    """Gradient averaged over the optimizer steps of one pass, the clip ratio TRL logged, the weights of that pass."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    tokenizer = toy.make_tokenizer()
    FrozenTrainer.case = case
    grab = Grab()
    slices = case.updates * case.accumulation
    with tempfile.TemporaryDirectory() as output:
        args = toy.config(
            output,
            num_generations=GROUP,
            groups_per_generation=None,
            per_device_train_batch_size=EPISODES // (world * slices),
            steps_per_generation=slices,
            gradient_accumulation_steps=case.accumulation,
            context=case.context,
            loss_type=case.loss_type,
            epsilon_high=EPSILON_HIGH.get(case.loss_type),
            importance_sampling_level=case.level,
            rows_per_forward=case.rows,
            max_tokens_per_forward=case.tokens,
            beta=case.beta,
            delta=case.delta,
            off_policy_mask_threshold=case.off_policy_mask,
            use_bias_correction_kl=not case.plain_kl,
            num_iterations=case.iterations,
            learning_rate=2e-2 if case.iterations > 1 else 0.0,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            save_episodes=False,
            max_completion_length=256,
        )
        trainer = FrozenTrainer(
            policy(folder, case.beta),
            args,
            environment=toy.tasks(EPISODES),
            processing_class=tokenizer,
            callbacks=[grab],
        )
        assert trainer.accelerator.num_processes == world, "the launcher did not start a distributed run"
        trainer.train()
        logs = trainer.state.log_history
    last = grab.gradients[-case.updates :]
    clips = ("clip_ratio/region_mean", "cispo_clip_ratio")
    return {
        "gradient": {n: sum(g[n] for g in last) / len(last) for n in last[0]},
        "weights": grab.weights[-1],
        "clip": max(entry.get(name, 0.0) for entry in logs for name in clips),
        "world": world,
    }


if __name__ == "__main__":
    out, cases, folder = sys.argv[1:4]
    # Every trainer ends with a full collection; what was imported needs none.
    gc.freeze()
    torch.set_num_threads(1)
    results = [trainer_gradient(Case(**c), folder) for c in json.loads(Path(cases).read_text())]
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(results, out)
