"""The shopper that the tiny policy's warm start learns from."""

import random
import re

import pytest

from progpo_trl.environments import is_admissible
from progpo_trl.environments.webshop import GeneratedWebshopTasks
from progpo_trl.environments.webshop.shopper import noisy_play


@pytest.fixture(scope="module")
def tasks():
    return GeneratedWebshopTasks(400, level="tiny", max_steps=10)


def success(tasks, care):
    rng = random.Random(0)
    plays = [noisy_play(tasks.make(), task_id, care, rng) for task_id in tasks.task_ids()]
    return sum(play.success for play in plays) / len(plays)


def test_care_is_what_it_takes(tasks):
    assert success(tasks, 1.0) > 0.9 > 0.5 > success(tasks, 0.6) > 0.2 > success(tasks, 0.3)


def test_the_shopper_uses_only_what_can_be_read_and_done(tasks):
    for seed, task_id in enumerate(tasks.task_ids()[:60]):
        play = noisy_play(tasks.make(), task_id, 0.5, random.Random(seed))
        environment = tasks.make()
        first = environment.reset(task_id)
        words = re.findall(r"[a-z]+", first.task.lower())
        assert set(play.commands[0].removeprefix("search[").removesuffix("]").split()) <= set(words)
        admissible = first.admissible
        for command in play.commands:
            assert is_admissible(command, admissible)
            admissible = environment.step(command).admissible
        assert play.commands[-1] == "click[buy now]"


def test_wrong_commands_are_refused_and_change_nothing(tasks):
    refused = 0
    for seed, task_id in enumerate(tasks.task_ids()[:60]):
        play = noisy_play(tasks.make(), task_id, 0.5, random.Random(seed), p_random=0.1, p_wrong=0.3)
        assert len(play.observations) == len(play.commands) + 1 == len(play.refused) + 1
        environment = tasks.make()
        admissible = environment.reset(task_id).admissible
        for step, command in enumerate(play.commands):
            assert is_admissible(command, admissible) is not play.refused[step]
            if play.refused[step]:
                assert play.observations[step] == play.observations[step + 1]
            admissible = environment.step(command).admissible
        refused += sum(play.refused)
    assert refused > 40


def test_a_seed_gives_the_same_play(tasks):
    task_id = tasks.task_ids()[7]
    one, two = (noisy_play(tasks.make(), task_id, 0.4, random.Random(3), 0.3, 0.3) for _ in range(2))
    assert one == two
