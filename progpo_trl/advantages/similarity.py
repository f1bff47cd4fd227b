"""Greedy leader clustering of nearly equal observations by difflib's ratio, with bounds that skip most of the work."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np

# Characters are counted in this many classes. Merging characters only raises the bound, which stays a bound.
_CLASSES = 128
# Below the threshold by what rounding of the bounds could amount to.
_SLACK = 1e-9


def cluster_similar(group: np.ndarray, code: np.ndarray, texts: list[str], threshold: float) -> np.ndarray:
    """(n,) cluster of each step, numbered over all groups; -1 where the code is negative.

    Within a group, in the order of the batch, a step joins the first leader with `SequenceMatcher(None, text,
    leader).ratio() >= threshold`, else becomes a leader itself.

    Source: the similarity variant of GiGPO (verl-agent). The result is the same as comparing every step with every
    leader; what is skipped cannot matter: a text seen before in the group goes where it went; the length, then the
    characters in common, then rapidfuzz's Indel similarity (a common subsequence is at least as long as difflib's
    blocks) bound difflib's ratio from above; and a pair met in another group has the same ratio.
    """
    out = np.full(len(code), -1, np.int64)
    rows = np.flatnonzero(code >= 0)
    if len(rows) == 0:
        return out
    pair = group[rows] * len(texts) + code[rows]
    distinct, first, inverse = np.unique(pair, return_index=True, return_inverse=True)
    by_group = np.lexsort((first, distinct // len(texts)))  # each group's texts in the order of first sight
    counts = _Counts(texts)
    verdicts: dict[tuple[int, int], bool] = {}
    cluster = np.empty(len(distinct), np.int64)
    n_clusters = 0
    bounds = np.flatnonzero(np.diff(distinct[by_group] // len(texts), prepend=-1, append=-2))
    for start, end in pairwise(bounds):
        members = by_group[start:end]
        joined, n_leaders = _cluster_group(distinct[members] % len(texts), texts, counts, threshold, verdicts)
        cluster[members] = n_clusters + joined
        n_clusters += n_leaders
    out[rows] = cluster[inverse]
    return out


def _cluster_group(codes: np.ndarray, texts: list[str], counts: _Counts, threshold: float, verdicts: dict):
    """(place of each text's leader among the leaders, number of leaders) for one group's distinct texts in order."""
    from rapidfuzz.distance import Indel
    from rapidfuzz.process import cdist

    leaders: list[int] = []
    leader_texts: list[str] = []
    matchers: dict[int, SequenceMatcher] = {}
    table = np.empty((16, _CLASSES), np.int32)
    joined = np.empty(len(codes), np.int64)
    for place, code in enumerate(codes.tolist()):
        text, row = texts[code], counts.row(code)
        likely = _bound(table[: len(leaders)], row) >= threshold - _SLACK
        candidates = np.flatnonzero(likely)
        unknown = [j for j in candidates if (code, leaders[j]) not in verdicts]
        if unknown:
            bound = cdist(
                [text],
                [leader_texts[j] for j in unknown],
                scorer=Indel.normalized_similarity,
                score_cutoff=threshold - _SLACK,
                dtype=np.float64,
            )[0]
            verdicts.update(((code, leaders[j]), False) for j, b in zip(unknown, bound, strict=True) if b == 0.0)
        for j in candidates:
            key = (code, leaders[j])
            if key not in verdicts:
                if leaders[j] not in matchers:  # it indexes its second text once
                    matchers[leaders[j]] = SequenceMatcher(None, "", texts[leaders[j]])
                matcher = matchers[leaders[j]]
                matcher.set_seq1(text)
                verdicts[key] = matcher.quick_ratio() >= threshold and matcher.ratio() >= threshold
            if verdicts[key]:
                joined[place] = j
                break
        else:
            joined[place] = len(leaders)
            if len(leaders) == len(table):
                table = np.concatenate([table, np.empty_like(table)])
            table[len(leaders)] = row
            leaders.append(code)
            leader_texts.append(text)
    return joined, len(leaders)


def _bound(table: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Upper bound of the ratio between `row` and each row of `table`: twice the characters in common over all."""
    total = np.maximum(table.sum(axis=1) + row.sum(), 1)
    common = np.minimum(table, row).sum(axis=1)
    return np.where((table.sum(axis=1) == 0) & (row.sum() == 0), 1.0, 2.0 * common / total)


class _Counts:
    """How often each class of characters occurs in a text; counted when first asked for."""

    def __init__(self, texts: list[str]):
        self._texts = texts
        self._rows: dict[int, np.ndarray] = {}

    def row(self, code: int) -> np.ndarray:
        if code not in self._rows:
            points = np.frombuffer(self._texts[code].encode("utf-32-le", "surrogatepass"), np.uint32)
            self._rows[code] = np.bincount(points % _CLASSES, minlength=_CLASSES).astype(np.int32)
        return self._rows[code]
