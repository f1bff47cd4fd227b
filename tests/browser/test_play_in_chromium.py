"""The pages of `progpo play --serve` in a browser: clicked, typed, on a phone, in the dark."""

import contextlib

import numpy as np
import pytest
from PIL import Image
from play_sites import EVIL, hostile_tasks, play_site, serving

from progpo_trl.environments import load_environment
from progpo_trl.play.hints import hint

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def shop():
    """(its server, its site, the task set)."""
    tasks = load_environment("webshop_generated", products=200)
    site = play_site(tasks, "--seed", "4", expert=True)
    with serving(site) as server:
        yield server, site, tasks


@pytest.fixture(scope="module")
def rooms():
    tasks = load_environment("alfworld_generated", level="medium")
    site = play_site(tasks, "--seed", "4", "--template", "alfworld", expert=True)
    with serving(site) as server:
        yield server, site, tasks


def button(page, text):
    found = [b for b in page.find_elements("css selector", "button") if b.text == text]
    assert found, f"no button {text!r}: {[b.text for b in page.find_elements('css selector', 'button')]}"
    return found[0]


def click(page, element):
    """Click what leads to another page, and wait for it."""
    # Here, as the fixture `browser` says what is missing without selenium.
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.wait import WebDriverWait

    page.execute_script("window.left = true")
    # While one page gives way to the other, the driver may fail to ask either, even for how the click went.
    with contextlib.suppress(WebDriverException):
        element.click()
    arrived = WebDriverWait(page, 120, poll_frequency=0.05, ignored_exceptions=(WebDriverException,))
    arrived.until(lambda page: page.execute_script("return !window.left && document.readyState === 'complete'"))


def status(page):
    return page.find_element("id", "status").text


def unlabelled(page):
    """Fields and buttons that a screen reader has no name for."""
    return page.execute_script(
        "return [...document.querySelectorAll('input:not([type=hidden]), select, button')]"
        ".filter(e => !(e.labels && e.labels.length) && !e.textContent.trim()).map(e => e.outerHTML)"
    )


def test_shopping_to_buy_now(page, shop, screenshot):
    server, site, tasks = shop
    path = site.begin(tasks.task_ids("dev")[5])
    player = site._open[path.rpartition("/")[2]].player
    page.get(server.url + path)
    assert page.title == "webshop_generated: step 0"
    assert page.find_element("css selector", "h1").text == player.episode.task
    box = page.switch_to.active_element
    assert box.accessible_name == "Search the shop"
    box.send_keys(hint(player).removeprefix("search[").removesuffix("]"))
    click(page, button(page, "Search"))
    assert "1 of at most 15 steps" in status(page)
    target = player.task_id.rpartition("-")[2]
    rows = [row for row in page.find_elements("css selector", "button.row") if target in row.text]
    click(page, rows[0])
    goal = tasks.catalogue.goals[player.environment.session.goal]
    assert page.find_element("css selector", ".page h2").text == goal.product.title
    click(page, button(page, "Features"))
    assert page.find_element("css selector", ".page h2").text == "Features"
    click(page, button(page, "< Prev"))
    for _, value in goal.options:
        click(page, button(page, value))
        assert button(page, value).get_attribute("aria-pressed") == "true"
    pixels = np.asarray(Image.open(screenshot("play-webshop.png")).convert("L"))
    assert pixels.shape[1] > 900
    assert pixels.std() > 10  # text and boxes, not a blank page
    page.find_element("css selector", "#prompt summary").click()
    assert player.prompt() in page.find_element("css selector", "#prompt .text").text
    assert unlabelled(page) == []
    click(page, button(page, "Buy Now"))
    assert status(page).startswith("success after ")
    assert status(page).endswith("return 10, score 1")
    assert player.episode.success
    actions = [e.text for e in page.find_elements("css selector", "ol.steps summary code")]
    assert actions == [step.action for step in player.episode.steps]
    click(page, button(page, "Undo"))
    assert button(page, "Buy Now").is_enabled()


def test_a_room_by_keyboard(page, rooms):
    server, site, tasks = rooms
    path = site.begin(tasks.task_ids("valid_unseen")[0])
    player = site._open[path.rpartition("/")[2]].player
    page.get(server.url + path)
    assert player.turn.observation.split("\n")[-1] in page.find_element("css selector", ".page .text").text
    while not player.done:
        link = page.find_element("link text", "What would the expert do?")
        click(page, link)
        said = page.find_element("css selector", "#hint code").text
        assert said == hint(player)
        field = page.switch_to.active_element
        assert field.accessible_name == "Type an action"
        if len(player.episode.steps) % 2:
            field.send_keys(said)
            click(page, button(page, "Do it"))
        else:
            click(page, button(page, said))
    assert status(page).startswith("success after ")
    click(page, button(page, "Restart"))
    assert "0 of at most" in status(page)
    click(page, button(page, "Another task"))
    assert page.current_url != server.url + path
    page.get(server.url)
    assert unlabelled(page) == []
    click(page, page.find_element("css selector", "main li a"))
    assert "/play/" in page.current_url


def test_hostile_text_stays_text(page):
    with serving(play_site(hostile_tasks(), show_prompt=True)) as server:
        page.get(server.url + server.site.begin("task-0"))
        assert "<script>alert('&')</script>" in page.find_element("css selector", ".page").text
        click(page, next(b for b in page.find_elements("css selector", "button") if b.text.startswith("do <script>")))
        assert EVIL.partition("\x1b")[0] in page.find_element("css selector", ".page").text
        assert (
            "⟨U+001B⟩]0;owned⟨U+0007⟩⟨U+0000⟩⟨U+000D⟩⟨U+D800⟩</p>" in page.find_element("css selector", ".page").text
        )
        assert "not one of the commands" not in page.find_element("css selector", "aside").text
        assert page.execute_script("return document.querySelectorAll('main script, main img').length") == 0
        click(page, button(page, "end"))
        assert status(page).startswith("success")


def test_on_a_phone(phone, shop, rooms):
    for server, site, tasks in (shop, rooms):
        path = site.begin(tasks.task_ids("train")[1])
        player = site._open[path.rpartition("/")[2]].player
        for _ in range(4):
            phone.get(server.url + path)
            width, shown = phone.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
            assert (width, shown) == (360, 360)
            if not player.done:
                player.play(hint(player))


def test_in_the_dark(dark, shop):
    server, site, tasks = shop
    dark.get(server.url + site.begin(tasks.task_ids("train")[2]))
    colours = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
    night = dark.execute_script(colours)
    dark.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert night != dark.execute_script(colours)
    assert night == ["rgb(20, 24, 28)", "rgb(228, 232, 236)"]


def test_another_site_cannot_act(page, shop, tmp_path):
    """A page elsewhere that posts to ours changes nothing, whatever it guesses."""
    server, site, tasks = shop
    path = site.begin(tasks.task_ids("train")[3])
    player = site._open[path.rpartition("/")[2]].player
    evil = tmp_path / "evil.html"
    evil.write_text(
        f'<form method="post" action="{server.url}{path}/step"><input name="at" value="0">'
        '<input name="action" value="search[x]"><button>go</button></form>'
    )
    page.get(evil.as_uri())
    click(page, button(page, "go"))
    assert "Forbidden" in page.title
    assert player.episode.steps == []
    page.get_log("browser")  # it notes the 403
