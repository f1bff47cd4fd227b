"""1,000 corrupted game files: only GameFileError ever leaves the loader, and what loads can be played."""

import json
import lzma
import random
from collections import Counter
from pathlib import Path

import pytest
from alfworld_games import GAMES, game_file, known_version, shard_line

from progpo_trl.environments.alfworld import AlfworldEnvironment, GameFileError, GameLibrary

VALUES = [None, 0, -1.5, True, "", "x", [], ["x"], {}, {"a": 1}, "(define", "\x00", "\ud800", "é" * 1000, 10**400]


def truncated(text, rng):
    return text[: rng.randrange(len(text))].encode()


def bits_flipped(text, rng):
    content = bytearray(text.encode())
    for _ in range(rng.choice([1, 1, 5, 100])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def characters_changed(text, rng):
    letters = list(text)
    for _ in range(rng.choice([1, 3, 30])):
        letters[rng.randrange(len(letters))] = rng.choice('()"{}?;=_ \\\nabarloc019\u200b\u0130')
    return "".join(letters).encode()


def cut_out(text, rng):
    start = rng.randrange(len(text))
    return (text[:start] + text[start + rng.randrange(2000) :]).encode()


def wrong_value(text, rng):
    content = json.loads(text)
    content[rng.choice(sorted(content))] = rng.choice(VALUES)
    return json.dumps(content).encode()


def missing_key(text, rng):
    content = json.loads(text)
    del content[rng.choice(sorted(content))]
    return json.dumps(content).encode()


def nested(text, rng):
    depth = rng.choice([10, 1_000, 100_000])
    return (rng.choice(["[", '{"a":', '{"pddl_problem":']) * depth).encode()


def nested_problem(text, rng):
    content = json.loads(text)
    depth = rng.choice([10, 1_000, 30_000])
    deep = "(" * depth + "openable x" + ")" * depth
    content["pddl_problem"] = str(content.get("pddl_problem")).replace("(:init", "(:init " + deep)
    return json.dumps(content).encode()


def swapped_atoms(text, rng):
    content = json.loads(text)
    lines = str(content.get("pddl_problem")).split("\n")
    for _ in range(rng.choice([1, 5])):
        one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[one] = lines[two]
    content["pddl_problem"] = "\n".join(lines)
    return json.dumps(content).encode()


def other_bytes(text, rng):
    return rng.choice([b"", b"\n", b"\x00" * 100, b"\xff\xfe" + text.encode("utf-16-le"), rng.randbytes(500), b"null"])


CORRUPTIONS = [
    *(truncated, bits_flipped, characters_changed, cut_out, wrong_value, missing_key),
    *(nested, nested_problem, swapped_atoms, other_bytes),
]


def play(library: GameLibrary, rng: random.Random) -> None:
    """Some steps of every game that loaded; a file may still turn out damaged at the reset."""
    for task_ids in library.splits.values():
        for task_id in task_ids:
            environment = AlfworldEnvironment(library)
            admissible = environment.reset(task_id).admissible
            for _ in range(25):
                result = environment.step(rng.choice(admissible))
                admissible = result.admissible


def load(path: Path, rng: random.Random, outcomes: Counter) -> None:
    """Open and play; GameFileError is a defined outcome, anything else escapes and fails the test."""
    for on_error in ("skip", "raise"):
        refusal = None
        try:
            play(GameLibrary(path, on_error=on_error), rng)
        except GameFileError as error:
            refusal = error
        outcomes["playable" if refusal is None else "refused"] += 1
        assert refusal is None or (refusal.problem and str(path) in str(refusal))


def write_tree(folder: Path, game: bytes, trajectory: bytes) -> None:
    trial = folder / "train" / "task" / "trial"
    trial.mkdir(parents=True)
    (trial / "game.tw-pddl").write_bytes(game)
    (trial / "traj_data.json").write_bytes(trajectory)


def corrupt(number: int, text: str) -> tuple[bytes, random.Random]:
    rng = random.Random(number)
    return CORRUPTIONS[number % len(CORRUPTIONS)](text, rng), rng


def test_corrupted_official_files(tmp_path, monkeypatch):
    known_version(monkeypatch)
    outcomes = Counter()
    for number in range(300):
        task_type = list(GAMES)[number % len(GAMES)]
        content, rng = corrupt(number, json.dumps(game_file(task_type), indent=1))
        write_tree(tmp_path / str(number), content, json.dumps({"task_type": task_type}).encode())
        load(tmp_path / str(number), rng, outcomes)
    assert min(outcomes.values()) > 20  # the corruptions are neither all harmless nor all fatal


def test_corrupted_trajectories(tmp_path, monkeypatch):
    known_version(monkeypatch)
    trajectory = json.dumps({"task_type": "pick_and_place_simple", "pddl_params": {"object_sliced": False}})
    for number in range(100):
        content, rng = corrupt(number, trajectory)
        write_tree(tmp_path / str(number), json.dumps(game_file()).encode(), content)
        load(tmp_path / str(number), rng, Counter())


def test_corrupted_shard_lines_and_shards(tmp_path):
    outcomes = Counter()
    for number in range(300):
        task_type = list(GAMES)[number % len(GAMES)]
        content, rng = corrupt(number, json.dumps(shard_line("train/a/b", task_type), indent=None))
        path = tmp_path / f"{number}.jsonl.xz"
        shard = lzma.compress(content + b"\n" + json.dumps(shard_line("train/sound/game")).encode())
        if number % 5 == 0:  # damage to the compressed file itself
            shard = bytearray(shard)
            if rng.random() < 0.5:
                del shard[rng.randrange(len(shard)) :]
            else:
                shard[rng.randrange(len(shard))] ^= 0xFF
        path.write_bytes(shard)
        load(path, rng, outcomes)
    assert min(outcomes.values()) > 20


@pytest.mark.parametrize("tree", ["json_2.1.1", "legacy_0.2.2"])
def test_corrupted_real_files(shared_data, tmp_path, tree):
    folders = sorted(path.parent for path in (shared_data / "alfworld" / tree).glob("**/game.tw-pddl"))
    outcomes = Counter()
    for number in range(150):
        folder = folders[number % len(folders)]
        content, rng = corrupt(number, (folder / "game.tw-pddl").read_text())
        write_tree(tmp_path / str(number), content, (folder / "traj_data.json").read_bytes())
        load(tmp_path / str(number), rng, outcomes)
    assert outcomes["refused"] > 20
