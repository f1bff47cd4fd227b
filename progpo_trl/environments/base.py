"""The environment contract: text in, text out. Environments know nothing of tokens, torch or the trainer."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from progpo_trl.actions import FALLBACK_CHARACTERS


class OpenCommand(str):
    """An admissible command with free text in it, such as `search[<your query>]`.

    It reads as that text in prompts; `pattern` is the regular expression that an action must match in full to be
    one of the commands meant.
    """

    __slots__ = ("pattern",)

    def __new__(cls, text: str, pattern: str):
        self = super().__new__(cls, text)
        self.pattern = pattern
        return self

    def __getnewargs__(self) -> tuple[str, str]:
        return str(self), self.pattern

    def accepts(self, action: str) -> bool:
        """Whether `action` is one of the commands meant."""
        return re.fullmatch(self.pattern, action) is not None


def is_admissible(action: str, admissible: Sequence[str] | None) -> bool:
    """Whether `action` is among the commands: literally, or as an OpenCommand accepts it. True for None."""
    if admissible is None or action in admissible:
        return True
    return any(isinstance(command, OpenCommand) and command.accepts(action) for command in admissible)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees at the start of an episode.

    text: the observation; admissible: the commands the environment would accept now (those with free text as
    `OpenCommand`s), or None when it cannot say;
    task: the instruction alone, for prompts that repeat it at every step (empty when `text` is all there is).
    """

    text: str
    admissible: tuple[str, ...] | None = None
    task: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action led to.

    text: the next observation; reward: of this step alone; done: the episode is over; success: the task is solved;
    info: anything else worth keeping (numbers are averaged over the steps that have them, as `info/<key>`; see
    `TaskSet.unreported`).
    """

    text: str
    admissible: tuple[str, ...] | None = None
    reward: float = 0.0
    done: bool = False
    success: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class Environment(ABC):
    """One episode at a time. Cheap to create, deterministic given (task_id, seed), picklable."""

    __slots__ = ()  # so that a subclass may have slots

    @abstractmethod
    def reset(self, task_id: str, seed: int = 0) -> Observation:
        """Start the task `task_id`. Unknown ids raise KeyError."""

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Play one action. Any string is allowed: an action the environment does not know is a step like any other."""


class TaskSet(ABC):
    """The tasks of an environment and how to make one instance of it; what `environment=` of the trainer takes.

    max_steps: actions an episode may take at most. prompt_template: a name in `progpo_trl/prompts` or a path to a
    Jinja file that turns observations into prompts. action_format: how an action is read from a response (see
    `progpo_trl.actions.project`): "think_action", "action" or "text". fallback_characters: how much of the end of a
    response without a readable action is played. eval_split: the split that settings files without an `eval_split`
    evaluate on. unreported: name -> what a number of `StepResult.info` counts as for an episode that never reported
    it, such as one that a limit of the trainer cut off; its mean is then one over all episodes.
    """

    name: str = "custom"
    max_steps: int = 50
    prompt_template: str = "plain"
    action_format: str = "think_action"
    fallback_characters: int = FALLBACK_CHARACTERS
    unreported: ClassVar[Mapping[str, float]] = {}
    eval_split: str = "valid_seen"

    @abstractmethod
    def task_ids(self, split: str = "train") -> Sequence[str]:
        """Ids of a split, in a fixed order. An unknown split raises KeyError and names those there are."""

    @abstractmethod
    def make(self) -> Environment:
        """A new, independent environment. Instances share whatever is immutable."""

    def task_type(self, task_id: str) -> str:
        """The kind of a task, for per-type success rates."""
        return "all"

    def data_summary(self) -> dict[str, Any]:
        """What the data holds and, under "skipped", how much was left out by reason; shown and kept with a run."""
        return {}

    def data_hash(self, task_ids: Sequence[str]) -> str | None:
        """SHA-256 of what these tasks are made of, wherever it lies on the disk (see `hash_texts`): results on equal
        hashes can be compared. None when the set cannot say."""
        return None


def hash_texts(texts: Iterable[str]) -> str:
    """SHA-256 of a sequence of texts; other borders between them give another hash."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


class EnvironmentTasks(TaskSet):
    """A TaskSet around an Environment class (or any callable that makes one) and the ids it is to play.

    task_ids: the ids of the "train" split, or a dict of splits. The other options default to attributes of the same
    name on the class; without them the whole response is the action (action_format "text").
    """

    def __init__(
        self,
        factory: Callable[[], Environment],
        task_ids: Sequence[str] | dict[str, Sequence[str]],
        *,
        max_steps: int | None = None,
        prompt_template: str | None = None,
        action_format: str | None = None,
        fallback_characters: int | None = None,
        unreported: Mapping[str, float] | None = None,
        name: str | None = None,
    ):
        self._factory = factory
        splits = task_ids if isinstance(task_ids, dict) else {"train": task_ids}
        self._ids = {split: tuple(str(i) for i in ids) for split, ids in splits.items()}
        self.name = name or getattr(factory, "__name__", "custom").lower()
        self.max_steps = int(max_steps or getattr(factory, "max_steps", 0) or TaskSet.max_steps)
        self.prompt_template = prompt_template or getattr(factory, "prompt_template", TaskSet.prompt_template)
        self.action_format = action_format or getattr(factory, "action_format", "text")
        for option, given in (("fallback_characters", fallback_characters), ("unreported", unreported)):
            setattr(self, option, getattr(factory, option, getattr(TaskSet, option)) if given is None else given)

    def task_ids(self, split: str = "train") -> Sequence[str]:
        if split not in self._ids:
            raise KeyError(f"no split {split!r}; there are {sorted(self._ids)}")
        return self._ids[split]

    def make(self) -> Environment:
        return self._factory()
