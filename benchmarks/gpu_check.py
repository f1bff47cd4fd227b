"""One GPU against the numbers that matter: exact log-probabilities, tokens a second, memory, shares of the time.

    python benchmarks/gpu_check.py --out gpu_check.json                   one large GPU, under 6 minutes
    python benchmarks/gpu_check.py --device cpu --size tiny               every line of it on a CPU, in seconds

Randomly initialised Qwen2.5-0.5B and 1.5B play generated ALFWorld games and train on them; nothing is downloaded. A
random policy never ends a response, so every response has its full length and the work is the same on every machine.
A section that fails is reported and the others still run (exit code 1); with `--minutes` spent, the rest is left out
and named.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_models import SIZES, make_model, make_tokenizer, matmul_ceiling, update_flops
from gpu_phases import FrozenTrainer, MeasuredTrainer, held_by_others
from trl.trainer.utils import add_fused_lm_head
from update_peak import AUTOCAST, GB, TILES_TORCH, TILES_TRITON, update_peak

from progpo_trl import MultiTurnGRPOConfig
from progpo_trl.environments import Environment, load_environment
from progpo_trl.generation import CachedGeneration, Sampling
from progpo_trl.losses import score_sampled_tokens
from progpo_trl.settings import versions


@dataclass(frozen=True)
class Work:
    """How much a size does. parity: rows, prompt, new tokens; rows: number, prompt, response, rows a pass."""

    groups: int
    turns: int
    response: int
    parity: tuple[int, int, int]
    rows: tuple[int, int, int, int]


LARGE = Work(8, 4, 64, (16, 400, 64), (32, 2048, 512, 8))
SMALL = Work(1, 2, 4, (2, 12, 5), (2, 24, 8, 1))


@dataclass
class Check:
    """The run: where it is, what it has found."""

    device: torch.device
    minutes: float
    started: float = field(default_factory=time.perf_counter)
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    ceiling: float = math.nan

    def section(self, name: str, seconds: float, run, *arguments) -> None:
        """Run one section, unless it would take (an estimate on an H200) longer than what is left."""
        left = self.minutes * 60 - (time.perf_counter() - self.started)
        if seconds > left:
            self.sections[name] = {"status": "left out", "reason": f"about {seconds:.0f} s, {left:.0f} s left"}
        else:
            start = time.perf_counter()
            try:
                self.sections[name] = {"status": "ok", **run(self, *arguments)}
            except Exception as error:  # noqa: BLE001 - whatever it was, it is reported and makes the check fail
                traceback.print_exc()
                self.sections[name] = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
            self.sections[name]["seconds"] = round(time.perf_counter() - start, 2)
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        print(text_of(name, self.sections[name]), flush=True)


def text_of(name: str, section: dict[str, Any]) -> str:
    """The section as lines of a table."""
    head = f"{name}: {section['status']}"
    lines = [head + (f", {section['seconds']:.1f} s" if "seconds" in section else "")]
    for key, value in section.items():
        if key in ("status", "seconds"):
            continue
        lines.append(f"  {key:52s} {value:,.4g}" if isinstance(value, float) else f"  {key:52s} {value}")
    return "\n".join(lines)


def ceiling(check: Check, size: int) -> dict[str, Any]:
    check.ceiling = matmul_ceiling(check.device, size)
    return {"matrix": size, "TFLOP/s": check.ceiling / 1e12}


def parity(check: Check, dims, work: Work, tokenizer) -> dict[str, Any]:
    """Two turns of our generation under autocast; the sampled tokens' log-probabilities three ways against float32."""
    device, (rows, prompt, new) = check.device, work.parity
    model = make_model(dims, tokenizer, device).eval()
    add_fused_lm_head(model, temperature=1.0, outputs=("log_probs", "entropy"))
    rng = np.random.default_rng(0)

    def text(longest: int) -> list[np.ndarray]:
        sizes = rng.integers(longest // 2, longest + 1, rows)
        return [rng.integers(0, len(tokenizer), n).astype(np.int32) for n in sizes]

    session = CachedGeneration(
        model, eos_token_ids=[tokenizer.eos_token_id], pad_token_id=tokenizer.pad_token_id, sampling=Sampling()
    )
    streams = [np.random.default_rng(i) for i in range(rows)]
    contexts, sampled, generated = text(prompt), [[] for _ in range(rows)], [[] for _ in range(rows)]
    with torch.autocast(device.type, torch.bfloat16):
        for turn in range(2):
            if turn:
                contexts = [np.concatenate([c, d]) for c, d in zip(contexts, text(prompt // 4), strict=True)]
            for i, out in enumerate(session.turn(list(range(rows)), contexts, new, streams)):
                sampled[i].append((len(contexts[i]), len(out.ids)))
                generated[i].append(out.logprobs)
                contexts[i] = np.concatenate([contexts[i], out.ids])
    reused = session.reused_turns
    width = max(map(len, contexts))
    ids = torch.full((rows, width), tokenizer.pad_token_id)
    seen, scored = torch.zeros(rows, width, dtype=torch.long), torch.zeros(rows, width - 1, dtype=torch.long)
    for i, (context, spans) in enumerate(zip(contexts, sampled, strict=True)):
        ids[i, : len(context)] = torch.from_numpy(context)
        seen[i, : len(context)] = 1
        for start, count in spans:
            scored[i, start - 1 : start - 1 + count] = 1
    ids, seen, scored = ids.to(device), seen.to(device), scored.to(device)

    def score() -> np.ndarray:
        with torch.no_grad():
            return score_sampled_tokens(model, ids, seen, scored, width - 1)[0][scored == 1].float().cpu().numpy()

    exact = score()
    with torch.autocast(device.type, torch.bfloat16):
        under_autocast = score()
    model.to(torch.bfloat16)
    values = {
        "generation, autocast": np.concatenate([np.concatenate(g) for g in generated]),
        "scoring, autocast": under_autocast,
        "scoring, bfloat16 weights": score(),
    }
    result: dict[str, Any] = {"tokens": len(exact), "turns that reused the cache": reused}
    for label, value in values.items():
        difference = np.abs(value - exact)
        if not np.isfinite(difference).all():
            raise ValueError(f"{label}: log-probabilities are not finite")
        for statistic, number in zip(
            ("mean", "p99", "max"), (difference.mean(), np.quantile(difference, 0.99), difference.max()), strict=True
        ):
            result[f"|log p - float32|, {label}, {statistic}"] = float(number)
    return result


def settings(output: str, check: Check, **more) -> MultiTurnGRPOConfig:
    return MultiTurnGRPOConfig(
        output_dir=output,
        **{
            "num_generations": 8,
            "max_generations": 2,
            "bf16": True,
            "use_cpu": check.device.type == "cpu",
            "learning_rate": 1e-6,
            "gradient_checkpointing": True,
            "report_to": "none",
            "save_strategy": "no",
            "save_episodes": False,
            "disable_tqdm": True,
            "show_rollout_progress": False,
            "logging_strategy": "no",
        }
        | more,
    )


def training(check: Check, dims, work: Work, tokenizer, context: str) -> dict[str, Any]:
    """A warm generation of real games: rollout, rows, update, with the share of each."""
    tasks = load_environment("alfworld_generated", level="easy")
    with tempfile.TemporaryDirectory() as output:
        args = settings(
            output,
            check,
            context=context,
            groups_per_generation=work.groups,
            updates_per_generation=2,
            max_turns=work.turns,
            max_completion_length=work.response,
            prompt_template="alfworld" if context == "window" else None,
            rows_per_forward=16,
        )
        trainer = MeasuredTrainer(
            make_model(dims, tokenizer, check.device),
            args,
            environment=tasks,
            train_dataset=list(tasks.task_ids("train"))[: 4 * work.groups],
            processing_class=tokenizer,
        )
        phases, wall = trainer.train_measured(), trainer.seconds
        steps = [step for e in trainer.played for step in e.steps]
    new = sum(len(s.completion_ids) for s in steps)
    update = sum(v for k, v in phases.seconds.items() if k.startswith("update"))
    last = [e.steps[-1] for e in trainer.played] if context == "full" else steps
    trained = sum(len(s.context_ids) + len(s.completion_ids) for s in last)
    result: dict[str, Any] = {
        "episodes": len(trainer.played),
        "turns": len(steps),
        "tokens of a prompt, mean": sum(len(s.context_ids) for s in steps) / len(steps),
        "sampled tokens": new,
        "rollout: sampled tokens/s": new / phases.seconds["rollout"],
        "rollout: share inside the model": trainer.generating / phases.seconds["rollout"],
        "update: tokens of rows/s": trained / update,
    }
    for label, seconds in sorted(phases.seconds.items(), key=lambda item: -item[1]):
        result[f"share of the time: {label}"] = seconds / wall
    result["share of the time: everything else"] = 1 - sum(phases.seconds.values()) / wall
    for label, most in phases.peaks.items():
        result[f"peak memory, GB: {label}"] = most / GB
    return result


def update(check: Check, dims, work: Work, tokenizer) -> dict[str, Any]:
    """Rows of full length alone: tokens/s, the share of the matrix-multiply ceiling, the peak beside the formula's."""
    rows, prompt, response, per_pass = work.rows
    others = held_by_others(check.device)
    with tempfile.TemporaryDirectory() as output:
        trainer = FrozenTrainer(
            make_model(dims, tokenizer, check.device),
            settings(
                output, check, num_generations=rows, groups_per_generation=1, max_completion_length=response,
                rows_per_forward=per_pass,
            ),
            environment=Environment,
            train_dataset=["rows"],
            processing_class=tokenizer,
        )  # fmt: skip
        trainer.shape = (prompt, response)
        phases = trainer.train_measured()
    seconds = sum(v for k, v in phases.seconds.items() if k.startswith("update"))
    flops = update_flops(dims, [prompt + response] * rows, rows * response)
    # Between updates the allocator holds float32 weights, Adam's two moments and, once zeroed, no gradients.
    gradients = 4 * dims.parameters
    tiles = TILES_TRITON if check.device.type == "cuda" else TILES_TORCH
    pass_peak = update_peak(
        dims, per_pass, prompt + response, per_pass * response, AUTOCAST, checkpointing=True, tiles=tiles
    )
    # From the second pass on all gradients exist while activations are at their height.
    height = max(pass_peak["head"], pass_peak["mlp"]) + (gradients if rows > per_pass else 0)
    most = max(v for k, v in phases.peaks.items() if k.startswith("update")) - others
    predicted = 12 * dims.parameters + max(height, pass_peak["embedding"] + gradients)
    # Autocast keeps its copies of the maps' weights to the end of a forward pass.
    predicted += 2 * dims.layers * sum(a * b for a, b in dims.linear_shapes)
    return {
        "rows": f"{rows} x ({prompt} + {response}), {per_pass} a pass, gradient checkpointing",
        "tokens/s": rows * (prompt + response) / seconds,
        "TFLOP/s without recomputation": flops / seconds / 1e12,
        "share of the matrix-multiply ceiling": flops / seconds / check.ceiling,
        "forward and loss, s": phases.seconds["update: forward and loss"],
        "backward, s": phases.seconds["update: backward"],
        "optimizer, s": phases.seconds["update: optimizer"],
        "peak memory, GB": most / GB,
        "predicted, GB (benchmarks/update_peak.py)": predicted / GB,
        "measured over predicted": most / predicted,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--size", choices=["auto", "large", *SIZES], default="auto", help="large: 0.5B and 1.5B")
    parser.add_argument("--minutes", type=float, default=5.5, help="time budget (default: 5.5)")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args(argv)
    cuda = torch.cuda.is_available() if options.device == "auto" else options.device == "cuda"
    if cuda and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device")
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    size = options.size if options.size != "auto" else ("large" if cuda else "tiny")
    names = ["1.5B", "0.5B"] if size == "large" else [size]
    work = SMALL if size == "tiny" else LARGE
    torch.set_float32_matmul_precision("highest")
    # A random policy wins nothing; the trainer would say so at length.
    logging.getLogger("progpo_trl").setLevel(logging.ERROR)
    check = Check(device, options.minutes)
    tokenizer, vocabulary = make_tokenizer()
    name = torch.cuda.get_device_name(device) if cuda else "CPU"
    print(f"{name}, torch {torch.__version__}, sizes {', '.join(names)}, vocabulary: {vocabulary}", flush=True)
    # Estimates in seconds, on one H200: generous, since leaving out is better than being cut off.
    check.section("matrix-multiply ceiling, bfloat16", 5, ceiling, 8192 if cuda else 256)
    for n in names:
        check.section(f"{n}: log-probabilities", 20, parity, SIZES[n], work, tokenizer)
    for n in names:
        check.section(f"{n}: update", 30, update, SIZES[n], work, tokenizer)
    for context in ("window", "full"):
        for n in names:
            check.section(f"{n}: training, {context} context", 60, training, SIZES[n], work, tokenizer, context)
    seconds = time.perf_counter() - check.started
    failed = [n for n, s in check.sections.items() if s["status"] == "failed"]
    left_out = [n for n, s in check.sections.items() if s["status"] == "left out"]
    print(f"{seconds:.0f} s; failed: {', '.join(failed) or 'none'}; left out: {', '.join(left_out) or 'none'}")
    if options.out:
        result = {"device": name, "vocabulary": vocabulary, "versions": versions(), "seconds": round(seconds, 1)}
        partial = options.out.with_suffix(".partial")
        partial.write_text(json.dumps({**result, "sections": check.sections}, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, options.out)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
