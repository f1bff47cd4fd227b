"""What exact_loss.py is made of: scale factors of TRL's losses, scoring of sampled tokens, trimming, metrics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager

import numpy as np
import torch
import trl.trainer.utils

ROW_MEAN = ("grpo", "dr_grpo", "sapo", "luspo")  # TRL: mean over the rows of the chunk
TOKEN_MEAN = ("bnpo",)  # TRL: mean over the tokens of the chunk
GLOBAL_TOKEN_MEAN = ("dapo", "cispo", "vespo")  # TRL divides by the tokens of the whole generation batch already


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

    input_ids, attention_mask: (rows, prompt + completion), prompts padded on the left, completions on the right, no
    holes between. sampled: (rows, logits_to_keep), nonzero on the tokens to score.

    Two things are cheaper than in TRL. It projects every completion token through the LM head; in multi-turn rows most
    of them are the environment's, which no loss looks at. And rows are moved to the left edge here: that takes the
    padding between a short prompt and the longest one away, gives every token the position it was sampled at, and
    needs no attention mask (nothing real looks at what is to its right), so that the kernels for plain causal
    attention serve.
    """
    length = input_ids.size(1)
    shift = attention_mask.argmax(1, keepdim=True)
    longest = int(attention_mask.sum(1).max())
    columns = torch.arange(longest, device=input_ids.device) + shift
    real = columns < length
    columns = columns.clamp(max=length - 1)
    seen = torch.zeros_like(input_ids, dtype=torch.bool)
    seen[:, -logits_to_keep:] = sampled != 0
    ids = input_ids.gather(1, columns)
    labels = ids.masked_fill(~(seen.gather(1, columns) & real), -100)
    with _compact_projection(input_ids.device):
        out = model(input_ids=ids, labels=labels, fused_lm_head=True)
    # Column t scores the token of column t + 1.
    completion = torch.arange(length - logits_to_keep, length, device=input_ids.device) - shift - 1
    completion = completion.clamp(0, longest - 2)

    def back(values: torch.Tensor) -> torch.Tensor:
        return values[:, 1 - longest :].gather(1, completion).masked_fill(sampled == 0, 0)

    return back(out.log_probs), None if out.entropy is None else back(out.entropy)


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


def used_columns(prompt_mask: torch.Tensor, completion_mask: torch.Tensor) -> tuple[int, int]:
    """First used column of left-padded prompts and number of used columns of right-padded completions."""
    used = prompt_mask.any(0)
    first = int(used.int().argmax()) if bool(used.any()) else prompt_mask.size(1) - 1
    columns = torch.arange(1, completion_mask.size(1) + 1, device=completion_mask.device)
    # Two at least: TRL's metrics take a single column for one value a row (sequence-level importance sampling).
    return first, max(2, int((completion_mask.any(0) * columns).max()))


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
