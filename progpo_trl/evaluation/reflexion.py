"""Reflexion (Shinn et al. 2023): several trials of a game; after a failed one the model notes what to do better.

It is told whether a trial succeeded, which no other agent is: its success after n trials is no success of one try.
Trial 1 is ReAct, call for call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from progpo_trl.contexts import TurnView
from progpo_trl.environments.base import TaskSet
from progpo_trl.episodes import Episode, StopReason
from progpo_trl.evaluation.agents import Game, OnDone, Player, PlayerAgent
from progpo_trl.evaluation.chat import Call, ChatModel, Completion, ContextTooLong
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.examples import Turn
from progpo_trl.evaluation.first_turns import FirstTurns
from progpo_trl.evaluation.prompted import PromptSettings, Usage, cut
from progpo_trl.evaluation.react import ReactAgent, ReactPlayer

# A reflection stands in every prompt of the trials that follow.
REFLECTION_CHARACTERS = 2_000
_ENDED = {
    StopReason.STEP_LIMIT: "all commands were used up before the task was done",
    StopReason.FAILURE: "the episode ended without the task being done",
    StopReason.CONTEXT_LIMIT: "the episode grew too long",
}


@dataclass
class _Trials:
    """What is known of a game: its trials so far, the reflections on them, and the last one's turns."""

    results: list[dict[str, Any]] = field(default_factory=list)
    reflections: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    turns: list[Turn] = field(default_factory=list)
    last: Episode | None = None


class ReflexionAgent(ReactAgent):
    """Reflexion on ReAct. trials: of each game at most; memory: of how many reflections (the last ones) it has.

    The result of a game is its last trial's; `notes["trials"]` has all of them.
    """

    style = "reflexion"

    def __init__(
        self,
        chat: ChatModel,
        settings: PromptSettings | None = None,
        *,
        trials: int = 3,
        memory: int = 3,
        shots: int = 2,
        examples: str | Path | None = None,
        template: str | Path | None = None,
    ):
        super().__init__(chat, settings, shots=shots, examples=examples, template=template)
        if trials < 1 or memory < 1:
            raise EvaluationError(f"trials and memory must be at least 1, got {trials} and {memory}")
        self.trials, self.memory = trials, memory

    def prompt_facts(self) -> dict[str, Any]:
        """As `PromptedAgent.prompt_facts`."""
        return {**super().prompt_facts(), "trials": self.trials, "memory": self.memory}

    def play_games(self, games: Sequence[Game], tasks: TaskSet, on_done: OnDone, max_turns: int) -> None:
        """Trial by trial, each of all games that have not succeeded."""
        known = {game.key: _Trials() for game in games}
        todo = list(games)
        first_turns = FirstTurns(self.chat, self.settings.max_tokens)
        for trial in range(1, self.trials + 1):
            one = _Trial(self, trial, known)
            again: list[Game] = []

            def report(game: Game, episode: Episode, notes: Mapping[str, Any] | None, one=one, again=again) -> None:
                state = known[game.key]
                state.results.append(_result(episode))
                lost = episode.stop_reason is StopReason.ENVIRONMENT_ERROR
                if episode.success or lost or one.number == self.trials:
                    # Let go of what only another trial would need.
                    state.last, state.turns = None, []
                    on_done(game, episode, self._notes(state, notes))
                else:
                    state.last, state.turns = episode, one.turns(game, episode)
                    again.append(game)

            def done(game: Game, episode: Episode, notes: Mapping[str, Any] | None, report=report) -> None:
                ended = (notes or {}).get("ended")
                cut(episode, ended)
                first_turns.report(ended, lambda: report(game, episode, notes))

            one.play(todo, tasks, done, max_turns=max_turns)
            first_turns.finish()
            todo = again
            if not todo:
                return

    def _notes(self, state: _Trials, notes: Mapping[str, Any] | None) -> dict[str, Any]:
        ended = {} if not notes or "ended" not in notes else {"ended": notes["ended"]}
        return {**state.usage.notes(), **ended, "trials": state.results, "reflections": state.reflections}

    def totals(self, records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """As `PromptedAgent.totals`, and `trials`: the share of games that succeeded in trial k or before."""
        records = list(records)
        played = [r["notes"]["trials"] for r in records if (r.get("notes") or {}).get("trials")]
        played = [trials for trials in played if trials[-1]["stop_reason"] != StopReason.ENVIRONMENT_ERROR.value]
        by_trial = [
            {
                "trial": k,
                "success": sum(any(t["success"] for t in trials[:k]) for trials in played) / len(played),
                "played": sum(len(trials) >= k for trials in played),
            }
            for k in range(1, self.trials + 1)
            if played
        ]
        return {**super().totals(records), "trials": by_trial}


def _result(episode: Episode) -> dict[str, Any]:
    reason = None if episode.stop_reason is None else episode.stop_reason.value
    return {"success": episode.success, "steps": len(episode.steps), "stop_reason": reason}


class _Trial(PlayerAgent):
    """One trial of every game that is left."""

    def __init__(self, agent: ReflexionAgent, number: int, known: dict[tuple, _Trials]):
        self._agent, self.number, self._known = agent, number, known
        self.concurrency = agent.concurrency
        self._players: dict[tuple, ReflexionPlayer] = {}

    def facts(self) -> dict[str, Any]:
        """As `Agent.facts`."""
        return self._agent.facts()

    def player(self, game: Game, tasks: TaskSet) -> Player:
        """As `PlayerAgent.player`."""
        state = self._known[game.key]
        player = self._agent.react_player(game, tasks, trial=self.number, usage=state.usage)
        self._players[game.key] = ReflexionPlayer(player, state, self._agent.memory)
        return self._players[game.key]

    def turns(self, game: Game, episode: Episode) -> list[Turn]:
        """What was thought and done in a trial that has ended."""
        player = self._players.pop(game.key, None)
        return [] if player is None else player.react.transcript(episode.steps)


class ReflexionPlayer(Player):
    """A ReAct player that first, in any trial but the first, reflects on the one before."""

    def __init__(self, react: ReactPlayer, state: _Trials, memory: int):
        self.react, self._state, self._memory = react, state, memory

    def respond(self, view: TurnView):
        """As `Player.respond`."""
        if self._state.last is not None:
            last, self._state.last = self._state.last, None
            self.react.guarded(1, lambda: self._reflect(last))
        self.react.memory = tuple(self._state.reflections[-self._memory :])
        return self.react.respond(view)

    def notes(self) -> Mapping[str, Any]:
        """As `Player.notes`."""
        return self.react.notes()

    def _reflect(self, last: Episode) -> None:
        """Ask for a reflection on the failed trial; one that is too long for the model loses its first turns."""
        react, turns = self.react, self._state.turns
        call = Call.of(react.game, react.trial - 1, len(last.steps) + 1, "reflect")
        while True:
            text = react.template.render(
                "reflect",
                task=last.task,
                transcript=turns,
                observation=last.final_observation or "",
                memory=self._state.reflections[-self._memory :],
                ended=_ENDED.get(last.stop_reason, "the task was not done"),
                max_steps=len(last.steps),
            )
            try:
                answer = react.complete([{"role": "user", "content": text}], call)
                break
            except ContextTooLong:
                if not turns:
                    raise
                turns = turns[len(turns) // 2 + 1 :]
        self._state.reflections.append(_reflection(answer))


def _reflection(answer: Completion) -> str:
    """One paragraph; a model that says nothing has nothing to go on."""
    return " ".join(answer.text.split())[:REFLECTION_CHARACTERS] or "(no reflection)"
