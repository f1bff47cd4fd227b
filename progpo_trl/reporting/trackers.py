"""Weights & Biases and Trackio: bounded tables of trajectories and groups, what the run was, and no way to stop it.

Scalars go there through transformers' callbacks. Full trajectories are in episodes.jsonl; what is here is a sample of
whole groups, small enough to look at and to send.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from progpo_trl.advantages import coverage
from progpo_trl.checkpoint_files import generation_updates
from progpo_trl.episodes import Episode, StepBatch

logger = logging.getLogger(__name__)

BACKENDS = ("wandb", "trackio")
TEXT = 4_000  # characters of a transcript in a table; episodes.jsonl has all
GROUPS = 128  # rows of the table of groups


class Trackers:
    """What one trainer sends to its trackers beside scalars; everything happens on the main process alone."""

    def __init__(self, trainer):
        self.trainer = trainer
        self._names = [name for name in BACKENDS if name in (trainer.args.report_to or [])]
        self._described = False
        if self._names:
            keep_going(trainer.callback_handler)

    def generation(self, episodes: Sequence[Episode], batch: StepBatch) -> None:
        """Log the tables of this generation if they are due (`log_tables_every_generations`)."""
        args = self.trainer.args
        every = args.log_tables_every_generations
        # Of the whole run, which may have begun in another process.
        done = self.trainer.state.global_step // generation_updates(args)
        if not self._names or every is None or done % every:
            return
        for name in self._names:
            backend = sys.modules.get(name)
            if backend is None or (name == "wandb" and backend.run is None):
                continue  # its callback could not start it, and has said so
            _quietly(f"{name}: tables are not logged", self._log, name, backend, episodes, batch, done + 1)

    def _log(self, name: str, backend: Any, episodes: Sequence[Episode], batch: StepBatch, generation: int) -> None:
        import pandas as pd

        if name == "wandb":
            self._describe(backend.run)
        tables = {
            "tables/groups": group_rows(episodes, batch),
            "tables/trajectories": trajectory_rows(episodes, self.trainer.args.log_table_episodes),
        }
        stamp = {"generation": generation, "update": self.trainer.state.global_step}
        logged = {
            key: backend.Table(dataframe=pd.DataFrame([stamp | row for row in rows])) for key, rows in tables.items()
        }
        # Sent with the next scalars, so that both have the same step.
        backend.log(logged, **({"commit": False} if name == "wandb" else {}))

    def _describe(self, run: Any) -> None:
        """What the arguments of the trainer do not say: tasks, advantage, versions; and the best evaluation."""
        if self._described:
            return
        self._described = True
        from progpo_trl.settings import versions

        trainer = self.trainer
        described = dataclasses.asdict(trainer.advantage) if dataclasses.is_dataclass(trainer.advantage) else {}
        name = getattr(trainer.advantage, "__name__", type(trainer.advantage).__name__)
        facts = {
            "environment": {"name": trainer.tasks.name, **trainer.tasks.data_summary()},
            "advantage": {"name": name, **described},
            "versions": versions(),
        }
        run.config.update({"progpo_trl": facts}, allow_val_change=True)
        run.define_metric("eval/success", summary="max")


def group_rows(episodes: Sequence[Episode], batch: StepBatch) -> list[dict[str, Any]]:
    """One row a group, `GROUPS` at most: successes, returns, coverage, and the advantages that the loss used."""
    progress = np.concatenate([coverage(block) for block in batch.blocks])
    rows = []
    for members in list(_groups(episodes).values())[:GROUPS]:
        returns = [e.episode_return for e in members]
        used = [e.advantages for e in members if e.advantages is not None and len(e.advantages)]
        advantages = np.concatenate(used) if used else np.zeros(1)
        rows.append(
            {
                "group": members[0].group,
                "task": members[0].task_id,
                "task_type": members[0].task_type,
                "episodes": len(members),
                "successes": sum(e.success for e in members),
                "all_fail": not any(e.success for e in members),
                "return_mean": float(np.mean(returns)),
                "return_std": float(np.std(returns)),
                "coverage_mean": float(np.mean([progress[e.index] for e in members])),
                "advantage_min": float(advantages.min()),
                "advantage_max": float(advantages.max()),
            }
        )
    return rows


def trajectory_rows(episodes: Sequence[Episode], most: int) -> list[dict[str, Any]]:
    """One row an episode, `most` at most: whole groups, a mixed one first, then one that all fail."""
    groups = list(_groups(episodes).values())
    mixed = [g for g in groups if 0 < sum(e.success for e in g) < len(g)]
    failed = [g for g in groups if not any(e.success for e in g)]
    first = mixed[:1] + failed[:1]
    order = first + [g for g in groups if all(g is not f for f in first)]
    return [_trajectory(e) for group in order for e in group][:most]


def _trajectory(e: Episode) -> dict[str, Any]:
    lines = []
    for i, step in enumerate(e.steps):
        lines += [f"[{i}] {step.observation}", f"> {step.response}"]
        if e.advantages is not None and i < len(e.advantages):
            lines.append(f"(advantage {float(e.advantages[i]):+.3f})")
    text = "\n".join(lines)
    if len(text) > TEXT:
        text = f"{text[:TEXT]}\n[{len(text) - TEXT:,} more characters in episodes.jsonl]"
    weighed = e.advantages is not None and len(e.advantages) > 0
    return {
        "group": e.group,
        "episode": e.index,
        "task": e.task_id,
        "task_type": e.task_type,
        "success": e.success,
        "return": e.episode_return,
        "steps": len(e.steps),
        "stop_reason": e.stop_reason.value if e.stop_reason else "",
        "advantage_mean": float(np.mean(e.advantages)) if weighed else 0.0,
        "trajectory": text,
    }


def _groups(episodes: Sequence[Episode]) -> dict[int, list[Episode]]:
    out: dict[int, list[Episode]] = {}
    for e in episodes:
        if not e.dropped:
            out.setdefault(e.group, []).append(e)
    return out


def keep_going(handler) -> None:
    """Guard the trackers' callbacks of `handler`: one that raises is reported once and left out from then on.

    A tracker that cannot be reached raises in its first or any later call; hours of training must not end by that.
    """
    for callback in handler.callbacks:
        module, name = type(callback).__module__, type(callback).__name__
        if not module.startswith("transformers.integrations") or getattr(callback, "_guarded", False):
            continue
        callback._guarded = True
        for event in [event for event in dir(callback) if event.startswith("on_")]:
            setattr(callback, event, _guarded(callback, getattr(callback, event), name))


def _guarded(callback: Any, method: Callable, name: str) -> Callable:
    @functools.wraps(method)
    def call(*args, **kwargs):
        if getattr(callback, "_given_up", False):
            return None
        try:
            return method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (whatever a tracker raises, training goes on)
            callback._given_up = True
            logger.warning(
                "%s failed and is left out from here on; training goes on, and episodes.jsonl has everything: %s: %s. "
                "WANDB_MODE=offline keeps a local record that `wandb sync` sends later.",
                name,
                type(error).__name__,
                error,
            )
            return None

    return call


_reported: set[str] = set()


def _quietly(what: str, function: Callable, *args) -> None:
    """Call `function`; whatever it raises is reported once."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001  (logging never stops a run)
        if what not in _reported:
            _reported.add(what)
            logger.warning("%s: %s: %s", what, type(error).__name__, error)
