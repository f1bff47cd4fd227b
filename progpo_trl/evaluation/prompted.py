"""Agents that are a chat model and a way of prompting it: what they share, and zero-shot prompting ("prompt").

An episode that the endpoint (not the model) has spoiled is lost, as one that its environment has spoiled: it is
played again, and never counts as a failure of the model.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from progpo_trl.contexts import PromptTemplate, TurnView
from progpo_trl.environments.base import TaskSet
from progpo_trl.episodes import Episode, StopReason
from progpo_trl.evaluation.agents import Game, OnDone, Player, PlayerAgent, Reply
from progpo_trl.evaluation.chat import Call, CallFailed, ChatModel, Completion, ContextTooLong, Message
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.first_turns import FirstTurns

# Past responses are quoted in later prompts; a runaway one must not fill them.
QUOTED = 4_000
# The tiny policy's prompt has no instructions: only a policy that was trained on it understands it.
_UNINSTRUCTED = {"tiny": "alfworld"}


@dataclass(frozen=True)
class PromptSettings:
    """How a chat model is prompted.

    max_tokens: of an answer; context, prompt_template: of the style "prompt", as in a training; history: past turns in
    a prompt (None: 2 in window context, else all); system_prompt: a message before all others.
    """

    max_tokens: int = 512
    context: str = "window"
    history: int | None = None
    prompt_template: str | None = None
    system_prompt: str | None = None

    def __post_init__(self):
        if self.context not in ("window", "full"):
            raise EvaluationError(f"context must be window or full, got {self.context!r}")
        if self.max_tokens < 1 or (self.history is not None and self.history < 0):
            raise EvaluationError("max_tokens must be at least 1 and history at least 0")


class Usage:
    """Counts over the calls of a game."""

    def __init__(self):
        self._counts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._served_by: set[str] = set()

    def add(self, answer: Completion) -> None:
        """Count an answer."""
        self._counts += Counter(
            calls=1,
            prompt_tokens=answer.prompt_tokens or 0,
            completion_tokens=answer.completion_tokens or 0,
            calls_without_usage=answer.prompt_tokens is None or answer.completion_tokens is None,
            refused=answer.refused,
            empty=not answer.refused and not answer.text.strip(),
            truncated=answer.truncated,
        )
        self._failures += Counter(answer.failures)
        self._served_by |= {answer.served_by} if answer.served_by else set()

    def notes(self) -> dict[str, Any]:
        """As JSON; counts that are 0 are left out."""
        counts = {name: int(value) for name, value in sorted(self._counts.items())}
        failures = {"failures": dict(sorted(self._failures.items()))} if self._failures else {}
        return {**counts, **failures, "served_by": sorted(self._served_by)}


class ChatPlayer(Player):
    """Asks a chat model once a turn. A subclass writes the messages and reads the answer."""

    # Texts at which an answer ends.
    stop: Sequence[str] = ()

    def __init__(self, chat: ChatModel, game: Game, settings: PromptSettings, *, trial: int = 1, usage=None):
        self.chat, self.game, self.settings, self.trial = chat, game, settings, trial
        self.usage: Usage = usage or Usage()
        self._ended: dict[str, Any] | None = None
        self._most: int | None = None

    @abstractmethod
    def messages(self, view: TurnView, history: int) -> list[Message]:
        """The chat that asks for the next action, with the last `history` turns in it."""

    def history(self) -> int | None:
        """Past turns in a prompt at most; None for all."""
        return self.settings.history

    def read(self, answer: Completion, view: TurnView) -> str:
        """The response, as the task set's action_format wants it."""
        return answer.text

    def respond(self, view: TurnView) -> Reply:
        """As `Player.respond`. Once the endpoint has given up, nothing more is asked; see `cut`."""
        turn = len(view.steps) + 1
        answer = self.guarded(turn, lambda: self.ask(view, turn))
        if answer is None:
            return Reply("")
        # Counts become arrays of ids in the episode: an absurd one must not fill the memory.
        return Reply(self.read(answer, view), min(answer.completion_tokens or 0, 1_000_000), answer.truncated)

    def guarded(self, turn: int, ask: Callable[[], Completion | None]) -> Completion | None:
        """The answer, or None once no answer can be had; that turn ends the episode."""
        if self._ended is None:
            try:
                return ask()
            except ContextTooLong as error:
                self._ended = {"turn": turn, "reason": StopReason.CONTEXT_LIMIT.value, "error": str(error)}
            except CallFailed as error:
                self._ended = {"turn": turn, "reason": StopReason.ENVIRONMENT_ERROR.value, "error": str(error)}
        return None

    def ask(self, view: TurnView, turn: int) -> Completion:
        """The answer to this turn. Too long a chat is tried again with half of its past, at last without any."""
        while True:
            shown = min(n for n in (len(view.steps), self.history(), self._most) if n is not None)
            try:
                return self.complete(self.messages(view, shown), Call.of(self.game, self.trial, turn))
            except ContextTooLong:
                if shown == 0:
                    raise
                # Kept for the turns that follow, which would not fit either.
                self._most = shown // 2

    def complete(self, messages: Sequence[Message], call: Call) -> Completion:
        """Ask, and count."""
        system = self.settings.system_prompt
        before = [{"role": "system", "content": system}] if system else []
        answer = self.chat.complete(
            [*before, *messages],
            temperature=self.game.temperature,
            max_tokens=self.settings.max_tokens,
            call=call,
            stop=self.stop,
        )
        self.usage.add(answer)
        self.chat.answered = True
        return answer

    def notes(self) -> Mapping[str, Any]:
        """As `Player.notes`."""
        return self.usage.notes() | ({"ended": self._ended} if self._ended else {})


def cut(episode: Episode, ended: Mapping[str, Any] | None) -> None:
    """End an episode where its player could not go on; what was played after that means nothing."""
    if ended is None:
        return
    last = ended["turn"] - 1
    if last < len(episode.steps):
        episode.final_observation = episode.steps[last].observation
    episode.steps = episode.steps[:last]
    episode.success, episode.stop_reason = False, StopReason(ended["reason"])
    if episode.stop_reason is StopReason.ENVIRONMENT_ERROR:
        episode.error = ended["error"]


class PromptedAgent(PlayerAgent):
    """A chat model that plays. style: the name of the way of prompting."""

    style: str

    def __init__(self, chat: ChatModel, settings: PromptSettings | None = None):
        self.chat, self.settings = chat, settings or PromptSettings()
        self.name, self.samples, self.concurrency = self.style, chat.samples, chat.concurrency

    def facts(self) -> dict[str, Any]:
        """As `Agent.facts`."""
        settings = {**asdict(self.settings), **self.prompt_facts()}
        return {"kind": "prompted", "style": self.style, "chat": self.chat.facts(), "settings": settings}

    def prompt_facts(self) -> dict[str, Any]:
        """What else decides the prompts: hashes of templates and examples."""
        return {}

    def machine(self) -> dict[str, Any]:
        """As `Agent.machine`."""
        return self.chat.machine()

    def deterministic(self, temperature: float | None) -> bool:
        """As `Agent.deterministic`: greedy play is played once, though endpoints keep no promise about it."""
        return temperature == 0

    def prepare(self, tasks: TaskSet) -> None:
        """As `Agent.prepare`."""
        self.chat.prepare(tasks)

    def play(self, games: Sequence[Game], tasks: TaskSet, on_done: OnDone, *, max_turns: int) -> None:
        """As `Agent.play`."""
        self.chat.start()
        abort = True
        try:
            self.play_games(games, tasks, on_done, max_turns)
            abort = False
        finally:
            self.chat.stop(abort=abort)

    def play_games(self, games: Sequence[Game], tasks: TaskSet, on_done: OnDone, max_turns: int) -> None:
        """Play each game once."""
        first_turns = FirstTurns(self.chat, self.settings.max_tokens)

        def done(game: Game, episode: Episode, notes: Mapping[str, Any] | None) -> None:
            ended = (notes or {}).get("ended")
            cut(episode, ended)
            first_turns.report(ended, lambda: on_done(game, episode, notes))

        super().play(games, tasks, done, max_turns=max_turns)
        first_turns.finish()

    def totals(self, records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """As `Agent.totals`: calls, tokens, failed requests by kind and, where prices were given, what it cost."""
        counts, failures, served_by = Counter(), Counter(), set()
        for record in records:
            notes = record.get("notes") or {}
            counts += Counter({name: value for name, value in notes.items() if type(value) is int})
            failures += Counter(notes.get("failures") or {})
            served_by |= set(notes.get("served_by") or ())
        cost = self.chat.cost(counts["prompt_tokens"], counts["completion_tokens"])
        return {
            **{name: counts[name] for name in _TOTALS},
            "failures": dict(sorted(failures.items())),
            "served_by": sorted(served_by),
            "cost": None if cost is None else round(cost, 6),
        }


_TOTALS = ("calls", "prompt_tokens", "completion_tokens", "calls_without_usage", "refused", "empty", "truncated")


def totals_lines(totals: Mapping[str, Any]) -> Iterable[str]:
    """The totals for a terminal."""
    tokens = f"{totals['prompt_tokens']:,} tokens in, {totals['completion_tokens']:,} out"
    unknown = totals["calls_without_usage"]
    yield f"{totals['calls']:,} calls, {tokens}" + (f" (not told for {unknown:,} calls)" if unknown else "")
    if totals["cost"] is not None:
        yield f"cost {'at least ' if unknown else ''}{totals['cost']:.4f} at the prices given"
    odd = {name: totals[name] for name in ("refused", "empty", "truncated") if totals[name]}
    if odd:
        yield "answers: " + ", ".join(f"{name} {count:,}" for name, count in odd.items())
    if totals["failures"]:
        yield "failed requests: " + ", ".join(f"{kind} {n:,}" for kind, n in totals["failures"].items())
    for trial in totals.get("trials", ()):
        yield f"success after trial {trial['trial']}: {100 * trial['success']:.1f} %"


class PromptAgent(PromptedAgent):
    """Zero-shot: the prompt template that policies are trained with, sent to a chat model.

    Window context (default): one user message, rebuilt every turn, with the last `history` (2) observations and
    actions. Full context: the whole conversation, responses as they were given.
    """

    style = "prompt"

    def __init__(self, chat: ChatModel, settings: PromptSettings | None = None):
        super().__init__(chat, settings)
        self._templates: dict[str, PromptTemplate] = {}
        self._facts: dict[str, Any] = {}

    def prompt_facts(self) -> dict[str, Any]:
        """As `PromptedAgent.prompt_facts`; there once `prepare` was called."""
        return self._facts

    def prepare(self, tasks: TaskSet) -> None:
        """As `Agent.prepare`: reads the template."""
        super().prepare(tasks)
        self._template(tasks)

    def player(self, game: Game, tasks: TaskSet) -> Player:
        """As `PlayerAgent.player`."""
        return _PromptPlayer(self.chat, game, self.settings, self._template(tasks))

    def _template(self, tasks: TaskSet) -> PromptTemplate:
        own = str(tasks.prompt_template)
        name = str(self.settings.prompt_template or _UNINSTRUCTED.get(own, own))
        if name not in self._templates:
            try:
                template = PromptTemplate(name)
                template.check(self.settings.context)
            except ValueError as error:
                raise EvaluationError(str(error)) from error
            digest = hashlib.sha256(template.path.read_bytes()).hexdigest()
            self._facts = {"prompt_template": name, "prompt_sha256": digest}
            self._templates[name] = template
        return self._templates[name]


class _PromptPlayer(ChatPlayer):
    def __init__(self, chat: ChatModel, game: Game, settings: PromptSettings, template: PromptTemplate):
        super().__init__(chat, game, settings)
        self._template = template
        # Full context: the user messages so far. Later turns do not show what was admissible in earlier ones.
        self._asked: list[str] = []

    def history(self) -> int | None:
        if self.settings.context == "full":
            return None
        return 2 if self.settings.history is None else self.settings.history

    def messages(self, view: TurnView, history: int) -> list[Message]:
        if self.settings.context == "window":
            return [{"role": "user", "content": self._template.render("window", view, history)}]
        played = len(view.steps)
        self._asked[played:] = [self._template.render("full", view)]
        # The first message carries the task and the instructions, so it stays when others go.
        past = range(played) if history >= played else [0, *range(max(1, played - history), played)]
        messages: list[Message] = []
        for i in past:
            messages.append({"role": "user", "content": self._asked[i]})
            messages.append({"role": "assistant", "content": view.steps[i].response[:QUOTED]})
        return [*messages, {"role": "user", "content": self._asked[played]}]
