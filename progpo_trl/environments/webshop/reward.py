"""The score of a purchase: how well a product, its price and the options chosen meet a goal.

    score = r_type * (attributes met + options met + [price <= limit]) / (attributes + options + 1)

The rules are those of the original (Yao et al. 2022, section 3 and its code), its oddities included; `strict` mends
what makes a goal unreachable or lets a wrong option pass. See `score_purchase`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from rapidfuzz import fuzz, utils

from progpo_trl.environments.webshop.colours import colour_in
from progpo_trl.environments.webshop.goals import Goal
from progpo_trl.environments.webshop.products import Product

# The original rounds the ratio and asks for more than 85; half rounds to even, so 85.5 is enough.
ENOUGH = 85.5
# Stands between the parts of a product category, as in "Home & Kitchen > Furniture".
CATEGORY_SEPARATOR = "\u203a"


class Reward(NamedTuple):
    """The score in [0, 1] and its parts.

    r_type: factor for the kind of product; r_att, r_option: shares of the attributes and options met, r_option None
    when none are wanted; r_price: within the limit; title_score: share of the target's title nouns;
    query_match, category_match: the same search query, two shared parts of the product category.
    """

    score: float
    r_type: float
    r_att: float
    r_option: float | None
    r_price: bool
    title_score: float
    query_match: bool
    category_match: bool

    def parts(self) -> dict[str, float]:
        """All but the score, by name; without r_option where no options are wanted."""
        return {name: value for name, value in self._asdict().items() if name != "score" and value is not None}


def score_purchase(
    product: Product, price: float, options: Mapping[str, str], goal: Goal, *, strict: bool = False
) -> Reward:
    """The reward for buying `product` at `price` dollars with `options` (name -> value) when `goal` was asked for.

    Attributes: met when similar to one of the product's, or literally in its title, bullets or description.
    Options as in the original: met when similar to any chosen value, both after `colour_in`. A synthetic goal's
    (name, value) pair is compared as Python prints it, which is why some such goals can never be met in full.
    strict: a (name, value) pair is met by exactly that choice. A human goal's value must be bought as it is when the
    target offers it so (up to punctuation and case); one that it does not offer is compared as in the original.
    """
    target = goal.product
    query_match = product.query == target.query
    category_match = len(_categories(product) & _categories(target)) >= 2
    title_score = _title_score(product, target)
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    # These override a match of query or category, as in the original.
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0.0:
        r_type = 0.0
    attributes = _attributes_met(product, goal.attributes)
    chosen = (_strict_options_met if strict else _options_met)(options, goal)
    r_price = price <= goal.price_upper
    score = (attributes + chosen + r_price) / (len(goal.attributes) + len(goal.options) + 1) * r_type
    r_option = chosen / len(goal.options) if goal.options else None
    r_att = attributes / len(goal.attributes)
    return Reward(score, r_type, r_att, r_option, r_price, title_score, query_match, category_match)


def similar(first: object, second: object) -> bool:
    """Whether two texts share their words, by rapidfuzz's token_set_ratio of their ASCII characters."""
    return fuzz.token_set_ratio(_plain(first), _plain(second), score_cutoff=ENOUGH) >= ENOUGH


@lru_cache(16_384)
def _plain(value: object) -> str:
    return utils.default_process(str(value).encode("ascii", "ignore").decode())


def _categories(product: Product) -> set[str]:
    return {part.strip() for part in product.product_category.split(CATEGORY_SEPARATOR)}


def _title_score(product: Product, target: Product) -> float:
    """Nouns of the target's title that the product's has: distinct ones, over all with repeats, as in the original."""
    if not target.nouns:
        return 0.2
    return len(set(product.nouns) & set(target.nouns)) / len(target.nouns)


def _attributes_met(product: Product, wanted: tuple[str, ...]) -> int:
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return sum(
        any(attribute in text for text in texts) or any(similar(own, attribute) for own in product.attributes)
        for attribute in wanted
    )


def _options_met(options: Mapping[str, str], goal: Goal) -> int:
    bought = [colour_in(value) for value in options.values()]
    # `colour_in` of a pair looks for a colour that equals its name or value, as the original's code does.
    wanted = [colour_in(option) for option in goal.options]
    return sum(any(similar(value, option) for value in bought) for option in wanted)


def _strict_options_met(options: Mapping[str, str], goal: Goal) -> int:
    met = 0
    for option in goal.options:
        if isinstance(option, tuple):
            name, value = option
            met += options.get(name) == value
        else:
            offered = {_plain(value) for values in goal.product.options.values() for value in values}
            if _plain(option) in offered:
                met += any(_plain(value) == _plain(option) for value in options.values())
            else:
                met += any(similar(colour_in(value), colour_in(option)) for value in options.values())
    return met
