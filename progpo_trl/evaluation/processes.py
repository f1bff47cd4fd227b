"""The processes of an evaluation: one, or those that torchrun or accelerate launched."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from progpo_trl.evaluation.errors import EvaluationError


class Processes:
    """rank: the number of this process; count: how many there are. Without a launcher nothing is imported.

    cpu: run on the CPU where there is a GPU; decided by whoever asks first.
    """

    def __init__(self, cpu: bool = False):
        self.count = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0))
        if self.count > 1:
            from accelerate import PartialState

            state = PartialState(cpu=cpu)
            self.count, self.rank = state.num_processes, state.process_index

    def from_main(self, make: Callable[[], Any] | None) -> Any:
        """What `make` returns in the main process, in all of them; its EvaluationError, RuntimeError or OSError
        too."""
        if self.count == 1:
            return make()
        from accelerate.utils import broadcast_object_list

        box: list[Any] = [None, None]
        if self.rank == 0:
            try:
                box[0] = make()
            except (EvaluationError, RuntimeError, OSError) as error:
                box[1] = error
        broadcast_object_list(box, from_process=0)
        if box[1] is not None:
            raise box[1]
        return box[0]

    def gather(self, items: list[Any]) -> list[Any]:
        """All processes' items, process by process."""
        if self.count == 1:
            return items
        from accelerate.utils import gather_object

        return gather_object(items)
