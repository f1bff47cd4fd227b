"""Characters that are not seen, or turn others around: the pages of `progpo play` show them and play them exactly."""

import re
from pathlib import Path

from play_sites import play_site, serving
from test_play_page import act, ask, at, begin
from webshop_shop import choices, item, write_shop

from progpo_trl.environments import load_environment
from progpo_trl.web import pages
from progpo_trl.web.pages import visible

HIDDEN = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"


def test_hidden_characters_are_shown_and_buttons_still_play_them(tmp_path):
    """Directions, controls and the like of shop data and of typed actions, wherever a page shows them."""
    asin, values = "C\u202e01", ["re\u202ed", "bell\x07", "a\rb", "\u2067x\u2069", "half\ud800", "plain"]
    record = item(
        asin,
        "Oak \u202eriahC\u202c \ue000",
        full_description="About\u200b it.\u2028More.",
        customization_options={"Co\u200elor": choices(*values)},
    )
    wish = {"attributes": ["soft"], "instruction": "Find \u202b me\x1b", "instruction_attributes": ["soft"]}
    write_shop(tmp_path, items=[record], attributes={asin: wish}, nouns={asin: ["oak"]}, human={})
    tasks = load_environment("webshop", data=str(tmp_path), max_steps=30)
    seen = []
    with serving(play_site(tasks, expert=True, show_prompt=True)) as server:

        def press(label):
            """Click the button with this label."""
            found = re.search(rf'name="command" value="(\d+)"[^>]*>(?:<span>)?{re.escape(label)}<', seen[-1])
            seen.append(act(server, path, command=found[1]))

        path = begin(server)
        seen.append(ask(server, "GET", "/")[2])
        seen.append(ask(server, "GET", f"{path}?hint=1")[2])
        seen.append(act(server, path, query="oak \u2066\u202echair"))
        press("Oak ⟨U+202E⟩riahC⟨U+202C⟩ \ue000")
        shown = ["re⟨U+202E⟩d", "bell⟨U+0007⟩", "a⟨U+000D⟩b", "⟨U+2067⟩x⟨U+2069⟩", "half⟨U+D800⟩", "plain"]
        (player,) = (one.player for one in server.site._open.values())
        for value, label in zip(values, shown, strict=True):
            press(label)
            assert list(player.environment.session.options.values()) == [value]
        press("Description")
        assert "About⟨U+200B⟩ it.⟨U+2028⟩More." in seen[-1]
        seen.append(act(server, path, action="go \u202etfel\x00"))
        assert "<code>go ⟨U+202E⟩tfel⟨U+0000⟩</code>" in seen[-1]
        status, _, page = ask(server, "POST", "/start", task="goal-\u202e1")
        assert status == 404
        seen.append(page)
        seen.append(act(server, path, "restart"))
        for wrong in ("1", "-1", "x", "\u0661", "9" * 99):
            status, _, page = ask(server, "POST", f"{path}/step", at=at(seen[-1]), command=wrong)
            assert (status, "there is no such command" in page) == (400, True), wrong
    for page in seen:
        assert not re.search(HIDDEN, page)
    assert all("⟨U+" in page for page in seen)


def test_what_counts_as_hidden():
    assert visible("a\tb\nc \u200d\u00e9\u05d0\U0001f600") == "a\tb\nc \u200d\u00e9\u05d0\U0001f600"
    assert visible("\u202e\x1b[31m\U000e0041") == "⟨U+202E⟩⟨U+001B⟩[31m⟨U+E0041⟩"
    assert visible("\u200b" * 9 + ".") == "⟨U+200B⟩" * 8 + "⟨and 1 more⟩."
    # The viewer's page has the same characters in its script.
    script = Path(pages.__file__).parents[1] / "viewer" / "static" / "text.js"
    pattern = re.search(r"const HIDDEN =\s*/\(\?:(.*)\)\+/gu;", script.read_text("utf-8"))[1]
    pattern = re.sub(
        r"\\u\{(\w+)\}", lambda found: f"\\U{found[1]:0>8}", pattern.replace(r"\p{Surrogate}", r"[\ud800-\udfff]")
    )
    every = [chr(code) for code in range(0x110000)]
    assert [c for c in every if visible(c) != c] == [c for c in every if re.fullmatch(pattern, c)]
