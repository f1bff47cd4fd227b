"""Which tasks a trainer plays: from an environment and, optionally, datasets of task ids."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from datasets import Dataset

from progpo_trl.environments.base import EnvironmentTasks, TaskSet

# Splits that are evaluated by default, the first that an environment has.
EVALUATION_SPLITS = ("eval", "valid_seen", "valid_unseen")


def task_set(environment, train_dataset, eval_dataset) -> TaskSet:
    """`environment` itself if it is a TaskSet; else a TaskSet around it with the ids of the datasets."""
    if isinstance(environment, TaskSet):
        return environment
    if not callable(environment):
        raise TypeError(f"environment must be a TaskSet or a callable that makes an Environment, got {environment!r}")
    if train_dataset is None:
        raise ValueError("train_dataset (task ids) is required with an Environment class; a TaskSet brings its own")
    splits = {"train": _column(train_dataset)}
    if eval_dataset is not None:
        splits["eval"] = _column(eval_dataset)
    return EnvironmentTasks(environment, splits)


def task_ids(dataset: Dataset | Sequence[str] | None, tasks: TaskSet, split: str) -> list[str]:
    """The ids in `dataset`, or those of the environment's split without one."""
    return list(tasks.task_ids(split)) if dataset is None else _column(dataset)


def evaluation_ids(dataset: Dataset | Sequence[str] | None, tasks: TaskSet) -> list[str]:
    """The panel: the ids in `dataset`, or of the environment's evaluation split, or none."""
    if dataset is not None:
        return _column(dataset)
    for split in EVALUATION_SPLITS:
        with contextlib.suppress(KeyError):
            return list(tasks.task_ids(split))
    return []


def check_enough_tasks(train_ids: Sequence[str], groups: int) -> None:
    """TRL drops a generation it cannot fill, and would train for zero steps without a word."""
    if len(train_ids) < groups:
        raise ValueError(
            f"{len(train_ids)} training task(s) cannot fill a generation of {groups} groups; add tasks or lower "
            "groups_per_generation (or the batch size)"
        )


def _column(dataset: Dataset | Sequence[str]) -> list[str]:
    if isinstance(dataset, Dataset):
        if "task_id" not in dataset.column_names:
            raise ValueError(f"the dataset needs a column 'task_id'; it has {dataset.column_names}")
        return [str(i) for i in dataset["task_id"]]
    return [str(i) for i in dataset]
