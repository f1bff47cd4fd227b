"""Exact normalisation of TRL's loss for rows of uneven number and length, in micro-batches of any size.

TRL's loss functions are called as they are; what is here cuts a slice of rows into chunks and rescales what TRL
returns for each, so that the gradient is that of one pass over all rows of all processes.
"""

from __future__ import annotations

import torch

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


def length_order(prompt_mask: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """Row indices from longest to shortest: chunks of similar length waste least, and the largest comes first."""
    return torch.argsort(prompt_mask.sum(1) + completion_mask.sum(1), descending=True, stable=True)


def used_columns(prompt_mask: torch.Tensor, completion_mask: torch.Tensor) -> tuple[int, int]:
    """First used column of left-padded prompts and number of used columns of right-padded completions."""
    used = prompt_mask.any(0)
    first = int(used.int().argmax()) if bool(used.any()) else prompt_mask.size(1) - 1
    columns = torch.arange(1, completion_mask.size(1) + 1, device=completion_mask.device)
    return first, max(1, int((completion_mask.any(0) * columns).max()))


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
