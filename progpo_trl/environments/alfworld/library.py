"""`GameLibrary`: the games under a path, by id; each is read and parsed when it is first played."""

from __future__ import annotations

import logging
import os
import zlib
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from progpo_trl.environments.alfworld.errors import GameFileError
from progpo_trl.environments.alfworld.files import RawGame, read_official, read_shard, read_shard_line
from progpo_trl.environments.alfworld.game import TASK_TYPES, Game
from progpo_trl.environments.alfworld.scan import SPLITS, scan

logger = logging.getLogger(__name__)

_NAMED = 5  # damaged files named in the log; the rest is counted


class GameLibrary:
    """Games in the official layout or in shards (see `scan.scan` for the paths understood).

    path: where they are; on_error: "skip" leaves damaged files out with a warning that names them, "raise" raises
    the first one's GameFileError; task_types: keep only these, None for all six; cached_games: how many parsed games
    to keep (about 40 KB each).

    ids, by split: sorted POSIX paths like "train/<task>/<trial>", whatever the order of the directory listing.
    skipped: reason -> how many games were left out for it. problems: the damaged files.

    Pickles as its arguments: a worker process opens the library again (through the cached index) and shares one
    among all its episodes.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        on_error: str = "skip",
        task_types: Iterable[str] | None = None,
        cached_games: int = 1024,
    ):
        if on_error not in ("skip", "raise"):
            raise ValueError(f"on_error must be 'skip' or 'raise', got {on_error!r}")
        wanted = TASK_TYPES if task_types is None else tuple(sorted(set(task_types)))
        unknown = [name for name in wanted if name not in TASK_TYPES]
        if unknown or not wanted:
            raise ValueError(f"task_types {unknown or 'is empty'}; there are {', '.join(TASK_TYPES)}")
        self.path = Path(os.path.abspath(path))
        index = scan(self.path)
        if index.problems and on_error == "raise":
            raise index.problems[0]
        self.problems = tuple(index.problems)
        self.skipped = Counter(index.skipped)
        if index.problems:
            self.skipped["damaged file"] = len(index.problems)
            self._warn()
        self._root = index.root
        self._records = {key: record for key, record in index.records.items() if record.task_type in wanted}
        self.splits = {
            split: tuple(sorted(key for key in self._records if key.startswith(split + "/"))) for split in SPLITS
        }
        if not self._records:
            of_type = f" of type {' or '.join(wanted)}" if index.records else ""
            raise GameFileError(str(self.path), f"holds no playable game{of_type}; left out: {dict(self.skipped)}")
        self._arguments = (str(self.path), on_error, wanted, cached_games)
        self._shards: dict[str, list[bytes]] = {}
        self._parsed = lru_cache(maxsize=cached_games)(lambda task_id: self.raw(task_id).parse())
        _OPEN[self._arguments] = self

    def game(self, task_id: str) -> Game:
        """The parsed game. KeyError: no such id. GameFileError: the file is gone or was damaged since the scan."""
        return self._parsed(task_id)

    def raw(self, task_id: str) -> RawGame:
        """The game as its file states it; errors as in `game`."""
        record = self._record(task_id)
        if record.line < 0:
            return read_official(self._root / record.file, record.task_type)
        path = self._root / record.file
        lines = self._lines(record.file)
        if record.line >= len(lines):
            raise GameFileError(str(path), f"no longer has line {record.line + 1}, the game {task_id!r}")
        found, raw = read_shard_line(zlib.decompress(lines[record.line]), path, record.line)
        if found != task_id:
            raise GameFileError(raw.source, f"holds {found!r} now, no longer {task_id!r}")
        return raw

    def task_type(self, task_id: str) -> str:
        """One of the six task types. KeyError: no such id."""
        return self._record(task_id).task_type

    def summary(self) -> dict[str, Any]:
        """Counts: {"train": {"total": 3553, "pick_and_place_simple": 790, ..}, .., "skipped": {reason: n}}."""
        counts: dict[str, Any] = {}
        for split, ids in self.splits.items():
            by_type = Counter(self.task_type(task_id) for task_id in ids)
            counts[split] = {"total": len(ids), **{name: by_type[name] for name in TASK_TYPES if by_type[name]}}
        counts["skipped"] = dict(self.skipped)
        return counts

    def _record(self, task_id: str):
        record = self._records.get(task_id)
        if record is None:
            raise KeyError(f"no game {task_id!r} in {self.path}")
        return record

    def _lines(self, shard: str) -> list[bytes]:
        """A shard's lines, each compressed on its own: about 6 KB a game instead of 55."""
        if shard not in self._shards:
            lines, _ = read_shard(
                self._root / shard
            )  # damage was reported by the scan; what is missing is named above
            self._shards[shard] = [zlib.compress(line, 1) for line in lines]
        return self._shards[shard]

    def _warn(self) -> None:
        for error in self.problems[:_NAMED]:
            logger.warning("skipping a damaged game: %s", error)
        more = len(self.problems) - _NAMED
        logger.warning(
            "%d damaged game file(s) skipped in %s%s",
            len(self.problems),
            self.path,
            f" ({more} not named here)" if more > 0 else "",
        )

    def __reduce__(self):
        return _reopen, self._arguments


_OPEN: WeakValueDictionary[tuple, GameLibrary] = WeakValueDictionary()


def _reopen(path: str, on_error: str, task_types: tuple[str, ...], cached_games: int) -> GameLibrary:
    """The library of these arguments that this process has open, or a new one."""
    library = _OPEN.get((path, on_error, task_types, cached_games))
    if library is None:
        library = GameLibrary(path, on_error=on_error, task_types=task_types, cached_games=cached_games)
    return library
