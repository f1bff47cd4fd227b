"""Goals: what an episode asks for. Drawn once from an explicit generator, kept in arrays, made when asked for."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from progpo_trl.environments.webshop.products import Product

# The original shuffles its goals with this seed whatever the others are.
SHUFFLE_SEED = 233
# A price limit is one of these, the larger of two drawn from the next four above the price.
PRICE_LIMITS = tuple(10.0 * i for i in range(1, 100))
NEXT_LIMITS = 4
NO_LIMIT = 1_000_000.0
# More would not fit into memory; the official files stay far below.
MOST_COMBINATIONS = 1_000_000


class Goal(NamedTuple):
    """What an episode asks for.

    position: of the target in the catalogue; product: the target; instruction: the text the agent reads; attributes:
    wanted; options: wanted, as (name, value) pairs for synthetic goals and as values for human ones; price_upper: the
    highest price in dollars that is accepted.
    """

    position: int
    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...] | tuple[str, ...]
    price_upper: float


class Goals(Sequence[Goal]):
    """All goals of a catalogue, in the shuffled order; `goals[i]` makes the goal of index i.

    products: the catalogue's; positions: (n,) int32, the target's place among them; choices: (n,) int32, which
    combination of its options, or which of its human instructions; price_uppers: (n,) float64; human: which of the
    two kinds they are. 16 bytes a goal.
    """

    def __init__(
        self,
        products: Sequence[Product],
        positions: np.ndarray,
        choices: np.ndarray,
        price_uppers: np.ndarray,
        *,
        human: bool = False,
    ):
        self.products = products
        self.positions, self.choices, self.price_uppers = positions, choices, price_uppers
        self.human = human

    @classmethod
    def draw(
        cls,
        products: Sequence[Product],
        prices: np.ndarray,
        generator: random.Random,
        *,
        human: bool = False,
        candidates: Iterable[tuple[int, Product]] | None = None,
    ) -> Goals:
        """Draw the goals of a catalogue and shuffle them.

        prices: (n_products,); generator: the one that drew the prices, in the state that left it in; candidates: the
        products to look at with their positions, in order, where the caller has them at hand (default: all).
        Synthetic goals: each product with an instruction, once for every combination of its options. Human goals:
        each human instruction that asks for an attribute. ValueError for more combinations than a shop can hold.
        """
        draw = _human_choices if human else _synthetic_choices
        positions, choices, uppers = [], [], []
        for position, product in enumerate(products) if candidates is None else candidates:
            for upper, numbers in draw(product, float(prices[position]), generator):
                positions.append(np.full(len(numbers), position, np.int32))
                choices.append(np.array(numbers, np.int32))
                uppers.append(np.full(len(numbers), upper, np.float64))
        columns = [np.concatenate(parts) if parts else np.zeros(0, kind) for parts, kind in (
            (positions, np.int32), (choices, np.int32), (uppers, np.float64)
        )]  # fmt: skip
        order = list(range(len(columns[0])))
        random.Random(SHUFFLE_SEED).shuffle(order)
        return cls(products, *(column[order] for column in columns), human=human)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Goal:
        position, choice, upper = (column[index].item() for column in self._columns)
        product = self.products[position]
        limit = f", and price lower than {upper:.2f} dollars" if upper != NO_LIMIT else ""
        if self.human:
            asked = product.human[choice]
            return Goal(position, product, asked.text.strip(".") + limit, asked.attributes, asked.options, upper)
        options = combination(product.options, choice)
        listed = ", and ".join(f"{name}: {value}" for name, value in options)
        text = f"{product.instruction}{' with ' + listed if listed else ''}{limit}"
        return Goal(position, product, text, product.instruction_attributes, options, upper)

    @property
    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.positions, self.choices, self.price_uppers


def draw_prices(products: Iterable[Product], generator: random.Random) -> np.ndarray:
    """(n_products,) float64: each product's price; one uniform draw where it has a range."""
    return np.array(
        [p.prices[0] if len(p.prices) == 1 else generator.uniform(*p.prices) for p in products], np.float64
    )


def combination(options: dict[str, tuple[str, ...]], number: int) -> tuple[tuple[str, str], ...]:
    """Combination `number` of the options by sorted name; the last name's value changes fastest."""
    chosen = []
    for name in sorted(options, reverse=True):
        number, place = divmod(number, len(options[name]))
        chosen.append((name, options[name][place]))
    return tuple(reversed(chosen))


def _synthetic_choices(product: Product, price: float, generator: random.Random) -> list[tuple[float, Sequence[int]]]:
    if product.instruction is None:
        return []
    combinations = math.prod(map(len, product.options.values()))
    if combinations > MOST_COMBINATIONS:
        raise ValueError(f"product {product.asin} has {combinations} combinations of options")
    return [(_price_upper(price, generator), range(combinations))]


def _human_choices(product: Product, price: float, generator: random.Random) -> list[tuple[float, Sequence[int]]]:
    asked = enumerate(product.human)
    return [(_price_upper(price, generator), (number,)) for number, request in asked if request.attributes]


def _price_upper(price: float, generator: random.Random) -> float:
    above = [limit for limit in PRICE_LIMITS if limit > price][:NEXT_LIMITS]
    return max(generator.sample(above, 2)) if len(above) >= 2 else NO_LIMIT
