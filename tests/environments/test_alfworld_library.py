"""Finding games: layouts, what is skipped, the cached index, damaged files."""

import json
import os
import pickle
from pathlib import Path

import pytest
from alfworld_games import known_version, shard_line, write_shard, write_trial

from progpo_trl.environments.alfworld import AlfworldTasks, GameFileError, GameLibrary, scan


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """An $ALFWORLD_DATA folder with four playable games and one of everything the official loader leaves out."""
    known_version(monkeypatch)
    root = tmp_path / "data" / "json_2.1.1"
    write_trial(root / "train" / "pick_and_place_simple-Mug-None-Desk-1" / "trial_b")
    write_trial(root / "train" / "pick_and_place_simple-Mug-None-Desk-1" / "trial_a")
    write_trial(root / "train" / "look_at_obj_in_light-Bowl-None-DeskLamp-1" / "trial_c", "look_at_obj_in_light")
    write_trial(root / "valid_seen" / "pick_two_obj_and_place-Mug-None-Desk-1" / "trial_d", "pick_two_obj_and_place")
    write_trial(root / "train" / "unsolvable" / "trial", solvable=False)
    unknown = write_trial(root / "train" / "unknown" / "trial")
    content = json.loads((unknown / "game.tw-pddl").read_text())
    del content["solvable"]
    (unknown / "game.tw-pddl").write_text(json.dumps(content))
    write_trial(root / "train" / "pick_and_place_with_movable_recep-Mug-Bowl-Desk-1" / "trial")
    write_trial(root / "train" / "pick_heat_then_place_in_recep-AppleSliced-None-Desk-1" / "trial")
    other = write_trial(root / "train" / "other" / "trial")
    (other / "traj_data.json").write_text(json.dumps({"task_type": "pick_and_place_with_tongs"}))
    (write_trial(root / "train" / "nogame" / "trial") / "game.tw-pddl").unlink()
    (write_trial(root / "train" / "notraj" / "trial") / "traj_data.json").unlink()
    return tmp_path / "data"


TRAIN = (
    "train/look_at_obj_in_light-Bowl-None-DeskLamp-1/trial_c",
    "train/pick_and_place_simple-Mug-None-Desk-1/trial_a",
    "train/pick_and_place_simple-Mug-None-Desk-1/trial_b",
)


def test_the_official_tree(tree):
    tasks = AlfworldTasks(tree)
    assert tasks.task_ids("train") == TRAIN
    assert tasks.task_type(TRAIN[0]) == "look_at_obj_in_light"
    assert tasks.make().reset(TRAIN[1]).task == "put a mug in desk."
    assert tasks.data_summary() == {
        "train": {"total": 3, "pick_and_place_simple": 2, "look_at_obj_in_light": 1},
        "valid_seen": {"total": 1, "pick_two_obj_and_place": 1},
        "valid_unseen": {"total": 0},
        "skipped": {
            "unsolvable": 1,
            "not known to be solvable": 1,
            "movable receptacles are not supported": 1,
            "sliced objects are not supported": 1,
            "task type 'pick_and_place_with_tongs' is not supported": 1,
            "no game.tw-pddl": 1,
            "no traj_data.json": 1,
        },
    }


@pytest.mark.parametrize("inside", ["json_2.1.1", "json_2.1.1/train"])
def test_the_tree_itself_or_a_split_of_it(tree, inside):
    assert AlfworldTasks(tree / inside).task_ids("train") == TRAIN


def test_the_environment_variable_is_the_default(tree, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(tree))
    assert AlfworldTasks().task_ids("train") == TRAIN
    monkeypatch.delenv("ALFWORLD_DATA")
    with pytest.raises(FileNotFoundError, match="alfworld-download"):
        AlfworldTasks()


def test_shards_and_folders_of_shards(tmp_path):
    one = write_shard(tmp_path / "b.jsonl.xz", [shard_line("train/z/1"), shard_line("valid_seen/y/1")])
    write_shard(tmp_path / "a.jsonl.xz", [shard_line("train/zz/1"), shard_line("train/a/1")])
    assert AlfworldTasks(one).task_ids("train") == ("train/z/1",)
    tasks = AlfworldTasks(tmp_path)
    assert tasks.task_ids("train") == ("train/a/1", "train/z/1", "train/zz/1")
    assert tasks.make().reset("valid_seen/y/1").task == "put a mug in desk."


def test_a_place_without_games_is_refused(tmp_path):
    with pytest.raises(GameFileError, match="does not exist"):
        AlfworldTasks(tmp_path / "nowhere")
    with pytest.raises(GameFileError, match=r"holds no ALFWorld games; expected a folder with json_2\.1\.1/"):
        AlfworldTasks(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(GameFileError, match="no playable game"):
        AlfworldTasks(tmp_path)


def test_the_order_of_the_directory_listing_does_not_matter(tree, monkeypatch):
    walk = os.walk

    def shuffled(*args, **kwargs):
        for current, folders, names in walk(*args, **kwargs):
            folders.reverse()
            yield current, folders, names[::-1]

    before = GameLibrary(tree).splits
    monkeypatch.setattr(scan.os, "walk", shuffled)
    after = GameLibrary(tree).splits
    assert after == before
    assert list(after["train"]) == sorted(after["train"])


def test_unknown_ids_splits_and_settings_are_named(tree):
    tasks = AlfworldTasks(tree)
    with pytest.raises(KeyError, match="valid_unseen.*there are train, valid_seen"):
        tasks.task_ids("valid_unseen")
    for call in (tasks.task_type, tasks.make().reset, tasks.library.game):
        with pytest.raises(KeyError, match="no game 'train/x/y'"):
            call("train/x/y")
    with pytest.raises(ValueError, match="engine"):
        AlfworldTasks(tree, engine="unreal")
    with pytest.raises(ValueError, match="on_error"):
        AlfworldTasks(tree, on_error="ignore")
    with pytest.raises(ValueError, match="cook"):
        AlfworldTasks(tree, task_types=["cook"])
    with pytest.raises(ValueError, match="max_steps"):
        AlfworldTasks(tree, max_steps=0)


def test_task_types_can_be_chosen(tree):
    tasks = AlfworldTasks(tree, task_types=["look_at_obj_in_light"])
    assert tasks.task_ids("train") == TRAIN[:1]


def test_games_are_parsed_once_and_shared(tree):
    tasks = AlfworldTasks(tree)
    assert tasks.library.game(TRAIN[0]) is tasks.library.game(TRAIN[0])
    copy = pickle.loads(pickle.dumps(tasks))
    assert copy.library is tasks.library
    assert copy.task_ids("train") == TRAIN


def damage(folder: Path) -> None:
    path = folder / "game.tw-pddl"
    path.write_text(path.read_text()[:-300])


def test_damaged_files_are_named_and_skipped_or_fatal(tree, caplog):
    damage(tree / "json_2.1.1" / TRAIN[1])
    tasks = AlfworldTasks(tree)
    assert tasks.task_ids("train") == (TRAIN[0], TRAIN[2])
    assert tasks.data_summary()["skipped"]["damaged file"] == 1
    assert "trial_a/game.tw-pddl: is not a JSON document" in caplog.text
    assert "1 damaged game file(s) skipped" in caplog.text
    with pytest.raises(GameFileError, match="trial_a/game.tw-pddl"):
        AlfworldTasks(tree, on_error="raise")


def test_a_file_damaged_or_removed_after_the_scan_gives_one_clear_error(tree):
    environment = AlfworldTasks(tree).make()
    damage(tree / "json_2.1.1" / TRAIN[1])
    with pytest.raises(GameFileError, match="trial_a/game.tw-pddl: is not a JSON document"):
        environment.reset(TRAIN[1])
    (tree / "json_2.1.1" / TRAIN[2] / "game.tw-pddl").unlink()
    with pytest.raises(GameFileError, match="trial_b/game.tw-pddl: cannot be read: No such file"):
        environment.reset(TRAIN[2])
    environment.reset(TRAIN[0])


def test_a_truncated_shard_keeps_the_games_before_the_damage(tmp_path, caplog):
    path = write_shard(
        tmp_path / "x.jsonl.xz", [shard_line(f"train/{n:04}/x", salt=os.urandom(999).hex()) for n in range(300)]
    )
    path.write_bytes(path.read_bytes()[:-100_000])
    tasks = AlfworldTasks(path)
    kept = tasks.task_ids("train")
    assert 0 < len(kept) < 300
    assert tasks.make().reset(kept[-1]).task
    assert "x.jsonl.xz: cannot be read after" in caplog.text


def test_bad_lines_of_a_shard_are_named_by_number(tmp_path, caplog):
    lines = [shard_line("train/a/1"), shard_line("test/a/1"), shard_line("train/a/1"), {"path": "train/b/1"}]
    tasks = AlfworldTasks(write_shard(tmp_path / "x.jsonl.xz", lines))
    assert tasks.task_ids("train") == ("train/a/1",)
    assert "line 2: 'path' is 'test/a/1'" in caplog.text
    assert "line 3: there is another game called 'train/a/1'" in caplog.text
    assert "line 4: has no 'task'" in caplog.text


def test_a_goal_of_another_type_than_stated_is_a_damaged_file(tmp_path):
    line = shard_line("train/a/1", "pick_two_obj_and_place", traj={"task_type": "look_at_obj_in_light"})
    with pytest.raises(GameFileError, match="goal is pick_two_obj_and_place, but its task_type is look_at"):
        AlfworldTasks(write_shard(tmp_path / "x.jsonl.xz", [line]), on_error="raise")


@pytest.fixture
def cached(tree, tmp_path, monkeypatch):
    """The tree with an index cached in a place of its own: (data folder, index file)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(scan, "_CACHE_FROM", 1)
    damage(tree / "json_2.1.1" / TRAIN[1])
    GameLibrary(tree)
    (index,) = (tmp_path / "cache" / "progpo_trl").iterdir()
    return tree, index


def forbid_reading(monkeypatch):
    def fail(*args):
        raise AssertionError("scanned again")

    monkeypatch.setattr(scan, "_scan_tree", fail)


def test_the_second_start_reads_the_index(cached, monkeypatch, caplog):
    tree, _ = cached
    forbid_reading(monkeypatch)
    library = GameLibrary(tree)
    assert library.splits["train"] == (TRAIN[0], TRAIN[2])
    assert library.skipped["unsolvable"] == 1
    assert "trial_a/game.tw-pddl: is not a JSON document" in caplog.text
    with pytest.raises(GameFileError, match="trial_a"):
        GameLibrary(tree, on_error="raise")


def test_a_changed_tree_is_scanned_again(cached):
    tree, _ = cached
    new = write_trial(tree / "json_2.1.1" / "train" / "new" / "trial")
    assert "train/new/trial" in GameLibrary(tree).splits["train"]
    damage(new)
    assert "train/new/trial" not in GameLibrary(tree).splits["train"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"[" * 50_000, b'{"format": 1}', b'{"format": 1, "fingerprint": 3, "records": 7}'],
)
def test_a_damaged_index_is_rebuilt(cached, content):
    tree, index = cached
    good = index.read_bytes()
    index.write_bytes(content)
    assert GameLibrary(tree).splits["train"] == (TRAIN[0], TRAIN[2])
    assert index.read_bytes() == good


@pytest.mark.parametrize("records", ["[[1, 2]]", "[[1, 2, 3, 4]]", "[null]", '{"a": 1}'])
def test_an_index_with_strange_records_is_rebuilt(cached, records):
    tree, index = cached
    content = json.loads(index.read_text())
    index.write_text(json.dumps({**content, "records": json.loads(records)}))
    assert GameLibrary(tree).splits["train"] == (TRAIN[0], TRAIN[2])


def test_without_a_writable_cache_the_scan_is_done_each_time(tree, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(scan, "_CACHE_FROM", 1)
    assert GameLibrary(tree).splits["train"] == TRAIN
    assert "could not be cached" in caplog.text
