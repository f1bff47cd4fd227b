"""Generated ALFWorld games: the embedded default, without any download.

A game is a valid problem of ALFWorld's own domain, written from our own tables (rooms.py, problems.py), and played by
the same exact engine as the real ones. Its id says everything: level, split and number; it is made when first needed.

The splits are disjoint by content: a hash of the room's layout (which things stand where, whatever the goal) decides
whether a room belongs to `train` or to `valid_unseen`, and a draw of the wrong kind is thrown away. So no room of the
evaluation split is ever seen in training, under any seed or number of games.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from progpo_trl.environments.alfworld import rooms
from progpo_trl.environments.alfworld.problems import Dials, draw, to_pddl

SPLITS = ("train", "valid_unseen")


@dataclass(frozen=True)
class Level:
    """A named setting of the dials and the number of actions an episode may take."""

    dials: Dials
    max_steps: int


LEVELS: dict[str, Level] = {
    # The quickstart's: find a thing, put it somewhere else.
    "easy": Level(Dials(6, 4, 0.34, 0.3, ("pick_and_place_simple",)), 12),
    "medium": Level(Dials(8, 6, 0.25, 0.5, rooms.TASK_TYPES), 20),
    # For comparing methods where nearly every group fails: several sub-goals, mostly hidden.
    "hard": Level(
        Dials(10, 7, 0.2, 0.7, tuple(t for t in rooms.TASK_TYPES if t not in rooms.TASK_TYPES[:2])),
        20,
    ),
    # As large as ALFWorld's rooms, with numbered names.
    "full": Level(Dials(18, 24, 0.45, 0.5, rooms.TASK_TYPES, one_of_a_kind=False), 50),
}


@dataclass(frozen=True)
class GeneratedGame:
    """One game, before it is parsed.

    problem: PDDL text; task: the sentence the agent reads; layout: what the splits are told apart by; traj: the
    fields of ALFWorld's traj_data.json that loaders read.
    """

    name: str
    problem: str
    task: str
    task_type: str
    layout: str
    traj: dict[str, Any]


def split_of(layout: str) -> str:
    """The split a layout belongs to: one in four is for evaluation."""
    return SPLITS[hashlib.sha256(layout.encode()).digest()[0] % 4 == 0]


def generate(dials: Dials, split: str, number: int, game_seed: int = 0) -> GeneratedGame:
    """Game `number` of `split`; a pure function of its arguments. Raises ValueError when the dials allow no game."""
    if split not in SPLITS:
        raise KeyError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    # A string seeds through SHA-512, so this does not depend on PYTHONHASHSEED.
    rng = random.Random(f"progpo_trl/{game_seed}/{split}/{number}/{json.dumps(asdict(dials))}")
    for _ in range(1000):
        drawn = draw(dials, rng)
        if split_of(drawn.layout) == split:
            break
    else:
        raise ValueError(f"1000 draws gave no room for {split}: these dials allow too few rooms ({dials})")
    name = f"generated_{split}_{game_seed}_{number}"
    look = drawn.task_type == "look_at_obj_in_light"
    traj = {
        "task_id": name,
        "task_type": drawn.task_type,
        "pddl_params": {
            "object_target": drawn.target,
            "parent_target": "" if look else drawn.destination,
            "toggle_target": drawn.destination if look else "",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": []},
    }
    return GeneratedGame(name, to_pddl(drawn, name, rng), drawn.sentence, drawn.task_type, drawn.layout, traj)
