"""Sessions in a small shop of our own: pages, actions, and what no sequence of actions may do."""

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webshop_shop import ITEMS, write_shop

from progpo_trl.environments.webshop import Session, WebshopTasks
from progpo_trl.environments.webshop.session import parse_action


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return WebshopTasks(write_shop(tmp_path_factory.mktemp("shop"))).catalogue


def goal_of(shop, asin, options=None):
    wanted = None if options is None else tuple(sorted(options.items()))
    return next(
        i for i, g in enumerate(shop.goals) if g.product.asin == asin and (wanted is None or g.options == wanted)
    )


def played(session, *actions):
    for action in actions:
        session.step(action)
    return session.observation()


OAK = "click[c000000001]"


def test_pages_read_as_the_original_writes_them(shop):
    session = Session(shop, goal_of(shop, "C000000002"))
    limit = re.search(r"\d+\.00", shop.goals[session.goal].instruction)[0]
    head = f"Instruction: [SEP] Find me pine chairs, and price lower than {limit} dollars [SEP] "
    assert session.observation() == f"WebShop [SEP] {head}Search"
    assert played(session, "search[oak]") == (
        f"{head}Back to Search [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] C000000001 [SEP] Oak Chair "
        "[SEP] $25.5"
    )
    assert played(session, OAK) == (
        f"{head}Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] navy | white [SEP] light green [SEP] size "
        "[SEP] large [SEP] x-large [SEP] Oak Chair [SEP] Price: $25.5 [SEP] Rating: N.A. [SEP] Description [SEP] "
        "Features [SEP] Reviews [SEP] Buy Now"
    )
    assert played(session, "click[Features]") == (
        f"{head}Back to Search [SEP] < Prev [SEP] Easy clean. [SEP] Made of solid wood"
    )
    assert played(session, "click[< Prev]", "click[reviews]") == f"{head}Back to Search [SEP] < Prev"
    # A bullet that is a line break and spaces is no node; a description that is one space is an empty one.
    played(session, "click[back to search]", "search[pine]", "click[c000000002]")
    assert played(session, "click[features]") == f"{head}Back to Search [SEP] < Prev"
    assert played(session, "click[< prev]", "click[description]") == f"{head}Back to Search [SEP] < Prev [SEP] "


def test_the_end_page_escapes_options_and_shows_the_score(shop):
    session = Session(shop, goal_of(shop, "C000000001", {"color": "navy | white", "size": "large"}))
    text = played(session, "search[oak]", OAK, "click[navy | white]", "click[large]", "click[Buy Now]")
    assert 'options [SEP] {"color": "navy | white", "size": "large"} [SEP] attrs' in text
    assert text.startswith("Thank you for shopping with us!")
    assert f"Your score (min 0.0, max 1.0) [SEP] {session.reward.score} [SEP]" in text
    assert session.clickables() == ()


def test_a_chosen_option_is_kept_on_the_sub_pages_and_lost_with_the_page(shop):
    session = Session(shop, 0)
    before = played(session, "search[oak]", OAK)
    assert played(session, "click[red]") == before
    played(session, "click[x-large]", "click[large]", "click[description]", "click[< prev]")
    assert session.options == {"color": "red", "size": "large"}
    played(session, "click[< prev]")
    assert (session.page, session.options) == ("results", {})
    played(session, OAK, "click[red]", "search[lamp]")
    assert session.options == {}


def test_a_value_of_two_options_goes_to_the_last_in_compat_and_to_a_free_one_in_strict(shop):
    for strict, chosen in ((False, {"back": "8"}), (True, {"seat": "6", "back": "8"})):
        session = Session(shop, 0, strict=strict)
        played(session, "search[folding]", "click[c000000005]", "click[6]", "click[8]")
        assert session.options == chosen


def test_pages_of_results_end_at_the_last(tmp_path):
    items = [dict(ITEMS[0], asin=f"R{n:09d}") for n in range(23)]
    nouns = {item["asin"]: ["chair"] for item in items}
    wanted = {"instruction": "Find me a chair", "instruction_attributes": ["easy clean"], "attributes": []}
    shop = WebshopTasks(write_shop(tmp_path, items=items, nouns=nouns, attributes={"R000000000": wanted})).catalogue
    session = Session(shop, 0)
    assert "Page 1 (Total results: 23) [SEP] Next > [SEP] R000000000" in played(session, "search[chair]")
    assert session.clickables()[:3] == ("back to search", "next >", "r000000000")
    assert "Page 2 (Total results: 23) [SEP] < Prev [SEP] Next >" in played(session, "click[next >]")
    last = played(session, "click[next >]")
    assert "Page 3" in last
    assert len(session.clickables()) == 3 + 3
    assert played(session, "click[next >]", "click[next >]") == last
    assert "Page 1" in played(session, "click[< prev]", "click[< prev]", "click[< prev]")
    assert "Page 1 (Total results: 0) [SEP] Next >" in played(session, "search[zzz]", "click[next >]")


def test_searching_works_everywhere_and_hidden_prefixes_are_plain_words(shop):
    session = Session(shop, 0)
    for prefix in ("<r>", "<a>", "<c>", "<q>"):
        assert "Page 1 (Total results: 1) [SEP] Next > [SEP] L000000004" in played(session, f"search[{prefix} lamp]")
    played(session, "search[oak]", OAK, "click[description]")
    assert "L000000004" in played(session, "search[lamp]")
    played(session, "click[l000000004]", "click[buy now]")
    assert "L000000004" in played(session, "search[lamp]")  # the original goes on after the end
    strict = Session(shop, 0, strict=True)
    end = played(strict, "search[lamp]", "click[l000000004]", "click[buy now]")
    assert played(strict, "search[oak]") == end


UNDOABLE = ["", "search[]", "Search[oak]", " search[oak]", "search", "click[search]", "click[buy now]", "buy now"]
ODD = ["click[[x]", "search[oak", "search[a\nb]", "\ud800[x]", "click[<script>]", "[[[[]]]]", "search[a[b]", OAK]


@pytest.mark.parametrize("action", UNDOABLE + ODD)
def test_actions_that_cannot_be_done_change_nothing(shop, action):
    session = Session(shop, 0)
    before = pickle.dumps(session)
    assert session.step(action) is None
    assert pickle.dumps(session) == before


@pytest.mark.parametrize(
    "action", ["search[oak]]", "search[oak] and more", "search[oak]\nclick[buy now]", "search[OAK]"]
)
def test_actions_are_read_leniently_as_by_the_original(shop, action):
    assert "Total results: " in played(Session(shop, 0), action)


BRACKETS = st.text(st.sampled_from("ab []\n"), max_size=12)


@given(BRACKETS | st.text(max_size=20))
def test_actions_are_parsed_as_by_the_original_expression(action):
    found = re.match(r"(.+)\[(.+)\]", action)
    assert parse_action(action) == (found.groups() if found else ("", ""))


def test_parsing_takes_linear_time():
    assert parse_action("[" * 1_000_000) == ("", "")
    assert parse_action("a" + "[" * 1_000_000 + "]")[1] == "["


# Indices into what the page lists, searches, and anything at all.
MOVES = st.lists(
    st.integers(0, 30)
    | st.sampled_from(["search[oak chair]", "search[lamp]", "search[chairs bench]", "click[buy now]", "click[<]"])
    | st.text(max_size=12),
    max_size=25,
)


def action_of(session, move):
    if not isinstance(move, int):
        return move
    listed = session.clickables()
    return f"click[{listed[move % len(listed)]}]" if listed else "search[pine]"


def run(session, moves):
    seen = []
    for move in moves:
        before, page = session.observation(), session.page
        action = action_of(session, move)
        bought = session.step(action)
        name, argument = parse_action(action)
        doable = (name == "search" and argument) or (name == "click" and argument.lower() in session.clickables())
        if name not in ("search", "click") or not argument:
            assert session.observation() == before
            assert not doable
        assert (bought is not None) == (page != "end" and session.page == "end")
        assert bought is None or 0.0 <= bought.score <= 1.0
        seen.append((session.observation(), session.clickables(), bought))
    return seen


@given(MOVES, MOVES, st.booleans(), st.integers(0, 100), st.integers(0, 100))
def test_no_actions_raise_and_sessions_never_affect_one_another(shop, first, second, strict, one, two):
    """Alone, interleaved with another one, or moved to another process at every step: the same episode."""
    goals = [goal % len(shop.goals) for goal in (one, two)]
    alone = [
        run(Session(shop, goal, strict=strict), moves) for goal, moves in zip(goals, (first, second), strict=True)
    ]
    sessions = [Session(shop, goal, strict=strict) for goal in goals]
    together = [[], []]
    for turn in range(max(len(first), len(second))):
        for which, moves in enumerate((first, second)):
            if turn < len(moves):
                together[which] += run(sessions[which], moves[turn : turn + 1])
                sessions[which] = pickle.loads(pickle.dumps(sessions[which]))
    assert together == alone
