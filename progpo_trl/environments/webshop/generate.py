"""A generated shop: product files in the official format without any real data, the embedded default.

Every record is a function of (level, seed, its family number), so a catalogue of any size streams in constant memory,
a smaller one is the beginning of a larger one, and any part can be made again.

Products come in families of near copies, which share kind and most traits and differ in one trait, brand, price and
options: a search finds the family, and only reading tells which one fits. At 1,000 products of the level "full" this
makes instructions about as hard as the real ones (docs/webshop.md has the numbers).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from progpo_trl.environments.webshop import assortment
from progpo_trl.environments.webshop.assortment import AUDIENCES, COLORS, DEPARTMENTS, SENTENCES, STYLES, Department

# name -> how many products a family has
LEVELS = {"full": 4, "tiny": 4}
_WITH_INSTRUCTION = 0.6  # of the products of "full"; the others are only in the way, as in the real files


@dataclass(frozen=True, slots=True)
class GeneratedProduct:
    """One product as the official files state it.

    item: a record of items_shuffle.json; instruction: its entry of items_ins_v2.json; nouns: of its title.
    """

    item: dict[str, Any]
    instruction: dict[str, Any]
    nouns: list[str]


def generate_records(products: int, seed: int = 0, level: str = "full", start: int = 0) -> Iterator[GeneratedProduct]:
    """Products `start` to `products` - 1 of a generated shop, in order.

    Raises ValueError for an unknown level or a count below 1.
    """
    if level not in LEVELS:
        raise ValueError(f"no level {level!r}; there are {', '.join(LEVELS)}")
    if products < 1:
        raise ValueError(f"products must be at least 1, not {products}")
    if start < 0:
        raise ValueError(f"start must be at least 0, not {start}")
    return _records(products, seed, level, start)


def _records(products: int, seed: int, level: str, start: int) -> Iterator[GeneratedProduct]:
    size = LEVELS[level]
    make = _tiny_family if level == "tiny" else _full_family
    for family in range(start // size, -(-products // size)):
        # A string seeds through SHA-512, so this does not depend on PYTHONHASHSEED.
        rng = random.Random(f"progpo_trl/webshop/{level}/{seed}/{family}")
        for number, product in enumerate(make(rng, family * size, size), family * size):
            if start <= number < products:
                yield product


def _full_family(rng: random.Random, first: int, size: int) -> Iterator[GeneratedProduct]:
    category = rng.choice(list(DEPARTMENTS))
    department = DEPARTMENTS[category]
    noun, query, shelf = rng.choice(department.kinds)
    audience = rng.choice(AUDIENCES)
    shared = rng.sample(department.traits, rng.randint(4, 6))
    for number in range(first, first + size):
        traits = list(shared)
        other = rng.choice([trait for trait in department.traits if trait not in traits])
        traits[rng.randrange(len(traits))] = other
        rng.shuffle(traits)
        yield _full_product(rng, f"G{number:09d}", category, noun, query, shelf, audience, traits)


def _full_product(
    rng: random.Random, asin: str, category: str, noun: str, query: str, shelf: str, audience: str, traits: list[str]
) -> GeneratedProduct:
    department = DEPARTMENTS[category]
    brand = _name(rng)
    style = rng.choice(STYLES)
    in_title, hidden = traits[:2], traits[2:]
    kind = noun.title()
    title = f"{brand} {style} {kind} for {audience}, {in_title[0].title()}, {in_title[1].title()}"
    if rng.random() < 0.7:
        edition = f"{_name(rng)} {rng.choice(assortment.QUALITIES).title()} Edition"
        title += f" - {edition}, {brand[:2].upper()}{rng.randint(10, 9999)}"
    # At most one hidden trait is in the description, which is searched; the others in bullets after the first, which
    # are not.
    told = hidden[:1] if rng.random() < 0.6 else []
    description = [f"The {noun} by {brand} is {trait}." for trait in told]
    description += [_sentence(rng, department, brand) for _ in range(rng.randint(3, 7))]
    bullets = [_sentence(rng, department, brand)]
    bullets += [f"{trait.capitalize()}: {_sentence(rng, department, brand)}" for trait in hidden if trait not in told]
    bullets += [_sentence(rng, department, brand) for _ in range(rng.randint(1, 4))]
    options = {
        name.title(): [{"value": value, "asin": None} for value in rng.sample(values, rng.randint(2, 4))]
        for name, values in department.options
        if rng.random() < 0.6
    }
    low, high = department.prices
    price = round(rng.uniform(low, high), 2)
    pricing = f"${price}"
    if rng.random() < 0.2:
        pricing = f"${price} to ${round(price * rng.uniform(1.1, 1.6), 2)}"
    item = {
        "asin": asin,
        "name": title,
        "category": category,
        "query": query,
        "product_category": f"{department.path} › {audience} › {shelf} › {kind}",
        "full_description": " ".join(description),
        "small_description": bullets,
        "pricing": pricing,
        "customization_options": options or "",
        "average_rating": "",
        "images": [],
    }
    wanted = rng.sample(traits, rng.randint(2, 3))
    instruction: dict[str, Any] = {"attributes": traits}
    if rng.random() < _WITH_INSTRUCTION:
        instruction["instruction"] = f"Looking for {', '.join(wanted[:-1])} {query} with {wanted[-1]}"
        instruction["instruction_attributes"] = wanted
    return GeneratedProduct(item, instruction, [brand.lower(), *noun.split(), audience.lower()])


def _name(rng: random.Random) -> str:
    """An invented name."""
    return "".join(rng.sample(assortment.SYLLABLES, rng.randint(2, 3))).title()


def _sentence(rng: random.Random, department: Department, brand: str) -> str:
    part, part2 = rng.sample(department.parts, 2)
    scene, scene2 = rng.sample(department.scenes, 2)
    return rng.choice(SENTENCES).format(
        quality=rng.choice(assortment.QUALITIES),
        adverb=rng.choice(assortment.ADVERBS),
        part=part,
        part2=part2,
        scene=scene,
        scene2=scene2,
        maker=brand,
        place=_name(rng),
        line=_name(rng),
        code=f"{rng.choice(COLORS)[:2].upper()}-{rng.randint(100, 99999)}",
        a=rng.randint(2, 90),
        b=rng.randint(2, 90),
        w=round(rng.uniform(0.1, 40), 1),
        days=rng.randint(2, 90),
    )


def _tiny_family(rng: random.Random, first: int, size: int) -> Iterator[GeneratedProduct]:
    """Two or three words a title, one or two traits, at most one option, prices with a zero after the point."""
    category = rng.choice(list(assortment.TINY_KINDS))
    noun = rng.choice(assortment.TINY_KINDS[category])
    pairs = [
        (trait, other) for trait in assortment.TINY_TRAITS for other in (*assortment.TINY_TRAITS, "") if trait != other
    ]
    for number, (trait, other) in enumerate(rng.sample(pairs, size), first):
        traits = [trait, other] if other else [trait]
        shown = traits[:1] if rng.random() < 0.2 else traits  # what is not in the title stands under Features
        colors = rng.sample(assortment.TINY_COLORS, 2) if rng.random() < 0.5 else []
        item = {
            "asin": f"p{number}",  # in lower case as actions are, so that it reads the same on the page and in a click
            "name": " ".join([*shown, noun]),
            "category": category,
            "query": noun,
            "product_category": f"{category} › {noun}",
            "full_description": f"a {noun}",
            "small_description": [f"it is {trait}" for trait in traits],
            "pricing": f"${rng.choice(assortment.TINY_PRICES)}",
            "customization_options": {"color": [{"value": color} for color in colors]} if colors else "",
            "average_rating": "",
            "images": [],
        }
        instruction = {
            "attributes": traits,
            "instruction": f"Buy a {' '.join(traits)} {noun}",
            "instruction_attributes": traits,
        }
        yield GeneratedProduct(item, instruction, [noun])
