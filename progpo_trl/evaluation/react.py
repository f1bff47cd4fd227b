"""ReAct (Yao et al. 2023): before each action a thought, in a growing transcript, after a few examples.

The rules, and where they are choices of ours, stand in docs/agents.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from progpo_trl.contexts import PROMPTS, TurnView
from progpo_trl.environments.base import TaskSet
from progpo_trl.evaluation.agents import Game, Player
from progpo_trl.evaluation.chat import ChatModel, Completion, Message
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.examples import Example, Examples, Turn, in_wording
from progpo_trl.evaluation.prompted import QUOTED, ChatPlayer, PromptedAgent, PromptSettings, Usage
from progpo_trl.settings_values import said_of

TEMPLATE = PROMPTS / "agents" / "react.jinja"

# Chat models like to write the labels in bold.
_ACTION = re.compile(r"^[ \t]*[*_`]{0,3}action[*_`]{0,3}[ \t]*:[ \t]*[*_`]{0,3}(.*)$", re.IGNORECASE | re.MULTILINE)
_THOUGHT = re.compile(r"^\s*[*_`]{0,3}thought[*_`]{0,3}[ \t]*:[ \t]*[*_`]{0,3}", re.IGNORECASE)
_OBSERVATION = re.compile(r"^[ \t]*[*_`]{0,3}observation[*_`]{0,3}[ \t]*:", re.IGNORECASE | re.MULTILINE)
_TAGS = re.compile(r"</?(?:think|action)>", re.IGNORECASE)


def read_react(text: str) -> tuple[str, str | None]:
    """(thought, action) of an answer; the action is None when no line begins with "Action:" or nothing follows.

    What comes after the first action, or after an observation that the model made up, is not read. Bold type and
    quotes around an action are taken off.
    """
    made_up = _OBSERVATION.search(text)
    text = text[: made_up.start()] if made_up else text
    found = _ACTION.search(text)
    thought = _THOUGHT.sub("", text[: found.start()] if found else text).strip()
    action = found[1].strip().strip("*_`").strip() if found else ""
    if len(action) > 1 and action[0] == action[-1] and action[0] in "'\"":
        action = action[1:-1].strip()
    return thought, action or None


def as_response(thought: str, action: str | None, raw: str, action_format: str) -> str:
    """The answer in the form in which the environment's actions are read (`progpo_trl.actions.project`).

    Without an action it stays as it is: a model that answers in tags is understood, all else is format-invalid.
    """
    if action is None:
        return "" if action_format == "text" else raw
    # Tags in a thought must not be taken for the action.
    thought, action = _TAGS.sub("", thought), _TAGS.sub("", action)
    return action if action_format == "text" else f"<think>{thought}</think>\n<action>{action}</action>"


class AgentTemplate:
    """The Jinja file that writes the messages of ReAct and Reflexion; its head says what it is given."""

    def __init__(self, path: str | Path | None = None):
        self._path = Path(path or TEMPLATE)
        try:
            data = self._path.read_bytes()
            # Sandboxed: it may have come with someone's recipe. What agents see and say is only ever a variable.
            environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)
            self._template = environment.from_string(data.decode())
        except jinja2.TemplateSyntaxError as error:
            raise EvaluationError(f"template {self._path}, line {error.lineno}: {error.message}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise EvaluationError(f"template {said_of(self._path, error)}") from error
        self.sha256 = hashlib.sha256(data).hexdigest()
        turn = [Turn("You see a door.", "A door.", "look")]
        for part in ("first", "later", "reflect"):
            if not self.render(part, examples=[Example("all", tuple(turn))], memory=["Look."], transcript=turn):
                raise EvaluationError(f"template {self._path}: the part {part!r} is empty")

    def render(self, part: str, **values: Any) -> str:
        """A message; values that are not given are empty."""
        empty = {
            "task": "",
            "observation": "",
            "commands": None,
            "listed": False,
            "examples": (),
            "memory": (),
            "max_steps": 0,
        }
        empty |= {"left_out": 0, "transcript": (), "ended": ""}
        try:
            return self._template.render(part=part, **{**empty, **values}).strip()
        except Exception as error:
            # A template runs expressions of its author; whatever they raise is the template's fault.
            raise EvaluationError(f"template {self._path}: {error or type(error).__name__}") from error


class ReactAgent(PromptedAgent):
    """ReAct. shots: examples in the prompt; examples, template: files in the place of those that ship."""

    style = "react"

    def __init__(
        self,
        chat: ChatModel,
        settings: PromptSettings | None = None,
        *,
        shots: int = 2,
        examples: str | Path | None = None,
        template: str | Path | None = None,
    ):
        super().__init__(chat, settings)
        if shots < 0:
            raise EvaluationError(f"the number of examples must be at least 0, got {shots}")
        self.shots, self.template = shots, AgentTemplate(template)
        self._file, self._examples = examples, Examples() if examples is None else Examples(Path(examples))

    def prepare(self, tasks: TaskSet) -> None:
        """As `Agent.prepare`: reads the examples for these tasks."""
        super().prepare(tasks)
        self._examples = Examples.for_tasks(tasks, self._file)

    def prompt_facts(self) -> dict[str, Any]:
        """As `PromptedAgent.prompt_facts`."""
        return {
            "shots": self.shots,
            "template_sha256": self.template.sha256,
            "examples_sha256": self._examples.sha256 if self.shots else None,
        }

    def player(self, game: Game, tasks: TaskSet) -> Player:
        """As `PlayerAgent.player`."""
        return self.react_player(game, tasks)

    def react_player(self, game: Game, tasks: TaskSet, **options: Any) -> ReactPlayer:
        """A player for one episode; options: of `ReactPlayer`."""
        chosen = [_worded(one, game, tasks) for one in self._examples.choose(game.task_type, self.shots)]
        return ReactPlayer(self.chat, game, self.settings, self.template, chosen, tasks.action_format, **options)


def _worded(example: Example, game: Game, tasks: TaskSet) -> Example:
    """The example in the wording of the game, which only ALFWorld's files have several of."""
    library = getattr(tasks, "library", None)
    if library is None or not tasks.name.startswith("alfworld"):
        return example
    version = library.game(game.task_id).version
    return in_wording(example, version.put_command, version.put_feedback)


class ReactPlayer(ChatPlayer):
    """Plays one episode by thoughts and actions. memory: reflections on earlier trials of the game (Reflexion)."""

    stop = ("\nObservation:",)

    def __init__(
        self,
        chat: ChatModel,
        game: Game,
        settings: PromptSettings,
        template: AgentTemplate,
        examples: Sequence[Example],
        action_format: str,
        *,
        trial: int = 1,
        memory: Sequence[str] = (),
        usage: Usage | None = None,
    ):
        super().__init__(chat, game, settings, trial=trial, usage=usage)
        self.template, self.examples, self.memory = template, tuple(examples), tuple(memory)
        self._format = action_format
        self.said: list[tuple[str, str]] = []

    def messages(self, view: TurnView, history: int) -> list[Message]:
        """As `ChatPlayer.messages`: instructions, examples and the first observation stay; past turns are the chat."""
        played = len(view.steps)
        first = played - history
        commands = None if view.admissible is None else list(view.admissible)
        seen = [*(step.observation for step in view.steps), view.observation]
        text = self.template.render(
            "first",
            task=view.task,
            observation=seen[0],
            commands=None if played else commands,
            listed=commands is not None,
            examples=self.examples,
            memory=self.memory,
            max_steps=view.max_steps,
            left_out=first,
        )
        if first and not history:
            # Nothing of the past is left: what is seen now joins the first message.
            text += "\n\n" + self.template.render("later", observation=view.observation, commands=commands)
        messages: list[Message] = [{"role": "user", "content": text}]
        for i in range(first, played):
            thought, action = self.said[i]
            messages.append({"role": "assistant", "content": f"Thought: {thought}\nAction: {action}"})
            now = commands if i == played - 1 else None
            later = self.template.render("later", observation=seen[i + 1], commands=now)
            messages.append({"role": "user", "content": later})
        return messages

    def read(self, answer: Completion, view: TurnView) -> str:
        """As `ChatPlayer.read`."""
        thought, action = read_react(answer.text)
        response = as_response(thought, action, answer.text, self._format)
        self.said.append((thought[:QUOTED] or "-", (action or "-")[:QUOTED]))
        return response

    def transcript(self, steps: Sequence[Any]) -> list[Turn]:
        """The turns that were played, as the template shows them."""
        return [Turn(s.observation, *said) for s, said in zip(steps, self.said, strict=False)]
