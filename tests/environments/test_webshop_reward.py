"""The reward's rules one by one, on goals of our own; the recorded cases are in test_webshop_parity.py."""

from dataclasses import replace

import pytest
from webshop_shop import ATTRIBUTES, ITEMS, NOUNS

from progpo_trl.environments.webshop.colours import COLOURS, colour_in
from progpo_trl.environments.webshop.goals import Goal
from progpo_trl.environments.webshop.products import parse_product
from progpo_trl.environments.webshop.reward import score_purchase, similar

CHAIR, PINE, BENCH, LAMP, FOLDING = (
    parse_product(item, ATTRIBUTES[item["asin"]], NOUNS[item["asin"]]) for item in ITEMS[:5]
)


def goal(product=CHAIR, attributes=("solid wood",), options=(), price_upper=30.0):
    return Goal(0, product, "", attributes, options, price_upper)


def test_attributes_options_and_price_count_alike():
    wanted = goal(attributes=("solid wood", "heated"), options=("large", "red"))
    assert score_purchase(CHAIR, 25.5, {"size": "large"}, wanted).score == 3 / 5
    assert score_purchase(CHAIR, 99.0, {"size": "large"}, wanted).score == 2 / 5
    assert score_purchase(CHAIR, 30.0, {"size": "large", "color": "red"}, wanted).score == 4 / 5
    parts = score_purchase(CHAIR, 99.0, {}, wanted).parts()
    assert (parts["r_att"], parts["r_option"], parts["r_price"]) == (0.5, 0.0, False)
    assert "r_option" not in score_purchase(CHAIR, 1.0, {}, goal()).parts()


def test_an_attribute_may_stand_in_title_bullets_or_description():
    bare = replace(CHAIR, attributes=())
    for text in ("oak ch", "easy clean.  made of", "about the"):  # bullets are joined by a blank
        assert score_purchase(bare, 1.0, {}, goal(attributes=(text,))).r_att == 1.0
    assert score_purchase(bare, 1.0, {}, goal(attributes=("Oak",))).r_att == 0.0
    assert score_purchase(bare, 1.0, {}, goal(attributes=("chair about",))).r_att == 0.0


@pytest.mark.parametrize(
    ("title", "target", "query", "category", "factor"),
    [
        (("oak", "chair"), ("oak", "chair"), "x", "x", 1.0),
        (("oak",), ("oak", "a", "b", "c", "d"), "x", "x", 0.5),  # exactly 0.2 is not enough
        (("oak",), ("oak", "a", "b", "c", "d"), "chairs", "x", 1.0),
        (("oak",), ("oak", "a", "b", "c", "d"), "x", "Chairs \u203a  Home", 1.0),
        (("oak",), ("oak", "a", "b", "c", "d"), "x", "Home \u203a Desks", 0.5),
        (("oak",), ("oak", *"abcdefghij"), "chairs", "x", 0.1),  # overrides the same query
        (("elm",), ("oak",), "chairs", "x", 0.0),
        (("elm",), (), "x", "x", 0.5),  # no nouns wanted: 0.2
        (("oak",), ("oak", "oak", "oak", "a"), "x", "x", 1.0),  # 1/4: repeats count below the line only
    ],
)
def test_the_factor_of_the_type(title, target, query, category, factor):
    bought = replace(CHAIR, nouns=title, query=query, product_category=category)
    reward = score_purchase(bought, 1.0, {}, goal(replace(CHAIR, nouns=target)))
    assert reward.r_type == factor
    assert reward.score == factor


def test_similar_is_rapidfuzz_after_ascii_and_cleaning():
    assert similar("Solid-Wood!", "wood solid")
    assert similar("long sleeves", "long sleeve")  # 96
    assert similar("solid wood", "solid")  # a part of the words is enough
    assert not similar("solid wood", "liquid wool")
    assert not similar("", "")
    assert not similar("\u00e9", "\u00e9")  # nothing is left of it


def test_colours_stand_for_whole_values():
    assert len(COLOURS) == len(set(COLOURS)) == 102
    assert list(COLOURS) == sorted(COLOURS)
    assert colour_in("sky blue navy") == "blue"  # the first of the list, not of the text
    assert colour_in("layered") == "red"
    assert colour_in("plaid") == "plaid"
    assert score_purchase(CHAIR, 1.0, {"color": "blue striped 4"}, goal(options=("sky blue",))).r_option == 1.0


def test_compat_accepts_and_misses_what_the_original_does():
    wrong = {"size": "large"}
    assert score_purchase(CHAIR, 1.0, wrong, goal(options=(("size", "x-large"),))).r_option == 1.0
    assert score_purchase(CHAIR, 1.0, {"size": "x-large"}, goal(options=("large",))).r_option == 1.0
    assert score_purchase(CHAIR, 1.0, wrong, goal(options=(("size", "medium"),))).r_option == 0.0
    # A pair is compared as Python prints it: a one-letter value is lost beside a long name.
    short = goal(options=(("measure of the seat", "6"),))
    assert score_purchase(FOLDING, 1.0, {"measure of the seat": "6 or 8"}, short).r_option == 0.0
    # A pair whose name or value is a colour word is that colour.
    assert score_purchase(CHAIR, 1.0, {"color": "light red"}, goal(options=(("color", "light"),))).r_option == 1.0


def test_strict_wants_the_very_choice():
    pair = goal(options=(("size", "large"),))
    assert score_purchase(CHAIR, 1.0, {"size": "x-large"}, pair, strict=True).r_option == 0.0
    assert score_purchase(CHAIR, 1.0, {"color": "large"}, pair, strict=True).r_option == 0.0
    assert score_purchase(CHAIR, 1.0, {"size": "large"}, pair, strict=True).r_option == 1.0
    # A human value that the page offers must be chosen as it is; another one counts when similar.
    human = goal(options=("Large", "greenish"))
    assert score_purchase(CHAIR, 1.0, {"size": "x-large"}, human, strict=True).r_option == 0.0
    assert score_purchase(CHAIR, 1.0, {"size": "large", "color": "light green"}, human, strict=True).r_option == 1.0


@pytest.mark.parametrize("product", [CHAIR, PINE, LAMP, FOLDING])
def test_strict_goals_can_be_met(product):
    options = {name: values[-1] for name, values in product.options.items()}
    wanted = goal(product, product.instruction_attributes, tuple(options.items()))
    assert score_purchase(product, 1.0, options, wanted, strict=True).score == 1.0
