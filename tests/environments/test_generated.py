"""Generated games: valid, deterministic, disjoint splits, refused dials, official layout."""

import json
import os
import pickle
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from progpo_trl.environments.alfworld import AlfworldEnvironment, AlfworldTasks, rooms
from progpo_trl.environments.alfworld.generate import LEVELS, SPLITS, GeneratedAlfworldTasks, split_of, write_games

COUNTS = {"easy": 150, "medium": 150, "hard": 150, "full": 60}


@pytest.fixture(scope="module")
def task_sets():
    return {level: GeneratedAlfworldTasks(level, n_train=n, n_eval=n) for level, n in COUNTS.items()}


@pytest.mark.parametrize("level", LEVELS)
def test_games_are_what_the_dials_say(task_sets, level):
    task_set = task_sets[level]
    dials = LEVELS[level].dials
    hidden = []
    for split in SPLITS:
        for task_id in task_set.task_ids(split):
            text, game = task_set.games.generated(task_id), task_set.games.game(task_id)
            assert game.task_type == text.task_type == task_set.task_type(task_id)
            assert game.task_type in dials.task_types
            assert len(game.receptacles) == dials.n_receptacles
            assert sum(r.openable for r in game.receptacles) == dials.n_closed
            assert sum(item.pickupable for item in game.items) == dials.n_objects
            kinds = Counter(r.type for r in game.receptacles)
            if dials.one_of_a_kind:
                assert set(kinds.values()) == {1}
                things = Counter(item.type for item in game.items)
                most = 2 if game.task_type == "pick_two_obj_and_place" else 1
                assert all(n == 1 or (n == most and kind == game.goal.object_type) for kind, n in things.items())
            for number, inside in enumerate(game.contents):
                for item in inside:
                    if game.items[item].pickupable:
                        assert game.items[item].type in game.receptacles[number].accepts
                    if game.items[item].type == game.goal.object_type:
                        assert game.receptacles[number].type != game.goal.receptacle_type
                        hidden.append(game.receptacles[number].openable)
    if dials.one_of_a_kind:
        assert abs(sum(hidden) / len(hidden) - dials.hidden_share) < 0.15
    assert {task_set.task_type(i) for i in task_set.task_ids()} == set(dials.task_types)


def test_the_game_starts_unwon_and_observation_has_the_task(task_sets):
    for task_set in task_sets.values():
        environment = task_set.make()
        for task_id in task_set.task_ids()[:20]:
            first = environment.reset(task_id)
            assert first.text.endswith(f"Your task is to: {first.task}")
            assert not environment.step("look").success


def test_splits_are_disjoint_by_content(task_sets):
    for level, task_set in task_sets.items():
        other_seed = GeneratedAlfworldTasks(level, n_train=COUNTS[level], n_eval=COUNTS[level], game_seed=5)
        sources = (task_set.games, other_seed.games)
        games = {s: [src.generated(i) for src in sources for i in src.ids(s)] for s in SPLITS}

        def body(game):
            return game.problem.split("\n", 1)[1]

        assert not {body(g) for g in games["train"]} & {body(g) for g in games["valid_unseen"]}
        assert not {g.layout for g in games["train"]} & {g.layout for g in games["valid_unseen"]}
        for split in SPLITS:
            assert all(split_of(g.layout) == split for g in games[split])
        assert len({g.layout for g in games["train"]}) > 0.9 * len(games["train"])


def test_ids_are_stable_sorted_and_checked():
    task_set = GeneratedAlfworldTasks("easy", n_train=120, n_eval=7)
    ids = task_set.task_ids()
    assert ids[17] == "easy/train/000017"
    assert list(ids) == sorted(ids)
    assert len(ids) == 120
    assert len(task_set.task_ids("valid_unseen")) == 7
    with pytest.raises(KeyError, match="valid_unseen"):
        task_set.task_ids("test")
    bad = ["easy/train/000120", "easy/valid_unseen/000007", "hard/train/000001", "easy/train/17", "easy/test/000001"]
    for task_id in [*bad, "", "easy", "easy/train/-00001", "easy/train/00001٣"]:
        with pytest.raises(KeyError):
            task_set.make().reset(task_id)


def test_a_turned_dial_or_another_seed_changes_the_ids():
    plain = GeneratedAlfworldTasks("easy").task_ids()[0]
    turned = GeneratedAlfworldTasks("easy", n_objects=5).task_ids()[0]
    seeded = GeneratedAlfworldTasks("easy", game_seed=3).task_ids()[0]
    assert len({plain, turned, seeded}) == 3
    assert turned.startswith("easy-")
    assert turned == GeneratedAlfworldTasks("easy", n_objects=5).task_ids()[0]
    # The number of steps is no dial of the game.
    assert GeneratedAlfworldTasks("easy", max_steps=30).task_ids()[0] == plain


def test_same_games_in_another_process_with_another_hash_seed():
    code = (
        "from progpo_trl.environments.alfworld.generate import GeneratedAlfworldTasks as G, LEVELS\n"
        "import hashlib\n"
        "h = hashlib.sha256()\n"
        "for level in LEVELS:\n"
        "    games = G(level).games\n"
        "    for split in ('train', 'valid_unseen'):\n"
        "        for task_id in games.ids(split)[:10]:\n"
        "            h.update(games.generated(task_id).problem.encode())\n"
        "print(h.hexdigest())\n"
    )
    root = str(Path(__file__).parents[2])
    digests = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert digests[0] == digests[1]
    assert len(digests[0].strip()) == 64


def test_environment_is_the_exact_engine_small_and_picklable():
    task_set = GeneratedAlfworldTasks("medium", success_reward=3.0)
    environment = task_set.make()
    assert isinstance(environment, AlfworldEnvironment)
    assert environment.max_steps == task_set.max_steps == 20
    task_id = task_set.task_ids()[4]
    environment.reset(task_id)
    command = next(c for c in environment.reset(task_id).admissible if c.startswith("go to"))
    environment.step(command)
    copy = pickle.loads(pickle.dumps(environment))
    assert len(pickle.dumps(environment)) < 8_000
    assert copy.step("look") == environment.step("look")
    assert task_set.games.game(task_id) is task_set.games.game(task_id)
    assert copy.games.game(task_id) is environment.games.game(task_id)


@pytest.mark.parametrize(
    ("dials", "message"),
    [
        ({"level": "trivial"}, "easy, medium, hard, full"),
        ({"n_receptacles": 1}, "n_receptacles must be between"),
        ({"n_receptacles": 41}, "n_receptacles must be between"),
        ({"n_objects": 0}, "n_objects must be between"),
        ({"closed_share": 1.5}, "closed_share must be between 0 and 1"),
        ({"hidden_share": -0.1}, "hidden_share must be between 0 and 1"),
        ({"closed_share": 0.0, "hidden_share": 0.3}, "needs closed receptacles"),
        ({"closed_share": 1.0}, "at least one open receptacle"),
        ({"n_receptacles": 30}, "one_of_a_kind to false"),
        ({"closed_share": 0.9, "n_receptacles": 10}, "no room has 9 closed"),
        ({"task_types": ("pick_up",)}, "unknown task types"),
        ({"task_types": ()}, "unknown task types"),
        ({"task_types": ("pick_two_obj_and_place",), "n_objects": 1}, "n_objects >= 2"),
        ({"n_objects": 70}, "no room has"),
        ({"n_train": 0}, "n_train must be between"),
        ({"n_eval": 0}, "n_eval must be between"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
    ],
)
def test_dials_out_of_range_are_refused(dials, message):
    with pytest.raises(ValueError, match=message):
        GeneratedAlfworldTasks(**({"level": "easy"} | dials))


def test_extreme_dials_still_give_games():
    for dials in (
        {"n_receptacles": 2, "n_objects": 1, "closed_share": 0.0, "hidden_share": 0.0},
        {"n_receptacles": 3, "n_objects": 2, "closed_share": 0.34, "hidden_share": 1.0},
        {"n_receptacles": 10, "n_objects": 8, "closed_share": 0.0, "hidden_share": 0.0},
        {"n_receptacles": 25, "n_objects": 60, "closed_share": 0.5, "one_of_a_kind": False},
    ):
        task_set = GeneratedAlfworldTasks("easy", n_train=30, n_eval=10, **dials)
        for task_id in [*task_set.task_ids(), *task_set.task_ids("valid_unseen")]:
            assert task_set.games.game(task_id).task


def test_tables_are_consistent():
    for room, receptacles in rooms.RECEPTACLES.items():
        assert all(kind in rooms.ACCEPTS and most >= 1 for kind, most in receptacles)
        homes = [kind for kind, _ in receptacles]
        for thing in rooms.OBJECTS[room]:
            assert sum(thing in rooms.ACCEPTS[kind] for kind in homes) >= 2, (room, thing)
    for task_type in rooms.TASK_TYPES:
        assert any(rooms.target_kinds(task_type, room) for room in rooms.RECEPTACLES)


def test_write_games_needs_a_grammar_with_a_task(tmp_path):
    task_set = GeneratedAlfworldTasks("easy", n_train=1)
    with pytest.raises(ValueError, match=r"alfred\.twl2"):
        write_games(tmp_path, task_set.games, task_set.task_ids(), domain="(define)", grammar="{}")


@pytest.mark.alfworld
def test_games_play_alike_in_the_real_engine_and_in_ours(tmp_path, monkeypatch):
    """Every command of a random and of a winning episode: text, admissible commands and won."""
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "data"))  # importing alfworld makes a cache folder otherwise
    pytest.importorskip("textworld", reason="the extra `alfworld` (the real engine) is not installed")
    info = pytest.importorskip("alfworld.info", reason="the extra `alfworld` (the real engine) is not installed")
    domain = Path(info.ALFRED_PDDL_PATH).read_text(encoding="utf-8")
    grammar = Path(info.ALFRED_TWL2_PATH).read_text(encoding="utf-8")
    for level, n in (("medium", 6), ("full", 2)):
        task_set = GeneratedAlfworldTasks(level, n_train=n)
        files = write_games(tmp_path / level, task_set.games, task_set.task_ids(), domain=domain, grammar=grammar)
        official = {engine: AlfworldTasks(tmp_path / level, engine=engine) for engine in ("native", "textworld")}
        assert len(official["native"].task_ids()) == n
        real, loaded, ours = (task_set.make() for task_set in (official["textworld"], official["native"], task_set))
        for task_id, file in zip(task_set.task_ids(), files, strict=True):
            official_id = file.parent.relative_to(tmp_path / level).as_posix()
            winning = json.loads(file.read_text(encoding="utf-8"))["walkthrough"]
            rng = random.Random(task_id)
            for commands in (winning, ["fly to the moon"] + [None] * 11):
                first = ours.reset(task_id)
                assert first == loaded.reset(official_id) == real.reset(official_id)
                admissible = first.admissible
                for command in commands:
                    command = command or rng.choice(admissible)
                    result = ours.step(command)
                    for other in (loaded, real):
                        theirs = other.step(command)
                        assert (theirs.text, theirs.admissible) == (result.text, result.admissible)
                        assert theirs.success == result.success
                    admissible = result.admissible
                assert result.success or commands is not winning
