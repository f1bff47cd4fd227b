"""Reads game files: one official game (`game.tw-pddl` and `traj_data.json`) or one line of a shard (`*.jsonl.xz`).

Whatever is wrong with a file, only GameFileError leaves this module, and it names the file.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from progpo_trl.environments.alfworld.errors import GameFileError
from progpo_trl.environments.alfworld.game import TASK_TYPES, Game
from progpo_trl.environments.alfworld.versions import read_version

GAME_FILE = "game.tw-pddl"
TRAJECTORY_FILE = "traj_data.json"
SHARD_SUFFIX = ".jsonl.xz"


@dataclass(frozen=True, slots=True)
class RawGame:
    """A game as its file states it, not yet parsed.

    source: the file, for messages; task_type: by traj_data.json; solvable: None when the file does not say;
    domain, grammar: None in shards, whose games are of ALFWorld 0.4.
    """

    source: str
    problem: str
    task: str
    version: str
    task_type: str | None
    solvable: bool | None
    domain: str | None = None
    grammar: str | None = None

    def parse(self) -> Game:
        """The playable game. GameFileError when the problem is damaged or is not of the type its file says."""
        game = Game.from_problem(self.problem, self.task, self.version, source=self.source)
        if self.task_type in TASK_TYPES and self.task_type != game.task_type:
            raise GameFileError(self.source, f"its goal is {game.task_type}, but its task_type is {self.task_type}")
        return game


def read_task_type(folder: Path) -> str:
    """`task_type` of a trial's traj_data.json."""
    source = folder / TRAJECTORY_FILE
    return _field(_read_json(source), "task_type", str, source)


def read_official(folder: Path, task_type: str | None = None) -> RawGame:
    """The game of a trial's folder; `task_type` is what its traj_data.json says, where that was read."""
    source = folder / GAME_FILE
    content = _read_json(source)
    domain, grammar, problem = (
        _field(content, key, str, source) for key in ("pddl_domain", "grammar", "pddl_problem")
    )
    solvable = content.get("solvable")
    if solvable is not None and not isinstance(solvable, bool):
        raise GameFileError(str(source), "'solvable' is neither true nor false")
    try:
        version, task = read_version(domain, grammar)
    except ValueError as error:
        raise GameFileError(str(source), str(error)) from None
    return RawGame(str(source), problem, task, version, task_type, solvable, domain, grammar)


def read_shard(path: Path) -> tuple[list[bytes], GameFileError | None]:
    """The lines of a shard. From a damaged one: those before the damage, and what is wrong."""
    lines: list[bytes] = []
    try:
        with lzma.open(path, "rb") as shard:
            for line in shard:
                lines.append(line)
    except (OSError, EOFError, lzma.LZMAError) as error:
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        return lines, GameFileError(str(path), f"cannot be read after {len(lines)} games: {_reason(error)}")
    return lines, None


def read_shard_line(line: bytes, path: Path, number: int) -> tuple[str, RawGame]:
    """(task id, game) of a line of a shard; `number` counts from 0 and is named from 1, as editors do."""
    source = f"{path}, line {number + 1}"
    content = _parse_json(line, source)
    task_id, task, problem = (_field(content, key, str, source) for key in ("path", "task", "pddl_problem"))
    trajectory = _field(content, "traj", dict, source) if "traj" in content else {}
    task_type = trajectory.get("task_type")
    if task_type is not None and not isinstance(task_type, str):
        raise GameFileError(source, "'task_type' is not text")
    return task_id, RawGame(source, problem, task, "0.4", task_type, content.get("solvable", True) is True)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise GameFileError(str(path), f"cannot be read: {_reason(error)}") from None
    return _parse_json(content, str(path))


def _parse_json(content: bytes, source: str) -> dict[str, Any]:
    try:
        # Without "utf-8" json would guess UTF-16 or -32 from the first bytes of a damaged file.
        parsed = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError covers bad UTF-8, too
        raise GameFileError(source, f"is not a JSON document: {_reason(error)}") from None
    if not isinstance(parsed, dict):
        raise GameFileError(source, "is JSON, but not an object")
    return parsed


def _field(content: dict[str, Any], key: str, kind: type, source: str | Path) -> Any:
    if key not in content:
        raise GameFileError(str(source), f"has no {key!r}")
    if not isinstance(content[key], kind):
        raise GameFileError(str(source), f"{key!r} is not {'text' if kind is str else 'an object'}")
    return content[key]


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
