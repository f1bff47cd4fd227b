"""The pages of the shop as text, and what can be clicked on them: pure functions of products.

A page is its text nodes joined by SEPARATOR, as the original's text mode reads them out of its HTML. Every node is
stripped; one of white space alone is dropped if it holds a line break and becomes an empty entry if it does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from progpo_trl.environments.webshop.products import Product

SEPARATOR = " [SEP] "
RESULTS_PER_PAGE = 10
BACK, PREVIOUS, NEXT, BUY, SEARCH = "Back to Search", "< Prev", "Next >", "Buy Now", "Search"
DESCRIPTION, FEATURES, REVIEWS = "Description", "Features", "Reviews"
SUB_PAGES = {name.lower(): name for name in (DESCRIPTION, FEATURES, REVIEWS)}
# What HTML counts as white space; str.strip() alone would take more.
_WHITE_SPACE = " \n\t\f\r"


class ProductPages:
    """A product's pages: what follows the instruction on them, and what can be clicked.

    item: the product's own page; sub: name -> description, features and reviews; clickables: of the product's page,
    in order; options: option value -> its option's names, in the order of the page.
    """

    __slots__ = ("clickables", "item", "options", "sub")

    def __init__(self, product: Product):
        self.options: dict[str, tuple[str, ...]] = {}
        nodes: list[str] = [BACK, PREVIOUS]
        for name, values in product.options.items():
            nodes += _node(name)
            for value in values:
                nodes += _node(value)
                names = self.options.get(value, ())
                if name not in names:
                    self.options[value] = (*names, name)
        nodes += _node(product.title)
        nodes += [f"Price: {product.price_tag}", "Rating: N.A.", DESCRIPTION, FEATURES, REVIEWS, BUY]
        self.item = SEPARATOR.join(nodes)
        top = [BACK, PREVIOUS]
        bullets = [node for bullet in product.bullets for node in _node(" " + bullet)]
        self.sub = {
            DESCRIPTION: SEPARATOR.join(top + _node(product.description)),
            FEATURES: SEPARATOR.join(top + bullets),
            REVIEWS: SEPARATOR.join(top),
        }
        buttons = [text.lower() for text in (BACK, PREVIOUS, DESCRIPTION, FEATURES, REVIEWS, BUY)]
        self.clickables = tuple(dict.fromkeys([*buttons, *self.options]))


class ResultRow(NamedTuple):
    """A product on a page of results. text: its id, title and price; clickable: what is clicked to open it."""

    text: str
    clickable: str


def result_row(product: Product) -> ResultRow:
    """How a page of results shows a product."""
    return ResultRow(SEPARATOR.join([product.asin, *_node(product.title), product.price_tag]), product.asin.lower())


def header(instruction: str) -> str:
    """How every page but the last begins."""
    return f"Instruction:{SEPARATOR}{instruction.strip()}{SEPARATOR}"


def start_page(head: str) -> str:
    """The page with the search bar. head: of `header`."""
    return f"WebShop{SEPARATOR}{head}{SEARCH}"


def last_page(total: int) -> int:
    """Number of the last page of `total` results; 1 without any."""
    return max(1, -(-total // RESULTS_PER_PAGE))


def results_page(head: str, number: int, total: int, rows: Iterable[ResultRow]) -> str:
    """Page `number`, from 1, of `total` results. "Next >" stands on every page, the last one too."""
    nodes = [BACK, f"Page {number} (Total results: {total})", *([PREVIOUS] if number > 1 else []), NEXT]
    return head + SEPARATOR.join([*nodes, *(row.text for row in rows)])


def results_clickables(number: int, rows: Iterable[ResultRow]) -> tuple[str, ...]:
    """What can be clicked on a page of results."""
    previous = (PREVIOUS.lower(),) if number > 1 else ()
    return (BACK.lower(), *previous, NEXT.lower(), *(row.clickable for row in rows))


def end_page(asin: str, options: Mapping[str, str], score: float) -> str:
    """The page after "Buy Now". It has no instruction and nothing to click."""
    bought = json.dumps(options, sort_keys=True)
    for character in "<>&'":
        bought = bought.replace(character, f"\\u{ord(character):04x}")
    return _END.format(asin=asin, options=bought, score=score)


# The original's page, its spelling included; in text mode everything that is not filled in reads "None".
_END = SEPARATOR.join(
    line.strip()
    for line in """
    Thank you for shopping with us! | Your code: | None | (Paste it in your MTurk interface.)
    | Purchased | asin | {asin} | options | {options} | attrs | None | category | None | query | None
    | product category | None | Target | asin | options | attrs | price upper | instuction text | category
    | product category | query | Goal | None | Reward | Your score (min 0.0, max 1.0) | {score}
    | Reward Details | None
    """.split("|")
)


def _node(text: str) -> list[str]:
    """The text node of `text` as a list of one entry, or of none."""
    if not text:
        return []
    if not text.strip(_WHITE_SPACE):
        return [] if "\n" in text else [""]
    return [text.strip()]
