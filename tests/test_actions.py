"""Reading actions from responses: the published rule, our deviations, and anything a model may write."""

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from progpo_trl.actions import FALLBACK_CHARACTERS, FORMATS, MAX_ACTION_CHARACTERS, Projection, project


@pytest.mark.parametrize(
    ("response", "action", "valid"),
    [
        ("<think>Desk first.</think><action>go to desk 1</action>", "go to desk 1", True),
        ("<THINK>x</THINK>\n<Action> Go To Desk 1 </ACTION>", "go to desk 1", True),
        ("<think></think><action>look</action>", "look", True),
        ("<action>look</action>", "look", False),
        ("<think>a<action>look</action>", "look", False),
        ("a</think><action>look</action>", "look", False),
        ("go to desk 1", "go to desk 1", False),
        (
            "<think>t</think> I will now open the big brown drawer 2",
            "ill now open the big brown drawer 2"[-30:],
            False,
        ),
        ("<think>t</think><action>go to desk", "<think>t</think><action>go to desk"[-30:], False),
        ("<think>t</think></action>look<action>", "", False),
        ("<think>t</think><action> \n </action>", "", False),
        ("<think>t</think><action>look</action><action>inventory</action>", "look", True),
        ("<think>t</think><action><action>look</action></action>", "<action>look", True),
        ("<think><action>look</action></think>", "look", True),
        ("<think>去</think><action>look</action>", "look", False),
        ("<think>t</think><action>看</action>", "看", False),
        ("", "", False),
    ],
)
def test_think_action(response, action, valid):
    assert project(response) == Projection(action, valid)


def test_other_formats():
    assert project("<action>look</action>", "action") == ("look", True)
    assert project("look", "action") == ("look", False)
    assert project("  guess 7\n", "text") == ("guess 7", True)
    assert project(" \n", "text") == ("", False)


@pytest.mark.parametrize("characters", [0, 1, 20, 30, 1000])
def test_how_much_of_an_unreadable_response_is_played(characters):
    response = "I would now like to press the button Buy Now"
    tail = response.lower()[len(response) - min(characters, len(response)) :]
    assert project(response, fallback_characters=characters) == (tail, False)
    assert project("<think></think><action>look</action>", fallback_characters=characters) == ("look", True)


def test_an_unknown_format_is_refused():
    """It would be read as "think_action", and every response without a think block would count as malformed."""
    with pytest.raises(ValueError, match="action_format='acton' is not one of think_action, action, text"):
        project("<action>look</action>", "acton")


def defined(response: str) -> None:
    for action_format in FORMATS:
        action, valid = project(response, action_format)
        assert isinstance(action, str)
        assert isinstance(valid, bool)
        assert len(action) <= MAX_ACTION_CHARACTERS
        assert project(response, action_format) == (action, valid)
    action, valid = project(response)
    if valid:
        assert action
        assert "<think>" in response.lower()
        assert not re.search("[\u4e00-\u9fff]", response)
    elif "<action>" not in response.lower():
        assert len(action) <= FALLBACK_CHARACTERS


PIECES = ["<think>", "</think>", "<action>", "</action>", "<ACTION>", "</Action>", "<", ">", "/", "go to desk 1", " "]
PIECES += [
    "\n",
    "\x00",
    "\x1b[31m",
    "\u202e",
    "İ",
    "ß",
    "去",
    "😀",
    "\ud800",
    "{{ 7*7 }}",
    "%s",
    "\\",
    "<|im_end|>",
    "\r",
]


def test_ten_thousand_adversarial_responses():
    rng = random.Random(0)
    for _ in range(10_000):
        kind = rng.random()
        if kind < 0.6:
            defined("".join(rng.choices(PIECES, k=rng.randint(0, 12))))
        elif kind < 0.9:
            defined("".join(chr(rng.randrange(0x110000)) for _ in range(rng.randint(0, 40))))
        else:
            defined(rng.choice(PIECES) * rng.randint(0, 200))


@given(st.text())
@settings(max_examples=300)
def test_any_text(response):
    defined(response)


@pytest.mark.parametrize("unit", ["<action>", "</action>", "<think>", "去", "a", "\x00"])
def test_ten_megabytes_take_a_moment(unit):
    started = time.process_time()
    project(unit * (10_000_000 // len(unit)))
    assert time.process_time() - started < 60, "one that looks back at every character takes hours"
