"""Which tasks a trainer plays: from an environment and, optionally, datasets of task ids."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from datasets import Dataset

from progpo_trl.environments.base import EnvironmentTasks, TaskSet

# Splits that are evaluated by default, the first that an environment has.
EVALUATION_SPLITS = ("eval", "valid_seen", "valid_unseen", "dev", "test")


def task_set(environment, train_dataset, eval_dataset) -> TaskSet:
    """`environment` itself if it is a TaskSet; else a TaskSet around it with the ids of the datasets."""
    if isinstance(environment, TaskSet):
        return environment
    if isinstance(environment, type) and issubclass(environment, TaskSet):
        raise TypeError(f"environment is the class {environment.__name__}; pass an instance: {environment.__name__}()")
    if not callable(environment):
        raise TypeError(f"environment must be a TaskSet or a callable that makes an Environment, got {environment!r}")
    if train_dataset is None:
        raise ValueError("train_dataset (task ids) is required with an Environment class; a TaskSet brings its own")
    splits = {"train": train_dataset}
    if eval_dataset is not None:
        splits["eval"] = eval_dataset
    return EnvironmentTasks(environment, splits)


def task_ids(ids: list[str] | None, tasks: TaskSet, split: str) -> list[str]:
    """`ids`, or those of the environment's split without them. ValueError for one that no data set can hold."""
    ids = list(tasks.task_ids(split)) if ids is None else ids
    for task_id in ids:
        try:
            task_id.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"the task id {task_id!r} of split {split!r} is no text: it holds a lone surrogate, as of a file name "
                "that is not UTF-8; rename it"
            ) from None
    return ids


def evaluation_ids(ids: list[str] | None, tasks: TaskSet) -> list[str]:
    """The panel: `ids`, or those of the environment's evaluation split, or none."""
    if ids is not None:
        return ids
    for split in EVALUATION_SPLITS:
        with contextlib.suppress(KeyError):
            return list(tasks.task_ids(split))
    return []


def check_best_task_type(metric: str | None, panel: Sequence[str], tasks: TaskSet) -> None:
    """A `metric_for_best_model` of a task type that the panel lacks would never be there."""
    kind, _, task_type = (metric or "").removeprefix("eval_").partition("/")
    types = sorted({tasks.task_type(task_id) for task_id in panel})
    if kind == "success" and task_type and panel and task_type not in types:
        raise ValueError(f"metric_for_best_model: the panel has no task type {task_type!r}; it has {', '.join(types)}")


def check_enough_tasks(train_ids: Sequence[str], groups: int) -> None:
    """TRL drops a generation it cannot fill, and would train for zero steps without a word."""
    if len(train_ids) < groups:
        raise ValueError(
            f"{len(train_ids)} training task(s) cannot fill a generation of {groups} groups; add tasks or lower "
            "groups_per_generation (or the batch size)"
        )


def as_ids(dataset: Dataset | Iterable[str] | None) -> list[str] | None:
    """The task ids of a dataset with a column `task_id`, or of any iterable of ids; None stays None."""
    if dataset is None:
        return None
    if isinstance(dataset, Dataset):
        if "task_id" not in dataset.column_names:
            raise ValueError(f"the dataset needs a column 'task_id'; it has {dataset.column_names}")
        return [str(i) for i in dataset["task_id"]]
    return [str(i) for i in dataset]


def spread(ids: list[str], n: int | None) -> list[str]:
    """`n` of `ids`, evenly spaced: sorted ids begin with their task type, so the first n would be one type only."""
    if n is None or n >= len(ids):
        return ids
    return [ids[i * len(ids) // n] for i in range(n)]
