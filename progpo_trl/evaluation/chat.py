"""What prompted agents ask: a chat model, whether it is an endpoint somewhere or weights on this machine."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from progpo_trl.environments.base import TaskSet
from progpo_trl.evaluation.agents import Game

Message = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": text}

# Longer texts come from a model that runs away; what is beyond is dropped, and the response counts as truncated.
MAX_CHARACTERS = 200_000


class ContextTooLong(Exception):
    """The messages do not fit the model's context; fewer of them may."""


class CallFailed(Exception):
    """No answer after all retries: the game is lost to the endpoint, not to the model."""


class Stopped(RuntimeError):
    """The evaluation cannot go on now (budget used up, key refused); what was answered is kept for --resume."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a call is for: it names the call in the log and seeds it.

    trial, turn: 1-based; purpose: "act" or "reflect". The attempt of the game is left out on purpose: a game that is
    played again since its environment failed gets the same answers, without asking for them again.
    """

    split: str
    temperature: float | None
    seed: int
    task_id: str
    trial: int
    turn: int
    purpose: str = "act"

    @classmethod
    def of(cls, game: Game, trial: int, turn: int, purpose: str = "act") -> Call:
        """A call in a game."""
        return cls(game.split, game.temperature, game.seed, game.task_id, trial, turn, purpose)

    def stream(self) -> int:
        """A seed of 31 bits of its own for every call; the same again in a repeated evaluation."""
        text = f"{self.seed}|{self.task_id}|{self.trial}|{self.turn}|{self.purpose}"
        return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).digest()) >> 1


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. Token counts are None where the endpoint does not tell.

    refused: the model or its provider declined; truncated: cut at max_tokens or at `MAX_CHARACTERS`; failures: kind
    -> how many requests for it failed before; served_by: the model's name in the answer.
    """

    text: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    truncated: bool = False
    refused: bool = False
    failures: Mapping[str, int] = field(default_factory=dict)
    served_by: str | None = None


class ChatModel(ABC):
    """Answers chats; called from several threads at once."""

    # Episodes that are worth having under way at once.
    concurrency: int = 1
    # Whether it takes a temperature.
    samples: bool = True
    # Whether it has answered any call; set by the players, and where answers are kept by `start`.
    answered: bool = False

    @abstractmethod
    def complete(
        self,
        messages: Sequence[Message],
        *,
        temperature: float | None,
        max_tokens: int,
        call: Call,
        stop: Sequence[str] = (),
    ) -> Completion:
        """The answer to `messages`, of at most `max_tokens` tokens.

        temperature: 0 is greedy; call: names the call, `call.stream()` seeds it; stop: texts that end an answer (a
        model that cannot stop there goes on: the caller cuts). Raises ContextTooLong, CallFailed or Stopped.
        """

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Which model, as JSON: all of it that decides the answers."""

    def prepare(self, tasks: TaskSet) -> None:  # noqa: B027  (most models are ready)
        """Find out whether it can be asked; EvaluationError says why not."""

    def start(self) -> None:  # noqa: B027
        """Called before games are played."""

    def stop(self, *, abort: bool) -> None:  # noqa: B027
        """Called after games were played; abort: nobody waits for answers any more."""

    def machine(self) -> dict[str, Any]:
        """Where it runs, as JSON: recorded, not compared."""
        return {}

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """What so many tokens cost, in the currency of the prices given; None where no prices are."""
        return None


def clean_text(text: str) -> tuple[str, bool]:
    """Text that can be written and sent again (lone surrogates become '?'), and whether it was cut."""
    cut = len(text) > MAX_CHARACTERS
    return text[:MAX_CHARACTERS].encode("utf-8", "replace").decode(), cut
