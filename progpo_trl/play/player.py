"""`Player`: one episode that is played from outside, action by action, and can be taken back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from progpo_trl.actions import Projection, project
from progpo_trl.contexts import PromptTemplate, TurnView
from progpo_trl.environments.base import Observation, StepResult, TaskSet, is_admissible
from progpo_trl.episodes import Episode, Step, StopReason

# The default of MultiTurnGRPOConfig.history, as published; its module loads TRL.
HISTORY = 2


class Turn(NamedTuple):
    """What is seen before an action: the environment's text and its commands (None when it cannot say)."""

    observation: str
    admissible: tuple[str, ...] | None


class Player:
    """An episode of `tasks`, with the records that a training run keeps of its own.

    task_id, seed: of the episode; KeyError for an unknown id. template: the prompt shown (default: the environment's
    own; ValueError for one there is not), with `history` past steps in it, as in window context.

    environment: the episode's own; turns: what was seen, the current turn last; episode: the steps so far; result: of
    the last step, None before the first.
    """

    def __init__(
        self,
        tasks: TaskSet,
        task_id: str,
        *,
        seed: int = 0,
        history: int = HISTORY,
        template: str | PromptTemplate | None = None,
    ):
        self.tasks, self.task_id, self.seed, self.history = tasks, task_id, seed, history
        named = tasks.prompt_template if template is None else template
        self.template = named if isinstance(named, PromptTemplate) else PromptTemplate(named)
        self.task_type = tasks.task_type(task_id)
        self.restart()

    def restart(self) -> None:
        """Start the same task from its beginning."""
        self.environment = self.tasks.make()
        first: Observation = self.environment.reset(self.task_id, self.seed)
        self.turns = [Turn(first.text, first.admissible)]
        self.episode = Episode(self.task_id, self.task_type, seed=self.seed, task=first.task)
        self.result: StepResult | None = None

    @property
    def turn(self) -> Turn:
        """What is seen now."""
        return self.turns[-1]

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.episode.stop_reason is not None

    @property
    def score(self) -> float | None:
        """The environment's score of a finished episode (WebShop: 0 to 1), None where it gives none."""
        score = self.result.info.get("score") if self.result else None
        return None if score is None else float(score)

    def read(self, text: str) -> Projection:
        """The action that `text`, typed by a person, stands for: what a policy that writes it would play."""
        if self.tasks.action_format == "text":
            return project(text, "text")
        return project(f"<action>{text}</action>", "action")

    def play(self, text: str, response: str | None = None) -> StepResult:
        """Play the action `text`. response: what it was read from (default: the text itself).

        Any text is an action, as for a policy; ValueError for an empty one, or when the episode is over.
        """
        action, format_valid = self.read(text)
        if not action:
            raise ValueError("an action must not be empty")
        if self.done:
            raise ValueError("the episode is over")
        seen, nothing = self.turn, np.empty(0, np.int32)
        result = self.environment.step(action)
        step = Step(
            observation=seen.observation,
            context_ids=nothing,
            completion_ids=nothing,
            logprobs=None,
            response=text if response is None else response,
            action=action,
            format_valid=format_valid,
            admissible=is_admissible(action, seen.admissible),
            reward=float(result.reward),
            info=result.info,
        )
        episode = self.episode
        episode.steps.append(step)
        episode.final_observation, episode.success = result.text, episode.success or result.success
        if result.done or len(episode.steps) >= self.tasks.max_steps:
            failure = StopReason.STEP_LIMIT if len(episode.steps) >= self.tasks.max_steps else StopReason.FAILURE
            episode.stop_reason = StopReason.SUCCESS if result.success else failure
        self.turns.append(Turn(result.text, result.admissible))
        self.result = result
        return result

    def undo(self) -> bool:
        """Take the last step back by replaying the others; False when there is none."""
        steps = self.episode.steps[:-1]
        if not self.episode.steps:
            return False
        self.restart()
        for step in steps:
            self.play(step.action, step.response)
        return True

    def prompt(self) -> str | None:
        """The user message that a policy would get now, before the chat template; None when the episode is over.

        A run that has no room for it in its context shortens the history further; that takes its tokenizer.
        """
        if self.done:
            return None
        view = TurnView(*self.turn, self.episode.task, self.episode.steps, self.tasks.max_steps)
        return self.template.render("window", view, self.history)

    def outcome(self) -> dict[str, Any]:
        """The numbers of the last step's info, by name: in WebShop the score and its parts."""
        info = self.result.info if self.result else {}
        return {name: value for name, value in info.items() if isinstance(value, (int, float))}
