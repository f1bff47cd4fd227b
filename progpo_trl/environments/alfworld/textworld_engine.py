"""The real ALFWorld game behind the same contract, for trust: `engine: textworld`.

It needs the extra `alfworld` and is slow (about a second a reset, 50 ms a step), so it is for checking ours, not for
training. What is known to go wrong with the real engine is kept in here: it is not thread-safe (one lock for all), it
overwrites `sys.argv` and swaps `sys.stdout` (both are put back), every instance leaks (instances are used again),
importing it creates a folder in the home directory (not here), and it cannot be pickled (an episode pickles as its
actions, which are played again).
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Protocol

from progpo_trl.environments.alfworld.files import RawGame
from progpo_trl.environments.base import Environment, Observation, StepResult

_LOCK = threading.RLock()
_IDLE: list[Any] = []  # engines whose environment is gone; never closed, closing is what crashes at exit
_UNKNOWN_GOAL = "UNKNOWN GOAL."  # what the task sentence replaces in the grammar that comes with alfworld


class RawGameSource(Protocol):
    """Where games come from, as text."""

    def raw(self, task_id: str) -> RawGame:
        """A game's PDDL problem and task, and its domain and grammar if it brings its own. KeyError: unknown id."""
        ...


class TextworldEnvironment(Environment):
    """Episodes as the real engine plays them; arguments and behaviour as of `AlfworldEnvironment`.

    Raises ImportError naming the extra when the engine is not installed.
    """

    def __init__(self, games: RawGameSource, *, max_steps: int = 50, success_reward: float = 10.0):
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self.games = games
        self.max_steps = max_steps
        self.success_reward = success_reward
        self.task_id = ""
        self._actions: list[str] = []
        self._engine: Any = None
        self._last = StepResult("")
        _import_engine()

    @property
    def score(self) -> int:
        """TextWorld's score of the episode so far: 1 when the game is won, else 0."""
        return int(self._last.success)

    def reset(self, task_id: str, seed: int = 0) -> Observation:
        """Start a game; `seed` changes nothing. Errors as in `AlfworldEnvironment.reset`."""
        raw = self.games.raw(task_id)
        with _contained():
            if self._engine is None:
                self._engine = _IDLE.pop() if _IDLE else _new_engine()
                self.task_id = ""
            if task_id != self.task_id:
                self.task_id = ""  # should loading fail half-way, the next reset loads again
                self._engine.load(_game_data(raw))
            state = self._engine.reset()
        self.task_id, self._actions = task_id, []
        self._last = StepResult(state.feedback, tuple(state["admissible_commands"]), success=bool(state["won"]))
        return Observation(self._last.text, self._last.admissible, raw.task)

    def step(self, action: str) -> StepResult:
        """Play a command; after `done` the last state repeats, as ALFWorld's batch environment does."""
        if self._engine is None:
            raise RuntimeError("step() before reset()")
        last = self._last
        if last.done:
            self._last = StepResult(last.text, last.admissible, 0.0, True, last.success)
            return self._last
        with _contained():
            state, _, _ = self._engine.step(action)
        self._actions.append(action)
        won = bool(state["won"])
        self._last = StepResult(
            state.feedback,
            tuple(state["admissible_commands"]),
            self.success_reward if won else 0.0,
            won or len(self._actions) >= self.max_steps,
            won,
        )
        return self._last

    def __del__(self) -> None:
        engine = self.__dict__.pop("_engine", None)
        if engine is not None:
            _IDLE.append(engine)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_engine", "_last")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _engine=None, _last=StepResult(""), _actions=[])
        if self.task_id:
            self.reset(self.task_id)
            for action in state["_actions"]:
                self.step(action)


def _import_engine() -> SimpleNamespace:
    """What is used of alfworld and textworld. ImportError names the extra."""
    with _contained():
        # `import alfworld` makes ~/.cache/alfworld, and sets ALFWORLD_DATA to it, unless the variable is set.
        before = os.environ.get("ALFWORLD_DATA")
        os.environ["ALFWORLD_DATA"] = before or tempfile.gettempdir()
        try:
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
            from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
            from textworld.envs.pddl import PddlEnv
        except ImportError as error:
            raise ImportError(
                f'engine "textworld" needs the real ALFWorld: pip install "progpo_trl[alfworld]" ({error})'
            ) from error
        finally:
            if before is None:
                del os.environ["ALFWORLD_DATA"]
    return SimpleNamespace(
        EnvInfos=textworld.EnvInfos,
        AlfredDemangler=AlfredDemangler,
        PddlEnv=PddlEnv,
        domain=ALFRED_PDDL_PATH,
        grammar=ALFRED_TWL2_PATH,
    )


def _new_engine() -> Any:
    parts = _import_engine()
    engine = parts.PddlEnv(parts.EnvInfos(won=True, admissible_commands=True))
    return parts.AlfredDemangler(engine)  # turns PDDL ids into "mug 1"


def _game_data(raw: RawGame) -> dict[str, str]:
    """The content of a game file, as the engine loads it; a shard's game takes alfworld's own domain and grammar."""
    domain, grammar = raw.domain, raw.grammar
    if domain is None or grammar is None:
        parts = _import_engine()
        with open(parts.domain, encoding="utf-8") as domain_file, open(parts.grammar, encoding="utf-8") as file:
            domain, grammar = domain_file.read(), file.read().replace(_UNKNOWN_GOAL, raw.task)
    return {"pddl_domain": domain, "grammar": grammar, "pddl_problem": raw.problem}


@contextmanager
def _contained() -> Iterator[None]:
    """One thread at a time, and the process's arguments and output as they were afterwards."""
    with _LOCK:
        argv, stdout = sys.argv, sys.stdout
        try:
            yield
        finally:
            sys.argv, sys.stdout = argv, stdout
