"""Finds the games under a path, skips what ALFWorld's own loader skips, and remembers what it found.

Reading the official tree takes a while (thousands of files of 100 KB and more), so its index is kept in a cache,
`$XDG_CACHE_HOME/progpo_trl` (default `~/.cache/progpo_trl`), as long as names, sizes and times of the files stay the
same. Deleting the cache is always safe.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from progpo_trl.environments.alfworld.errors import GameFileError
from progpo_trl.environments.alfworld.files import (
    GAME_FILE,
    SHARD_SUFFIX,
    TRAJECTORY_FILE,
    RawGame,
    read_official,
    read_shard,
    read_shard_line,
    read_task_type,
)
from progpo_trl.environments.alfworld.game import TASK_TYPES

logger = logging.getLogger(__name__)

SPLITS = ("train", "valid_seen", "valid_unseen")
TREE = "json_2.1.1"
# Raise it whenever the meaning of a record or the rules of the scan change: old indexes are then rebuilt.
_INDEX_FORMAT = 1
# Smaller collections are scanned faster than they are worth a file in the user's cache.
_CACHE_FROM = 100


@dataclass(frozen=True, slots=True)
class Record:
    """Where a game is.

    file: a trial's folder or a shard, relative to the index's root; line: in the shard, from 0, or -1.
    """

    task_id: str
    task_type: str
    file: str
    line: int = -1


@dataclass(slots=True)
class Index:
    """What a scan found. records: playable games, by task id; skipped: reason -> how many; problems: damaged files."""

    root: Path
    records: dict[str, Record] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[GameFileError] = field(default_factory=list)

    def add(self, record: Record, source: str) -> None:
        """Add a playable game; a second one of the same id is a problem of its file."""
        if record.task_id in self.records:
            raise GameFileError(source, f"there is another game called {record.task_id!r}")
        self.records[record.task_id] = record


def scan(path: Path) -> Index:
    """All games under `path`: the official layout ($ALFWORLD_DATA, its json_2.1.1, or one split's folder), a folder
    of shards, or one shard. GameFileError when it is none of these."""
    root, candidates = _candidates(path)
    key = [f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in candidates]
    fingerprint = hashlib.sha256("\n".join(key).encode("utf-8", "surrogateescape")).hexdigest()
    cache = _cache_file(path)
    index = _load(cache, root, fingerprint)
    if index is None:
        index = Index(root)
        names = [name for name, _ in candidates]
        if names and names[0].endswith(SHARD_SUFFIX):
            _scan_shards(index, names)
        else:
            _scan_tree(index, names)
        if len(index.records) + len(index.problems) >= _CACHE_FROM:
            _save(cache, index, fingerprint)
    return index


def _candidates(path: Path) -> tuple[Path, list[tuple[str, os.stat_result]]]:
    """(root, files that matter with their stat), sorted by name relative to the root."""
    if path.is_file() and path.name.endswith(SHARD_SUFFIX):
        return path.parent, [(path.name, path.stat())]
    if path.is_dir():
        root = path / TREE if (path / TREE).is_dir() else path
        splits = [root / split for split in SPLITS if (root / split).is_dir()]
        if not splits and root.name in SPLITS:
            root, splits = root.parent, [root]
        if splits:
            found = [entry for split in splits for entry in _walk(split, root)]
            return root, sorted(found, key=lambda entry: entry[0])
        shards = sorted(path.glob("*" + SHARD_SUFFIX))
        if shards:
            return path, [(shard.name, shard.stat()) for shard in shards]
    problem = "holds no ALFWorld games" if path.exists() else "does not exist"
    raise GameFileError(
        str(path),
        f"{problem}; expected a folder with {TREE}/ or with {', '.join(s + '/' for s in SPLITS)} in it, "
        f"a folder of *{SHARD_SUFFIX} files, or one such file",
    )


def _walk(folder: Path, root: Path) -> Iterator[tuple[str, os.stat_result]]:
    # An unreadable folder must not silently shrink the panel of games.
    def fail(error: OSError) -> None:
        raise GameFileError(str(error.filename), f"cannot be listed: {error.strerror}") from None

    for current, _, names in os.walk(folder, onerror=fail):
        for name in names:
            if name in (GAME_FILE, TRAJECTORY_FILE):
                file = Path(current, name)
                try:
                    yield file.relative_to(root).as_posix(), file.stat()
                except OSError as error:  # a dangling link
                    raise GameFileError(str(file), f"cannot be read: {error.strerror}") from None


def _skip_reason(task_id: str, task_type: str | None) -> str | None:
    """Why ALFWorld's loader leaves a game out, as far as its name and type tell."""
    if "movable" in task_id:
        return "movable receptacles are not supported"
    if "Sliced" in task_id:
        return "sliced objects are not supported"
    if task_type is not None and task_type not in TASK_TYPES:
        return f"task type {task_type!r} is not supported"
    return None


def _unsolvable_reason(raw: RawGame) -> str | None:
    if raw.solvable is None:
        return "not known to be solvable"
    return None if raw.solvable else "unsolvable"


def _scan_tree(index: Index, names: list[str]) -> None:
    files = set(names)
    folders = sorted({name.rpartition("/")[0] for name in names})
    for task_id in tqdm(folders, desc="Reading ALFWorld games", unit="game", disable=None, leave=False):
        folder = index.root / task_id
        try:
            reason = _skip_reason(task_id, None)
            if reason is None and f"{task_id}/{TRAJECTORY_FILE}" not in files:
                reason = f"no {TRAJECTORY_FILE}"
            task_type = read_task_type(folder) if reason is None else ""
            reason = reason or _skip_reason(task_id, task_type)
            if reason is None and f"{task_id}/{GAME_FILE}" not in files:
                reason = f"no {GAME_FILE}"
            if reason is None:
                raw = read_official(folder, task_type)
                reason = _unsolvable_reason(raw)
                if reason is None:
                    raw.parse()  # so that a damaged game is found now, not in the middle of a training
                    index.add(Record(task_id, task_type, task_id), raw.source)
        except GameFileError as error:
            index.problems.append(error)
        else:
            if reason is not None:
                index.skipped[reason] += 1


def _scan_shards(index: Index, names: list[str]) -> None:
    for name in names:
        path = index.root / name
        lines, damage = read_shard(path)
        for number, line in enumerate(tqdm(lines, desc=f"Reading {name}", unit="game", disable=None, leave=False)):
            try:
                task_id, raw = read_shard_line(line, path, number)
                if task_id.partition("/")[0] not in SPLITS:
                    raise GameFileError(raw.source, f"'path' is {task_id!r}; it must begin with one of {SPLITS}")
                reason = _skip_reason(task_id, raw.task_type) or _unsolvable_reason(raw)
                if reason is None:
                    index.add(Record(task_id, raw.parse().task_type, name, number), raw.source)
            except GameFileError as error:
                index.problems.append(error)
            else:
                if reason is not None:
                    index.skipped[reason] += 1
        if damage is not None:
            index.problems.append(damage)
    index.records = dict(sorted(index.records.items()))


def _cache_file(path: Path) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    return Path(base, "progpo_trl", f"alfworld-{name}.json")


def _load(cache: Path, root: Path, fingerprint: str) -> Index | None:
    """The cached index, or None: absent, out of date, or damaged."""
    try:
        content = json.loads(cache.read_text("utf-8"))
        if content["format"] != _INDEX_FORMAT or content["fingerprint"] != fingerprint:
            return None
        records = [Record(*row) for row in content["records"]]
        if not all(r.task_type in TASK_TYPES and isinstance(r.file, str) and r.line >= -1 for r in records):
            return None
        skipped = Counter({str(reason): int(count) for reason, count in content["skipped"].items()})
        problems = [GameFileError(str(source), str(problem)) for source, problem in content["problems"]]
        return Index(root, {record.task_id: record for record in records}, skipped, problems)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        logger.info("rebuilding the index of games, its cache %s is damaged: %s", cache, error)
        return None


def _save(cache: Path, index: Index, fingerprint: str) -> None:
    """Write the index so that a reader sees all of it or nothing; without a writable cache, do without."""
    content = {
        "format": _INDEX_FORMAT,
        "fingerprint": fingerprint,
        "records": [[r.task_id, r.task_type, r.file, r.line] for r in index.records.values()],
        "skipped": dict(index.skipped),
        "problems": [[error.source, error.problem] for error in index.problems],
    }
    part = None
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=cache.parent, delete=False) as file:
            part = Path(file.name)
            json.dump(content, file)
        os.replace(part, cache)
    except OSError as error:
        logger.warning("the index of games could not be cached in %s: %s", cache.parent, error)
        if part is not None:
            part.unlink(missing_ok=True)
