"""The generated shop: official format, the same for the same seed, and about as hard as it claims."""

import argparse
import json
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from progpo_trl.environments.webshop.catalogue import build_catalogue
from progpo_trl.environments.webshop.generate import LEVELS, generate_records
from progpo_trl.environments.webshop.products import is_listed, parse_product
from progpo_trl.environments.webshop.store import add_arguments


def as_json(records):
    return json.dumps([[made.item, made.instruction, made.nouns] for made in records])


def shop(products, level="full", seed=0):
    made = generate_records(products, seed, level)
    return build_catalogue(parse_product(record.item, record.instruction, record.nouns) for record in made)


@pytest.mark.parametrize("level", LEVELS)
def test_a_shop_is_a_function_of_its_arguments(level):
    whole = list(generate_records(60, 3, level))
    assert as_json(generate_records(60, 3, level)) == as_json(whole)
    assert as_json(generate_records(23, 3, level)) == as_json(whole[:23])  # a smaller shop is the beginning
    assert as_json(generate_records(60, 3, level, start=17)) == as_json(whole[17:])
    assert as_json(generate_records(60, 4, level)) != as_json(whole)


def test_it_does_not_depend_on_the_hash_seed():
    code = (
        "from progpo_trl.environments.webshop.generate import *;"
        "print([(r.item, r.instruction, r.nouns) for r in generate_records(12)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_the_records_are_of_the_official_format(level):
    records = json.loads(as_json(generate_records(400, 0, level)))
    asins = [item["asin"] for item, _, _ in records]
    assert len(set(asins)) == 400
    assert all(map(is_listed, asins))
    for item, instruction, nouns in records:
        product = parse_product(item, instruction, nouns)
        assert product.title == item["name"]
        title = item["name"].lower()
        assert all(noun in title for noun in nouns)
        assert set(product.instruction_attributes) <= set(product.attributes)
        # What a product is like can be read somewhere on its pages.
        pages = " ".join([title, product.description, *product.bullets]).lower()
        assert all(attribute in pages for attribute in product.attributes)


def test_a_large_shop_streams():
    last = next(generate_records(10_000_000, start=9_999_999))
    assert last.item["asin"] == "G009999999"
    assert len(list(islice(generate_records(10_000_000), 3))) == 3


def test_wrong_arguments():
    with pytest.raises(ValueError, match="no level 'huge'; there are full, tiny"):
        generate_records(10, level="huge")
    with pytest.raises(ValueError, match="products must be at least 1"):
        generate_records(0)


def test_a_search_for_the_instruction_shows_the_target_about_as_often_as_in_the_real_shop():
    """Real, 1,000 products: first in .52, among the first ten in .90, in the list in .996 of the searches."""
    catalogue = shop(1000)
    places = []
    for index in range(0, len(catalogue.goals), 7):
        goal = catalogue.goals[index]
        found = catalogue.search(goal.instruction.lower())
        places.append(found.index(goal.position) if goal.position in found else 99)
    share = [sum(place < n for place in places) / len(places) for n in (1, 10, 50)]
    assert 0.35 < share[0] < 0.6
    assert 0.8 < share[1] < 0.97
    assert share[2] > 0.97


def test_the_tiny_level_has_few_words_and_short_pages():
    catalogue = shop(100, "tiny")
    vocabulary, longest = set(), 0
    for position in range(100):
        product = catalogue.product(position)
        texts = [product.title, product.description, *product.bullets, *product.options]
        vocabulary.update(" ".join([*texts, *(v for vs in product.options.values() for v in vs)]).split())
        longest = max(longest, len(catalogue.pages(position).item.split()))
    assert len(vocabulary) < 30
    assert longest < 45
    assert {len(product.attributes) for product in catalogue.products} == {1, 2}
    assert {len(product.options) for product in catalogue.products} == {0, 1}
    assert all(product.instruction for product in catalogue.products)


def test_the_example_in_the_docs_runs():
    page = (Path(__file__).resolve().parents[2] / "docs" / "webshop.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    scope: dict = {}
    exec(code, scope)  # our own page
    assert scope["result"].text.startswith("Instruction:")
    assert "Buy Now" in scope["result"].text


PAGE = Path(__file__).parents[2] / "docs" / "webshop.md"


def test_the_example_of_the_page_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    scope: dict = {}
    exec(code, scope)  # our own page
    assert scope["result"].text.startswith("Instruction: [SEP] ")
    assert "Buy Now" in scope["result"].text


def test_the_page_names_every_option_of_the_command():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = {action.option_strings[-1] for action in parser._actions if action.option_strings}
    assert {option for option in options if option not in PAGE.read_text("utf-8")} == {"--help"}
