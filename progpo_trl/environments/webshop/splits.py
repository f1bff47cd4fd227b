"""Task ids and splits: which goals are trained on and which are not, fixed by the goals' indices."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from progpo_trl.environments.webshop.catalogue import Catalogue
from progpo_trl.environments.webshop.goals import SHUFFLE_SEED, Goals

SPLIT_BY = ("goal", "product")
# The published sizes, and the share of the goals that they may not exceed in small shops.
TEST_GOALS, DEV_GOALS = 500, 1_000
TEST_SHARE, DEV_SHARE = 10, 5  # one in ten, one in five


@dataclass(frozen=True, slots=True)
class GoalIds:
    """Names the goals of a catalogue: `<prefix>-<index, five digits or more>-<asin of the target>`.

    An index is a position after the one shuffle that all catalogues share, so an id does not depend on the order in
    which files are found. Pickles with the catalogue's origin, not its content.
    """

    catalogue: Catalogue
    prefix: str = "goal"

    def id(self, index: int) -> str:
        """The task id of a goal."""
        position = int(self.catalogue.goals.positions[index])
        return f"{self.prefix}-{index:05d}-{self.catalogue.product(position).asin}"

    def goal(self, task_id: str) -> int:
        """Index of the goal that `id` names so. KeyError when there is none."""
        found = re.match(re.escape(self.prefix) + r"-(\d{5,12})-", task_id, re.ASCII)
        index = int(found[1]) if found else -1
        if not 0 <= index < len(self.catalogue.goals) or self.id(index) != task_id:
            raise KeyError(f"no goal {task_id!r} in this shop of {len(self.catalogue.goals)} goals")
        return index


class TaskIds(Sequence[str]):
    """The ids of some goals, in order, made when they are read. indices: (n,) of the goals."""

    def __init__(self, ids: GoalIds, indices: np.ndarray):
        self.ids, self.indices = ids, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return TaskIds(self.ids, self.indices[place])
        return self.ids.id(int(self.indices[place]))

    def __iter__(self) -> Iterator[str]:
        return map(self.ids.id, self.indices.tolist())


def split_goals(goals: Goals, by: str = "goal") -> dict[str, np.ndarray]:
    """Indices of the goals of "train", "dev" and "test", ascending; no goal is in two of them.

    by "goal": the first 500 goals are test, the next 1,000 dev, the rest train, as published (96 % of the real test
    goals' products are then targets of training, too). In small shops test takes at most a tenth of the goals and dev
    a fifth, but one goal each where there are three or more; with fewer, all are train.
    by "product": no product is the target of goals in two splits. Products are shuffled once, and whole products go
    to test, then to dev, until each has at least the number of goals above; train must keep one, or ValueError.
    """
    if by not in SPLIT_BY:
        raise ValueError(f"split_by must be one of {', '.join(SPLIT_BY)}, got {by!r}")
    n = len(goals)
    test = min(TEST_GOALS, max(1, n // TEST_SHARE)) if n >= 3 else 0
    dev = min(DEV_GOALS, max(1, n // DEV_SHARE)) if n >= 3 else 0
    if by == "goal":
        bounds = {"train": (test + dev, n), "dev": (test, test + dev), "test": (0, test)}
        return {name: np.arange(low, high) for name, (low, high) in bounds.items()}
    targets, of_goal = np.unique(goals.positions, return_inverse=True)
    order = list(range(len(targets)))
    random.Random(SHUFFLE_SEED).shuffle(order)
    ends = np.cumsum(np.bincount(of_goal, minlength=len(targets))[order])  # goals of the first 1, 2, .. products
    to_test = int(np.searchsorted(ends, test)) + 1 if test else 0
    taken = int(ends[to_test - 1]) if to_test else 0
    to_dev = int(np.searchsorted(ends, taken + dev)) + 1 if dev else to_test
    if n and to_dev >= len(targets):
        raise ValueError(f"{len(targets)} products with goals are too few to split by product")
    split_of = np.empty(len(targets), np.int8)
    split_of[order] = np.repeat([2, 1, 0], [to_test, to_dev - to_test, len(targets) - to_dev])
    return {name: np.flatnonzero(split_of[of_goal] == number) for number, name in enumerate(("train", "dev", "test"))}
