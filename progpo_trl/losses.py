"""Exact normalisation of TRL's loss for rows of uneven number and length, in micro-batches of any size.

TRL's loss functions are called as they are; what is here cuts a slice of rows into chunks and rescales what TRL
returns for each, so that the gradient is that of one pass over all rows of all processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager

import numpy as np
import torch
import trl.trainer.utils

ROW_MEAN = ("grpo", "dr_grpo")  # TRL: mean over the rows of the chunk
TOKEN_MEAN = ("bnpo",)  # TRL: mean over the tokens of the chunk
GLOBAL_TOKEN_MEAN = ("dapo",)  # TRL divides by the tokens of the whole generation batch already


def loss_scale(
    loss_type: str,
    *,
    chunk_rows: int,
    chunk_tokens: torch.Tensor,
    total_rows: torch.Tensor,
    total_tokens: torch.Tensor,
    processes: int,
    slices: int,
) -> torch.Tensor | float:
    """What to multiply TRL's loss of one chunk with.

    With f the per-row (or per-token) loss and ga the accumulation steps, TRL returns sum f / (chunk_rows * ga) for a
    row mean and sum f / (chunk_tokens * ga) for a token mean. Averaged by DDP over `processes` and summed over the
    `slices` of a generation, the mean over all rows (tokens) needs the factor below; ga cancels. One optimizer step
    takes ga of the slices, and is the mean over its rows scaled by their share: exact over the generation.
    """
    if loss_type in ROW_MEAN:
        return chunk_rows * processes * slices / total_rows.clamp(min=1)
    if loss_type in TOKEN_MEAN:
        return chunk_tokens.clamp(min=1) * processes * slices / total_tokens.clamp(min=1)
    if loss_type in GLOBAL_TOKEN_MEAN:
        return 1.0
    raise ValueError(f"no exact normalisation is known for loss_type={loss_type!r}")


def score_sampled_tokens(model, input_ids, attention_mask, sampled, logits_to_keep: int):
    """Log-probabilities and entropies of the sampled completion tokens, both (rows, logits_to_keep); 0 elsewhere.

    TRL projects every completion token through the LM head; in multi-turn rows most of them are the environment's,
    which no loss looks at. sampled: (rows, logits_to_keep), nonzero on the tokens to score.
    """
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    labels[:, :-logits_to_keep] = -100
    labels[:, -logits_to_keep:] = labels[:, -logits_to_keep:].masked_fill(sampled == 0, -100)
    with _compact_projection(input_ids.device):
        out = model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, fused_lm_head=True)
    entropy = None if out.entropy is None else out.entropy[:, -logits_to_keep:]
    return out.log_probs[:, -logits_to_keep:], entropy


@contextmanager
def _compact_projection(device: torch.device):
    """On CPU, let TRL's LM head skip unlabelled positions, as it does on GPUs.

    TRL projects all of them elsewhere for devices that compile per shape, and decides by a private function; without
    that function (another TRL) nothing is changed but the speed.
    """
    decide = getattr(trl.trainer.utils, "_use_triton", None)
    if device.type != "cpu" or decide is None:
        yield
        return
    trl.trainer.utils._use_triton = lambda device: True
    try:
        yield
    finally:
        trl.trainer.utils._use_triton = decide


@contextmanager
def one_value_per_slice(metrics: dict[str, list[float]], weights: Sequence[float]):
    """Merge what TRL logs for each chunk of a slice into the value the whole slice has.

    TRL appends one value per loss call and later takes their plain mean, which would depend on the chunking (and
    count chunks of padding rows). weights: sampled tokens of each chunk; names with min or max are merged by it.
    """
    before = {name: len(values) for name, values in metrics.items()}
    yield
    for name, values in metrics.items():
        new = values[before.get(name, 0) :]
        if len(new) != len(weights) or len(new) < 2:
            continue
        known = [(v, w) for v, w in zip(new, weights, strict=True) if w > 0 and v == v]
        if name.endswith("_min"):
            merged = min((v for v, _ in known), default=float("nan"))
        elif name.endswith("_max"):
            merged = max((v for v, _ in known), default=float("nan"))
        else:
            total = sum(w for _, w in known)
            merged = sum(v * w for v, w in known) / total if total else float("nan")
        values[before.get(name, 0) :] = [merged]


def length_order(prompt_mask: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """Row indices from longest to shortest: chunks of similar length waste least, and the largest comes first."""
    return torch.argsort(prompt_mask.sum(1) + completion_mask.sum(1), descending=True, stable=True)


def used_columns(prompt_mask: torch.Tensor, completion_mask: torch.Tensor) -> tuple[int, int]:
    """First used column of left-padded prompts and number of used columns of right-padded completions."""
    used = prompt_mask.any(0)
    first = int(used.int().argmax()) if bool(used.any()) else prompt_mask.size(1) - 1
    columns = torch.arange(1, completion_mask.size(1) + 1, device=completion_mask.device)
    return first, max(1, int((completion_mask.any(0) * columns).max()))


def per_token(values: Sequence[np.ndarray], width: int) -> torch.Tensor:
    """(len(values), width) float32 with each array at the start of its row and zeros after it."""
    out = torch.zeros(len(values), width)
    for i, row in enumerate(values):
        out[i, : len(row)] = torch.from_numpy(row)
    return out


def take_rows(inputs: dict, index: torch.Tensor) -> dict:
    """The rows `index` of a TRL batch, without the padding columns that none of them uses."""
    rows = {k: v[index] if isinstance(v, torch.Tensor) and v.ndim > 0 else v for k, v in inputs.items()}
    width = rows["completion_ids"].size(1)
    first, length = used_columns(rows["prompt_mask"], rows["completion_mask"])
    for name, value in rows.items():
        if name in ("prompt_ids", "prompt_mask"):
            rows[name] = value[:, first:]
        elif isinstance(value, torch.Tensor) and value.ndim == 2 and value.size(1) == width:
            rows[name] = value[:, :length]
    return rows
