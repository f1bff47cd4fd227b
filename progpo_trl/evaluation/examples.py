"""Few-shot examples of prompted agents: episodes of thoughts and actions, from a YAML (or JSON) file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from progpo_trl.contexts import PROMPTS
from progpo_trl.environments.base import TaskSet
from progpo_trl.evaluation.errors import EvaluationError

# Shipped examples, by the beginning of the task set's name.
_SHIPPED = {"alfworld": "react_alfworld.yaml", "webshop": "react_webshop.yaml"}
_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of an example or of a transcript."""

    observation: str
    thought: str
    action: str


@dataclass(frozen=True, slots=True)
class Example:
    """One episode; task_type: as in the task set, which is given examples of the same type first."""

    task_type: str
    turns: tuple[Turn, ...]


class Examples:
    """The examples of one file and the hash of its content. Without a file: none."""

    def __init__(self, path: Path | None = None):
        self.sha256, self._all = None, ()
        if path is not None:
            data = _read(path)
            self.sha256 = hashlib.sha256(data).hexdigest()
            self._all = tuple(_parse(data, path))

    @classmethod
    def for_tasks(cls, tasks: TaskSet, path: str | Path | None = None) -> Examples:
        """Those of the file, or those that ship for the environment (none for others)."""
        if path is not None:
            return cls(Path(path))
        name = next((file for start, file in _SHIPPED.items() if tasks.name.startswith(start)), None)
        return cls(None if name is None else PROMPTS / "agents" / name)

    def choose(self, task_type: str, shots: int) -> list[Example]:
        """`shots` examples (or as many as there are): of the task's type, then others, each in the file's order."""
        return sorted(self._all, key=lambda example: example.task_type != task_type)[:shots]


def in_wording(example: Example, put_command: str, put_feedback: str) -> Example:
    """The example in the words of another ALFWorld version: how a thing is put down is what differs in commands."""
    turns, put = [], None
    for turn in example.turns:
        if put is not None:
            turn = replace(turn, observation=put_feedback.format(**put))
        words = turn.action.split()
        put = None
        if len(words) == 6 and words[0] == "move" and words[3] == "to":
            put = {"item": " ".join(words[1:3]), "receptacle": " ".join(words[4:])}
            turn = replace(turn, action=put_command.format(**put))
        turns.append(turn)
    return replace(example, turns=tuple(turns))


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise EvaluationError(f"examples {path}: cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise EvaluationError(f"examples {path}: more than {_MOST_BYTES} bytes; no model has room for so many")
    return data


def _parse(data: bytes, path: Path) -> Sequence[Example]:
    import yaml

    try:
        text = data.decode()
        # A JSON file is YAML too, but YAML is slow.
        content = json.loads(text) if text.lstrip().startswith("[") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise EvaluationError(f"examples {path}: neither YAML nor JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(content, list):
        raise EvaluationError(f"examples {path}: must be a list of examples, each with task_type and turns")
    return [_example(item, f"examples {path}: number {i + 1}") for i, item in enumerate(content)]


def _example(item: Any, where: str) -> Example:
    if not isinstance(item, dict) or not isinstance(item.get("turns"), list) or not item["turns"]:
        raise EvaluationError(f"{where}: must have turns, a list that is not empty")
    turns = []
    for k, turn in enumerate(item["turns"], 1):
        values = (
            [turn.get(name) for name in ("observation", "thought", "action")] if isinstance(turn, dict) else [None]
        )
        if not all(isinstance(value, str) and value.strip() for value in values):
            raise EvaluationError(f"{where}, turn {k}: must have the texts observation, thought and action")
        turns.append(Turn(*(value.strip() for value in values)))
    return Example(str(item.get("task_type", "all")), tuple(turns))
