"""Arithmetic of a run: rows and updates, memory of a GPU, bytes on the network; prints the tables of docs/scaling.md.

    python benchmarks/memory_plan.py                            print the tables
    python benchmarks/memory_plan.py --write docs/scaling.md    write them into the page

Nothing is measured here but the size of pickled steps and rows: every number follows from the dimensions of a model.
"""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path

from update_peak import AUTOCAST, BFLOAT16, GB, QWEN, TILES_TRITON, Dims, update_peak

# ---- what a GPU holds -----------------------------------------------------------------------------------------------

RANK = 32
PROMPT, RESPONSE, STEPS = 2048, 512, 50
TOKENS = {"0.5B": 16384, "1.5B": 16384, "7B": 8192}  # max_tokens_per_forward of the recipes
TYPICAL = 600  # tokens of a typical row: a prompt of 455 (the median of recorded games) and a response of about 150
GROUP = 8
NODES = (1, 8, 64)
BUCKET = 500_000_000  # DeepSpeed's reduce_bucket_size and allgather_bucket_size, elements
LIVE = 1_000_000_000  # DeepSpeed's stage3_max_live_parameters


@dataclass(frozen=True)
class Held:
    """Bytes on one GPU."""

    weights: float
    gradients: float
    optimizer: float
    reference: float
    buffers: float
    update: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.reference + self.buffers + self.update


def held(name: str, setup: str, gpus: int) -> Held:
    """Bytes on each of `gpus` for Qwen2.5-`name` while a pass of as many rows of PROMPT + RESPONSE tokens as the
    recipes' `max_tokens_per_forward` allows is at its peak.

    `update` is without the gradients, which have a column of their own. A reference model (beta > 0) is counted for
    full fine-tunes; adapters are switched off instead.
    """
    dims = QWEN[name]
    rows = TOKENS[name] // (PROMPT + RESPONSE)
    p, n, share = dims.parameters, gpus, 1 / gpus
    precision, trained = {"full": (AUTOCAST, None)}.get(setup, (BFLOAT16, None))
    if setup in ("LoRA", "QLoRA"):
        trained = dims.lora(RANK)
    if setup == "FSDP2":
        # Weights are cast as they are gathered: a bfloat16 stream, gradients reduced into float32 shards.
        precision = BFLOAT16
    peak = update_peak(
        dims, rows, PROMPT + RESPONSE, rows * RESPONSE, precision, checkpointing=True, tiles=TILES_TRITON,
        trained=trained,
    )  # fmt: skip
    gradients_in_peak = (trained or p) * (precision.gradient if trained is None else 4)
    update = max(peak["head"], peak["mlp"], peak["embedding"] - gradients_in_peak)
    linear = dims.layers * sum(a * b for a, b in dims.linear_shapes)
    if setup == "full":
        # Autocast keeps a bfloat16 copy of the maps' weights during a pass; DDP reduces out of buckets as large as
        # the gradients.
        return Held(4 * p, 4 * p, 8 * p, 4 * p, 2 * linear + (4 * p if n > 1 else 0), update)
    if setup == "ZeRO-2":
        return Held(2 * p, 2 * p * share, 12 * p * share, 2 * p, 2 * 2 * min(BUCKET, p), update)
    if setup == "ZeRO-3":
        return Held(2 * p * share, 2 * p * share, 12 * p * share, 2 * p * share, 2 * min(LIVE, p), update)
    if setup == "FSDP2":
        # Embedding, head and two layers are whole at a time: their weights, and the gradients of one of them.
        gathered = 2 * (dims.embeddings + 2 * dims.layer) + 2 * max(dims.embeddings, dims.layer)
        return Held(4 * p * share, 4 * p * share, 8 * p * share, 4 * p * share, gathered, update)
    a = dims.lora(RANK)
    # nf4 with nested scales: 4 bits, 8 bits a block of 64, 32 bits a 256 of those; embedding and head stay bfloat16.
    base = 2 * p if setup == "LoRA" else linear * (4 + 8 / 64 + 32 / (64 * 256)) / 8 + 2 * (p - linear)
    return Held(base + 4 * a, 4 * a, 8 * a, 0.0, 4 * a if n > 1 else 0.0, update)


def rollout_bytes(dims: Dims, episodes: int) -> float:
    """Our own generation: the cache of `episodes` contexts at their longest, and drawing one token for each.

    Drawing takes logits, their scaled copy and log-probabilities in float32, and three float64 tensors of that size.
    """
    return episodes * ((PROMPT + RESPONSE) * dims.kv_bytes() + dims.vocabulary * (3 * 4 + 3 * 8))


# ---- tables ---------------------------------------------------------------------------------------------------------


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def gb(value: float) -> str:
    return f"{value / GB:.2f}" if value < 10 * GB else f"{value / GB:.0f}"


def models_table() -> str:
    rows = [
        [
            f"Qwen2.5-{name}",
            f"{d.parameters:,}",
            f"{d.lora(RANK):,}",
            gb(2 * d.parameters),
            gb(16 * d.parameters),
            f"{d.kv_bytes():,}",
        ]
        for name, d in QWEN.items()
    ]
    names = ["", "parameters", f"LoRA, r={RANK}", "bfloat16, GB", "full fine-tune, GB", "KV bytes a token"]
    return table(names, rows)


def batch_table() -> str:
    """Per generation: what the recipes' batch becomes on more GPUs."""
    rows, fit = [], TOKENS["1.5B"] // TYPICAL
    for gpus, groups, updates in ((1, 16, 16), (8, 16, 16), (64, 16, 2), (64, 128, 16)):
        episodes = groups * GROUP
        most = episodes * STEPS
        here = most // updates // gpus
        rows.append(
            [
                str(gpus), str(groups), str(episodes), str(episodes // gpus), f"{most:,}", str(updates),
                f"{most // updates:,}", str(here), str(-(-here // fit)),
            ]
        )  # fmt: skip
    names = ["GPUs", "groups", "episodes", "a GPU", f"rows (at most {STEPS} steps)", "updates", "rows an update"]
    return table([*names, "a GPU", f"passes of {TOKENS['1.5B']:,} tokens"], rows)


SETUPS = ("full", "ZeRO-2", "ZeRO-3", "FSDP2", "LoRA", "QLoRA")
NAMES = {"full": "full, DDP (one GPU: none)", "LoRA": "LoRA, DDP", "QLoRA": "QLoRA, DDP"}


def memory_table(name: str) -> str:
    rows = []
    for setup in SETUPS:
        at = {n: held(name, setup, n) for n in NODES}
        parts = at[8]
        columns = (parts.weights, parts.gradients, parts.optimizer, parts.reference, parts.buffers, parts.update)
        rows.append([NAMES.get(setup, setup), *map(gb, columns), *(gb(at[n].total) for n in NODES)])
    names = ["8 GPUs, GB on each", "weights", "gradients", "Adam", "reference", "buffers", "update"]
    return table([*names, *(f"all, {n} GPU{'s' * (n > 1)}" for n in NODES)], rows)


def rollout_table() -> str:
    rows = [
        [f"Qwen2.5-{name}", *(gb(rollout_bytes(QWEN[name], episodes)) for episodes in (128, 32, 16, 2))]
        for name in ("1.5B", "7B")
    ]
    return table(["GB", "128 episodes", "32", "16", "2"], rows)


def network_bytes(dims: Dims, setup: str, gpus: int, passes: int) -> float:
    """Bytes a GPU sends for one update of `passes` forward and backward passes, with ring algorithms."""
    p, ring = dims.parameters, (gpus - 1) / gpus
    if setup == "full":
        return 2 * ring * 4 * p  # all-reduce once, at the last pass
    if setup == "ZeRO-2":
        return ring * (2 * p * passes + 2 * p)  # gradients at every pass, weights after the step
    if setup == "ZeRO-3":
        return ring * (2 * 2 * p + 2 * p) * passes  # weights forward and backward, gradients
    if setup == "FSDP2":
        return ring * (2 * 2 * p + 2 * p) * passes
    return 2 * ring * 4 * dims.lora(RANK)


def network_table() -> str:
    rows = []
    for name in ("1.5B", "7B"):
        for setup in SETUPS[:-1]:
            sync = QWEN[name].parameters * (4 if setup in ("full", "FSDP2") else 2)
            passes = -(-50 // (TOKENS[name] // TYPICAL))  # of the 50 rows a GPU has in an update, table "batch"
            cells = [gb(network_bytes(QWEN[name], setup, n, passes)) for n in (8, 64)]
            rows.append([f"{name}, {setup}", *cells, gb(sync)])
    names = ["GB", "an update, 8 GPUs", "64 GPUs", "weights to vLLM a generation"]
    return table(names, rows)


def gathered_table() -> str:
    """What every process receives in a generation of `episodes`, measured by pickling one typical step and row."""
    step, row = _pickled()
    rows = []
    for episodes in (128, 1024):
        count = episodes * STEPS
        rows.append([str(episodes), f"{count:,}", gb(count * step), gb(count * row)])
    return table(["episodes", "steps, window rows", "episodes, GB", "all rows, GB"], rows)


def _pickled() -> tuple[int, int]:
    """Bytes of a pickled step without tokens, and of a pickled window row of PROMPT + RESPONSE tokens."""
    import pickle

    import numpy as np

    from progpo_trl.episodes import Episode, Step
    from progpo_trl.rows import episode_rows

    text, response = "x" * 400, "y" * 1500  # characters: an ALFWorld observation; a response of 300-400 tokens

    def episode(steps: int) -> Episode:
        out = Episode("task", steps=[])
        for _ in range(steps):
            prompt, ids = np.zeros(PROMPT, np.int32), np.zeros(RESPONSE, np.int32)
            out.steps.append(Step(text, prompt, ids, np.zeros(RESPONSE, np.float32), response, "look", True, True))
        return out

    def size(value) -> int:
        return len(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))

    # Equal strings are pickled once, so steps are sized one by one.
    rows = episode_rows(episode(1), np.zeros(1, np.float32))
    return size(episode(1).without_tokens()), size(rows)


def tables() -> dict[str, str]:
    return {
        "models": models_table(),
        "batch": batch_table(),
        "memory-1.5B": memory_table("1.5B"),
        "memory-7B": memory_table("7B"),
        "rollout": rollout_table(),
        "network": network_table(),
        "gathered": gathered_table(),
    }


def filled(text: str) -> str:
    """`text` with what stands between `<!-- table: NAME -->` and `<!-- end -->` replaced by the table NAME."""
    known = tables()

    def replace(match: re.Match) -> str:
        return f"<!-- table: {match[1]} -->\n\n{known[match[1]]}\n\n<!-- end -->"

    return re.sub(r"<!-- table: (\S+) -->.*?<!-- end -->", replace, text, flags=re.S)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="file whose marked tables are written anew")
    options = parser.parse_args(argv)
    if options.write:
        partial = options.write.with_suffix(".partial")
        partial.write_text(filled(options.write.read_text(encoding="utf-8")), encoding="utf-8")
        os.replace(partial, options.write)
        return
    for name, text in tables().items():
        print(f"{name}\n\n{text}\n")


if __name__ == "__main__":
    main()
