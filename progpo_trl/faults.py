"""Episodes that could not be scored: what is left out, and when a run stops because of it."""

from __future__ import annotations

from collections.abc import Sequence

from progpo_trl.episodes import Episode


def stop_when_too_many_are_lost(episodes: Sequence[Episode], max_fraction: float) -> list[Episode]:
    """The episodes lost to environment errors; RuntimeError when they are more than `max_fraction` of all, or when
    not one episode is left to learn from."""
    lost = [e for e in episodes if e.dropped]
    if lost and (len(lost) > max_fraction * len(episodes) or len(lost) == len(episodes)):
        limit = f"more than max_dropped_fraction={max_fraction} allows" if len(lost) < len(episodes) else "all of them"
        raise RuntimeError(
            f"{len(lost)} of {len(episodes)} episodes were lost to environment errors, {limit}. The first: task "
            f"{lost[0].task_id!r}: {lost[0].error or 'no step was played'}"
        )
    if not any(e.steps for e in episodes if not e.dropped):
        raise RuntimeError(
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
        raise RuntimeError(
            "environment errors left no group with two episodes to compare; the first error: "
            f"{next((e.error for e in episodes if e.error), None)}"
        )
