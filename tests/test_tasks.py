"""Which tasks a trainer plays."""

import pytest

from progpo_trl.environments.base import EnvironmentTasks
from progpo_trl.tasks import as_ids, task_ids


def test_a_task_id_that_is_no_text_is_named():
    """Arrow holds UTF-8 alone; its own error names neither the id nor the split."""
    ids = ["a", "b\udcff"]
    tasks = EnvironmentTasks(object, {"train": ids})
    for given in (as_ids(ids), None):
        with pytest.raises(ValueError, match=r"the task id 'b\\udcff' of split 'train' is no text: .*surrogate"):
            task_ids(given, tasks, "train")
    assert task_ids(["\u00e9"], tasks, "train") == ["\u00e9"]
