"""`AlfworldEnvironment`: episodes of ALFWorld games behind the two-method contract."""

from __future__ import annotations

from typing import Any, Protocol

from progpo_trl.environments.alfworld.game import Game
from progpo_trl.environments.alfworld.world import World
from progpo_trl.environments.base import Environment, Observation, StepResult


class GameSource(Protocol):
    """Where games come from. Pickle it small (by path or seed, not by content): episodes carry it."""

    def game(self, task_id: str) -> Game:
        """The parsed game, the same object at every call while it is cached. KeyError for an unknown id."""
        ...


class AlfworldEnvironment(Environment):
    """One episode at a time of the games of `games`, played by our own engine.

    Text, admissible commands (sorted) and winning are those of the real text game. `reward` is `success_reward` on
    the step that wins, else 0. An episode is done when it is won or after `max_steps` steps, whatever those steps
    were; steps after that repeat the last state with reward 0, as the real engine does. `seed` changes nothing: the
    games are deterministic. A pickled episode holds its state and its game's id, not the game.

    score: 1 when won else 0, as TextWorld counts; steps: steps taken so far.
    """

    def __init__(self, games: GameSource, *, max_steps: int = 50, success_reward: float = 10.0):
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self.games = games
        self.max_steps = max_steps
        self.success_reward = success_reward
        self.task_id = ""
        self.steps = 0
        self._world: World | None = None
        self._last = StepResult("")

    @property
    def score(self) -> int:
        """TextWorld's score of the episode so far: 1 when the game is won, else 0."""
        return int(self._last.success)

    def reset(self, task_id: str, seed: int = 0) -> Observation:
        """Start a game. KeyError for an unknown id, GameFileError if its file turns out to be damaged."""
        world = World(self.games.game(task_id))
        self.task_id, self.steps, self._world = task_id, 0, world
        self._last = StepResult(world.introduction(), world.commands(), success=world.is_won())
        return Observation(self._last.text, self._last.admissible, world.game.task)

    def step(self, action: str) -> StepResult:
        """Play a command; anything that is not an admissible command is a step on which nothing happens."""
        world, last = self._world, self._last
        if world is None:
            raise RuntimeError("step() before reset()")
        if last.done:
            if last.reward:
                self._last = StepResult(last.text, last.admissible, 0.0, True, last.success)
            return self._last
        self.steps += 1
        text, changed = world.play(action)
        admissible, won = last.admissible, last.success
        if changed:
            admissible, won = world.commands(), world.is_won()
        done = won or self.steps >= self.max_steps
        self._last = StepResult(text, admissible, self.success_reward if won else 0.0, done, won)
        return self._last

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        world = state.pop("_world")
        state["world"] = None if world is None else world.snapshot()
        state["_last"] = (self._last.text, self._last.reward, self._last.done, self._last.success)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        snapshot, (text, reward, done, success) = state.pop("world"), state.pop("_last")
        self.__dict__.update(state)
        self._world = None if snapshot is None else World.restore(self.games.game(self.task_id), snapshot)
        admissible = None if self._world is None else self._world.commands()
        self._last = StepResult(text, admissible, reward, done, success)
