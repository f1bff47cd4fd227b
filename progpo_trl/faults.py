"""What stops a run, and what is left out before it comes to that: lost episodes, numbers that are not finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from progpo_trl.checkpoint_files import checkpoint_fault, numbered

if TYPE_CHECKING:
    from progpo_trl.episodes import Episode


class TrainingStopped(RuntimeError):
    """The run cannot go on, on no process; the message says why and what to do."""


def not_finite(what: str, value: float, folder: str, step: int) -> TrainingStopped:
    """The error for a number of a training that is not finite. what: its name and its step; folder: of the
    checkpoints; step: optimizer steps taken so far."""
    # Training went on from older checkpoints with finite losses; one of this very step holds the weights in question.
    good = suspect = None
    for number, path in numbered(folder).items():
        if number <= step and checkpoint_fault(path) is None:
            good, suspect = (good, path) if number == step else (path, None)
    kept = f"The last good checkpoint is {good}" if good else "There is no checkpoint from before"
    if suspect is not None:
        kept += f"; {suspect} holds the weights that gave this number"
    return TrainingStopped(
        f"{what} is {value:g}; training stops here and saves nothing more. Look at loss and grad_norm of the steps "
        "before: if they grew, lower learning_rate or max_grad_norm; if it is the first step, look at the model's own "
        f"weights, its dtype and temperature. {kept}"
    )


def stop_when_too_many_are_lost(episodes: Sequence[Episode], max_fraction: float) -> list[Episode]:
    """The episodes lost to environment errors; TrainingStopped when they are more than `max_fraction` of all, or when
    not one episode is left to learn from."""
    lost = [e for e in episodes if e.dropped]
    if lost and (len(lost) > max_fraction * len(episodes) or len(lost) == len(episodes)):
        limit = f"more than max_dropped_fraction={max_fraction} allows" if len(lost) < len(episodes) else "all of them"
        raise TrainingStopped(
            f"{len(lost)} of {len(episodes)} episodes were lost to environment errors, {limit}. The first: task "
            f"{lost[0].task_id!r}: {lost[0].error or 'no step was played'}"
        )
    if not any(e.steps for e in episodes if not e.dropped):
        raise TrainingStopped(
            f"no first prompt fits the context (task {episodes[0].task_id!r}, for example): raise "
            "max_context_length, lower max_completion_length, or use a shorter prompt_template"
        )
    return lost


def exclude_lonely(episodes: Sequence[Episode]) -> None:
    """Leave out the one scorable episode of a group whose others were lost: it has nothing to be compared with."""
    sizes: dict[int, int] = {}
    kept: dict[int, list[Episode]] = {}
    for e in episodes:
        sizes[e.group] = sizes.get(e.group, 0) + 1
        if not e.dropped:
            kept.setdefault(e.group, []).append(e)
    for group, members in kept.items():
        if len(members) == 1 and sizes[group] > 1:
            members[0].excluded = True
    if all(e.dropped for e in episodes):
        raise TrainingStopped(
            "environment errors left no group with two episodes to compare; the first error: "
            f"{next((e.error for e in episodes if e.error), None)}"
        )
