"""Why did each step get its advantage? `explain()` accounts for one group of episodes, live or from episodes.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from progpo_trl.advantages import HGPO, Estimator, GiGPO, ProGPO, ProxMO, StepEstimator, coverage
from progpo_trl.episodes import Episode, StepBatch
from progpo_trl.explain_read import ExplainError, read_generation
from progpo_trl.explain_words import because

__all__ = ["EpisodeAccount", "ExplainError", "Explanation", "StepAccount", "describe", "explain", "read_generation"]


@dataclass(frozen=True)
class StepAccount:
    """One step: what was seen and done, what it got, and why.

    columns: the numbers that differ within the episode. recorded: the advantage that the run used, if it is known.
    peers: the other steps it was compared with, in words.
    """

    step: int
    observation: str
    response: str
    action: str
    valid: bool
    reward: float
    advantage: float
    recorded: float | None
    columns: dict[str, Any]
    because: str
    peers: str


@dataclass(frozen=True)
class EpisodeAccount:
    """One episode. columns: the numbers that are the same on all of its steps."""

    index: int
    outcome: str
    episode_return: float
    coverage: float
    final_observation: str | None
    columns: dict[str, Any]
    steps: list[StepAccount]


@dataclass(frozen=True)
class Explanation:
    """One group. columns: the numbers that are the same on all of its steps; notes: what holds of the whole group."""

    group: int
    task: str
    estimator: str
    notes: list[str]
    columns: dict[str, Any]
    episodes: list[EpisodeAccount] = field(default_factory=list)

    @property
    def largest_difference(self) -> float:
        """Between the advantages here and the recorded ones; 0 when none are recorded."""
        steps = [s for e in self.episodes for s in e.steps if s.recorded is not None]
        return max((abs(s.advantage - s.recorded) for s in steps), default=0.0)


def explain(
    episodes: Sequence[Episode],
    estimator: Estimator,
    group: int,
    *,
    invalid_action_penalty: float = 0.1,
    invalid_action: str = "format",
) -> Explanation:
    """Account for the advantages of one group.

    episodes: all of a generation, of all processes: q_fail depends on the other groups. estimator: what weighed them;
    a function without `terms` is shown by its result alone. The penalty options are those of the run.
    """
    batch = StepBatch.from_episodes(
        episodes, invalid_action_penalty=invalid_action_penalty, invalid_action=invalid_action
    )
    members = [i for i, e in enumerate(episodes) if e.group == group]
    if not members:
        there = sorted({e.group for e in episodes})
        listed = ", ".join(map(str, there)) if len(there) <= 16 else f"{len(there)}, from {there[0]} to {there[-1]}"
        raise ExplainError(f"there is no group {group}; there are {listed}")
    advantage = np.asarray(estimator(batch), np.float32)
    terms = dict(estimator.terms(batch)) if isinstance(estimator, StepEstimator) and len(batch) else {}
    terms.pop("advantage", None)
    rows = np.flatnonzero(batch.group == group)
    terms = {name: values[rows] for name, values in terms.items()}
    constant, terms = _split(terms, [np.arange(len(rows))])
    by_episode = [np.flatnonzero(batch.episode[rows] == i) for i in members]
    per_episode, per_step = _split(terms, by_episode)
    progress = coverage(batch)
    peers = peers_of(batch, estimator, group, [e.index for e in episodes])
    accounts = []
    for i, own in zip(members, by_episode, strict=True):
        e = episodes[i]
        recorded = e.advantages if e.advantages is not None and len(e.advantages) == len(e.steps) else None
        steps = []
        for position, s in enumerate(e.steps):
            place = own[position] if len(own) else None
            values = {} if place is None else {name: column[place] for name, column in terms.items()}
            known = {**{name: column[0] for name, column in constant.items()}, **values}
            row = None if place is None else int(rows[place])
            steps.append(
                StepAccount(
                    step=position,
                    observation=s.observation,
                    response=s.response,
                    action=s.action,
                    valid=row is None or bool(batch.penalty[row] == 0),
                    reward=s.reward,
                    advantage=0.0 if row is None else float(advantage[row]),
                    recorded=None if recorded is None else float(recorded[position]),
                    columns={name: known[name] for name in per_step if name in known},
                    because=because(estimator, known) if row is not None else "left out: the episode was dropped",
                    peers=peers.get(row, ""),
                )
            )
        accounts.append(
            EpisodeAccount(
                index=e.index,
                outcome="dropped" if e.dropped else "success" if e.success else str(e.stop_reason or "failure"),
                episode_return=e.episode_return,
                coverage=float(progress[i]),
                final_observation=e.final_observation,
                columns={name: column[own[0]] for name, column in per_episode.items() if len(own)},
                steps=steps,
            )
        )
    first = episodes[members[0]]
    return Explanation(
        group=group,
        task=first.task or first.task_id,
        estimator=describe(estimator),
        notes=_notes(batch, estimator, group),
        # What is the same everywhere at some depth says nothing that the words on the steps do not.
        columns={name: column[0] for name, column in constant.items() if not name.startswith("depth ")},
        episodes=accounts,
    )


def _split(terms: dict[str, np.ndarray], parts: list[np.ndarray]) -> tuple[dict, dict]:
    """The columns that are constant within every part, and the others."""
    constant, varying = {}, {}
    for name, values in terms.items():
        same = all(len(np.unique(values[part])) < 2 for part in parts)
        (constant if same and len(values) else varying)[name] = values
    return constant, varying


def describe(estimator: Estimator) -> str:
    """The estimator with the options that differ from its defaults."""
    if not is_dataclass(estimator):
        return getattr(estimator, "__name__", repr(estimator))
    shown = []
    for option in fields(estimator):
        value = getattr(estimator, option.name)
        if option.name == "base" or value != option.default:
            shown.append(f"{option.name}={describe(value) if callable(value) else repr(value)}")
    return f"{type(estimator).__name__}({', '.join(shown)})"


def _notes(batch: StepBatch, estimator: Estimator, group: int) -> list[str]:
    kept = (batch.episode_group == group) & ~batch.dropped
    returns = batch.episode_return[kept]
    notes = [
        f"{int(kept.sum())} episodes, {int(batch.success[kept].sum())} successes, "
        f"{int((batch.episode_group == group).sum() - kept.sum())} dropped"
    ]
    if len(returns):
        notes.append(f"returns from {returns.min():g} to {returns.max():g}, mean {returns.mean():g}")
    if isinstance(estimator, ProGPO):
        groups, all_fail, q_fail = estimator.all_fail(batch)
        fails = bool(all_fail[groups == group].any())
        state = "every episode fails: the fallback acts" if fails else "some episode has a reward: the base alone acts"
        if estimator.always_on:
            state = "always_on: the fallback acts on every group"
        notes.append(f"gate ({estimator.gate}): {state}")
        notes.append(f"q_fail {q_fail:.3g} ({int(all_fail.sum())} of {len(groups)} groups)")
        notes.append(f"lambda_eff {estimator.effective_lambda(q_fail):.3g}")
    return notes


def peers_of(batch: StepBatch, estimator: Estimator, group: int, names: Sequence[int]) -> dict[int, str]:
    """For each step of a group (a row of the batch), the steps it was compared with, as "episode:step" places.

    names: what each episode of the batch is called.
    """
    if isinstance(estimator, ProGPO):
        return peers_of(batch, estimator.base, group, names)
    places = [f"{names[i]}:{t}" for i, t in zip(batch.episode.tolist(), batch.step.tolist(), strict=True)]
    rows = np.flatnonzero(batch.group == group)
    if isinstance(estimator, ProxMO) and estimator.aggregation == "soft":
        near = estimator.nearest(batch, group)
        return {
            row: ", ".join(f"{share:.0%} like {places[other]}" for other, share in found)
            for row, found in near.items()
        }
    if isinstance(estimator, HGPO):
        return _same(places, rows, estimator.levels(batch)[0])
    if isinstance(estimator, GiGPO):
        return _same(places, rows, estimator.anchors(batch))
    if isinstance(estimator, ProxMO) and estimator.aggregation == "exact":
        return _same(places, rows, GiGPO(obs_key=estimator.obs_key, ignore_obs=estimator.ignore_obs).anchors(batch))
    return {}


def _same(places: list[str], rows: np.ndarray, sets: np.ndarray, most: int = 8) -> dict[int, str]:
    out = {}
    for row in rows.tolist():
        others = [r for r in rows[sets[rows] == sets[row]].tolist() if r != row] if sets[row] >= 0 else []
        named = ", ".join(places[r] for r in others[:most])
        out[row] = named + (f" and {len(others) - most} more" if len(others) > most else "")
    return out
