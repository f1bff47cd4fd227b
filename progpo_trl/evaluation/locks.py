"""Files that one process at a time holds. The system lets go of them when a process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from progpo_trl.evaluation.errors import EvaluationError

LOCK = ".evaluation.lock"
# What flock says of a file that another one holds; anything else means that this file system has no locks.
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def take(file: IO) -> bool:
    """Lock an open file until it is closed; False when another one holds it. Where there are no locks, always True."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True


@contextlib.contextmanager
def only_one_in(folder: Path) -> Iterator[None]:
    """Holds `folder`, which exists, for one evaluation; EvaluationError when another has it.

    The file that is locked is removed at the end. One that a killed process left holds nobody up.
    """
    path = folder / LOCK
    while True:
        try:
            file = open(path, "a")  # noqa: SIM115  (held until the end)
        except OSError as error:
            raise EvaluationError(f"{path}: cannot be written: {error.strerror}") from None
        if not take(file):
            file.close()
            raise EvaluationError(
                f"another evaluation is writing to {folder} (it holds {LOCK}): wait for it to end, or choose another "
                "--out"
            )
        # Whoever held it before may have removed it after it was opened here: then it keeps nobody else out.
        if _is(path, file):
            break
        file.close()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        file.close()


def _is(path: Path, file: IO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
