"""Played episodes as lines of a file in the format of a run's episodes.jsonl."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from progpo_trl.episodes import Episode, episode_from_json


class EpisodeFile:
    """Appends episodes to `path`. Episodes of the same task form one group, as in a run; the trainer's step is 0.

    Raises ValueError naming the line when the file holds anything else than episodes, OSError when it cannot be
    written.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._groups: dict[str, int] = {}
        self._count = 0
        if self.path.exists():
            with open(self.path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    self._read(line, number)
        with open(self.path, "ab"):  # a path that cannot be written shows before the episode, not after it
            pass

    def _read(self, line: bytes, number: int) -> None:
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the line is cut off")
            episode = episode_from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path}, line {number}: no episode ({error}); give another file to save to"
            ) from None
        self._groups.setdefault(episode.task_id, len(self._groups))
        self._count += 1

    def append(self, episode: Episode) -> None:
        """Write `episode` as one line, at once."""
        group = self._groups.setdefault(episode.task_id, len(self._groups))
        record = {"step": 0, **replace(episode, group=group, index=self._count).to_json()}
        line = json.dumps(record, default=str).encode("ascii") + b"\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())
        self._count += 1


class Keeper:
    """Saves the episodes of one player: each ending once, and what was played of an episode that is left.

    file: where to, or None to save nothing.
    """

    def __init__(self, file: EpisodeFile | None):
        self._file = file
        self._saved: list[str] | None = None

    def keep(self, episode: Episode) -> bool:
        """Save `episode` unless it has no step or this very one is saved; True when it was written."""
        actions = [step.action for step in episode.steps]
        if self._file is None or not actions or actions == self._saved:
            return False
        self._file.append(episode)
        self._saved = actions
        return True
