"""The finished games of an evaluation on disk, line by line, so that an interrupted one goes on where it was.

Every process appends to a file of its own, `episodes.part-<process>.jsonl`; the finished evaluation has one
`episodes.jsonl`. Lines are episodes as in a training's episodes.jsonl, with the game's record under "game".
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from progpo_trl import atomic
from progpo_trl.evaluation.results import EPISODES, check_record, is_lost, key_of

_PART = "episodes.part-{}.jsonl"


class Journal:
    """Appends the games that process `rank` finishes; each line is on the disk before the next game is reported."""

    def __init__(self, folder: Path, rank: int):
        self._path = folder / _PART.format(rank)
        self._file = None

    def add(self, line: dict[str, Any]) -> None:
        """Append a game. An OSError names the file, also where the disk is full."""
        try:
            self._add(line)
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise

    def _add(self, line: dict[str, Any]) -> None:
        if self._file is None:
            # A killed process may have left half a line; what follows it must not be joined to it.
            torn = self._path.exists() and not self._path.read_bytes().endswith(b"\n")
            self._file = open(self._path, "a", encoding="utf-8", errors="replace")  # noqa: SIM115
            if torn:
                self._file.write("\n")
        self._file.write(json.dumps(line, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; nothing happens when no game was added."""
        if self._file is not None:
            # What could not be written was an error when it was added.
            with contextlib.suppress(OSError):
                self._file.close()


def finished_lines(folder: Path) -> dict[tuple, dict[str, Any]]:
    """Key of the game -> its line, of all processes' files; the last one of a game counts. Half and damaged lines and
    games that were lost to environment errors are left out: they are played again."""
    found: dict[tuple, dict[str, Any]] = {}
    for path in [folder / EPISODES, *sorted(folder.glob(_PART.format("*")))]:
        if not path.is_file():
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                    check_record(line["game"])
                except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                    continue
                if not is_lost(line["game"]):
                    found[key_of(line["game"])] = line
    return found


def write_episodes(folder: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write the one episodes.jsonl of a finished evaluation in the place of the processes' files."""
    with (
        atomic.replacing(folder / EPISODES) as partial,
        open(partial, "w", encoding="utf-8", errors="replace") as file,
    ):
        file.writelines(json.dumps(line, default=str) + "\n" for line in lines)
    for part in folder.glob(_PART.format("*")):
        part.unlink()
