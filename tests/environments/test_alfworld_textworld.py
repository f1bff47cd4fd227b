"""Our engine and the real one in lock-step. Needs the extra `alfworld`."""

import importlib.util
import os
import pickle
import random
import sys

import pytest
from alfworld_games import problem, shard_line, write_shard

from progpo_trl.environments.alfworld import AlfworldTasks

INSTALLED = importlib.util.find_spec("alfworld") is not None and importlib.util.find_spec("textworld") is not None
needs_engine = pytest.mark.skipif(not INSTALLED, reason='needs the real engine: pip install "progpo_trl[alfworld]"')


@pytest.mark.skipif(INSTALLED, reason="the real engine is installed")
def test_without_the_extra_the_error_names_it(tmp_path):
    shard = write_shard(tmp_path / "x.jsonl.xz", [shard_line("train/a/b")])
    with pytest.raises(ImportError, match=r"progpo_trl\[alfworld\]"):
        AlfworldTasks(shard, engine="textworld")


def lock_step(ours, real, task_id, choose, steps):
    """Play both; every observation, admissible list, reward, done and success must be the same."""
    observation = ours.reset(task_id)
    assert real.reset(task_id) == observation
    admissible = observation.admissible
    for number in range(steps):
        action = choose(number, admissible)
        expected = ours.step(action)
        assert real.step(action) == expected, (task_id, number, action)
        admissible = expected.admissible


@needs_engine
@pytest.mark.alfworld
def test_a_small_room_of_our_own_in_both_engines(tmp_path):
    shard = write_shard(tmp_path / "x.jsonl.xz", [shard_line("train/a/b", "pick_clean_then_place_in_recep")])
    walkthrough = shard_line("train/a/b", "pick_clean_then_place_in_recep")["walkthrough"]
    ours, real = AlfworldTasks(shard).make(), AlfworldTasks(shard, engine="textworld").make()
    commands = [*walkthrough[:3], "help", "  look ", "LOOK", "", *walkthrough[3:], "look"]  # the last after the win
    lock_step(ours, real, "train/a/b", lambda number, _: commands[number], len(commands))
    assert real.score == ours.score == 1


# Facts that real games have and our small room has not: things in two receptacles or at two places, doors and states
# that differ from the usual ones at the start.
ODD_FACTS = [
    "(inReceptacle Mug_bar_2 Desk_bar_1) (objectAtLocation Mug_bar_2 loc_bar_1)",
    "(opened Fridge_bar_1) (toggleable Mug_bar_1) (objectAtLocation Apple_bar_1 loc_bar_1) (isClean Fork_bar_1)",
    "(inReceptacle Apple_bar_1 Cabinet_bar_1) (isSliced Apple_bar_1) (isHot Mug_bar_1) (isCool Mug_bar_2)",
]


def any_verb(rng):
    """Commands chosen so that each verb is as likely as the next, however many receptacles there are to go to."""

    def choose(number, admissible):
        by_verb = {}
        for command in admissible:
            by_verb.setdefault(command.split()[0], []).append(command)
        return rng.choice(["nonsense", *map(rng.choice, by_verb.values())])

    return choose


@needs_engine
@pytest.mark.alfworld
@pytest.mark.parametrize("facts", ODD_FACTS)
def test_odd_facts_in_both_engines(tmp_path, facts):
    line = shard_line("train/a/b", pddl_problem=problem("look_at_obj_in_light", facts), traj={})
    shard = write_shard(tmp_path / "x.jsonl.xz", [line])
    ours, real = (
        AlfworldTasks(shard, max_steps=80).make(),
        AlfworldTasks(shard, max_steps=80, engine="textworld").make(),
    )
    for seed in range(2):
        lock_step(ours, real, "train/a/b", any_verb(random.Random(seed)), 80)


@needs_engine
@pytest.mark.alfworld
@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_six_real_games_in_both_engines(shared_data, number):
    """Four games of 0.4 (two official files, two of a shard) and two of 0.2.2; 25 steps with a limit of 20."""
    place, index = [
        *(("json_2.1.1", 0), ("json_2.1.1", 3), ("games/valid_seen.jsonl.xz", 40), ("games/valid_seen.jsonl.xz", 100)),
        *(("legacy_0.2.2", 0), ("legacy_0.2.2", 5)),
    ][number]
    games = shared_data / "alfworld" / place
    ours, real = AlfworldTasks(games, max_steps=20), AlfworldTasks(games, max_steps=20, engine="textworld")
    lock_step(ours.make(), real.make(), ours.task_ids("valid_seen")[index], any_verb(random.Random(number)), 25)


@needs_engine
@pytest.mark.alfworld
def test_the_real_engine_is_contained_and_its_episodes_pickle(tmp_path, capsys):
    argv, stdout, variables = list(sys.argv), sys.stdout, dict(os.environ)
    shard = write_shard(tmp_path / "x.jsonl.xz", [shard_line("train/a/b")])
    environment = AlfworldTasks(shard, engine="textworld").make()
    environment.reset("train/a/b")
    environment.step("go to countertop 1")
    content = pickle.dumps(environment)
    assert len(content) < 4096
    assert pickle.loads(content).step("look") == environment.step("look")
    assert (sys.argv, sys.stdout) == (argv, stdout)
    assert dict(os.environ) == variables
    engine = environment._engine
    del environment
    assert AlfworldTasks(shard, engine="textworld").make().reset("train/a/b").task == "put a mug in desk."
    assert engine is not None  # kept and used again, not closed
