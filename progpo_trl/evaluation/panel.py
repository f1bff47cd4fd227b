"""Panels: the games of a split that are evaluated, fixed and sorted, each once; named by hashes of ids and of data."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass

from progpo_trl.environments.base import TaskSet
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.tasks import EVALUATION_SPLITS, spread


@dataclass(frozen=True)
class Panel:
    """The games of one split, in the order of their ids.

    panel_sha256: of the ids; data_sha256: of what the games are made of, wherever it lies, or None where the task
    set cannot say (`TaskSet.data_hash`).
    """

    split: str
    task_ids: tuple[str, ...]
    task_types: tuple[str, ...]
    panel_sha256: str
    data_sha256: str | None

    def __len__(self) -> int:
        return len(self.task_ids)

    def facts(self) -> dict:
        """JSON of what the panel is; the games' ids stand with their results."""
        counts: dict[str, int] = {}
        for name in self.task_types:
            counts[name] = counts.get(name, 0) + 1
        return {
            "split": self.split,
            "games": len(self),
            "task_types": dict(sorted(counts.items())),
            "panel_sha256": self.panel_sha256,
            "data_sha256": self.data_sha256,
        }


def panel_of(tasks: TaskSet, split: str, n: int | None = None) -> Panel:
    """The panel of a split: all its games, or `n` of them spread evenly over the sorted ids.

    Raises KeyError for a split there is not, EvaluationError for one without games.
    """
    ids = spread(sorted(tasks.task_ids(split)), n)
    return panel_of_ids(tasks, ids, split)


def panel_of_ids(tasks: TaskSet, ids: Iterable[str], split: str | None = None) -> Panel:
    """The panel of these games; `split` names it (default: the split of `tasks` that holds them all, or "eval").

    Raises EvaluationError without games or when one is named twice.
    """
    ids = sorted(ids)
    if not ids:
        raise EvaluationError(f"there are no games to evaluate in split {split!r}")
    twice = next((a for a, b in itertools.pairwise(ids) if a == b), None)
    if twice is not None:
        raise EvaluationError(
            f"the panel would hold game {twice!r} twice; every game is played once per sampling seed"
        )
    return Panel(
        split or _split_of(tasks, ids),
        tuple(ids),
        tuple(tasks.task_type(i) for i in ids),
        hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
        tasks.data_hash(ids),
    )


def _split_of(tasks: TaskSet, ids: list[str]) -> str:
    for split in (*EVALUATION_SPLITS, "train"):
        try:
            known = set(tasks.task_ids(split))
        except KeyError:
            continue
        if known.issuperset(ids):
            return split
    return "eval"
