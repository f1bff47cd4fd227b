"""Episodes and advantages -> training rows: merging turns, balancing processes, and the one validator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from progpo_trl.episodes import Episode


@dataclass(slots=True)
class Row:
    """One training sequence. `mask` is 1 on sampled tokens and 0 on the environment's; all four of completion_ids,
    mask, advantages and logprobs have one entry per completion token. real is False for padding rows."""

    prompt_ids: np.ndarray
    completion_ids: np.ndarray
    mask: np.ndarray
    advantages: np.ndarray
    logprobs: np.ndarray | None
    episode: int
    real: bool = True


def episode_rows(episode: Episode, advantages: np.ndarray) -> list[Row]:
    """The rows of one episode: consecutive steps whose context extends the previous context + completion share one.

    Full context gives 1 row, a window 1 row a step, a chat template that rewrites history as many as it needs.
    advantages: (n_steps,), copied to every sampled token of its step. A dropped episode has no rows.
    """
    if episode.dropped:
        return []
    if len(advantages) != len(episode.steps):
        raise ValueError(
            f"episode {episode.index} ({episode.task_id}) has {len(episode.steps)} steps and {len(advantages)} "
            "advantages: the advantage step must return one number per step"
        )
    spans: list[list[int]] = []  # step numbers of each row
    ids: np.ndarray | None = None
    for number, step in enumerate(episode.steps):
        _check_step(episode, number, step)
        if ids is not None and len(step.context_ids) >= len(ids) and np.array_equal(step.context_ids[: len(ids)], ids):
            spans[-1].append(number)
        else:
            spans.append([number])
        ids = np.concatenate([step.context_ids, step.completion_ids])
    return [_row(episode, advantages, span) for span in spans]


def _row(episode: Episode, advantages: np.ndarray, span: Sequence[int]) -> Row:
    steps = [episode.steps[i] for i in span]
    prompt = len(steps[0].context_ids)
    last = steps[-1]
    ids = np.concatenate([last.context_ids, last.completion_ids])[prompt:].astype(np.int32)
    mask = np.zeros(len(ids), np.int64)
    values = np.zeros(len(ids), np.float32)
    with_logprobs = all(s.logprobs is not None for s in steps)
    logprobs = np.zeros(len(ids), np.float32) if with_logprobs else None
    for number, step in zip(span, steps, strict=True):
        start = len(step.context_ids) - prompt
        sampled = slice(start, start + len(step.completion_ids))
        mask[sampled] = 1
        values[sampled] = advantages[number]
        if logprobs is not None:
            logprobs[sampled] = step.logprobs
    return Row(steps[0].context_ids.astype(np.int32), ids, mask, values, logprobs, episode.index)


def _check_step(episode: Episode, number: int, step) -> None:
    where = f"episode {episode.index} ({episode.task_id}), step {number}"
    if len(step.context_ids) == 0 or len(step.completion_ids) == 0:
        raise ValueError(
            f"{where}: {len(step.context_ids)} context ids and {len(step.completion_ids)} completion ids; both need "
            "at least one"
        )
    if step.logprobs is not None and len(step.logprobs) != len(step.completion_ids):
        raise ValueError(f"{where}: {len(step.completion_ids)} completion ids but {len(step.logprobs)} logprobs")


def padding_row(token_id: int) -> Row:
    """A row without any weight: it makes counts equal across processes and update slices."""
    prompt, ids = np.array([token_id], np.int32), np.array([token_id] * 2, np.int32)
    return Row(prompt, ids, np.zeros(2, np.int64), np.zeros(2, np.float32), np.zeros(2, np.float32), -1, real=False)


def rollout_output(rows: Sequence[Row]) -> dict[str, Any]:
    """`rows` in the form of a TRL rollout function's result. Log-probabilities only where every real row has them."""
    known = all(row.logprobs is not None for row in rows if row.real)
    return {
        "prompt_ids": [row.prompt_ids.tolist() for row in rows],
        "completion_ids": [row.completion_ids.tolist() for row in rows],
        "logprobs": [row.logprobs.tolist() for row in rows] if known else None,
        "env_mask": [row.mask.tolist() for row in rows],
    }


def shares(counts: Sequence[int]) -> list[tuple[int, slice]]:
    """How rows move so that all processes hold equally many (one more on the first, where they do not divide).

    counts: rows of each process. Returns for each how many of its own it keeps, and which of those given away, listed
    process after process, it takes. Only the surplus moves.
    """
    base, rest = divmod(sum(counts), len(counts))
    targets = [base + (rank < rest) for rank in range(len(counts))]
    out, taken = [], 0
    for count, target in zip(counts, targets, strict=True):
        wanted = max(0, target - count)
        out.append((min(count, target), slice(taken, taken + wanted)))
        taken += wanted
    return out


def padded_count(counts: Sequence[int], *, slices: int, group: int) -> int:
    """Rows every process must hold, given how many each has: a multiple of `slices` (update slices of equal size)
    such that all processes' rows together are a multiple of `group` (TRL views rewards in groups of that size)."""
    multiple = math.lcm(slices, group // math.gcd(group, len(counts)))
    return max(multiple, math.ceil(max(counts) / multiple) * multiple)
