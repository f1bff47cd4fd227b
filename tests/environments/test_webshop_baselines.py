"""The baseline agents: near the published numbers on real goals, and their rules on a shop of our own."""

import random

import pytest
from webshop_shop import write_shop

from progpo_trl.environments.webshop import GeneratedWebshopTasks, WebshopTasks
from progpo_trl.environments.webshop.baselines import BASELINES, evaluate_baseline, main

# Score and success on all 6,910 synthetic goals of the real 1,000 products, and how far off success may be.
MEASURED = {
    "random": (0.10, 0.0, 0.01),
    "first_hit": (0.57, 0.014, 0.01),
    "first_hit_options": (0.78, 0.51, 0.02),
    "oracle": (None, 0.934, 0.02),
}


@pytest.fixture(scope="module")
def real(shared_data):
    return WebshopTasks(shared_data / "webshop")


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_all_real_goals(real, name):
    score, success, tolerance = MEASURED[name]
    found = evaluate_baseline(BASELINES[name], real)
    assert found.episodes == 6910
    assert score is None or found.score == pytest.approx(score, abs=0.02)
    assert found.success == pytest.approx(success, abs=tolerance)


@pytest.mark.parametrize("name", BASELINES)
def test_a_sample_of_the_real_goals(real, name):
    """400 goals: three standard errors of a share are 0.075."""
    score, success, _ = MEASURED[name]
    found = evaluate_baseline(BASELINES[name], real, range(0, 6800, 17))
    assert found.episodes == 400
    assert score is None or found.score == pytest.approx(score, abs=0.06)
    assert found.success == pytest.approx(success, abs=0.075)


def test_the_oracle_reaches_every_goal_in_strict_mode(shared_data):
    for human in (False, True):
        tasks = WebshopTasks(shared_data / "webshop", mode="strict", human_goals=human)
        goals = range(0, len(tasks.catalogue.goals), 1 if human else 23)
        assert evaluate_baseline(BASELINES["oracle"], tasks, goals).success == 1.0


def test_the_generated_shop_separates_the_agents():
    tasks = GeneratedWebshopTasks(400)
    success = {name: evaluate_baseline(agent, tasks, range(200)).success for name, agent in BASELINES.items()}
    assert success["random"] < 0.1 < success["first_hit_options"] < success["oracle"]
    assert success["oracle"] > 0.9


def moves(tasks, name, index):
    """What the agent does until the episode ends."""
    environment = tasks.make()
    environment.reset(tasks.ids.id(index))
    taken = []
    while not environment.done:
        taken.append(BASELINES[name](environment.session, tasks.catalogue.goals[index], random.Random(0)))
        environment.step(taken[-1])
    return taken


def test_the_rules(tmp_path):
    tasks = WebshopTasks(write_shop(tmp_path))
    goals = tasks.catalogue.goals
    index = next(i for i, g in enumerate(goals) if g.options == (("color", "red"), ("size", "x-large")))
    search = f"search[{goals[index].instruction}]"
    oak = "click[c000000001]"
    assert moves(tasks, "first_hit", index) == [search, oak, "click[buy now]"]
    choose = ["click[red]", "click[x-large]"]  # "large" is in the instruction as well, but "x-large" is longer
    assert moves(tasks, "first_hit_options", index) == [search, oak, *choose, "click[buy now]"]
    assert moves(tasks, "oracle", index) == ["search[Oak Chair]", oak, *choose, "click[buy now]"]
    assert moves(tasks, "random", index)[0] == search
    for name in BASELINES:  # a value that two options share does not keep an agent from buying
        for i, goal in enumerate(goals):
            if goal.product.asin == "C000000005" and name != "random":
                assert moves(tasks, name, i)[-1] == "click[buy now]"


def test_a_seed_repeats_the_random_agent():
    tasks = GeneratedWebshopTasks(40)
    first, again, other = (evaluate_baseline(BASELINES["random"], tasks, range(20), seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    with pytest.raises(ValueError, match="no goals"):
        evaluate_baseline(BASELINES["random"], tasks, [])


def test_the_command(tmp_path, capsys):
    assert main(["--data", str(write_shop(tmp_path)), "--mode", "strict"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["agent", *BASELINES]
    assert lines[-1].split()[2] == "1.000"
    assert main(["--data", str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["--generated", "--products", "0"]) == 2
    assert capsys.readouterr().err == "baselines: products must be at least 1, not 0\n"
    assert main(["--generated", "--products", "24", "--level", "tiny"]) == 0
    goals = len(GeneratedWebshopTasks(24, level="tiny").catalogue.goals)
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == str(goals)
    for words in (
        ["--generated", "--human-goals"],
        ["--generated", "--data", str(tmp_path)],
        ["--level", "tiny"],
        ["--data", str(tmp_path), "--products", "1000"],
    ):
        with pytest.raises(SystemExit) as refused:
            main(words)
        assert refused.value.code == 2
        assert "--generated" in capsys.readouterr().err.splitlines()[-1]
