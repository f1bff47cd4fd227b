"""Experts: the privileged one wins every game, the searching one wins without knowing where things are."""

import random
from collections import Counter

import pytest

from progpo_trl.environments.alfworld import AlfworldEnvironment, GameLibrary
from progpo_trl.environments.alfworld.expert import SearchingExpert, Task, noisy_play, read_task, walkthrough
from progpo_trl.environments.alfworld.generate import LEVELS, SPLITS, GeneratedAlfworldTasks


@pytest.mark.parametrize("level", LEVELS)
def test_both_experts_win_every_generated_game(level):
    task_set = GeneratedAlfworldTasks(level, n_train=120, n_eval=60)
    types = Counter()
    for split in SPLITS:
        for task_id in task_set.task_ids(split):
            environment = task_set.make()
            environment.reset(task_id)
            results = [environment.step(command) for command in walkthrough(task_set.games.game(task_id))]
            assert results[-1].success
            assert results[-1].reward == 10.0
            assert not any(result.success for result in results[:-1])

            patient = AlfworldEnvironment(task_set.games, max_steps=200)
            _, commands, success = noisy_play(patient, task_id, 1.0, 200, random.Random(task_id))
            assert success
            assert len(commands) >= len(results) - 1
            types[task_set.task_type(task_id)] += 1
    assert set(types) == set(LEVELS[level].dials.task_types)


def test_experts_win_a_sample_of_the_real_games(shared_data):
    library = GameLibrary(shared_data / "alfworld" / "games")
    ids = [task_id for split in library.splits.values() for task_id in split[::60]]
    for task_id in ids:
        environment = AlfworldEnvironment(library, max_steps=400)
        environment.reset(task_id)
        for command in walkthrough(library.game(task_id)):
            result = environment.step(command)
        assert result.success, task_id
        assert noisy_play(environment, task_id, 1.0, 400, random.Random(0))[2], task_id


def test_noisy_play_is_reproducible_within_the_limit_and_never_asks_for_help():
    task_set = GeneratedAlfworldTasks("hard")
    rates = []
    for p in (0.0, 0.5, 1.0):
        wins = 0
        for task_id in task_set.task_ids()[:60]:
            observations, commands, success = noisy_play(task_set.make(), task_id, p, 20, random.Random(task_id))
            assert len(observations) == len(commands) + 1 <= 21
            assert "help" not in commands
            assert "Nothing happens." not in observations
            wins += success
        rates.append(wins / 60)
    assert rates[0] <= 0.05 < rates[1] < rates[2]
    observations, commands, _ = noisy_play(
        task_set.make(), task_set.task_ids()[0], 0.0, 20, random.Random(0), p_wrong=1.0
    )
    assert observations[1:] == ["Nothing happens."] * 20
    assert len(set(commands)) > 5
    again = [noisy_play(task_set.make(), task_set.task_ids()[0], 0.5, 20, random.Random(1)) for _ in range(2)]
    assert again[0] == again[1]


def test_searching_expert_recovers_from_a_wrong_thing_in_hand():
    task_set = GeneratedAlfworldTasks("easy")
    recovered = 0
    for task_id in task_set.task_ids()[:40]:
        environment = AlfworldEnvironment(task_set.games, max_steps=200)
        first = environment.reset(task_id)
        expert, admissible = SearchingExpert(first.text, random.Random(0)), first.admissible
        taken = False
        for _ in range(200):
            wrong = [c for c in admissible if c.startswith(f"take {expert.task.target}") is False and c[:5] == "take "]
            command = wrong[0] if wrong and not taken else expert.act(admissible)
            taken = taken or command in wrong
            result = environment.step(command)
            expert.observe(command, result.text)
            admissible = result.admissible
            if result.done:
                break
        assert result.success
        recovered += taken
    assert recovered > 10


@pytest.mark.parametrize(
    ("sentence", "task"),
    [
        ("put a mug in desk.", Task("place", "mug", "desk")),
        ("put some mug on desk.", Task("place", "mug", "desk")),
        ("put two cd in safe.", Task("two", "cd", "safe")),
        ("find two cd and put them in safe.", Task("two", "cd", "safe")),
        ("put a clean pan in stoveburner.", Task("clean", "pan", "stoveburner")),
        ("clean some pan and put it in stoveburner.", Task("clean", "pan", "stoveburner")),
        ("put a hot egg in fridge.", Task("heat", "egg", "fridge")),
        ("heat some egg and put it in fridge.", Task("heat", "egg", "fridge")),
        ("put a cool cup in cabinet.", Task("cool", "cup", "cabinet")),
        ("cool some cup and put it in cabinet.", Task("cool", "cup", "cabinet")),
        ("look at bowl under the desklamp.", Task("look", "bowl", "desklamp")),
        ("examine the bowl with the desklamp.", Task("look", "bowl", "desklamp")),
    ],
)
def test_read_task(sentence, task):
    assert read_task(f"You see a bed 1.\n\nYour task is to: {sentence}") == task


def test_read_task_refuses_other_sentences():
    with pytest.raises(ValueError, match="not an ALFWorld task"):
        read_task("Your task is to: make coffee.")


@pytest.mark.parametrize("split", SPLITS)
def test_walkthroughs_fit_the_step_limit(split):
    for level in LEVELS:
        task_set = GeneratedAlfworldTasks(level, n_train=40, n_eval=40)
        for task_id in task_set.task_ids(split):
            assert len(walkthrough(task_set.games.game(task_id))) <= task_set.max_steps // 1.5
