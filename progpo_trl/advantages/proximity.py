"""How near two observations are: TF-IDF vectors as scikit-learn makes them, and softmax-weighted baselines.

Everything works on the distinct texts of a group with their multiplicities, in blocks: no matrix over all pairs of
steps ever exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Entries of a block of similarities, 16 MB: large enough for BLAS, small enough for any machine.
_BLOCK = 2_000_000
# Cosines this close to the largest are equal to it, in the limit tau = 0.
_TIE = 1e-9

# Terms beyond this number are kept sparse: all terms of many long texts would not fit.
_DENSE = 2048


@dataclass(frozen=True)
class UnitVectors:
    """Vectors of length 1 (or 0), one a text: dense (n, size), and the rarer terms as a sparse matrix where needed."""

    dense: np.ndarray
    rare: Any = None

    def __len__(self) -> int:
        return len(self.dense)

    def __getitem__(self, texts: np.ndarray) -> UnitVectors:
        return UnitVectors(self.dense[texts], None if self.rare is None else self.rare[texts])

    def cosines(self, texts: np.ndarray) -> np.ndarray:
        """(len(texts), n) cosines of some of the texts with all."""
        out = self.dense[texts] @ self.dense.T
        if self.rare is not None:
            out += (self.rare[texts] @ self.rare.T).toarray()
        return out


Vectors = Callable[[np.ndarray, np.ndarray], "UnitVectors | None"]


class TfidfVectors:
    """TF-IDF vectors of texts with multiplicities, the same as scikit-learn's `TfidfVectorizer` on all the copies.

    Lower case; tokens of two word characters or more; count * (ln((1 + n) / (1 + df)) + 1); L2 norm; `max_features`
    keeps the most frequent terms of the fit. Source: scikit-learn's defaults, which ProxMO's code uses.
    """

    def __init__(self, texts: list[str], max_features: int | None):
        from sklearn.feature_extraction.text import CountVectorizer

        self._max_features = max_features
        try:
            self._counts = CountVectorizer().fit_transform(texts)
        except ValueError:  # no text has a token
            self._counts = None

    def __call__(self, codes: np.ndarray, copies: np.ndarray) -> UnitVectors | None:
        """Vectors of the texts `codes`, fitted on them; None when none has a token."""
        return None if (fit := self._fit(codes, copies)) is None else self._transform(codes, *fit)

    def fitted(self, codes: np.ndarray, copies: np.ndarray) -> Vectors:
        """The same, but fitted once on these texts whatever is asked for later."""
        fit = self._fit(codes, copies)
        return lambda wanted, _: None if fit is None else self._transform(wanted, *fit)

    def _fit(self, codes: np.ndarray, copies: np.ndarray):
        """(columns kept, idf of each), or None."""
        if self._counts is None:
            return None
        counts = self._counts[codes]
        copies_of = np.repeat(copies, np.diff(counts.indptr))
        n_terms = counts.shape[1]
        df = np.bincount(counts.indices, copies_of, n_terms)
        columns = np.flatnonzero(df)
        if len(columns) == 0:
            return None
        if self._max_features is not None and len(columns) > self._max_features:
            frequency = np.bincount(counts.indices, counts.data * copies_of, n_terms)[columns].astype(np.int64)
            # The same call as scikit-learn's on the same numbers, so that ties fall the same way.
            columns = columns[np.sort((-frequency).argsort()[: self._max_features])]
        return columns, np.log((1 + copies.sum()) / (1 + df[columns])) + 1

    def _transform(self, codes: np.ndarray, columns: np.ndarray, idf: np.ndarray) -> UnitVectors:
        terms = self._counts[codes][:, columns].astype(float)
        terms.data *= idf[terms.indices]
        row = np.repeat(np.arange(len(codes)), np.diff(terms.indptr))
        terms.data /= np.sqrt(np.bincount(row, terms.data**2, len(codes)))[row]
        if len(columns) <= _DENSE:
            return UnitVectors(terms.toarray())
        common = np.zeros(len(columns), bool)
        common[np.argsort(idf, kind="stable")[: _DENSE // 2]] = True
        return UnitVectors(terms[:, common].toarray(), terms[:, ~common])


def embedding_vectors(texts: list[str], embed: Callable[[list[str]], np.ndarray]) -> Vectors:
    """The vectors that `embed` gives each text, at length 1; called once for all texts of a batch."""
    vectors = np.asarray(embed(list(texts)), float)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(f"embed returned shape {vectors.shape} for {len(texts)} texts; it must be (n_texts, size)")
    if not np.isfinite(vectors).all():
        raise ValueError("embed returned a vector that is not finite")
    length = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    vectors = UnitVectors(vectors / np.where(length > 0, length, 1.0))
    return lambda codes, _: vectors[codes]


def soft_baseline(
    vectors: UnitVectors, text: np.ndarray, values: np.ndarray, tau: float, exclude_self: bool
) -> np.ndarray:
    """(n,) softmax-weighted mean of `values` over all n steps, weights softmax(cos / tau) to each step.

    text: (n,) the text of each step, as its place in `vectors`. A zero vector is equally near to all.
    tau = 0 is the limit: the mean over the nearest. exclude_self: the step itself is left out; a step that is alone
    gets its own value.
    """
    copies = np.bincount(text, minlength=len(vectors)).astype(float)
    total = np.bincount(text, values, len(vectors))
    sums = np.column_stack([copies, total])
    found = np.empty((len(vectors), 2))
    own = np.ones(len(vectors))
    size = max(1, _BLOCK // len(vectors))
    for start in range(0, len(vectors), size):
        block = np.arange(start, min(start + size, len(vectors)))
        weights = vectors.cosines(block)
        diagonal = (np.arange(len(block)), block)
        if exclude_self:  # the only copy of a text is no candidate for itself
            lone = copies[block] == 1
            weights[diagonal[0][lone], diagonal[1][lone]] = -np.inf
        _softmax_numerators(weights, tau)
        own[block] = weights[diagonal]
        found[block] = weights @ sums
    if not exclude_self:
        return (found[:, 1] / found[:, 0])[text]
    several = copies[text] > 1
    count = found[text, 0] - own[text] * several
    summed = found[text, 1] - own[text] * several * values
    return np.where(count > 0, summed / np.where(count > 0, count, 1.0), values)


def _softmax_numerators(similarity: np.ndarray, tau: float) -> None:
    """exp((cos - largest of the row) / tau), in place; for tau = 0, 1 at the largest and 0 elsewhere."""
    largest = similarity.max(axis=1, keepdims=True)
    similarity -= np.where(np.isfinite(largest), largest, 0.0)
    if tau == 0:
        np.greater_equal(similarity, -_TIE, out=similarity, casting="unsafe")
        return
    similarity /= tau
    np.exp(similarity, out=similarity)
