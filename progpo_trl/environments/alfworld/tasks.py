"""`AlfworldTasks`: ALFWorld as the trainer's `environment=`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from progpo_trl.environments.alfworld.environment import AlfworldEnvironment
from progpo_trl.environments.alfworld.library import GameLibrary
from progpo_trl.environments.base import Environment, TaskSet, hash_texts

ENGINES = ("native", "textworld")


class AlfworldTasks(TaskSet):
    """The games of an ALFWorld download, or of a folder of shards.

    games: $ALFWORLD_DATA, its json_2.1.1 folder, one split's folder, a folder of *.jsonl.xz shards or one shard;
    None takes $ALFWORLD_DATA. max_steps: actions an episode may take (50 in the papers); success_reward: reward of
    the winning step (10 in the papers); engine: "native", ours, or "textworld", the real one (slow; needs the extra
    `alfworld`); on_error: "skip" leaves damaged game files out with a warning, "raise" stops at the first;
    task_types: only these of the six types.

    Raises FileNotFoundError when no games are named, GameFileError when there are none to play.
    """

    name = "alfworld"
    prompt_template = "alfworld"

    def __init__(
        self,
        games: str | Path | None = None,
        *,
        max_steps: int = 50,
        success_reward: float = 10.0,
        engine: str = "native",
        on_error: str = "skip",
        task_types: Iterable[str] | None = None,
    ):
        if engine not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
        self.library = GameLibrary(_find_games(games), on_error=on_error, task_types=task_types)
        self.max_steps = max_steps
        self.success_reward = success_reward
        self.engine = engine
        self.make()  # a wrong number or a missing extra shows now, not when the training starts

    def task_ids(self, split: str = "train") -> tuple[str, ...]:
        """Sorted ids of a split: train, valid_seen or valid_unseen. KeyError when it has no games."""
        ids = self.library.splits.get(split)
        if not ids:
            available = [name for name, found in self.library.splits.items() if found]
            raise KeyError(f"no games of split {split!r} in {self.library.path}; there are {', '.join(available)}")
        return ids

    def make(self) -> Environment:
        """A new environment; all share the library's parsed games."""
        if self.engine == "native":
            return AlfworldEnvironment(self.library, max_steps=self.max_steps, success_reward=self.success_reward)
        from progpo_trl.environments.alfworld.textworld_engine import TextworldEnvironment

        return TextworldEnvironment(self.library, max_steps=self.max_steps, success_reward=self.success_reward)

    def task_type(self, task_id: str) -> str:
        """One of ALFWorld's six task types."""
        return self.library.task_type(task_id)

    def data_summary(self) -> dict[str, Any]:
        """How many games of which split and type there are, and how many were left out, by reason."""
        return self.library.summary()

    def data_hash(self, task_ids: Sequence[str]) -> str:
        """Of text version, task sentence and problem of every game: official files and shards of a game agree."""
        games = (self.library.raw(task_id) for task_id in task_ids)
        return hash_texts(text for game in games for text in (game.version, game.task, game.problem))


def _find_games(games: str | Path | None) -> Path:
    place = games if games is not None else os.environ.get("ALFWORLD_DATA")
    if not place:
        raise FileNotFoundError(
            "no ALFWorld games: set ALFWORLD_DATA or give the path of the games. To get them: "
            'pip install "progpo_trl[alfworld]", then run alfworld-download. '
            "Generated games (environment alfworld_generated) need no download."
        )
    return Path(os.path.expandvars(os.path.expanduser(place)))
