"""The engine on the real games: recorded transcripts, walkthroughs, counts, speed and size."""

import json
import lzma
import pickle
import random

import pytest

from progpo_trl.environments.alfworld import AlfworldTasks
from progpo_trl.verify import verify_alfworld


@pytest.fixture(scope="module")
def alfworld(shared_data):
    return shared_data / "alfworld"


@pytest.fixture(scope="module")
def tasks(alfworld):
    return AlfworldTasks(alfworld / "games", on_error="raise")


def test_recordings_of_the_real_engine_are_reproduced(alfworld):
    report = verify_alfworld(alfworld / "games", alfworld / "transcripts.jsonl.gz")
    assert str(report) == "identical: 72/72 games, 1650 steps", report.first


def test_recordings_of_the_first_release_are_reproduced(alfworld):
    report = verify_alfworld(alfworld / "legacy_0.2.2", alfworld / "transcripts_legacy.jsonl.gz")
    assert str(report) == "identical: 6/6 games, 240 steps", report.first


def test_all_games_are_found_with_their_types(tasks):
    order = "pick_and_place_simple look_at_obj_in_light pick_clean_then_place_in_recep pick_heat_then_place_in_recep "
    order = [*order.split(), "pick_cool_then_place_in_recep", "pick_two_obj_and_place", "total"]
    summary = tasks.data_summary()
    assert [summary["train"][key] for key in order] == [790, 308, 650, 459, 533, 813, 3553]
    assert [summary["valid_seen"][key] for key in order] == [35, 13, 27, 16, 25, 24, 140]
    assert summary["skipped"] == {}


def test_every_game_is_won_by_its_walkthrough(alfworld, tasks):
    environment, won = tasks.make(), 0
    for shard in sorted((alfworld / "games").glob("*.jsonl.xz")):
        for line in map(json.loads, lzma.decompress(shard.read_bytes()).splitlines()):
            environment.reset(line["path"])
            results = [environment.step(command) for command in line["walkthrough"]]
            assert [r.success for r in results] == [False] * (len(results) - 1) + [True], line["path"]
            won += 1
    assert won == 3693


def test_shards_and_official_files_of_a_game_play_alike(alfworld, tasks):
    official = AlfworldTasks(alfworld / "json_2.1.1", on_error="raise")
    for split in ("train", "valid_seen"):
        for task_id in official.task_ids(split):
            one, two = official.make(), tasks.make()
            assert one.reset(task_id) == two.reset(task_id)
            assert one.step("look") == two.step("look")
            assert official.task_type(task_id) == tasks.task_type(task_id)


def test_an_episode_is_small(tasks):
    """Pickled after 50 steps. benchmarks/alfworld_engine.py measures its memory, and the time of a step."""
    rng = random.Random(0)
    for task_id in tasks.task_ids("valid_seen")[:20]:
        environment = tasks.make()
        admissible = environment.reset(task_id).admissible
        for _ in range(50):
            admissible = environment.step(rng.choice(admissible)).admissible
        assert len(pickle.dumps(environment)) < 64 * 1024
