"""CPU time of an update, per real token: our loss path against stock `GRPOTrainer` on the same rows, side by side.

    python benchmarks/update_cost.py [--repeats 20] [--check]

Three comparisons, interleaved in one process, forward and backward, median of the repeats' ratios:
- our layer: one micro-batch of 8 rows of equal length, the same tensors for both: what chunking, scaling and metrics
  cost where they have nothing to gain (target: at most 1.02);
- trimmed: 8 window rows as they come, already trimmed to their own widths for both;
- naive: 64 rows of ALFWorld-like lengths in one batch padded to the widest prompt and the widest completion, as TRL
  buffers them, against packing by `max_tokens_per_forward` (target: at least 1.5 times faster). Window rows have a
  prompt each; full-context rows are whole episodes.
Both sides use the same compacted LM head. Prompt lengths and steps are real (data/alfworld_lengths.json), responses
are 40 tokens on average; weights and ids are random.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

os.environ.setdefault("ACCELERATE_USE_CPU", "true")
LENGTHS = Path(__file__).parent / "data" / "alfworld_lengths.json"
LAYER, NAIVE = 1.02, 1.5  # what --check demands
VOCABULARY = 4096


def make_trainers(folder: str, hidden: int, layers: int, tokens_per_forward: int):
    """(ours for one chunk, ours packing by tokens, stock), each with its own copy of one random model."""
    import transformers
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from trl import GRPOConfig, GRPOTrainer

    from progpo_trl import MultiTurnGRPOConfig, MultiTurnGRPOTrainer
    from progpo_trl.environments import Environment, EnvironmentTasks, Observation, StepResult

    class Nothing(Environment):
        def reset(self, task_id, seed=0):
            return Observation("")

        def step(self, action):
            return StepResult("", done=True)

    vocabulary = {f"t{i}": i for i in range(VOCABULARY)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t2")), pad_token="t0", eos_token="t1"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=1, max_position_embeddings=2**16,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    common = {
        "use_cpu": True, "bf16": False, "report_to": "none", "gradient_checkpointing": False, "disable_tqdm": True,
        "num_generations": 2, "per_device_train_batch_size": 2, "steps_per_generation": 1, "beta": 0.0,
        "logging_strategy": "no", "save_strategy": "no",
    }  # fmt: skip

    def model():
        torch.manual_seed(0)
        return transformers.Qwen2ForCausalLM(config)

    def ours(name: str, **options):
        args = MultiTurnGRPOConfig(f"{folder}/{name}", **common, **options)
        tasks = EnvironmentTasks(Nothing, [str(i) for i in range(4)])
        return MultiTurnGRPOTrainer(model(), args, environment=tasks, processing_class=tokenizer)

    stock = GRPOTrainer(
        model(),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(f"{folder}/stock", loss_type="dapo", **common),
        train_dataset=Dataset.from_dict({"prompt": ["x"] * 4}),
        processing_class=tokenizer,
    )
    for trainer in (stock, whole := ours("whole", rows_per_forward=10**6)):
        trainer.model.train()
    packing = ours("packing", max_tokens_per_forward=tokens_per_forward)
    packing.model.train()
    return whole, packing, stock


def batch(prompts: list[int], completions: list[np.ndarray], rng: np.random.Generator) -> dict:
    """Rows padded as TRL pads them. completions: per row the mask of its completion, 1 on sampled tokens."""
    rows, before, after = len(prompts), max(prompts), max(map(len, completions))
    out = {
        "prompt_ids": torch.from_numpy(rng.integers(2, VOCABULARY, (rows, before))),
        "prompt_mask": torch.zeros(rows, before, dtype=torch.long),
        "completion_ids": torch.from_numpy(rng.integers(2, VOCABULARY, (rows, after))),
        "completion_mask": torch.zeros(rows, after, dtype=torch.long),
        "tool_mask": torch.zeros(rows, after, dtype=torch.long),
        "advantages": torch.from_numpy(rng.normal(size=(rows, after)).astype(np.float32)),
    }
    for i, (prompt, mask) in enumerate(zip(prompts, completions, strict=True)):
        out["prompt_mask"][i, before - prompt :] = 1
        out["completion_mask"][i, : len(mask)] = 1
        out["tool_mask"][i, : len(mask)] = torch.from_numpy(mask)
    out["num_items_in_batch"] = out["tool_mask"].sum()
    out["num_rows_in_batch"] = torch.tensor(float(rows))
    return out


def responses(n: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [np.ones(min(96, 8 + int(rng.geometric(1 / 32))), np.int64) for _ in range(n)]


def full_rows(episodes: list[list[int]], rng: np.random.Generator) -> tuple[list[int], list[np.ndarray]]:
    """One row an episode: the first prompt, then responses and what a turn adds (about 120 tokens) in turns."""
    prompts, masks = [], []
    for lengths in episodes:
        parts = []
        for k, response in enumerate(responses(len(lengths), rng)):
            parts += [np.zeros(int(rng.integers(60, 180)), np.int64)] * (k > 0) + [response]
        prompts.append(lengths[0])
        masks.append(np.concatenate(parts))
    return prompts, masks


def update(trainer, inputs: dict) -> tuple[float, torch.Tensor]:
    """CPU seconds of one loss and backward, and the gradient of the embedding."""
    from progpo_trl.losses import _compact_projection

    trainer.model.zero_grad(set_to_none=True)
    trainer.current_gradient_accumulation_steps = 1
    started = time.process_time()
    with _compact_projection(torch.device("cpu")):
        loss = trainer.compute_loss(trainer.model, dict(inputs))
        trainer.accelerator.backward(loss)
    spent = time.process_time() - started
    return spent, trainer.model.get_input_embeddings().weight.grad.clone()


def compare(name: str, left, right, inputs: dict, repeats: int) -> float:
    """Median of right's time over left's, interleaved; both must give the same gradient."""
    pairs = []
    for repeat in range(repeats + 1):
        order = [left, right] if repeat % 2 else [right, left]
        spent = {id(trainer): update(trainer, inputs) for trainer in order}
        if repeat:
            pairs.append((spent[id(left)][0], spent[id(right)][0]))
    gap = (spent[id(left)][1] - spent[id(right)][1]).abs().max() / spent[id(right)][1].abs().max()
    if gap > 1e-3:
        sys.exit(f"{name}: the gradients differ by {gap:.1e}")
    real = int(inputs["prompt_mask"].sum() + inputs["completion_mask"].sum())
    ratio = statistics.median(b / a for a, b in pairs)
    ours, stock = (1e6 * statistics.median(side) / real for side in zip(*pairs, strict=True))
    print(f"{name:48} {ours:8.1f} {stock:8.1f} {ratio:7.3f} {1 / ratio:7.3f}", flush=True)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="pairs after one that warms up (default: 20)")
    parser.add_argument("--hidden", type=int, default=128, help="hidden size of the model (default: 128)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the model (default: 4)")
    parser.add_argument("--rows", type=int, default=64, help="rows of the padded batch (default: 64)")
    parser.add_argument("--tokens", type=int, default=8192, help="max_tokens_per_forward (default: 8192)")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    episodes = json.loads(LENGTHS.read_text())["prompt_tokens"]
    prompts = rng.permutation([n for lengths in episodes for n in lengths]).tolist()
    with tempfile.TemporaryDirectory() as folder:
        whole, packing, stock = make_trainers(folder, options.hidden, options.layers, options.tokens)
        parameters = sum(p.numel() for p in stock.model.parameters()) / 1e6
        print(
            f"{parameters:.1f}M parameters, float32, 1 thread, torch {torch.__version__}, {platform.machine()}, median"
        )
        print(f"of {options.repeats} pairs\n\n{'CPU microseconds per real token':48} {'ours':>8} {'stock':>8}", end="")
        print(f" {'stock/':>7} {'ours/':>7}\n{'':48} {'':8} {'':8} {'ours':>7} {'stock':>7}")
        layer = 1 / compare(
            "our layer: 8 rows of 455 + 40 tokens", whole, stock,
            batch([455] * 8, [np.ones(40, np.int64)] * 8, rng), options.repeats,
        )  # fmt: skip
        compare(
            "trimmed: 8 window rows as they come", whole, stock,
            batch(prompts[:8], responses(8, rng), rng), options.repeats,
        )  # fmt: skip
        rows = options.rows
        gain = compare(
            f"naive: {rows} window rows in one padded batch", packing, stock,
            batch(prompts[:rows], responses(rows, rng), rng), max(1, options.repeats // 4),
        )  # fmt: skip
        compare(
            f"naive: {rows // 16} full-context rows in one padded batch", packing, stock,
            batch(*full_rows([episodes[i * 7 % len(episodes)] for i in range(rows // 16)], rng), rng),
            max(1, options.repeats // 4),
        )  # fmt: skip
    if options.check:
        if layer > LAYER or gain < NAIVE:
            sys.exit(f"target missed: our layer {layer:.3f} (at most {LAYER}), naive {gain:.2f} (at least {NAIVE})")
        print(f"targets met: our layer at most {LAYER}, against naive at least {NAIVE}")


if __name__ == "__main__":
    main()
