"""Groups of an index, and what happened in them: successes, the gate, what was left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from progpo_trl.viewer.index import EpisodeIndex

GATES = ("env_return", "success")  # those that the numbers of an episode decide


class Group(NamedTuple):
    """One task of one generation, or one game of one part of an evaluation.

    rows: its episodes in the index, by `index` and seed; kept: those that count; gate: whether ProGPO's gate is open,
    None where that cannot be told; all_fail, all_success: of the kept ones, by the success flag; False without any.
    """

    section: int
    group: int
    rows: list[int]
    kept: list[int]
    gate: bool | None
    all_fail: bool
    all_success: bool


@dataclass(frozen=True)
class Gate:
    """Which groups ProGPO calls all-fail. kind: as its option `gate`; tau_R: its threshold of returns."""

    kind: str = "env_return"
    tau_R: float = 1e-3

    def is_open(self, index: EpisodeIndex, kept: list[int]) -> bool | None:
        """Whether the gate is open for these episodes; None where it cannot be told."""
        if self.kind not in GATES or not kept:
            return None
        if self.kind == "success":
            return not any(index.rows[i].success for i in kept)
        outcomes = [abs(index.rows[i].environment_return) for i in kept]
        return None if any(map(math.isnan, outcomes)) else max(outcomes) < self.tau_R


def groups_of(index: EpisodeIndex, gate: Gate = Gate()) -> list[Group]:
    """The groups of all sections, by section and group."""
    members: dict[tuple[int, int], list[int]] = {}
    for number, row in enumerate(index.rows):
        members.setdefault((row.section, row.group), []).append(number)
    found = []
    for (section, group), rows in sorted(members.items()):
        rows.sort(
            key=lambda i: (
                (index.rows[i].index, index.rows[i].seed) if not index.evaluation else (index.rows[i].seed, i)
            )
        )
        kept = [i for i in rows if not index.rows[i].dropped]
        # As the trainer did: one that is left of a group has nothing to be compared with.
        if not index.evaluation and len(kept) == 1 and len(rows) > 1:
            kept = []
        wins = [index.rows[i].success for i in kept]
        all_fail, all_success = bool(wins) and not any(wins), bool(wins) and all(wins)
        found.append(Group(section, group, rows, kept, gate.is_open(index, kept), all_fail, all_success))
    return found
