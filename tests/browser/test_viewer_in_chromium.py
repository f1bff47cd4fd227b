"""`progpo view` in a browser: filtered, stepped through, hostile text, a phone, the dark, and the exported file."""

import json
import math

import numpy as np
import pytest
from PIL import Image
from play_sites import serving
from viewer_runs import EVIL, episode, opened, step, write, write_run

from progpo_trl.viewer.export import export
from progpo_trl.viewer.site import ViewSite

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of 12 generations of 6 groups of 8, with an evaluation of 12 of its tasks."""
    folder = tmp_path_factory.mktemp("run") / "progpo-seed0"
    write_run(folder, 12, groups=6, rollouts=8, level="medium", steps=20, evaluated=12)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return opened(folder)


@pytest.fixture(scope="module")
def server(run):
    with serving(ViewSite(run)) as server:
        yield server


def wait(page, script):
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(page, 120, poll_frequency=0.02).until(lambda page: page.execute_script(f"return {script}"))


def visit(page, url, fragment=""):
    """Load a page anew, and wait until it can be used."""
    page.get("about:blank")
    page.get(url + fragment)
    wait(page, "document.documentElement.dataset.ready === 'yes'")
    if "group=" in fragment:
        wait(page, "document.querySelector('#group h2') !== null")


def text(page, selector):
    return page.find_element("css selector", selector).text


def texts(page, selector):
    return page.execute_script("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector)


def press(page, keys):
    page.switch_to.active_element.send_keys(keys)


def fits(page):
    width, shown = page.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    return width <= shown


def select(page, name, value):
    from selenium.webdriver.support.select import Select

    Select(page.find_element("id", name)).select_by_value(value)


def found(page):
    """(groups, episodes) that the list says it shows."""
    wait(page, "document.getElementById('found').dataset.of === location.hash")
    line = text(page, "#found")
    numbers = [int(word.replace(",", "")) for word in line.split() if word.replace(",", "").isdigit()]
    return tuple(numbers[:2])


def reset(page):
    """No filter, and the form drawn anew: what is typed before that may be lost."""
    page.find_element("css selector", "#filters [type=reset]").click()
    return found(page)


def test_filters_find_what_the_file_holds(page, server, run):
    index = run.training.index
    visit(page, server.url)
    assert page.title == "progpo-seed0: progpo view"
    assert len(page.find_elements("css selector", "figure svg")) >= 5
    assert found(page) == (72, 576)
    failed = [r for r in index.rows if not r.success]
    select(page, "outcome", "failed")
    assert found(page) == (len({(r.section, r.group) for r in failed}), len(failed))
    name = index.task_types.texts[failed[0].task_type]
    select(page, "type", name)
    failed = [r for r in failed if r.task_type == failed[0].task_type]
    assert found(page) == (len({(r.section, r.group) for r in failed}), len(failed))
    select(page, "invalid", "format")
    failed = [r for r in failed if r.bad_format]
    assert found(page) == (len({(r.section, r.group) for r in failed}), len(failed))
    assert reset(page) == (72, 576)
    select(page, "kind", "fail")
    wins = {}
    for r in index.rows:
        wins.setdefault((r.section, r.group), []).append(r.success)
    assert found(page)[0] == sum(not any(group) for group in wins.values()) > 0
    page.find_element("id", "from").send_keys("3\n")
    wait(page, "location.hash.includes('from=3')")
    found(page)
    page.find_element("id", "to").send_keys("4\n")
    late = sum(not any(group) for (section, _), group in wins.items() if section in (3, 4))
    wait(page, "location.hash.includes('to=4')")
    assert found(page)[0] == late
    reset(page)
    page.find_element("id", "q").send_keys("GO TO THE MOON\n")
    wait(page, "location.hash.includes('q=')")
    assert found(page)[1] == sum(row is not None for row in index.scan("go to the moon")) > 0
    page.back()
    wait(page, "location.hash === ''")
    assert found(page) == (72, 576)


def test_a_group_by_keyboard(page, server, run, screenshot):
    """All of a group is there: advantages, flags, texts; keys walk through it; the address names where one is."""
    from selenium.webdriver.common.keys import Keys

    index = run.training.index
    late = [r for r in index.rows if r.section == 9]
    mixed = {r.group for r in late if not r.success} & {r.group for r in late if r.inadmissible}
    wanted = next(r for r in late if r.success and r.group in mixed and r.steps > 2)
    page.set_window_size(1500, 1100)
    visit(page, server.url, f"#update=9&group={wanted.group}&episode={wanted.index}&step=2")
    members = [i for i, r in enumerate(index.rows) if (r.section, r.group) == (9, wanted.group)]
    records = [index.record(i) for i in members]
    wait(page, "document.querySelector('#panel pre') !== null")
    assert len(page.find_elements("css selector", ".cell")) == sum(len(r["steps"]) for r in records)
    heads = texts(page, "table.rollouts thead th")[1:]
    for head, record, i in zip(heads, records, members, strict=True):
        assert f"episode {record['index']}" in head
        assert ("success" if record["success"] else "step limit") in head
        assert f"return {record['return']:g}" in head
        assert f"coverage {index.rows[i].coverage:.2f}".rstrip("0").rstrip(".") in head
    column = records[wanted.index - records[0]["index"]]
    assert text(page, "#step-name") == f"Episode {wanted.index}, step 2 of {len(column['steps'])}"
    shown = texts(page, "#panel pre")
    assert shown[:3] == [column["steps"][2][name] for name in ("observation", "response", "action")]
    after = column["steps"][3]["observation"] if len(column["steps"]) > 3 else column["final_observation"]
    assert shown[3] == after
    colours = texts_and_colours(page)
    largest = max(abs(s["advantage"]) for r in records for s in r["steps"])
    for record in records:
        for t, s in enumerate(record["steps"]):
            number, classes = colours[record["index"], t]
            assert float(number.replace("−", "-")) == pytest.approx(s["advantage"], abs=6e-4)
            level = math.ceil(5 * abs(s["advantage"]) / largest)
            assert ("z" if level == 0 else ("p" if s["advantage"] > 0 else "n") + str(level)) in classes
    assert texts(page, "table.rollouts .flag").count("inadmissible") == sum(
        not s["admissible"] for r in records for s in r["steps"]
    )
    pixels = np.asarray(Image.open(screenshot("viewer.png")).convert("L"))
    assert pixels.std() > 10
    press(page, Keys.ARROW_DOWN)
    wait(page, "location.hash.endsWith('step=3')")
    press(page, Keys.HOME)
    wait(page, "location.hash.endsWith('step=0')")
    last = wanted.index == records[-1]["index"]
    press(page, Keys.ARROW_LEFT if last else Keys.ARROW_RIGHT)
    aside = wanted.index + (-1 if last else 1)
    assert f"Episode {aside}, step 0" in text(page, "#step-name")
    press(page, "e")
    wait(page, "document.querySelectorAll('#panel section.one').length > 1")
    assert len(page.find_elements("css selector", "#panel section.one")) == len(
        records[aside - records[0]["index"]]["steps"]
    )
    press(page, "n")
    wait(
        page,
        "document.getElementById('group-name').textContent.startsWith('Group " + str((wanted.group + 1) % 6) + ",')",
    )
    press(page, Keys.ESCAPE)
    assert found(page) == (72, 576)
    press(page, "/")
    wait(page, "document.activeElement.id === 'q'")
    page.set_window_size(1100, 800)


def texts_and_colours(page):
    """{(episode, step): (number, classes)} of the cells on show."""
    cells = page.execute_script(
        "return [...document.querySelectorAll('.cell')].map(c => [Number(c.dataset.row), Number(c.dataset.step),"
        " c.querySelector('.value').textContent, c.className])"
    )
    first = int(page.execute_script("return document.querySelector('table.rollouts .name').textContent").split()[1])
    least = min(row for row, *_ in cells)
    return {(row - least + first, t): (number, classes.split()) for row, t, number, classes in cells}


def test_an_evaluation_game_and_its_training_groups(page, server):
    visit(page, server.url, "#update=0&group=1")
    assert "The same task in evaluation:" in text(page, ".relations")
    page.find_element("css selector", ".relations a").click()
    wait(page, "location.hash.startsWith('#source=evaluation')")
    wait(page, "document.getElementById('group-name').textContent === 'train, temperature 0.4'")
    assert [head.split("\n")[0] for head in texts(page, "table.rollouts thead th")[1:]] == ["seed 0", "seed 1"]
    assert "No advantages are recorded." in text(page, "#group")
    link = page.find_element("css selector", ".relations a")
    assert link.text == "update 0"
    link.click()
    wait(page, "document.getElementById('group-name').textContent.startsWith('Group 1, generation 1')")
    visit(page, server.url, "#update=99&group=1")
    assert "There is no group 1 of update 99" in text(page, "#group")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run<b>"
    steps = [
        step(observation=EVIL, response="y" * 1_000_000 + "the end", action=EVIL, more=EVIL, logprobs=[-0.5, -1.5]),
        step(advantage=math.nan, reward=math.inf, format_valid=False, admissible=False, prompt=EVIL),
        step(advantage=None, response="<b>bold</b>\u202e\u2028"),
    ]
    write(
        folder,
        episode(
            task=EVIL, task_id=EVIL, task_type=EVIL, stop_reason=EVIL, error=EVIL, steps=steps, final_observation=EVIL
        ),
        episode(index=1, task_id=EVIL, steps=[]),
        b"<script>window.owned = 1</script>\n",
    )
    (folder / "config.yaml").write_text(json.dumps({"model_name_or_path": EVIL.replace("\ud800", "")}))
    return folder


@pytest.mark.parametrize("how", ["served", "exported"])
def test_hostile_text_stays_text(page, hostile, tmp_path, how):
    run = opened(hostile)
    if how == "exported":
        export(run, tmp_path / "run.html", max_episodes=10)
        look_at_hostile(page, (tmp_path / "run.html").as_uri())
    else:
        with serving(ViewSite(run)) as server:
            look_at_hostile(page, server.url)


def look_at_hostile(page, url):
    visit(page, url)
    assert "1 damaged line of episodes.jsonl" in text(page, ".notice")
    assert "<script>window.owned=1</script>" in text(page, "#groups td.task") or "script" in text(
        page, "#groups td.task"
    )
    visit(page, url, "#update=0&group=0&episode=0&step=0")
    wait(page, "document.querySelector('#panel pre') !== null")
    shown = page.execute_script("return document.querySelector('#panel').innerText")
    for visible in (
        "<script>window.owned=1</script></script><!--",
        "⟨U+202E⟩",
        "⟨U+2028⟩⟨U+2029⟩⟨U+0000⟩⟨U+0007⟩",
        "⟨U+D800⟩",
    ):
        assert visible in shown
    assert "⟨U+E0041⟩⟨U+0085⟩" in shown
    assert "-2 in sum of 2 tokens" in shown
    nodes = "return document.querySelectorAll('main script, main img, main b').length + (window.owned ? 1 : 0)"
    assert page.execute_script(nodes) == 0
    more = page.find_elements("css selector", "#panel button")
    assert any("of 1,000,007 characters" in b.text for b in more)
    for _ in range(11):
        page.execute_script("[...document.querySelectorAll('#panel button')].at(-1)?.click()")
        wait(page, "![...document.querySelectorAll('#panel button')].some(b => b.disabled)")
    assert page.execute_script(
        "return [...document.querySelectorAll('#panel pre')].some(p => p.textContent.endsWith('yythe end'))"
    )
    assert texts(page, ".cell .value") == ["+0.500", "NaN", "–"]
    assert "reward Infinity" in texts(page, ".flag")
    assert page.execute_script(nodes) == 0


def test_an_export_works_from_a_file(page, run, tmp_path):
    out = tmp_path / "run.html"
    export(run, out, max_episodes=100)
    visit(page, out.as_uri(), "#q=nowhere+to+be+found")
    assert found(page) == (0, 0)
    assert "this file holds 96 of 576 episodes, of updates 10 to 11" in text(page, ".notice")
    assert reset(page) == (12, 96)
    page.find_element("id", "q").send_keys("go to the moon\n")
    wait(page, "location.hash.includes('q=')")
    found_in_file = [row for row in run.training.index.scan("go to the moon") if row is not None]
    assert found(page)[1] == sum(run.training.index.rows[row].section >= 10 for row in found_in_file) > 0
    page.find_element("css selector", "#groups td.task a").click()
    wait(page, "document.querySelector('.cell') !== null")
    page.find_element("css selector", ".cell").click()
    wait(page, "document.querySelector('#panel pre') !== null")
    row = page.execute_script("return document.querySelector('.cell.chosen').dataset.row")
    record = run.training.index.record(480 + int(row))
    assert texts(page, "#panel pre")[1] == record["steps"][0]["response"]
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_on_a_phone(phone, server):
    for fragment in ("", "#update=9&group=1&episode=8&step=1", "#update=9&group=1&episode=8&step=1&view=episode"):
        visit(phone, server.url, fragment)
        assert fits(phone)


def test_in_the_dark_and_by_ear(dark, server):
    """Dark colours keep text readable on every shade; whatever can be operated has a name."""
    visit(dark, server.url, "#update=9&group=1&episode=55&step=1")
    contrasts = dark.execute_script(CONTRASTS)
    assert min(contrasts) >= 4.5
    dark.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert min(dark.execute_script(CONTRASTS)) >= 4.5
    visit(dark, server.url)
    nameless = dark.execute_script(
        "return [...document.querySelectorAll('input, select, button, a')]"
        ".filter(e => !(e.labels && e.labels.length) && !e.textContent.trim()).map(e => e.outerHTML)"
    )
    assert nameless == []
    levels = dark.execute_script("return [...document.querySelectorAll('h1, h2, h3')].map(h => h.tagName)")
    assert levels[0] == "H1"


# The contrast of the ink on each of the eleven shades.
CONTRASTS = """
const light = (c) => {
  const [r, g, b] = c.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const colour = (text) => {
  const numbers = text.match(/[\\d.]+/g).map(Number).slice(0, 3);
  return text.startsWith("rgb") ? numbers.map((v) => v / 255) : numbers;
};
return ["z", "p1", "p2", "p3", "p4", "p5", "n1", "n2", "n3", "n4", "n5"].map((name) => {
  const one = document.createElement("button");
  one.className = "cell " + name;
  document.body.append(one);
  const style = getComputedStyle(one);
  const [a, b] = [light(colour(style.color)), light(colour(style.backgroundColor))];
  one.remove();
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
});
"""
