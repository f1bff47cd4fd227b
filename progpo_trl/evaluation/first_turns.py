"""Tells a model that runs out of context from settings under which no game can begin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from progpo_trl.episodes import StopReason
from progpo_trl.evaluation.chat import ChatModel, Stopped


class FirstTurns:
    """Holds back games whose first message does not fit the model, until any call is answered.

    When one is, they are what they look like: games too long for this model. When none ever is, the length of an
    answer or the window is set wrongly, and to count them would make a mistake of settings a failure of the model.
    """

    def __init__(self, chat: ChatModel, max_tokens: int):
        self._chat, self._max_tokens = chat, max_tokens
        # Every game that is under way may be of that kind while others still wait for their first answer.
        self._most = 2 * chat.concurrency
        self._held: list[tuple[Callable[[], None], str]] = []

    def report(self, ended: Mapping[str, Any] | None, report: Callable[[], None]) -> None:
        """Call `report` now or later; ended: why the game's player stopped, or None. Raises Stopped."""
        self._let_go()
        first = ended is not None and ended["turn"] == 1 and ended["reason"] == StopReason.CONTEXT_LIMIT.value
        if not first or self._chat.answered:
            report()
            return
        self._held.append((report, ended["error"]))
        if len(self._held) >= self._most:
            self._stop()

    def finish(self) -> None:
        """After the last game. Raises Stopped when no game could begin."""
        self._let_go()
        if self._held:
            self._stop()

    def _let_go(self) -> None:
        if self._chat.answered:
            held, self._held = self._held, []
            for report, _ in held:
                report()

    def _stop(self) -> None:
        raise Stopped(
            f"no game can begin: its first message does not fit the model beside an answer of {self._max_tokens} "
            f"tokens ({self._held[0][1]}). Set a smaller --max_completion_length, a shorter prompt (react, reflexion: "
            "fewer --shots), or give the model or its server a larger context"
        )
