"""Frozen episodes and the gradient the trainer takes on them; a module for tests, and a script for several processes.

As a script: `torchrun --nproc_per_node 2 frozen.py OUT CASES.json` runs every case and saves the gradients.
"""

from __future__ import annotations

import dataclasses
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

EPISODES, GROUP = 16, 4


@dataclasses.dataclass(frozen=True)
class Case:
    """One configuration of the trainer. updates: optimizer steps per generation; iterations 2: the second pass over
    the generation is off-policy, and its gradient is the one compared."""

    context: str = "window"
    loss_type: str = "dapo"
    level: str = "token"
    rows_per_forward: int = 64
    updates: int = 1
    accumulation: int = 1
    beta: float = 0.0
    iterations: int = 1
    duplicate: int = 1
    crash: bool = False


def material(context: str, vocabulary: int) -> list[list[tuple[np.ndarray, np.ndarray, float]]]:
    """Per episode its turns: (what the environment adds, what is sampled, advantage). Very uneven between halves."""
    rng = np.random.default_rng(7)
    out = []
    for i in range(EPISODES):
        turns = int(rng.integers(2, 7)) if i < EPISODES // 2 else int(rng.integers(1, 3))
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


def rows_by_hand(case: Case, vocabulary: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """(prompt, completion, mask, advantage per token) of every training row, without the package's row assembly."""
    rows = []
    for number, turns in enumerate(material(case.context, vocabulary)):
        if case.crash and number == 0:
            continue
        if case.context == "window":
            rows += [(p, c, np.ones(len(c)), np.full(len(c), a)) for p, c, a in turns]
            continue
        prompt, first, advantage = turns[0]
        ids, mask, values = list(first), [1] * len(first), [advantage] * len(first)
        for between, sampled, a in turns[1:]:
            ids += [*between, *sampled]
            mask += [0] * len(between) + [1] * len(sampled)
            values += [0.0] * len(between) + [a] * len(sampled)
        rows.append((prompt, np.array(ids), np.array(mask), np.array(values)))
    return rows


class FrozenTrainer(MultiTurnGRPOTrainer):
    """Plays nothing: every rollout returns the same episodes, with the same advantages."""

    case: Case

    def rollout(self, inputs):
        start = self.accelerator.process_index * len(inputs)
        return [self._episode(i) for i in range(start, start + len(inputs))]

    def _episode(self, number: int) -> Episode:
        context, steps = np.zeros(0, np.int64), []
        for added, sampled, _ in material(self.case.context, len(self._tokenizer))[number]:
            context = added if self.case.context == "window" else np.concatenate([context, added])
            steps.append(Step("o", context.astype(np.int32), sampled.astype(np.int32), None, "", "", True, True))
            context = np.concatenate([context, sampled])
        episode = Episode(f"{number}", steps=steps, stop_reason=StopReason.STEP_LIMIT)
        if self.case.crash and number == 0:
            episode.stop_reason = StopReason.ENVIRONMENT_ERROR
        return episode

    def compute_advantages(self, batch):
        turns = material(self.case.context, len(self._tokenizer))
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
    """Gradient averaged over the optimizer steps of one pass, the loss TRL logged, and the weights of that pass."""
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
            importance_sampling_level=case.level,
            rows_per_forward=case.rows_per_forward,
            beta=case.beta,
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
    return {
        "gradient": {n: sum(g[n] for g in last) / len(last) for n in last[0]},
        "weights": grab.weights[-1],
        "clip": max(entry.get("clip_ratio/region_mean", 0.0) for entry in logs),
        "steps": len(grab.gradients),
    }


def reference_gradient(case: Case, folder: str, weights: dict | None = None) -> dict:
    """The same gradient in float64, one row at a time, without padding, from plain logits and a loss written here.

    weights: where the gradient is taken (default: the start). Old log-probabilities are those of the start.
    """
    tokenizer = toy.make_tokenizer()
    old, model = policy(folder, case.beta).double(), policy(folder, case.beta).double()
    reference = Qwen2ForCausalLM.from_pretrained(folder).double()
    if weights is not None:
        model.load_state_dict({n: w.double() for n, w in weights.items()}, strict=False)
    rows = rows_by_hand(case, len(tokenizer))
    tokens = sum(mask.sum() for _, _, mask, _ in rows)
    total, clipped = 0.0, 0
    for prompt, completion, mask, advantage in rows:
        ids = torch.tensor(np.concatenate([prompt, completion]))[None]

        start = len(prompt)

        def logps(of, ids=ids, start=start):
            table = of(ids).logits.log_softmax(-1)[0, start - 1 : -1]
            return table.gather(-1, ids[0, start:, None])[:, 0]

        lp = logps(model)
        with torch.no_grad():
            lp_old, lp_ref = logps(old), logps(reference)
        m, a = torch.tensor(mask).double(), torch.tensor(advantage).double()
        log_ratio = lp - lp_old
        if case.level == "sequence":
            log_ratio = ((log_ratio * m).sum() / m.sum()).expand_as(lp)
        ratio = log_ratio.exp()
        bounded = ratio.clamp(0.8, 1.2)
        loss = -torch.minimum(ratio * a, bounded * a)
        clipped += int((((ratio < 0.8) & (a < 0)) | ((ratio > 1.2) & (a > 0)))[m > 0].sum())
        if case.beta:
            loss = loss + case.beta * ((lp_ref - lp).exp() - (lp_ref - lp) - 1) * ratio
        if case.loss_type in ("dapo", "bnpo"):
            total = total + (loss * m).sum() / tokens
        elif case.loss_type == "grpo":
            total = total + (loss * m).sum() / m.sum() / len(rows)
        elif case.loss_type == "dr_grpo":
            total = total + (loss * m).sum() / (len(rows) * 256)
    total.backward()
    return {"gradient": {n: p.grad.float() for n, p in model.named_parameters()}, "clipped": clipped}


def largest_difference(a: dict, b: dict) -> float:
    return max((a[n] - b[n]).abs().max().item() for n in a)


if __name__ == "__main__":
    out, cases, folder = sys.argv[1:4]
    results = [trainer_gradient(Case(**c), folder) for c in json.loads(Path(cases).read_text())]
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(results, out)
