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
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from progpo_trl.environments.alfworld import rooms
from progpo_trl.environments.alfworld.environment import AlfworldEnvironment
from progpo_trl.environments.alfworld.expert import walkthrough
from progpo_trl.environments.alfworld.game import Game
from progpo_trl.environments.alfworld.problems import Dials, draw, to_pddl
from progpo_trl.environments.base import TaskSet, hash_texts

SPLITS = ("train", "valid_unseen")

# What alfworld's grammar has where the sentence of the task belongs.
_TASK_SLOT = "UNKNOWN GOAL."
_VERSION = "0.4"  # of the texts in which generated games are played and written


@dataclass(frozen=True)
class Level:
    """A named setting of the dials and the number of actions an episode may take."""

    dials: Dials
    max_steps: int


LEVELS: dict[str, Level] = {
    # The quickstart's: find a thing, put it somewhere else.
    "easy": Level(Dials(5, 4, 0.4, 0.3, ("pick_and_place_simple",)), 12),
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


@dataclass(frozen=True)
class GameSource:
    """The games of some dials, by id. Pickles as its fields; parsed games are shared by all sources of a process.

    prefix: first part of the ids; counts: how many games each split has, in the order of `SPLITS`.
    """

    prefix: str
    dials: Dials
    game_seed: int
    counts: tuple[int, int]

    def generated(self, task_id: str) -> GeneratedGame:
        """The game as text. Raises KeyError for an id this source does not have."""
        return _generated(self.dials, *self._locate(task_id), self.game_seed)

    def game(self, task_id: str) -> Game:
        """The game, parsed. Raises KeyError for an id this source does not have."""
        return _parsed(self.dials, *self._locate(task_id), self.game_seed)

    def ids(self, split: str) -> tuple[str, ...]:
        """Ids of a split, sorted. Raises KeyError for any other split."""
        if split not in SPLITS:
            raise KeyError(f"no split {split!r}; there are {', '.join(SPLITS)}")
        return tuple(f"{self.prefix}/{split}/{i:06d}" for i in range(self.counts[SPLITS.index(split)]))

    def _locate(self, task_id: str) -> tuple[str, int]:
        prefix, _, rest = task_id.rpartition("/")[0].rpartition("/")
        digits = task_id.rpartition("/")[2]
        known = prefix == self.prefix and rest in SPLITS and re.fullmatch(r"[0-9]{6}", digits)
        if not known or int(digits) >= self.counts[SPLITS.index(rest)]:
            raise KeyError(f"no generated game {task_id!r}; ids are like {self.ids('train')[0]!r}")
        return rest, int(digits)


@lru_cache(maxsize=256)
def _generated(dials: Dials, split: str, number: int, game_seed: int) -> GeneratedGame:
    return generate(dials, split, number, game_seed)


@lru_cache(maxsize=4096)
def _parsed(dials: Dials, split: str, number: int, game_seed: int) -> Game:
    game = _generated(dials, split, number, game_seed)
    return Game.from_problem(game.problem, game.task, source=game.name)


class GeneratedAlfworldTasks(TaskSet):
    """Generated ALFWorld games as a task set.

    level: a name in `LEVELS`; n_receptacles, n_objects, closed_share, hidden_share, task_types, one_of_a_kind: turn
    one dial of the level (see `Dials`); n_train, n_eval: games in the splits `train` and `valid_unseen`;
    game_seed: other games of the same kind; max_steps: actions an episode may take, None for the level's;
    success_reward: reward of the winning step.

    Ids are like "easy/train/000017". When a dial or `game_seed` differs from the level's own, a fingerprint of the
    setting joins the name ("easy-3f9a1c/train/000017"), so that one id never means two games.
    Dials out of range, or that no room can meet, raise ValueError here.
    """

    name = "alfworld_generated"
    prompt_template = "tiny"
    eval_split = "valid_unseen"

    def __init__(
        self,
        level: str = "easy",
        *,
        n_receptacles: int | None = None,
        n_objects: int | None = None,
        closed_share: float | None = None,
        hidden_share: float | None = None,
        task_types: Sequence[str] | None = None,
        one_of_a_kind: bool | None = None,
        n_train: int = 2000,
        n_eval: int = 256,
        game_seed: int = 0,
        max_steps: int | None = None,
        success_reward: float = 10.0,
    ):
        if level not in LEVELS:
            raise ValueError(f"no level {level!r}; there are {', '.join(LEVELS)}")
        for name, n in (("n_train", n_train), ("n_eval", n_eval)):
            if not 1 <= n <= 1_000_000:
                raise ValueError(f"{name} must be between 1 and 1000000, not {n}")
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, not {max_steps}")
        turned = {
            "n_receptacles": n_receptacles,
            "n_objects": n_objects,
            "closed_share": closed_share,
            "hidden_share": hidden_share,
            "task_types": None if task_types is None else tuple(task_types),
            "one_of_a_kind": one_of_a_kind,
        }
        dials = replace(LEVELS[level].dials, **{name: value for name, value in turned.items() if value is not None})
        prefix = level
        if dials != LEVELS[level].dials or game_seed != 0:
            setting = json.dumps([asdict(dials), game_seed])
            prefix += "-" + hashlib.sha256(setting.encode()).hexdigest()[:6]
        self.level = level
        self.max_steps = max_steps or LEVELS[level].max_steps
        self.success_reward = success_reward
        self.games = GameSource(prefix, dials, game_seed, (n_train, n_eval))

    def task_ids(self, split: str = "train") -> Sequence[str]:
        """Ids of `train` or `valid_unseen`, sorted."""
        return self.games.ids(split)

    def make(self) -> AlfworldEnvironment:
        """A new environment; all of them share the parsed games."""
        return AlfworldEnvironment(self.games, max_steps=self.max_steps, success_reward=self.success_reward)

    def task_type(self, task_id: str) -> str:
        """One of ALFWorld's six task types."""
        return self.games.game(task_id).task_type

    def data_hash(self, task_ids: Sequence[str]) -> str:
        """As that of the game files that `write_games` makes of these games."""
        games = (self.games.generated(task_id) for task_id in task_ids)
        return hash_texts(text for game in games for text in (_VERSION, game.task, game.problem))


def write_games(
    folder: str | Path, games: GameSource, task_ids: Iterable[str], *, domain: str, grammar: str
) -> list[Path]:
    """Write games in ALFWorld's official layout, so that the real engine and our loader can read them.

    folder: takes `<split>/<task type>-<object>-None-<receptacle>-0/<trial>/{game.tw-pddl,traj_data.json}`;
    domain, grammar: the texts of `alfred.pddl` and `alfred.twl2` of the installed alfworld package, which this
    package does not ship. Returns the paths of the game files. Raises ValueError when `grammar` has no place for the
    task.
    """
    if _TASK_SLOT not in grammar:
        raise ValueError(f"the grammar has no {_TASK_SLOT!r} to put the task in: is it alfworld's alfred.twl2?")
    written = []
    for task_id in task_ids:
        game, split = games.generated(task_id), task_id.split("/")[1]
        goal = game.traj["pddl_params"]
        place = goal["parent_target"] or goal["toggle_target"]
        trial = Path(folder) / split / f"{game.task_type}-{goal['object_target']}-None-{place}-0" / game.name
        trial.mkdir(parents=True, exist_ok=True)
        content = {
            "pddl_domain": domain,
            "grammar": grammar.replace(_TASK_SLOT, game.task),
            "pddl_problem": game.problem,
            "solvable": True,
            "walkthrough": walkthrough(games.game(task_id)),
        }
        (trial / "game.tw-pddl").write_text(json.dumps(content), encoding="utf-8")
        (trial / "traj_data.json").write_text(json.dumps(game.traj), encoding="utf-8")
        written.append(trial / "game.tw-pddl")
    return written
