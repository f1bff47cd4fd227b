"""Files and folders that are either the old ones or the new ones, never half of one.

Written beside, flushed to the disk, then renamed: a process that is killed at any moment, or a machine that loses
power, leaves what was there before or what was meant to be there.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPLACED = "replaced-"


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yields a path beside `path` to write to; on success the written file takes `path`'s place.

    What is no plain file, such as /dev/stdout, is written to as it is. An OSError of a write names no file, as of a
    disk that is full: here it gets the name of `path`.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        flush(partial)
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    flush(path.parent)


def write_text(path: str | Path, text: str, errors: str = "strict") -> None:
    """Write a whole UTF-8 file in one go. errors: as of `open`, for lone surrogates."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", errors=errors)


def replace_folder(new: Path, path: Path) -> None:
    """Let the finished folder `new` take the place of `path`, which may exist; both lie on one file system.

    For an instant there is no `path`: a process that is killed then leaves `replaced-<name>` beside `new`.
    """
    flush_tree(new)
    old = new.with_name(f"{REPLACED}{path.name}")
    if path.exists():
        os.rename(path, old)
    os.rename(new, path)
    flush(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def move_files(new: Path, folder: Path) -> None:
    """Move everything in `new` over to `folder`, each in one go, and remove `new`; folders are moved as they are."""
    flush_tree(new)
    # Index files name the others, so they come last.
    for file in sorted(new.iterdir(), key=lambda f: (f.name.endswith(".index.json"), f.name)):
        if file.is_dir() and (folder / file.name).exists():
            discard(folder / file.name, new.parent)
        os.replace(file, folder / file.name)
    flush(folder)
    shutil.rmtree(new, ignore_errors=True)


def discard(path: Path, bin_folder: Path) -> None:
    """Remove a folder; seen from outside it is there or gone, never half removed."""
    bin_folder.mkdir(exist_ok=True)
    doomed = bin_folder / f"old-{path.name}"
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def flush_tree(folder: Path) -> None:
    """Have everything below `folder` on the disk."""
    for parent, _, files in os.walk(folder):
        for name in files:
            flush(Path(parent) / name)
        flush(Path(parent))


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)
