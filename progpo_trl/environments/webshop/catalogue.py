"""`Catalogue`: an immutable shop that any number of episodes share: products, pages, search index, prices, goals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from progpo_trl.environments.webshop.goals import Goals, draw_prices
from progpo_trl.environments.webshop.pages import ProductPages, result_row
from progpo_trl.environments.webshop.products import Product, document

RESULTS = 50  # how many hits a search shows, as in the original
# Bounds on what is kept: a page is about 5 KB, a row 250 bytes, a search 500 bytes.
CACHED_PAGES, CACHED_ROWS, CACHED_SEARCHES = 2_048, 20_000, 4_096


class Index(Protocol):
    """A search index over documents numbered from 0."""

    def search(self, query: str, limit: int = RESULTS) -> tuple[int, ...]:
        """Numbers of the best documents, best first; of equal ones the lower number first."""
        ...


class Catalogue:
    """A shop. Subclass or fill it with other sequences to keep the products elsewhere than in memory.

    products: indexable by position and iterable; index: over the products' `document`s IN ASCENDING ORDER OF ASIN
    (`by_asin`), because that is how equal scores are ordered; prices: (n,) float64 dollars; goals: see `Goals`.

    by_asin: (n,) positions of the products in ascending order of asin, see `asin_order`.
    origin: how another process makes the same catalogue, (function, arguments); it is pickled as that when given,
    else with all it holds. `open_shop` keeps one per origin and process.
    """

    def __init__(
        self,
        products: Sequence[Product],
        index: Index,
        prices: np.ndarray,
        goals: Goals,
        by_asin: np.ndarray,
        *,
        origin: tuple[Callable[..., Catalogue], tuple] | None = None,
    ):
        self.products, self.index, self.prices, self.goals, self.by_asin = products, index, prices, goals, by_asin
        self.origin = origin
        self._open_caches()

    def _open_caches(self) -> None:
        self.search = lru_cache(CACHED_SEARCHES)(self._search)
        self.pages = lru_cache(CACHED_PAGES)(self._pages)
        self.row = lru_cache(CACHED_ROWS)(self._row)

    # search(query) -> positions of at most 50 products, best first; query: lower-case text.
    # pages(position) -> ProductPages; row(position) -> what a page of results says of the product.
    search: Callable[[str], tuple[int, ...]]
    pages: Callable[[int], ProductPages]
    row: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.products)

    def product(self, position: int) -> Product:
        """The product at `position`, counted from 0 in the order of the file."""
        return self.products[position]

    def price(self, position: int) -> float:
        """The product's price in dollars; for a range, the one drawn when the catalogue was built."""
        return float(self.prices[position])

    def position(self, asin: str) -> int:
        """Where the product is. KeyError when there is none."""
        low, high = 0, len(self.by_asin)
        while low < high:
            middle = (low + high) // 2
            if self.products[self.by_asin[middle]].asin < asin:
                low = middle + 1
            else:
                high = middle
        if low == len(self.by_asin) or self.products[self.by_asin[low]].asin != asin:
            raise KeyError(f"no product {asin!r}")
        return int(self.by_asin[low])

    def _search(self, query: str) -> tuple[int, ...]:
        return tuple(self.by_asin[list(self.index.search(query, RESULTS))].tolist())

    def _pages(self, position: int) -> ProductPages:
        return ProductPages(self.products[position])

    def _row(self, position: int) -> str:
        return result_row(self.products[position])

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return open_shop, self.origin
        return Catalogue, (self.products, self.index, self.prices, self.goals, self.by_asin)


def asin_order(asins: Iterable[str]) -> np.ndarray:
    """(n,) int32: positions in ascending order of asin."""
    asins = list(asins)
    return np.array(sorted(range(len(asins)), key=asins.__getitem__), np.int32)


def build_catalogue(
    products: Iterable[Product],
    *,
    seed: int = 0,
    human_goals: bool = False,
    progress: Callable[[Iterable], Iterable] | None = None,
    origin: tuple[Callable[..., Catalogue], tuple] | None = None,
) -> Catalogue:
    """A catalogue in memory.

    seed: draws the prices of price ranges and the goals' price limits; human_goals: goals from human instructions
    instead of synthetic ones; progress: wraps the documents while they are indexed (tqdm does).
    """
    from progpo_trl.environments.webshop.bm25 import SearchIndex

    products = list(products)
    generator = random.Random(seed)
    prices = draw_prices(products, generator)
    goals = Goals.draw(products, prices, generator, human=human_goals)
    by_asin = asin_order(product.asin for product in products)
    index = SearchIndex.build((document(products[i]) for i in by_asin.tolist()), progress=progress)
    return Catalogue(products, index, prices, goals, by_asin, origin=origin)


_OPEN: dict[tuple, Catalogue] = {}


def open_shop(make: Callable[..., Catalogue], arguments: tuple) -> Catalogue:
    """`make(*arguments)`, made once in a process; the arguments must be hashable."""
    key = (make, arguments)
    if key not in _OPEN:
        _OPEN[key] = make(*arguments)
    return _OPEN[key]
