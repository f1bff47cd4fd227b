"""The engine on a small room of our own: rules, wording, limits, pickling. Real transcripts: test_alfworld_real.py."""

import gc
import pickle
import tracemalloc

import pytest
from alfworld_games import GAMES, OneGame, problem, shard_line, write_shard
from hypothesis import given, settings
from hypothesis import strategies as st

from progpo_trl.environments.alfworld import AlfworldEnvironment, AlfworldTasks, Game


def play(*commands, task_type="pick_and_place_simple", version="0.4", more_facts="", **options):
    """(environment, results of the commands) after a reset."""
    game = Game.from_problem(problem(task_type, more_facts), GAMES[task_type][1], version)
    environment = AlfworldEnvironment(OneGame(game), **options)
    environment.reset("game")
    return environment, [environment.step(command) for command in commands]


def texts(*commands, **options):
    return [result.text for result in play(*commands, **options)[1]]


@pytest.mark.parametrize("task_type", GAMES)
def test_each_task_type_is_won_by_its_walkthrough_and_not_before(task_type):
    environment, results = play(*GAMES[task_type][2], task_type=task_type)
    assert [r.success for r in results] == [False] * (len(results) - 1) + [True]
    assert [r.reward for r in results] == [0.0] * (len(results) - 1) + [10.0]
    assert results[-1].done
    assert environment.score == 1
    assert "Nothing happens." not in [r.text for r in results]


def test_the_introduction_lists_the_room_in_id_order_and_numbers_count_down():
    game = Game.from_problem(problem(), "put a mug in desk.")
    observation = AlfworldEnvironment(OneGame(game)).reset("game")
    assert observation.text == (
        "-= Welcome to TextWorld, ALFRED! =-\n\n"
        "You are in the middle of a room. Looking quickly around you, you see a cabinet 2, a cabinet 1, "
        "a countertop 1, a desk 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\n"
        "Your task is to: put a mug in desk."
    )
    assert observation.task == "put a mug in desk."
    assert observation.admissible == (
        *("go to cabinet 1", "go to cabinet 2", "go to countertop 1", "go to desk 1", "go to fridge 1"),
        *("go to microwave 1", "go to sinkbasin 1", "help", "inventory", "look"),
    )


def test_closed_receptacles_hide_their_contents_and_places_are_shared():
    results = play("go to cabinet 2", "open cabinet 2", "close cabinet 2", "look")[1]
    assert [r.text for r in results] == [
        "You arrive at cabinet 2. The cabinet 2 is closed.",
        "You open the cabinet 2. The cabinet 2 is open. In it, you see a mug 2.",
        "You close the cabinet 2.",
        "You are facing the cabinet 2, and cabinet 1. Next to it, you see nothing.",
    ]
    assert "go to cabinet 1" not in results[0].admissible  # it stands where the agent is
    assert {"open cabinet 1", "open cabinet 2", "examine cabinet 1"} <= set(results[0].admissible)
    assert "take mug 2 from cabinet 2" in results[1].admissible
    assert "take mug 2 from cabinet 2" not in results[2].admissible


def test_an_object_moved_within_a_place_is_listed_on_the_floor():
    moves = [
        "go to cabinet 2",
        "open cabinet 2",
        "open cabinet 1",
        "take mug 2 from cabinet 2",
        "move mug 2 to cabinet 1",
    ]
    assert texts(*moves, "look")[-1] == ("You are facing the cabinet 2, and cabinet 1. Next to it, you see a mug 2.")
    back = ["take mug 2 from cabinet 1", "move mug 2 to cabinet 2", "look"]
    assert texts(*moves, *back)[-1].endswith("you see a mug 2.")  # it was taken from cabinet 1 now


def test_looking_before_the_first_move_sees_nothing():
    assert texts("look") == ["You are in the middle of a room. Looking quickly around you, you see nothing."]


def test_only_what_is_held_can_be_examined():
    _, results = play("go to countertop 1", "examine apple 1", "take apple 1 from countertop 1", "examine apple 1")
    assert results[1].text == "Nothing happens."
    assert results[3].text == "There's nothing special about apple 1."


def test_states_of_an_object_show_when_it_is_examined():
    commands = [
        *(
            "go to countertop 1",
            "take apple 1 from countertop 1",
            "go to sinkbasin 1",
            "clean apple 1 with sinkbasin 1",
        ),
        *("examine apple 1", "go to microwave 1", "heat apple 1 with microwave 1", "examine apple 1"),
        *("go to fridge 1", "cool apple 1 with fridge 1", "examine apple 1"),
    ]
    said = texts(*commands)
    assert said[3] == "You clean the apple 1 using the sinkbasin 1."
    assert said[4] == "This is a clean apple 1."
    assert said[7] == "This is a hot and clean apple 1."
    assert said[10] == "This is a cool and clean apple 1."


def test_slicing_needs_a_knife_in_the_hand():
    _, results = play(
        *("go to countertop 1", "take butterknife 1 from countertop 1", "slice apple 1 with butterknife 1"),
        *("move butterknife 1 to countertop 1", "take apple 1 from countertop 1", "examine apple 1"),
    )
    assert results[2].text == "You sliced the apple 1 with the butterknife 1."
    assert results[5].text == "This is a sliced apple 1."


def test_a_container_lists_what_it_holds_and_a_lamp_turns_on():
    said = texts(
        "go to countertop 1", "take bowl 1 from countertop 1", "examine bowl 1", "go to desk 1", "use desklamp 1"
    )
    assert said[2] == "This is a normal bowl 1. In it, you see a spoon 1."
    assert said[4] == "You turn on the desklamp 1."


def test_an_object_in_two_receptacles_stays_in_the_other_one():
    said = texts(
        *("go to countertop 1", "take mug 1 from countertop 1", "go to desk 1"),
        task_type="look_at_obj_in_light",
        more_facts="(inReceptacle Mug_bar_2 Desk_bar_1)",
    )
    assert said[2] == "You arrive at desk 1. On the desk 1, you see a desklamp 1, and a mug 1."


def test_the_older_wording():
    _, results = play(
        *("go to countertop 1", "take mug 1 from countertop 1", "go to desk 1", "help", "put mug 1 in/on desk 1"),
        version="0.2.2",
    )
    assert results[0].text.startswith("You arrive at loc 1. On the countertop 1, you see ")
    assert results[3].text == "Nothing happens."
    assert results[4].text == "You put the mug 1 in/on the desk 1."
    assert results[4].success
    assert "help" not in results[0].admissible


def test_help_lists_the_commands():
    assert texts("help")[0].startswith("Available commands:\n  look: ")


@pytest.mark.parametrize("action", ["", "LOOK", "take", "go to moon 1", "\x00", "go to desk 1\nlook", "é" * 100_000])
def test_anything_else_is_a_step_on_which_nothing_happens(action):
    environment, (result, *_) = play(action)
    assert result.text == "Nothing happens."
    assert environment.steps == 1
    assert result.admissible == environment.reset("game").admissible


def test_blanks_around_a_command_do_not_matter():
    assert texts("  look \n") == texts("look")


def test_the_fiftieth_step_is_the_last_and_then_the_state_repeats():
    environment, results = play(*["go to desk 1", "look"] * 25)
    assert [r.done for r in results] == [False] * 49 + [True]
    assert not results[-1].success
    assert results[-1].reward == 0.0
    assert environment.step("go to fridge 1") == results[-1]
    assert environment.steps == 50


def test_winning_on_the_last_allowed_step_counts():
    commands = GAMES["pick_and_place_simple"][2]
    _, results = play(*commands, max_steps=len(commands), success_reward=1.0)
    assert results[-1].success
    assert results[-1].reward == 1.0


def test_after_a_win_the_last_state_repeats_without_its_reward():
    environment, results = play(*GAMES["pick_and_place_simple"][2])
    for action in ("look", "nonsense"):
        after = environment.step(action)
        assert (after.text, after.admissible) == (results[-1].text, results[-1].admissible)
        assert (after.done, after.success, after.reward) == (True, True, 0.0)
    assert environment.score == 1


def test_misuse_is_named():
    with pytest.raises(ValueError, match="max_steps"):
        play(max_steps=0)
    game = Game.from_problem(problem(), "task")
    environment = AlfworldEnvironment(OneGame(game))
    with pytest.raises(RuntimeError, match="before reset"):
        environment.step("look")
    with pytest.raises(KeyError):
        environment.reset("no such game")


ROOM = Game.from_problem(problem(), "put a mug in desk.")
CHOICES = st.lists(st.one_of(st.integers(0, 10**6), st.text(max_size=30)), max_size=60)


def follow(environment, choices):
    """Results of a mixture of admissible commands (numbers) and arbitrary text."""
    admissible, results = environment.reset("game", seed=7).admissible, []
    for choice in choices:
        action = admissible[choice % len(admissible)] if isinstance(choice, int) else choice
        results.append(environment.step(action))
        admissible = results[-1].admissible
        assert admissible == tuple(sorted(set(admissible)))
    return results


@settings(max_examples=150)
@given(CHOICES, CHOICES)
def test_episodes_repeat_and_do_not_touch_each_other(mine, other):
    alone = follow(AlfworldEnvironment(OneGame(ROOM)), mine)
    one, two = AlfworldEnvironment(OneGame(ROOM)), AlfworldEnvironment(OneGame(ROOM))
    follow(two, other)
    assert follow(one, mine) == alone
    assert follow(two, mine) == alone


@settings(max_examples=100)
@given(CHOICES, st.integers(0, 60))
def test_a_pickled_episode_goes_on_as_if_nothing_had_happened(choices, cut):
    environment = AlfworldEnvironment(OneGame(ROOM))
    expected = follow(environment, choices)
    environment = AlfworldEnvironment(OneGame(ROOM))
    follow(environment, choices[:cut])
    copy = pickle.loads(pickle.dumps(environment))
    for choice, result in list(zip(choices, expected, strict=True))[cut:]:
        action = choice if isinstance(choice, str) else copy._last.admissible[choice % len(copy._last.admissible)]
        assert copy.step(action) == result


def test_a_pickled_episode_is_small_and_finds_its_game_again(tmp_path):
    tasks = AlfworldTasks(write_shard(tmp_path / "x.jsonl.xz", [shard_line("train/a/b")]))
    environment = tasks.make()
    environment.reset("train/a/b")
    environment.step("go to countertop 1")
    content = pickle.dumps(environment)
    assert len(content) < 4096
    copy = pickle.loads(content)
    assert copy.games is tasks.library
    assert copy.step("take mug 1 from countertop 1") == environment.step("take mug 1 from countertop 1")


def test_memory_is_flat_over_200_resets():
    environment = AlfworldEnvironment(OneGame(ROOM))

    def episodes(count):
        for _ in range(count):
            environment.reset("game")
            for command in GAMES["pick_two_obj_and_place"][2]:
                environment.step(command)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = episodes(20)
        after = episodes(200)
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
