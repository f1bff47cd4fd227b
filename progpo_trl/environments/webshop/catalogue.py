"""`Catalogue`: an immutable shop that any number of episodes share: products, pages, search index, prices, goals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np

from progpo_trl.environments.webshop.goals import Goals, draw_prices
from progpo_trl.environments.webshop.pages import ProductPages, ResultRow, result_row
from progpo_trl.environments.webshop.products import Product, document

RESULTS = 50  # how many hits a search has at most, as in the original
# Bounds on what is kept: a product's pages are about 5 KB, a row 250 bytes.
CACHED_PAGES, CACHED_ROWS = 2_048, 16_384

# How another process makes the same catalogue: (function, its hashable arguments).
Origin = tuple[Callable[..., "Catalogue"], tuple]


class Index(Protocol):
    """A search index over the products' `document`s, by position."""

    def search(self, query: str, limit: int = RESULTS) -> tuple[int, ...]:
        """Positions of the best documents, best first; of equal ones first the lower asin. Keeps recent results."""
        ...


class Catalogue:
    """A shop. Give it other sequences, or subclass it, to keep its data elsewhere than in memory.

    products: indexable by position and iterable; index: see `Index`; prices: (n,) float64 dollars; goals: see `Goals`;
    origin: what it is pickled as; without one it is pickled with all it holds; skipped: reason -> how many records of
    the files were left out. Pages are rendered when first asked for and kept.
    """

    def __init__(
        self,
        products: Sequence[Product],
        index: Index,
        prices: np.ndarray,
        goals: Goals,
        *,
        origin: Origin | None = None,
        skipped: Mapping[str, int] | None = None,
    ):
        self.products, self.index, self.prices, self.goals = products, index, prices, goals
        self.origin = origin
        self.skipped = dict(skipped or {})
        self.pages: Callable[[int], ProductPages] = lru_cache(CACHED_PAGES)(self._pages)
        self.row: Callable[[int], ResultRow] = lru_cache(CACHED_ROWS)(self._row)

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
        return self._positions[asin]

    def search(self, query: str) -> tuple[int, ...]:
        """Positions of the at most 50 products a search shows, best first."""
        return self.index.search(query, RESULTS)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {product.asin: position for position, product in enumerate(self.products)}

    def _pages(self, position: int) -> ProductPages:
        return ProductPages(self.product(position))

    def _row(self, position: int) -> ResultRow:
        return result_row(self.product(position))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return open_shop, self.origin
        return Catalogue, (self.products, self.index, self.prices, self.goals), {"skipped": self.skipped}


def build_catalogue(
    products: Iterable[Product],
    *,
    seed: int = 0,
    human_goals: bool = False,
    progress: bool = False,
    origin: Origin | None = None,
    skipped: Mapping[str, int] | None = None,
) -> Catalogue:
    """A catalogue in memory.

    seed: draws the prices of price ranges and the goals' price limits; human_goals: goals from human instructions
    instead of synthetic ones; progress: show a bar while the products are indexed; skipped: what `products` leaves
    out, counted by whoever reads them (see `Catalogue`).
    """
    from progpo_trl.environments.webshop.bm25 import SearchIndex

    products = list(products)
    generator = random.Random(seed)
    prices = draw_prices(products, generator)
    goals = Goals.draw(products, prices, generator, human=human_goals)
    asins = [product.asin for product in products]
    index = SearchIndex.build((document(product) for product in products), asins, progress)
    return Catalogue(products, index, prices, goals, origin=origin, skipped=skipped)


@lru_cache(4)
def open_shop(make: Callable[..., Catalogue], arguments: tuple) -> Catalogue:
    """`make(*arguments)`; the catalogues last opened in this process are kept and shared."""
    return make(*arguments)
