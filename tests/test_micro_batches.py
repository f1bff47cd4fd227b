"""Packing rows into forward passes: every row once, bounds kept, counts made equal."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from progpo_trl.micro_batches import pack, pack_sizes

lengths = st.integers(1, 60).flatmap(
    lambda n: st.lists(st.lists(st.integers(1, 300), min_size=n, max_size=n), min_size=1, max_size=4)
)


def padded_tokens(chunks, lengths) -> int:
    """Tokens that `chunks` cost, padding included."""
    return sum(len(chunk) * max(lengths[i] for i in chunk) for chunk in chunks)


@given(lengths, st.one_of(st.none(), st.integers(1, 9)), st.one_of(st.none(), st.integers(1, 2000)))
def test_every_row_once_within_the_bounds(everyone, rows, tokens):
    sizes = pack_sizes(np.array(everyone), rows=rows, tokens=tokens)
    for mine in everyone:
        chunks = pack(mine, sizes)
        assert [len(c) for c in chunks] == sizes, "TRL's loss gathers one value a row: equal sizes on all processes"
        order = np.concatenate(chunks)
        assert sorted(order.tolist()) == list(range(len(mine)))
        assert (np.diff(np.array(mine)[order]) <= 0).all(), "longest rows come first"
        for chunk in chunks:
            assert rows is None or len(chunk) <= rows
            assert tokens is None or len(chunk) == 1 or padded_tokens([chunk], mine) <= tokens


def test_passes_are_as_few_as_the_bounds_allow():
    assert pack_sizes(np.array([5, 5, 2, 2, 2]), tokens=10) == [2, 3]
    assert pack_sizes(np.array([[5, 5, 2, 2, 2], [2, 2, 2, 2, 2]]), tokens=10) == [2, 3]
    assert pack_sizes(np.array([[5, 5, 2, 2, 2], [2, 2, 9, 9, 9]]), tokens=10) == [1, 1, 1, 2]
    assert pack_sizes(np.array([5, 5, 2, 2, 2]), tokens=10, rows=2) == [2, 2, 1]
    assert pack_sizes(np.array([5, 5, 2, 2, 2])) == [5]
    assert pack_sizes(np.zeros((2, 0)), tokens=10) == []
    assert pack([], []) == []


def test_packing_by_tokens_wastes_little():
    """ALFWorld-like rows of 300 to 1,000 tokens; nine at a time as they come cost a third more than they hold."""
    sizes = np.random.default_rng(0).integers(300, 1000, 400)
    packed = pack(sizes, pack_sizes(sizes, tokens=8192))
    as_they_come = [np.arange(i, min(i + 9, 400)) for i in range(0, 400, 9)]
    assert padded_tokens(packed, sizes) < 1.03 * sizes.sum()
    assert padded_tokens(as_they_come, sizes) > 1.3 * sizes.sum()
