"""The WebShop prompt: what stands in it, and that no page is too long for it."""

import gzip
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from progpo_trl.contexts import ELLIPSIS, FullContext, PromptTemplate, TurnView, WindowContext
from progpo_trl.environments.webshop import GeneratedWebshopTasks
from progpo_trl.environments.webshop.environment import SEARCH_COMMAND
from progpo_trl.episodes import Step

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
from toy import make_tokenizer

LIMIT = 4096  # published
NOTHING = np.empty(0, np.int32)


def step(observation, action):
    return Step(observation, NOTHING, NOTHING, None, "", action, True, True)


def played(tasks, task_id, actions):
    """The views of an episode before each of `actions`, and after the last."""
    environment = tasks.make()
    first = result = environment.reset(task_id)
    steps, views = [], []
    for action in (*actions, None):
        views.append(TurnView(result.text, result.admissible, first.task, list(steps), tasks.max_steps))
        if action is not None:
            steps.append(step(result.text, action))
            result = environment.step(action)
    return views


@pytest.fixture(scope="module")
def tasks():
    return GeneratedWebshopTasks(1000)


@pytest.fixture(scope="module")
def views(tasks):
    """start, results, product, features"""
    task_id = tasks.task_ids()[0]
    environment = tasks.make()
    query = f"search[{environment.reset(task_id).task}]"
    return played(tasks, task_id, [query, environment.step(query).admissible[2], "click[features]"])


@pytest.fixture(scope="module")
def template():
    return PromptTemplate("webshop")


def test_the_first_prompt(template, views):
    text = template.render("window", views[0], 2)
    assert text == template.render("full", views[0])
    assert f"Your task is to: {views[0].task}\nYou see: 'Search'.\n" in text
    assert "\n'search[<your query>]'\n" in text
    assert "<think> </think>" in text
    assert text.endswith("inside <action> </action>.")
    assert "Instruction" not in text


def test_later_prompts_show_two_steps_the_page_and_its_actions(template, views):
    text = template.render("window", views[3], 2)
    assert text.count(views[3].task) == 1  # two pages of history repeat it in their own text
    assert (
        "You have taken 3 steps so far. The last 2 observations and the actions you took:\n[Observation 2: '" in text
    )
    assert (
        f"', Action 2: '{views[3].steps[1].action}']\n[Observation 3: ''Back to Search' [SEP] '< Prev' [SEP]" in text
    )
    assert "Observation 1" not in text
    assert "You are now at step 4 and see: 'Back to Search' [SEP] '< Prev' [SEP] '" in text
    assert "\n'click[back to search]'\n'click[< prev]'\n" in text
    one = template.render("window", views[1], 2)
    assert "You have taken 1 step so far. The last 1 observation and the action you took:\n[Observation 1: " in one
    parts = views[1].observation.split(f"{views[1].task} [SEP] ")[1].split(" [SEP] ")
    quoted = " [SEP] ".join(f"'{part}'" for part in parts)
    assert f"see: {quoted}.\n" in one
    assert "".join(f"'{command}'\n" for command in views[1].admissible) in one


def test_full_context_says_only_what_is_new(template, views):
    text = template.render("full", views[2])
    assert text.startswith("You see: 'Back to Search' [SEP] '< Prev' [SEP]")
    assert views[2].task not in text
    assert "\n'click[buy now]'\n" in text
    assert text.endswith("inside <action> </action>.")


def test_history_goes_when_a_message_has_more_than_13000_characters(template, views):
    def of(characters):
        steps = [step(f"Instruction: [SEP] {views[2].task} [SEP] {'x' * characters}", "click[x]")] * 2
        return template.render("window", replace(views[2], steps=steps), 2)

    rest = len(of(0))
    assert len(of((13_000 - rest) // 2)) in (12_999, 13_000)
    too_long = of((13_000 - rest) // 2 + 1)
    assert "You have taken 2 steps so far.\nYou are now at step 3" in too_long
    assert "Observation" not in too_long


# Length


def longest(context, views):
    found = context.prompts(views)
    assert all(ids is not None for ids in found)
    return max(len(ids) for ids in found)


def test_every_generated_page_is_far_below_the_published_limit(qwen, tasks, template):
    """Each product's page with two pages of results before it: more than any episode shows."""
    catalogue, task = tasks.catalogue, max((goal.instruction for goal in tasks.catalogue.goals), key=len)
    head = f"Instruction: [SEP] {task} [SEP] "
    pages = [(catalogue.pages(i).item, catalogue.pages(i).clickables) for i in range(0, 1000, 10)]
    pages += [(text, ()) for i in range(0, 1000, 10) for text in catalogue.pages(i).sub.values()]
    results = max((played(tasks, i, [f"search[{tasks.make().reset(i).task}]"])[-1].observation
                   for i in tasks.task_ids()[:30]), key=len)  # fmt: skip
    steps = [step(results, f"search[{task}]")] * 2
    context = WindowContext(qwen, template, limit=LIMIT, history=2)
    clicks = [(text, tuple(f"click[{what}]" for what in clickables)) for text, clickables in pages]
    assert 1000 < longest(context, [TurnView(head + text, can, task, steps, 15) for text, can in clicks]) < 2500


def recorded_views(shared_data):
    with gzip.open(shared_data / "webshop" / "traces_seed0.json.gz") as file:
        traces = json.load(file)
    for trace in traces:
        observation, available, steps = trace["obs0"], trace["av0"], []
        task = observation.split(" [SEP] ")[2]
        for action, after, _, _, then in trace["steps"]:
            commands = tuple(f"click[{what}]" for what in available["clickables"])
            yield TurnView(
                observation, (SEARCH_COMMAND,) if available["has_search_bar"] else commands, task, steps, 15
            )
            steps = [*steps, step(observation, action)]
            observation, available = after, then


def test_every_recorded_page_fits(qwen, template, shared_data):
    views = list(recorded_views(shared_data))
    assert len(views) > 1500
    assert longest(WindowContext(qwen, template, limit=LIMIT, history=2), views[::3]) <= LIMIT
    # Far below what any of them needs, so that history, pages and lists are cut.
    assert longest(WindowContext(qwen, template, limit=300, history=2), views[::25]) <= 300


LONG = " [SEP] ".join(["Instruction:", "buy it", "Back to Search", *(f"an entry of the page {i}" for i in range(900))])
COMMANDS = ("click[back to search]", "click[buy now]", "click[the last]")


def test_a_page_of_many_tokens_is_cut_and_its_actions_stay(qwen, template):
    view = TurnView(LONG, COMMANDS, "buy it", [step("Instruction: [SEP] buy it [SEP] x", "click[x]")] * 2, 15)
    assert len(qwen(LONG)["input_ids"]) > 2 * 4096
    context = WindowContext(qwen, template, limit=2048, history=2)
    (ids,) = context.prompts([view])
    assert 1900 < len(ids) <= 2048
    text = qwen.decode(ids)
    assert "'Back to Search' [SEP] 'an entry of the page 0' [SEP]" in text
    assert re.search(rf"{re.escape(ELLIPSIS)}'\. \(Cut, as it was too long\.\)\nThe actions", text)
    assert "Observation" not in text  # history went first
    assert "".join(f"'{command}'\n" for command in COMMANDS) in text
    assert "inside <action> </action>.<|im_end|>\n<|im_start|>assistant\n" in text
    (short,) = WindowContext(qwen, template, limit=20_000, history=2).prompts([view])
    assert "Cut" not in qwen.decode(short)
    assert "page 899'" in qwen.decode(short)


def test_a_list_of_many_actions_keeps_both_its_ends(qwen, template):
    commands = tuple(f"click[the value of option number {i}]" for i in range(800))
    (ids,) = WindowContext(qwen, template, limit=1000, history=2).prompts([TurnView(LONG, commands, "buy it", [], 15)])
    text = qwen.decode(ids)
    assert 900 < len(ids) <= 1000
    assert f"'{commands[0]}'\n'{commands[1]}'\n" in text
    assert f"'{commands[-2]}'\n'{commands[-1]}'\n" in text
    assert commands[400] not in text


@pytest.mark.parametrize("limit", range(1, 400, 7))
def test_what_comes_back_fits_or_is_nothing(template, limit):
    tokenizer = make_tokenizer()
    view = TurnView("Instruction: [SEP] buy it [SEP] é€😀 ab cd " * 9, COMMANDS, "buy it", [step("x", "y")], 15)
    window = WindowContext(tokenizer, template, limit=limit, history=1)
    full = FullContext(tokenizer, template, limit=limit)
    for context, one in ((window, view), (full, replace(view, steps=[]))):
        (ids,) = context.prompts([one])
        assert ids is None or len(ids) <= limit


def test_full_context_cuts_the_newest_page(qwen, template):
    context = FullContext(qwen, template, limit=1500)
    (first,) = context.prompts([TurnView("Search", (SEARCH_COMMAND,), "buy it", [], 15)])
    sampled = np.array([*qwen("search[it]")["input_ids"], 151645], np.int32)
    turn = Step("Search", first, sampled, None, "", "search[it]", True, True)
    (second,) = context.prompts([TurnView(LONG, COMMANDS, "buy it", [turn], 15)])
    assert 1400 < len(second) <= 1500
    assert second[: len(first) + len(sampled)].tolist() == [*first, *sampled]
    assert "'click[the last]'\n" in qwen.decode(second)


def test_only_templates_that_say_so_are_cut():
    tokenizer = make_tokenizer()
    for name, cut in (("webshop", True), ("alfworld", False), ("plain", False), ("tiny", False)):
        assert PromptTemplate(name).may_be_cut is cut
    for name in ("alfworld", "plain"):
        context = WindowContext(tokenizer, PromptTemplate(name), limit=200, history=2)
        assert context.prompts([TurnView(LONG, COMMANDS, "buy it", [], 15)]) == [None]
