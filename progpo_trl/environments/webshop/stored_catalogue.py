"""`StoredCatalogue`: a catalogue whose data stay in the mapped files of a store.

The sizes of the files were compared before, not their content: reading gigabytes would take longer than opening. So
what they hold is looked at where it is used, and damage is a ShopFileError that names file and record, whenever it
comes to light.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from progpo_trl.environments.webshop.bm25 import IndexArrays, SearchIndex
from progpo_trl.environments.webshop.catalogue import Catalogue, Origin
from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.goals import Goal, Goals
from progpo_trl.environments.webshop.store_parts import (
    GOALS,
    HOW_TO_BUILD,
    PackedProducts,
    encode_asins,
    map_array,
)

_PRODUCTS = {"product_ends": "i8", "prices": "f8", "asins": "S", "asin_positions": "i4"}
_INDEX = {
    "term_bytes": "u1",
    "term_ends": "i8",
    "starts": "i8",
    "documents": "i4",
    "frequencies": "u2",
    "lengths": "u1",
    "ranks": "i4",
    "total": "i8",
}
_GOALS = dict(zip(GOALS, ("i4", "i4", "f8"), strict=True))


class StoredCatalogue(Catalogue):
    """The catalogue in a store. Made by `open_store`, which checks the manifest and the sizes of the files.

    folder, manifest: the store's; human_goals: goals from human instructions instead of synthetic ones; origin: what
    it is pickled as. ShopFileError for files whose arrays do not fit one another.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any], *, human_goals: bool = False, origin: Origin):
        self.folder, self.manifest = folder, manifest
        n = manifest["products"]
        data = _mapped(folder, "products", "u1")
        columns = {name: _mapped(folder, name, kind, n) for name, kind in _PRODUCTS.items()}
        products = PackedProducts(data, columns["product_ends"], str(folder / "products.npy"))
        index = {name: _mapped(folder, f"index_{name}", kind) for name, kind in _INDEX.items()}
        for name, length in {
            "starts": len(index["term_ends"]) + 1,
            "frequencies": len(index["documents"]),
            "lengths": n,
            "ranks": n,
            "total": 2,
        }.items():
            _check_length(folder, f"index_{name}", index[name], length)
        if not 0 <= index["total"][0] <= min(n, index["total"][1]):
            raise _damaged(folder, "index_total", "is damaged: it holds impossible counts")
        self._asins, self._asin_positions = columns["asins"], columns["asin_positions"]
        super().__init__(
            products,
            SearchIndex(IndexArrays(**index)),
            columns["prices"],
            StoredGoals.open(folder, products, human=human_goals),
            origin=origin,
            skipped=manifest["skipped"],
        )

    def search(self, query: str) -> tuple[int, ...]:
        """See `Catalogue.search`. ShopFileError when the index leads nowhere."""
        try:
            return super().search(query)
        except (IndexError, ValueError) as error:
            # A document that is not there, or more or fewer documents with a term than there can be.
            name = "index_documents" if isinstance(error, IndexError) else "index_starts"
            raise _damaged(self.folder, name, f"is damaged: {query[:60]!r} cannot be searched: {error}") from None

    def position(self, asin: str) -> int:
        """Where the product is. KeyError when there is none."""
        wanted = encode_asins([asin])[0]
        place = int(np.searchsorted(self._asins, wanted))
        if place == len(self._asins) or self._asins[place] != wanted:
            raise KeyError(asin)
        position = int(self._asin_positions[place])
        if not 0 <= position < len(self):
            raise _damaged(self.folder, "asin_positions", f"is damaged: it names product {position}", place)
        return position


class StoredGoals(Goals):
    """The goals of a store; ShopFileError for one that its product does not have."""

    @classmethod
    def open(cls, folder: Path, products: PackedProducts, *, human: bool) -> StoredGoals:
        """Those in `folder`; human: from human instructions. ShopFileError for goals of products there are not."""
        names = {name: f"goals_{'human' if human else 'synthetic'}_{name}" for name in GOALS}
        columns = [_mapped(folder, names[name], kind) for name, kind in _GOALS.items()]
        for name, column in zip(GOALS, columns, strict=True):
            _check_length(folder, names[name], column, len(columns[0]))
        if human and not len(columns[0]):
            raise ShopFileError(str(folder), "holds no human instructions: it was built without items_human_ins.json")
        # Read at once, a hundredth of a second for the full set: task ids and splits are made of it.
        wrong = np.flatnonzero((columns[0] < 0) | (columns[0] >= len(products)))
        if len(wrong):
            place = int(wrong[0])
            raise _damaged(folder, names["positions"], f"is damaged: it names product {columns[0][place]}", place)
        goals = cls(products, *columns, human=human)
        goals._place = folder, names["choices"]
        return goals

    def __getitem__(self, index: int) -> Goal:
        self.positions[index]  # an index that is too large is the caller's error
        try:
            goal = super().__getitem__(index)
        except (IndexError, ZeroDivisionError):
            goal = None
        if goal is None or not goal.attributes:
            raise _damaged(*self._place, "is damaged: it asks for what its product does not have", index)
        return goal


def _mapped(folder: Path, name: str, kind: str, length: int | None = None) -> np.ndarray:
    """The array of `<name>.npy`. ShopFileError unless it is a row of `kind` numbers, or texts for "S", and as long."""
    array = map_array(folder, name)
    if array.ndim != 1 or (array.dtype.kind != "S" if kind == "S" else array.dtype != np.dtype(kind)):
        raise _damaged(folder, name, f"is damaged: it holds {array.dtype} of shape {array.shape}")
    if length is not None:
        _check_length(folder, name, array, length)
    return array


def _check_length(folder: Path, name: str, array: np.ndarray, length: int) -> None:
    if len(array) != length:
        raise _damaged(folder, name, f"is damaged: it has {len(array)} entries instead of {length}")


def _damaged(folder: Path, name: str, problem: str, place: int | None = None) -> ShopFileError:
    """The error for the file `name`, and in it the record at `place`, from 0."""
    record = "" if place is None else f", record {place + 1}"
    return ShopFileError(f"{folder / name}.npy{record}", f"{problem}. {HOW_TO_BUILD}")
