"""Which rows share a forward pass: packed by length, bounded in rows and tokens, in step on every process.

Pure functions of row lengths; the loss is exact for any packing (see exact_loss.py), so this is about memory and
speed alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pack_sizes(lengths: np.ndarray, *, rows: int | None = None, tokens: int | None = None) -> list[int]:
    """Rows of each micro-batch, for rows taken from longest to shortest.

    lengths: (processes, rows) tokens of each process's rows; all hold equally many. rows, tokens: most of either in
    one micro-batch of one process; None leaves it unbounded. Padded to a rectangle, n rows cost n times the longest. A
    single row longer than `tokens` is a micro-batch of its own: no row is ever cut.

    The sizes are the same for all processes, since TRL's loss gathers one value a row in every pass: what bounds the
    n-th pass is the process with the longest rows there.
    """
    longest = np.sort(np.atleast_2d(lengths), axis=1)[:, ::-1].max(0)
    sizes, done = [], 0
    while done < len(longest):
        left = len(longest) - done
        count = left if rows is None else min(left, rows)
        if tokens is not None:
            count = min(count, tokens // max(1, int(longest[done])))
        sizes.append(max(1, count))
        done += sizes[-1]
    return sizes


def pack(lengths: Sequence[int], sizes: Sequence[int]) -> list[np.ndarray]:
    """Row numbers of each micro-batch of `sizes`, longest rows first.

    Sorting puts rows of similar length together, and the largest micro-batch first: lack of memory shows at once.
    """
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    return np.split(order, np.cumsum(sizes)[:-1]) if len(order) else []
