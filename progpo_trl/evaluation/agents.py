"""The one interface of everything that plays a panel: trained policies, prompted models, scripted players.

An `Agent` is given the games that are still to be played and reports each one as it ends, in any order; who gives
them, keeps the results and goes on after an interruption is `evaluation.run`. The policy plays its games in batches;
agents that decide for one episode at a time (a prompted model, a rule) subclass `PlayerAgent`.
"""

from __future__ import annotations

import contextlib
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from progpo_trl.contexts import TurnView
from progpo_trl.environments.base import TaskSet
from progpo_trl.episodes import Episode


@dataclass(frozen=True, slots=True)
class Game:
    """One play of one game of a panel.

    place: of the game in its panel; temperature: None where the agent has none; seed: the sampling seed, given to the
    environment too; attempt: how often the environment has failed in this game so far.
    """

    split: str
    task_id: str
    task_type: str
    place: int
    temperature: float | None
    seed: int
    attempt: int = 0

    @property
    def key(self) -> tuple[str, float | None, int, str]:
        """What tells it from the other games of an evaluation."""
        return self.split, self.temperature, self.seed, self.task_id

    def episode(self) -> Episode:
        """A fresh episode of the game; its group is the place in the panel."""
        return Episode(self.task_id, self.task_type, index=0, group=self.place, seed=self.seed)


# (the game, its finished episode, JSON notes of the agent to be kept with the result, or None)
OnDone = Callable[[Game, Episode, Mapping[str, Any] | None], None]


class Agent(ABC):
    """Plays games. `name`: short, for tables and files; `samples`: whether a sampling temperature means anything."""

    name: str = "agent"
    samples: bool = False

    @abstractmethod
    def play(self, games: Sequence[Game], tasks: TaskSet, on_done: OnDone, *, max_turns: int) -> None:
        """Play every game to its end, of at most `max_turns` actions, and call `on_done` once for each as it ends.

        A game must not depend on which others are played beside it. An episode whose environment fails ends with stop
        reason ENVIRONMENT_ERROR; it comes back as a game of the next attempt. Anything else that is raised stops the
        evaluation; what was reported by then is kept. Called again for games of other temperatures or attempts.
        """

    def prepare(self, tasks: TaskSet) -> None:  # noqa: B027  (most agents have nothing to prepare)
        """Find out before the first game whether these tasks can be played; EvaluationError says why not."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Who plays, as JSON: all that decides the results but the panel (a resumed evaluation must find it equal)."""

    def machine(self) -> dict[str, Any]:
        """Where it runs, as JSON (device, number format): recorded, not compared."""
        return {}

    def totals(self, records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Sums over the notes of all games (calls, cost), kept as `totals` with the results; {} for nothing."""
        return {}

    def deterministic(self, temperature: float | None) -> bool:
        """Whether all sampling seeds would give the same games, so that one is enough."""
        return False


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. tokens: how many it took, 0 if unknown; truncated: it was cut at a limit."""

    text: str
    tokens: int = 0
    truncated: bool = False


class Player(ABC):
    """Decides for one episode. It may keep a memory of it: it is asked turn by turn, never twice at a time."""

    @abstractmethod
    def respond(self, view: TurnView) -> Reply | str:
        """The response to what is seen; the action is read from it as from a policy's (the task set's action_format).

        view: the current observation, the admissible commands (or None), the task, the steps so far (responses,
        actions, observations), the most steps there may be. Called in a thread of its own when the agent plays
        several episodes at once.
        """

    def notes(self) -> Mapping[str, Any] | None:
        """JSON to be kept with the result of the episode (calls, cost, reflections), asked once when it has ended."""
        return None


class PlayerAgent(Agent):
    """An agent that makes a `Player` for every game; `concurrency` episodes are under way at once.

    Only players run in threads; environments are reset and stepped one at a time in the calling thread.
    """

    concurrency: int = 1

    @abstractmethod
    def player(self, game: Game, tasks: TaskSet) -> Player:
        """A new player for one episode."""

    def play(self, games: Sequence[Game], tasks: TaskSet, on_done: OnDone, *, max_turns: int) -> None:
        """As `Agent.play`."""
        from progpo_trl.rollout import play_streaming

        under_way = {id(e): (game, e) for game in games for e in [game.episode()]}
        players: dict[int, Player] = {}

        def player_of(episode: Episode) -> Player:
            if id(episode) not in players:
                players[id(episode)] = self.player(under_way[id(episode)][0], tasks)
            return players[id(episode)]

        def ended(episode: Episode) -> None:
            game, player = under_way[id(episode)][0], players.pop(id(episode), None)
            on_done(game, episode.without_tokens(), None if player is None else player.notes())

        with _replies(player_of, self.concurrency) as requests:
            play_streaming(
                [e for _, e in under_way.values()],
                tasks,
                _Views(),
                requests,
                lambda ids: [],  # every reply brings its text
                max_turns=max_turns,
                step_limit=min(max_turns, tasks.max_steps),
                action_format=tasks.action_format,
                at_once=self.concurrency,
                on_done=ended,
            )


class _Views:
    """The context of players: what they see is the turn itself, not token ids."""

    def prompts(self, views: Sequence[TurnView]) -> list[TurnView]:
        return list(views)


class _Replies:
    """`rollout.TurnRequests` answered by players."""

    def __init__(self, player_of: Callable[[Episode], Player], pool: ThreadPoolExecutor):
        self._player_of, self._pool = player_of, pool
        self._ready: queue.SimpleQueue[tuple[Episode, Future]] = queue.SimpleQueue()

    def send(self, episode: Episode, view: TurnView) -> None:
        future = self._pool.submit(self._player_of(episode).respond, view)
        future.add_done_callback(lambda done: self._ready.put((episode, done)))

    def receive(self):
        from progpo_trl.generation import TurnOutput

        episode, done = self._ready.get()
        reply = done.result()
        reply = Reply(reply) if isinstance(reply, str) else reply
        # The ids say how many tokens were spent, which is all that is known of them.
        ids = np.zeros(reply.tokens, np.int32)
        return episode, TurnOutput(ids, None, reply.truncated, text=reply.text)


@contextlib.contextmanager
def _replies(player_of: Callable[[Episode], Player], concurrency: int) -> Iterator[_Replies]:
    pool = ThreadPoolExecutor(max_workers=concurrency)
    try:
        yield _Replies(player_of, pool)
    finally:
        # Nobody waits for an answer any more when this is left by an exception.
        pool.shutdown(wait=False, cancel_futures=True)
