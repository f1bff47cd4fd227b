"""Our engine against all that was recorded from the original: episodes, rewards, goals, searches. And its memory."""

import gc
import gzip
import json
import random
import subprocess
import sys
import tracemalloc

import pytest

from progpo_trl.environments.webshop import Session, WebshopTasks, score_purchase


@pytest.fixture(scope="module")
def webshop_data(shared_data):
    return shared_data / "webshop"


@pytest.fixture(scope="module")
def recorded(webshop_data):
    return lambda name: json.loads(gzip.decompress((webshop_data / f"{name}.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def tasks(webshop_data):
    return WebshopTasks(webshop_data)


def test_every_step_of_every_recorded_episode(tasks, recorded):
    traces = recorded("traces_seed0")
    assert len(traces) == 130
    for trace in traces:
        session = Session(tasks.catalogue, trace["goal"])

        def state(session=session):
            listed = {"has_search_bar": session.has_search_bar, "clickables": list(session.clickables())}
            return session.observation(), listed

        assert state() == (trace["obs0"], trace["av0"])
        for action, text, reward, done, available in trace["steps"]:
            bought = session.step(action)
            assert state() == (text, available), action
            assert (bought.score if bought else 0.0, bought is not None) == (reward, done)


def test_the_environment_plays_the_recorded_episodes_too(tasks, recorded):
    """The contract's view of them: text, listed commands, end and score; the recordings go on after 15 steps."""
    environment = tasks.make()
    for trace in recorded("traces_seed0"):
        environment.reset(tasks.ids.id(trace["goal"]))
        for action, text, reward, done, available in trace["steps"][:15]:
            result = environment.step(action)
            assert result.text == text
            if not available["has_search_bar"]:
                assert list(result.admissible) == [f"click[{what}]" for what in available["clickables"]]
            assert result.done == (done or environment.steps == 15)
            assert result.success == (done and reward == 1.0)
            assert result.reward == (10.0 if result.success else 0.0)
            if done:
                assert result.info["score"] == reward


def test_every_recorded_reward_with_its_parts(tasks, recorded):
    catalogue, cases = tasks.catalogue, recorded("reward_cases_seed0")
    assert len(cases) == 2500
    for goal, asin, options, reward, parts in cases:
        position = catalogue.position(asin)
        product, price = catalogue.product(position), catalogue.price(position)
        ours = score_purchase(product, price, options, catalogue.goals[goal])
        assert (ours.score, ours.parts()) == (reward, parts)


def test_every_goal_in_order(tasks, recorded):
    ours = [{"asin": g.product.asin, "t": g.instruction, "pu": g.price_upper} for g in tasks.catalogue.goals]
    assert len(ours) == 6910
    assert ours == recorded("goals_seed0")


def test_another_seed_draws_other_goals(webshop_data, tasks):
    other = WebshopTasks(webshop_data, seed=1)
    same = sum(
        a.instruction == b.instruction for a, b in zip(tasks.catalogue.goals, other.catalogue.goals, strict=True)
    )
    assert 1000 < same < 5000


def test_every_recorded_search(tasks, recorded):
    catalogue, searches = tasks.catalogue, recorded("lucene_top50")
    assert len(searches) == 400
    for query, hits in searches.items():
        assert [catalogue.product(position).asin for position in catalogue.search(query)] == [asin for asin, _ in hits]


def test_the_human_goals(webshop_data, recorded):
    goals = WebshopTasks(webshop_data, human_goals=True).catalogue.goals
    requests = [request for entries in recorded("items_human_ins_1000").values() for request in entries]
    assert len(goals) == len(requests) == 13
    ours = {(goal.product.asin, goal.attributes, goal.options) for goal in goals}
    assert ours == {(r["asin"], tuple(r["instruction_attributes"]), tuple(r["instruction_options"])) for r in requests}
    # The official list has its own price limits; what comes before them is the same for all goals whose text it kept.
    official = set(recorded("human_goals"))
    texts = [goal.instruction.split(", and price lower than")[0].lower() for goal in goals]
    assert sum(text in official for text in texts) >= 11


def test_small(webshop_data):
    """1,000 products: under 80 MB, under 1 KB for one more episode. Speed: benchmarks/webshop_engine.py --check."""
    program = f"""
import psutil, tracemalloc
from progpo_trl.environments.webshop import WebshopTasks
import progpo_trl.environments.webshop.bm25
rss = psutil.Process().memory_info().rss
tasks = WebshopTasks({str(webshop_data)!r})
ids = list(tasks.task_ids())
def play(n):
    episodes = [tasks.make() for _ in range(n)]
    for i, e in enumerate(episodes):
        e.reset(ids[i % len(ids)]); e.step("search[chairs]"); e.step(f"click[{{e.session.clickables()[2]}}]")
    return episodes
kept = play(100)
grown = psutil.Process().memory_info().rss - rss
tracemalloc.start()
before = tracemalloc.get_traced_memory()[0]
episodes = play(1000)
each = (tracemalloc.get_traced_memory()[0] - before) / 1000
print(grown, each)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    grown, each = map(float, out.split())
    assert grown < 80e6
    assert each < 1000


def test_memory_is_flat_over_thousands_of_resets(tasks):
    """By Python's own count: how much of the machine's memory the process holds on to is the allocator's matter."""
    ids, generator = list(tasks.task_ids())[:500], random.Random(0)

    def play(n):
        for _ in range(n):
            environment = tasks.make()
            first = environment.reset(generator.choice(ids))
            environment.step(f"search[{first.task}]")
            environment.step(generator.choice(environment.step("click[next >]").admissible))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        # Searches, rows and pages are remembered up to a bound; the first resets fill these memories.
        filled = play(3_000)
        assert play(3_000) - filled < 300_000
    finally:
        tracemalloc.stop()
