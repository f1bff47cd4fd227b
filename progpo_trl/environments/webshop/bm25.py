"""Ranked search, identical to the original's Lucene index in ids and order.

BM25 with k1 = 0.9 and b = 0.4 (Anserini's defaults). For a document d and a query, over the query's distinct terms t:

    score(d) = sum_t  w_t - w_t / (1 + f(t, d) / n(d)),    w_t = count of t in the query * idf(t)
    idf(t) = ln(1 + (N - df(t) + 0.5) / (df(t) + 0.5)),    n(d) = k1 * ((1 - b) + b * length(d) / average length)

`length(d)` is what is left of the number of terms after Lucene has packed it into one byte; N counts the documents
that have any term. Everything is computed in float32 as Lucene does. Best score first; equal scores in the order of
the ids. (The original reports scores rounded to 4 decimals, but orders by the unrounded ones.)

The index is a few numpy arrays, so it works the same in memory and memory-mapped (`store.py`).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from tqdm import tqdm

from progpo_trl.environments.webshop.analyzer import terms

K1 = np.float32(0.9)
B = np.float32(0.4)
_QUERIES_KEPT = 2048  # results kept; about 2 KB each
_TERMS_KEPT = 8192  # places of terms kept; about 150 bytes each
_MAX_FREQUENCY = 65535  # of a term in one document, as stored


def _unpack(code: int) -> int:
    """The document length that Lucene's one-byte code stands for: exact up to 39, then four significant bits."""
    exact = 24  # codes below stand for themselves: 255 minus the code of the largest int
    if code < exact:
        return code
    mantissa, shift = (code - exact) & 7, ((code - exact) >> 3) - 1
    return exact + (mantissa if shift < 0 else (mantissa | 8) << shift)


LENGTHS = np.array([_unpack(code) for code in range(256)], np.int64)


def pack_lengths(lengths: np.ndarray) -> np.ndarray:
    """(n,) uint8 codes of document lengths: the largest code whose length is not above."""
    return (np.searchsorted(LENGTHS, lengths, side="right") - 1).astype(np.uint8)


@dataclass(frozen=True)
class IndexArrays:
    """The index as arrays. Postings of term i are `documents[starts[i]:starts[i + 1]]`, and `frequencies` likewise.

    term_bytes: the terms in UTF-8, sorted bytewise, without separators; term_ends: (terms,) int64, where each ends;
    starts: (terms + 1,) int64; documents: (postings,) int32, ascending within a term; frequencies: (postings,) uint16;
    lengths: (documents,) uint8 codes (`pack_lengths`); ranks: (documents,) int32, the place of each id among all,
    for equal scores; total: (2,) int64: documents with any term, terms of all documents with repeats.
    """

    term_bytes: np.ndarray
    term_ends: np.ndarray
    starts: np.ndarray
    documents: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray
    ranks: np.ndarray
    total: np.ndarray

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))


class Postings:
    """Collects documents in order and sorts their postings by term; one part of an index.

    Memory: 10 bytes a posting and the terms seen.
    """

    def __init__(self):
        self._numbers: dict[str, int] = {}
        self._terms = array("i")
        self._documents = array("i")
        self._frequencies = array("H")
        self.lengths = array("i")

    def add(self, text: str) -> None:
        """The next document."""
        counts = Counter(terms(text))
        document = len(self.lengths)
        numbers = self._numbers
        self._terms.extend([numbers.setdefault(term, len(numbers)) for term in counts])
        self._documents.extend([document] * len(counts))
        self._frequencies.extend([min(count, _MAX_FREQUENCY) for count in counts.values()])
        self.lengths.append(counts.total())

    def arrays(self) -> tuple[list[bytes], np.ndarray, np.ndarray, np.ndarray]:
        """(terms sorted bytewise, postings of each (terms,), documents (postings,), frequencies (postings,))."""
        encoded = [term.encode("utf-8", "surrogatepass") for term in self._numbers]
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        place = np.empty(len(encoded), np.int64)
        place[order] = np.arange(len(encoded))
        of_posting = place[np.frombuffer(self._terms, np.int32)] if self._terms else np.empty(0, np.int64)
        by_term = np.argsort(of_posting, kind="stable")  # keeps the documents of a term ascending
        counts = np.bincount(of_posting, minlength=len(encoded))
        return (
            [encoded[i] for i in order],
            counts,
            np.frombuffer(self._documents, np.int32)[by_term] if self._documents else np.empty(0, np.int32),
            np.frombuffer(self._frequencies, np.uint16)[by_term] if self._frequencies else np.empty(0, np.uint16),
        )


def ranks_of(ids: Sequence[str]) -> np.ndarray:
    """(n,) int32: the place of each id in the sorted order, which decides between equal scores."""
    ranks = np.empty(len(ids), np.int32)
    ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids), dtype=np.int32)
    return ranks


class SearchIndex:
    """Finds documents by their words. Immutable; results of recent queries are kept."""

    def __init__(self, arrays: IndexArrays):
        self.arrays = arrays
        with_terms, all_terms = (int(value) for value in arrays.total)
        average = np.float32(all_terms / with_terms) if with_terms else np.float32(1)
        norms = K1 * ((np.float32(1) - B) + B * LENGTHS.astype(np.float32) / average)
        self._inverse_norms = (np.float32(1) / norms).astype(np.float32)
        self._with_terms = with_terms
        self._find = lru_cache(maxsize=_QUERIES_KEPT)(self._search)
        self._number = lru_cache(maxsize=_TERMS_KEPT)(self._term_number)

    @classmethod
    def build(cls, documents: Iterable[str], ids: Sequence[str], progress: bool = False) -> SearchIndex:
        """Index texts in memory. ids: one for each, unique; they decide between equal scores.

        Raises ValueError when there are more or fewer ids than documents.
        """
        postings = Postings()
        for text in tqdm(documents, "Indexing products", len(ids), unit="product", disable=not progress):
            postings.add(text)
        if len(postings.lengths) != len(ids):
            raise ValueError(f"{len(postings.lengths)} documents but {len(ids)} ids")
        found, counts, places, frequencies = postings.arrays()
        lengths = np.array(postings.lengths, np.int64)
        return cls(
            IndexArrays(
                term_bytes=np.frombuffer(b"".join(found), np.uint8),
                term_ends=np.cumsum([len(term) for term in found], dtype=np.int64),
                starts=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
                documents=places,
                frequencies=frequencies,
                lengths=pack_lengths(lengths),
                ranks=ranks_of(ids),
                total=np.array([np.count_nonzero(lengths), lengths.sum()], np.int64),
            )
        )

    def __len__(self) -> int:
        return len(self.arrays.lengths)

    def __reduce__(self):
        return SearchIndex, (self.arrays,)  # without what it keeps

    def search(self, query: str, limit: int = 50) -> tuple[int, ...]:
        """Positions of at most `limit` documents that share a term with `query`, best first."""
        return self._find(query, limit)

    def scores(self, query: str) -> np.ndarray:
        """(documents,) float32; 0 for documents without any term of the query."""
        arrays = self.arrays
        scores = np.zeros(len(self), np.float32)
        for term, count in Counter(terms(query)).items():
            number = self._number(term)
            if number is None:
                continue
            low, high = int(arrays.starts[number]), int(arrays.starts[number + 1])
            documents = arrays.documents[low:high]
            holding = high - low
            idf = np.float32(math.log(1 + (self._with_terms - holding + 0.5) / (holding + 0.5)))
            weight = np.float32(count) * idf
            inverse = self._inverse_norms[arrays.lengths[documents]]
            scores[documents] += weight - weight / (np.float32(1) + arrays.frequencies[low:high] * inverse)
        return scores

    def _search(self, query: str, limit: int) -> tuple[int, ...]:
        scores = self.scores(query)
        found = np.flatnonzero(scores)
        if limit < 1 or not len(found):
            return ()
        if len(found) > limit:
            # Everything that may be among the best, with all that equal the last of them.
            values = scores[found]
            found = found[values >= np.partition(values, len(values) - limit)[len(values) - limit]]
        order = np.lexsort((self.arrays.ranks[found], -scores[found]))[:limit]
        return tuple(found[order].tolist())

    def _term_number(self, text: str) -> int | None:
        """The place of a term among the sorted ones, by halving; None when no document has it."""
        term = text.encode("utf-8", "surrogatepass")
        ends, data = self.arrays.term_ends, self.arrays.term_bytes
        low, high = 0, len(ends)
        while low < high:
            middle = (low + high) // 2
            start = int(ends[middle - 1]) if middle else 0
            found = data[start : int(ends[middle])].tobytes()
            if found == term:
                return middle
            if found < term:
                low = middle + 1
            else:
                high = middle
        return None
