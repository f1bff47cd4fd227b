"""Where each episode of a file is, and its numbers; the texts stay on the disk until somebody reads them."""

from __future__ import annotations

import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from progpo_trl.viewer.records import Facts, LineError, Row, facts, game_facts, parse, part_name, texts

MOST_NAMED = 20  # damaged lines that are named, of any number that are counted
LONGEST_LINE = 256 * 1024 * 1024  # bytes; a longer line is damaged
# Letters that every JSON writer leaves as they are: a query of these alone can be looked for in the raw line.
_RAW = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-.,:;()[]*+=!?")


class FileChangedError(Exception):
    """The file was rewritten since it was indexed: the page must be loaded again."""


class Table:
    """Texts as numbers, in the order of first sight."""

    def __init__(self):
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The number of `text`."""
        code = self._codes.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return code


class EpisodeIndex:
    """The episodes of one source: a file of lines, read once from the beginning to the end, or an evaluation.json.

    evaluation: episodes of the same game form a group, and each split and temperature a section; in training the
    trainer's step is the section and `group` the group (where it is missing, episodes of one task form one).
    The file may grow: `refresh` reads what was added. A last line that is not complete yet is left for later.
    """

    def __init__(self, path: Path, evaluation: bool = False):
        self.path, self.evaluation = path, evaluation
        self.has_texts = path.suffix != ".json"
        self._clear()

    def _clear(self) -> None:
        self.rows: list[Row] = []
        self.advantages = array("f")
        self.task_ids, self.task_types, self.stops, self.parts = Table(), Table(), Table(), Table()
        self.instructions: list[str] = []  # of each task id
        self.damaged: list[tuple[int, str]] = []  # (line, why), the first few
        self.n_damaged = 0
        self.pending = 0  # bytes of a last line that is not complete
        self._end = self._line = 0
        self._file = None
        self._last = (0, 0, 0)  # of the last line read: offset, length, checksum

    def refresh(self, on_bytes: Callable[[int], object] = lambda n: None) -> bool:
        """Read what is new; everything where the file was rewritten. on_bytes: told how many bytes were read.

        Returns whether there is anything new. OSError when the file cannot be read.
        """
        if not self.has_texts:
            return self._refresh_games()
        with open(self.path, "rb") as file:
            state = os.fstat(file.fileno())
            identity = (state.st_dev, state.st_ino)
            changed = self._file is not None and (identity != self._file or not self._is_where_it_was(file))
            if changed:
                self._clear()
            before = len(self.rows), self.n_damaged, self.pending
            self._file = identity
            file.seek(self._end)
            for line, length in _lines(file):
                on_bytes(length)
                if not self._take(line, length):
                    break
        return changed or before != (len(self.rows), self.n_damaged, self.pending)

    def _is_where_it_was(self, file) -> bool:
        """Whether the last line that was read is still in its place."""
        offset, length, checksum = self._last
        file.seek(offset)
        return zlib.crc32(file.read(length)) == checksum

    def _take(self, line: bytes | None, length: int) -> bool:
        """Index one line (None: one that is too long); False for one that is not complete, which is the last."""
        problem = record = None
        if line is None:
            problem = f"is longer than {LONGEST_LINE} bytes"
        elif line.strip():
            try:
                record = parse(line)
            except LineError as error:
                problem = str(error)
        # A record is complete with its last bracket; anything else may still be being written.
        if record is None and line is not None and not line.endswith(b"\n"):
            self.pending = length
            return False
        self.pending = 0
        self._line += 1
        if record is not None:
            try:
                self._add(facts(record), self._end, length)
            except LineError as error:
                problem = str(error)
        if problem is not None:
            self.note(self._line, problem)
        if line is not None:
            self._last = (self._end, length, zlib.crc32(line))
        self._end += length
        return True

    def note(self, line: int, problem: str) -> None:
        """Count a damaged line."""
        self.n_damaged += 1
        if len(self.damaged) < MOST_NAMED:
            self.damaged.append((line, problem))

    def _add(self, one: Facts, offset: int, length: int) -> None:
        task = self.task_ids.code(one.task_id)
        if task == len(self.instructions):
            self.instructions.append(one.task)
        at = -1
        if one.advantages is not None:
            at = len(self.advantages)
            self.advantages.extend(one.advantages)
        self.rows.append(
            Row(
                offset=offset,
                length=length,
                line=self._line,
                section=self.parts.code(part_name(one.game)) if self.evaluation else one.step,
                group=task if self.evaluation or one.group is None else one.group,
                index=len(self.rows) if one.index is None else one.index,
                seed=one.seed,
                task=task,
                task_type=self.task_types.code(one.task_type),
                stop=self.stops.code(one.stop),
                success=one.success,
                dropped=one.dropped,
                episode_return=one.episode_return,
                environment_return=one.environment_return,
                coverage=one.coverage,
                steps=one.steps,
                bad_format=one.bad_format,
                inadmissible=one.inadmissible,
                advantage_at=at,
            )
        )

    def _refresh_games(self) -> bool:
        """The games of an evaluation.json, whose number and place do not say what is new: it is read as a whole."""
        data = self.path.read_bytes()
        checksum = (len(data), zlib.crc32(data), 0)
        if checksum == self._last:
            return False
        self._clear()
        self._last = checksum
        try:
            games = parse(data).get("games")
        except LineError as error:
            self.note(1, str(error))
            return True
        if not isinstance(games, list):
            self.note(1, "has no list of games")
            return True
        for number, game in enumerate(games):
            try:
                self._add(game_facts(game), 0, 0)
            except LineError as error:
                self.note(1, f"game {number}: {error}")
        return True

    def record(self, row: int) -> dict[str, Any]:
        """The record of an episode, with all texts; without steps where none are on record.

        IndexError for an episode there is not, FileChangedError when the file was rewritten.
        """
        if not 0 <= row < len(self.rows):
            raise IndexError(f"there is no episode {row} in {self.path}")
        one = self.rows[row]
        task_id = self.task_ids.texts[one.task]
        if not self.has_texts:
            return {"task_id": task_id, "steps": []}
        with open(self.path, "rb") as file:
            file.seek(one.offset)
            line = file.read(one.length)
        try:
            record = parse(line)
            found = facts(record)
        except LineError:
            found = None
        if found is None or (found.task_id, found.steps, found.seed) != (task_id, one.steps, one.seed):
            raise FileChangedError(f"{self.path} was rewritten")
        return record

    def scan(self, query: str) -> Iterator[int | None]:
        """The episodes in whose texts `query` occurs, whatever the case; None now and then where none was found."""
        needle, folded = query.lower().encode("utf-8", errors="replace"), query.casefold()
        raw = query.isascii() and _RAW.issuperset(query.encode())
        if not self.has_texts:
            return
        with open(self.path, "rb") as file:
            for number, row in enumerate(self.rows):
                file.seek(row.offset)
                line = file.read(row.length)
                found = not raw or needle in line.lower()
                if found:
                    try:
                        found = any(folded in text.casefold() for text in texts(json.loads(line)))
                    except (ValueError, AttributeError, RecursionError):
                        found = False
                if found or number % 256 == 0:
                    yield number if found else None


def _lines(file) -> Iterator[tuple[bytes | None, int]]:
    """The lines from here on and their lengths; None for one that is too long, which is passed over in pieces."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) <= LONGEST_LINE:
            yield line, len(line)
            continue
        length = len(line)
        while not line.endswith(b"\n") and (line := file.readline(1 << 20)):
            length += len(line)
        yield None, length
