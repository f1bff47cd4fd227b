"""Greedy leader clustering of nearly equal observations by difflib's ratio, with bounds that skip most of the work."""

from __future__ import annotations

from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np

# Below the threshold by what rounding of the bounds could amount to.
_SLACK = 1e-9
# Characters are counted in this many classes, runs of three characters in about twice as many as a text has of them,
# within these limits. Merging classes only raises a bound.
_CHARACTERS, _FEWEST, _MANY = 128, 256, 8192
# Slices have these many times as many characters as may differ, and are worth their while from this length on.
_SLICES, _LONG = (1.5, 2.0, 3.5), 200
# Trigram counts are cut here, so that sixteen of them add up within a byte; that only raises the bound, too.
_MOST = 15


def cluster_similar(group: np.ndarray, code: np.ndarray, texts: list[str], threshold: float) -> np.ndarray:
    """(n,) cluster of each step, numbered over all groups; -1 where the code is negative.

    Within a group, in the order of the batch, a step joins the first leader with `SequenceMatcher(None, text,
    leader).ratio() >= threshold`, else becomes a leader itself.

    Source: the similarity variant of GiGPO (verl-agent). The result is the same as comparing every step with every
    leader; what is skipped cannot matter: a text seen before in the group goes where it went; characters in common,
    then trigrams in common, then rapidfuzz's Indel similarity (a common subsequence is at least as long as difflib's
    blocks) bound difflib's ratio from above; and a pair met in another group has the same ratio.
    """
    out = np.full(len(code), -1, np.int64)
    rows = np.flatnonzero(code >= 0)
    if len(rows) == 0:
        return out
    pair = group[rows] * len(texts) + code[rows]
    distinct, first, inverse = np.unique(pair, return_index=True, return_inverse=True)
    by_group = np.lexsort((first, distinct // len(texts)))  # each group's texts in the order of first sight
    verdicts: dict[tuple[int, int], bool] = {}
    cluster = np.empty(len(distinct), np.int64)
    n_clusters = 0
    bounds = np.flatnonzero(np.diff(distinct[by_group] // len(texts), prepend=-1, append=-2))
    for start, end in pairwise(bounds):
        members = by_group[start:end]
        joined, n_leaders = _cluster_group(distinct[members] % len(texts), texts, threshold, verdicts)
        cluster[members] = n_clusters + joined
        n_clusters += n_leaders
    out[rows] = cluster[inverse]
    return out


def _cluster_group(codes: np.ndarray, texts: list[str], threshold: float, verdicts: dict):
    """(place of each text's leader among the leaders, number of leaders) for one group's distinct texts in order."""
    leaders: list[int] = []
    matchers: dict[int, SequenceMatcher] = {}
    longest = max(len(texts[code]) for code in codes.tolist())
    classes = min(max(_FEWEST, 1 << (2 * longest).bit_length()), _MANY)
    table = _Profiles(classes)
    joined = np.empty(len(codes), np.int64)
    for place, code in enumerate(codes.tolist()):
        text, profile = texts[code], _Profile(texts[code], classes)
        likely = [j for j in table.candidates(profile, threshold) if verdicts.get((code, leaders[j]), True)]
        # Only what difflib itself said is remembered: there may be millions of pairs that the bounds tell apart.
        unknown = [j for j in likely if (code, leaders[j]) not in verdicts]
        too_far = {unknown[i] for i in _below_indel(text, [texts[leaders[j]] for j in unknown], threshold)}
        for j in likely:
            if j in too_far:
                continue
            key = (code, leaders[j])
            if key not in verdicts:
                if j not in matchers:  # it indexes its second text once
                    matchers[j] = SequenceMatcher(None, "", texts[leaders[j]])
                matchers[j].set_seq1(text)
                verdicts[key] = matchers[j].quick_ratio() >= threshold and matchers[j].ratio() >= threshold
            if verdicts[key]:
                joined[place] = j
                break
        else:
            joined[place] = len(leaders)
            leaders.append(code)
            table.add(profile)
    return joined, len(leaders)


def _below_indel(text: str, others: list[str], threshold: float) -> list[int]:
    """Which of `others` have an Indel similarity to `text` below the threshold.

    The Indel distance D = total - 2 M is compared as a whole number: the normalised form rounds its cutoff. Long texts
    are first compared in a slice from their middle, which costs the square of its share: an alignment of the wholes
    that enters the slice of one text u characters off and leaves it v off costs at least u before, the slices'
    distance less u and v within, and v less the difference in length after it, so D >= D(slices) - difference.
    """
    if not others:
        return []
    lengths = np.array([len(other) for other in others])
    allowed = (1.0 - threshold + _SLACK) * (len(text) + lengths)
    near = np.arange(len(others))
    most = allowed + np.abs(lengths - len(text))
    for share in _SLICES:
        size = min(int(share * allowed.max()), len(text) // 2)
        part = slice((len(text) - size) // 2, (len(text) + size) // 2)
        if size >= _LONG and part.stop <= lengths.min() and len(near):
            found = _indel(text[part], [others[i][part] for i in near.tolist()], most[near].max())
            near = near[found <= most[near]]
    if len(near) == 0:
        return list(range(len(others)))
    whole = _indel(text, [others[i] for i in near.tolist()], allowed[near].max())
    close = near[whole <= allowed[near]]
    return np.setdiff1d(np.arange(len(others)), close).tolist()


def _indel(text: str, others: list[str], cutoff: float) -> np.ndarray:
    """Indel distances, each only known to be larger where it is above the cutoff."""
    from rapidfuzz.distance import Indel
    from rapidfuzz.process import cdist

    return cdist([text], others, scorer=Indel.distance, score_cutoff=int(cutoff), dtype=np.int32)[0]


class _Profile:
    """What the bounds need to know of a text."""

    def __init__(self, text: str, classes: int):
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
        self.length = len(points)
        self.characters = np.bincount(points % _CHARACTERS, minlength=_CHARACTERS).astype(np.int32)
        mixed = ((points[:-2] * 131 + points[1:-1]) * 131 + points[2:]) * 2654435761 & 0xFFFFFFFF
        counts = np.bincount((mixed >> 8) % classes, minlength=classes)
        self.trigrams = np.minimum(counts, _MOST).astype(np.uint8)
        self.counted = int(self.trigrams.sum())


class _Profiles:
    """The profiles of the leaders, as growing tables."""

    def __init__(self, classes: int):
        self.size = 0
        self._characters = np.empty((16, _CHARACTERS), np.int32)
        self._trigrams = np.empty((16, classes), np.uint8)
        self._length, self._counted = np.empty(16, np.int64), np.empty(16, np.int64)

    def add(self, profile: _Profile) -> None:
        """Append a leader."""
        if self.size == len(self._length):
            for name in ("_characters", "_trigrams", "_length", "_counted"):
                table = getattr(self, name)
                setattr(self, name, np.concatenate([table, np.empty_like(table)]))
        self._characters[self.size], self._trigrams[self.size] = profile.characters, profile.trigrams
        self._length[self.size], self._counted[self.size] = profile.length, profile.counted
        self.size += 1

    def candidates(self, profile: _Profile, threshold: float) -> list[int]:
        """Leaders whose ratio to the text may reach the threshold, in order."""
        total = self._length[: self.size] + profile.length
        # ratio = 2 M / total, with M matched characters, at most those in common (two empty texts have ratio 1).
        common = np.minimum(self._characters[: self.size], profile.characters).sum(axis=1)
        found = np.flatnonzero(2.0 * common >= (threshold - _SLACK) * total)
        if len(found) == 0:
            return []
        # The M characters lie in at most total - 2M + 1 runs, and a run of r characters holds r - 2 trigrams: of S
        # trigrams in common at most M <= (S + 2 (total + 1)) / 5 come.
        table = self._trigrams if len(found) == self.size else self._trigrams[found]
        shared = np.minimum(table[: len(found)], profile.trigrams)
        shared = np.add.reduce(shared.reshape(len(found), 16, -1), axis=1, dtype=np.uint8).sum(axis=1, dtype=np.int64)
        total, n = total[found], np.maximum(self._length[found] - 2, 0) + max(profile.length - 2, 0)
        in_common = (n - (self._counted[found] + profile.counted - 2 * shared)) / 2.0
        matched = (in_common + 2.0 * (total + 1)) / 5.0
        return found[2.0 * matched >= (threshold - _SLACK) * total].tolist()
