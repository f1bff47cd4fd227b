"""`Product`: what the shop knows of one article, and the rules that make it from a record of the official files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

# What the original takes for a product without a price, and without attributes.
MISSING_PRICE = 100.0
MISSING_ATTRIBUTES = ("DUMMY_ATTR",)
# Longer ids, and the word "nan", mark records that the original leaves out.
LONGEST_ASIN = 10


class HumanInstruction(NamedTuple):
    """A person's request for a product: its text, the attributes it asks for, and the option values it asks for."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """One article. Compares by identity; immutable by convention (`options` is a dict).

    asin: its id; prices: one price, or the two ends of a range, in dollars; price_tag: as shown; options: name ->
    values, in the order of the page; attributes, query, category, product_category, nouns (of the title, lower case):
    what the reward looks at; instruction, instruction_attributes: of the synthetic goals, None and () without;
    human: the human goals' requests.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    prices: tuple[float, ...]
    price_tag: str
    options: dict[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    query: str
    category: str
    product_category: str
    nouns: tuple[str, ...]
    instruction: str | None = None
    instruction_attributes: tuple[str, ...] = ()
    human: tuple[HumanInstruction, ...] = ()


def is_listed(asin: str) -> bool:
    """Whether the original keeps a product with this id (it also keeps only the first of equal ids)."""
    return asin != "nan" and len(asin) <= LONGEST_ASIN


def document(product: Product) -> str:
    """The text that is indexed for search: title, description, first bullet and options, in lower case."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join([product.title, product.description, product.bullets[0], options]).lower()


def parse_product(
    record: Mapping[str, Any],
    attributes: Mapping[str, Any] | None,
    nouns: Sequence[str],
    human: Sequence[Mapping[str, Any]] = (),
) -> Product:
    """The product of a record of items_shuffle*.json.

    attributes: its entry in items_ins_v2*.json, None if it has none; nouns: its entry in title_nouns*.json; human: its
    entry in items_human_ins.json. Raises ValueError that says which field is wrong.
    """
    prices, price_tag = _prices(_text(record, "pricing", optional=True))
    attributes = _object(attributes, "its entry among the attributes")
    instruction = _text(attributes, "instruction", optional=True) or None
    wanted = _texts(attributes, "instruction_attributes") if instruction else ()
    if instruction and not wanted:
        raise ValueError("an instruction without 'instruction_attributes'")
    return Product(
        asin=_text(record, "asin"),
        title=_text(record, "name"),
        description=_text(record, "full_description"),
        bullets=_bullets(record.get("small_description")),
        prices=prices,
        price_tag=price_tag,
        options=_options(record.get("customization_options")),
        attributes=_texts(attributes, "attributes") if "attributes" in attributes else MISSING_ATTRIBUTES,
        query=_text(record, "query").lower().strip(),
        category=_text(record, "category"),
        product_category=_text(record, "product_category"),
        nouns=_texts({"title nouns": nouns}, "title nouns"),
        instruction=instruction,
        instruction_attributes=wanted,
        human=tuple(_human(entry) for entry in human),
    )


def _prices(pricing: str) -> tuple[tuple[float, ...], str]:
    """("$5.00 to $7.50") -> ((5.0, 7.5), "$5.0 to $7.5"); a third price and more are ignored."""
    if not pricing:
        return (MISSING_PRICE,), f"${MISSING_PRICE}"
    try:
        prices = tuple(float(Decimal(re.sub(r"[^\d.]", "", part))) for part in pricing.split("$")[1:])
    except InvalidOperation:
        prices = ()
    if not prices or not all(map(math.isfinite, prices)):
        raise ValueError(f"'pricing' is {pricing[:60]!r}, not like $5.00 or $5.00 to $7.50")
    return prices[:2], " to ".join(f"${price}" for price in prices[:2])


def _options(customization: Any) -> dict[str, tuple[str, ...]]:
    if not customization:
        return {}
    options = {}
    for name, choices in _object(customization, "'customization_options'").items():
        if choices is None:
            continue
        if not isinstance(choices, list):
            raise ValueError(f"option {name[:60]!r} is not a list")
        values = [_text(_object(choice, f"a choice of option {name[:60]!r}"), "value") for choice in choices]
        options[name.lower()] = tuple(value.strip().replace("/", " | ").lower() for value in values)
    return options


def _bullets(small_description: Any) -> tuple[str, ...]:
    listed = small_description if isinstance(small_description, list) else [small_description]
    # An empty list has no first bullet to index; as an empty bullet it shows and adds nothing.
    return _texts({"small_description": listed}, "small_description") or ("",)


def _human(entry: Any) -> HumanInstruction:
    entry = _object(entry, "a human instruction")
    attributes, options = _texts(entry, "instruction_attributes"), _texts(entry, "instruction_options")
    return HumanInstruction(_text(entry, "instruction"), attributes, options)


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is not an object")
    return value


def _text(record: Mapping[str, Any], field: str, *, optional: bool = False) -> str:
    if field not in record and not optional:
        raise ValueError(f"has no {field!r}")
    value = record.get(field)
    if value is None and optional:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{field!r} is not text")
    return value


def _texts(record: Mapping[str, Any], field: str) -> tuple[str, ...]:
    value = record.get(field)
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{field!r} is not a list of texts")
    return tuple(value)
