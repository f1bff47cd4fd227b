"""SIGINT and SIGTERM during training: stop at the next moment from which the run can go on exactly.

A handler may run between any two bytecodes, so it does almost nothing: it notes the signal, and where work is going on
that can be thrown away (a rollout, an evaluation) it raises TrainingInterrupted. Everywhere else the trainer asks.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(KeyboardInterrupt):
    """Training was stopped by a signal. signum: which; checkpoint: the folder from which it can go on, or None.

    A KeyboardInterrupt, so that environments' and loggers' `except Exception` let it pass.
    """

    def __init__(self, signum: int, checkpoint: str | None = None):
        super().__init__(f"training was stopped by {signal.Signals(signum).name}")
        self.signum, self.checkpoint = signum, checkpoint


class StopSignals:
    """What one process knows of signals to stop; inactive, and free of cost, outside `handled()`."""

    # torchrun and Slurm pass on what the processes have already got from the terminal or the scheduler: within this
    # many seconds a signal is taken for the same request.
    REPEATED = 1.0

    def __init__(self) -> None:
        self.active = False
        self._reset()

    def _reset(self) -> None:
        self._signum = 0
        self._first: float | None = None
        self._abandonable = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM inside, and restore what handled them before. In the main thread only: Python
        refuses handlers elsewhere, and nothing changes there. A signal that was ignored stays ignored."""
        if self.active or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._reset()
        self._process = os.getpid()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        self.active = True
        try:
            for number, handler in before.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(number, self._on_signal)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self.active = False

    def _on_signal(self, signum: int, frame: Any) -> None:
        if os.getpid() != self._process:
            # A worker that was forked inherits the handler; it ends as it would have without.
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        if self._first is not None:
            if time.monotonic() - self._first > self.REPEATED:
                os._exit(128 + signum)
            return
        self._first = time.monotonic()
        self._signum = self._signum or signum
        if int(os.environ.get("RANK", 0)) == 0:
            # print() cannot be entered twice, and a signal may come while something is printed.
            os.write(2, b"\nstopping: saving the last complete generation; a second signal ends the run at once\n")
        if self._abandonable:
            raise TrainingInterrupted(signum)

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """What is done inside can be thrown away: a signal ends it on the spot with TrainingInterrupted."""
        if not self.active:
            yield
            return
        self._abandonable = True
        try:
            self.check()
            yield
        finally:
            self._abandonable = False

    def check(self) -> None:
        """Raise TrainingInterrupted if this process is to stop."""
        if self._signum:
            raise TrainingInterrupted(self._signum)

    def agree(self, largest: Callable[[int], int]) -> int:
        """The signal by which all processes stop now, 0 if none has got one; all of them call it at the same place.

        largest: the maximum of a number over the processes.
        """
        if self.active:
            self._signum = largest(self._signum)
        return self._signum if self.active else 0
