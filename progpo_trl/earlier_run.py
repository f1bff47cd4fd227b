"""What an earlier run left in a folder that a new one begins in: beside the new recipe it would pass for the new
run's. It moves into a folder inside, which is then that run's folder."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from progpo_trl import atomic
from progpo_trl.evaluation.locks import LOCK, only_one_in
from progpo_trl.evaluation.results import EPISODES
from progpo_trl.publishing.files import CARD, PROMPT, RECIPE, WEIGHTS
from progpo_trl.run_files import (
    COMPLETIONS,
    PREVIOUS,
    evaluation_folders,
    files_of_run,
    is_model,
    is_run,
    is_training_evaluation,
)

# Where the files go first: a process that is killed leaves no folder that looks like a whole run.
PARTIAL = f".{PREVIOUS}.partial"
# In it, what is being moved: once half of a run's files have gone, the rest may not be known as a run's any more.
_PLAN = ".moving.json"


def set_aside_earlier_run(output: Path, model: str) -> Path | None:
    """Move an earlier run in `output` into a folder in it, `previous-run` or `previous-run-2`, ..., where every
    command finds it as a run. Returns it; None where there is no earlier run, or nothing of it but its recipe.

    Nothing is deleted, and what is not a run's (`run_files`) is not touched. model: what the new run trains, by its
    path or name. Where it lies in `output` itself its files stay, since a run that is resumed loads them again, and
    so does a published agent's prompt; the earlier run gets copies (of weights links, where the disk has them).

    OSError when something cannot be moved; what was is then moved back. A move that was killed is finished by the next
    run. EvaluationError when an evaluation of that run is still going on.
    """
    output, partial = Path(output), Path(output, PARTIAL)
    earlier = None
    if os.path.lexists(partial / RECIPE):  # moved last: only the folder's name was missing
        earlier = _finish(output, partial)
    known = is_run(output)
    for folder in evaluation_folders(output) if known else ():
        if (folder / LOCK).exists():
            with only_one_in(folder):
                pass
    found = [place for place in files_of_run(output) if place != Path(RECIPE)] if known else []
    found += [p for p in _planned(partial) if p not in (*found, Path(RECIPE)) and os.path.lexists(output / p)]
    kept = [place for place in found if _is_of(output / place, output, Path(model).expanduser())]
    moved = [place for place in found if place not in kept]
    if not moved and not partial.is_dir():
        return earlier
    if known and (output / PROMPT).is_file():
        kept.append(Path(PROMPT))
    # What says that a run is here goes last: after a move that was killed the rest is still known as one.
    marks = [Path(name) for name in (CARD, EPISODES) if Path(name) in moved]
    marks += [Path(RECIPE)] if known and (output / RECIPE).is_file() else []
    return _move(
        output,
        [*(place for place in moved if place not in marks), *marks],
        [place for place in kept if (output / place).is_file()],
    )


def set_aside_episodes(output: Path, *, recipe: bool, evaluations: bool) -> Path | None:
    """Move what an earlier run logged in `output` as it went, as `set_aside_earlier_run` does with everything: for a
    training in Python, whose other files are its author's. Returns the folder; None where there is nothing.

    recipe: the folder's config.yaml is an earlier run's, too. evaluations: so are those that a training made after an
    update, since the new one has made none.
    """
    output, moved = Path(output), []
    for path in sorted(output.iterdir()):
        if path.name == EPISODES or (evaluations and is_training_evaluation(path.name)):
            moved.append(Path(path.name))
    if not moved:
        return None
    if recipe and (output / RECIPE).is_file() and is_run(output):
        moved.append(Path(RECIPE))
    return _move(output, moved, [])


def _is_of(path: Path, output: Path, model: Path) -> bool:
    """Whether a file is of the model that the new run trains."""
    model, place = model.resolve(), path.parent.resolve() / path.name
    if model == output.resolve():
        return is_model(path.relative_to(output))
    return place == model or model in place.parents or place in model.parents


def _planned(partial: Path) -> list[Path]:
    """What a move that was killed was to move, relative to the run's folder."""
    try:
        places = [Path(name) for name in json.loads((partial / _PLAN).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []  # there was none, or it was killed before it moved anything
    return [place for place in places if not place.is_absolute() and ".." not in place.parts]


def _forget_plan(partial: Path) -> None:
    if [path.name for path in partial.iterdir()] == [_PLAN]:  # everything went back
        (partial / _PLAN).unlink()


def _move(output: Path, places: Iterable[Path], kept: Iterable[Path]) -> Path:
    """Move `places`, relative to `output`, into a new folder in it, and copy `kept` there; returns the folder."""
    partial, places, kept = output / PARTIAL, list(places), list(kept)
    if any(os.path.lexists(partial / place) for place in places):
        _finish(output, partial)  # of yet another run
    there = {*places, *kept}
    undo = contextlib.ExitStack()
    with undo:
        if not partial.is_dir():
            partial.mkdir()
            undo.callback(_quietly, partial.rmdir)
        undo.callback(_quietly, _forget_plan, partial)
        (partial / _PLAN).write_text(json.dumps([str(place) for place in places]), encoding="utf-8")
        for place in kept:
            if not os.path.lexists(partial / place):
                _make_folders(partial, place, undo)
                undo.callback(_quietly, (partial / place).unlink)
                _copy(output / place, partial / place)
        for place in places:
            _make_folders(partial, place, undo)
            _move_one(output, place, there, undo)
        target = _finish(output, partial)
        undo.pop_all()
    return target


def _make_folders(partial: Path, place: Path, undo: contextlib.ExitStack) -> None:
    for folder in reversed([p for p in place.parents if p.name]):
        if not (partial / folder).is_dir():
            (partial / folder).mkdir()
            undo.callback(_quietly, (partial / folder).rmdir)


def _move_one(output: Path, place: Path, there: set[Path], undo: contextlib.ExitStack) -> None:
    old, new = output / place, output / PARTIAL / place
    text = os.readlink(old) if old.is_symlink() else None
    leads_to = None if text is None else Path(os.path.normpath(place.parent / text))
    if text is None or os.path.isabs(text) or leads_to in there:
        os.rename(old, new)
        undo.callback(_quietly, os.rename, new, old)
    else:  # a relative link to what stays: one folder deeper it needs one step more
        os.symlink(os.path.join(*[".."] * len(place.parts), place.parent, text), new)
        undo.callback(_quietly, new.unlink)
        old.unlink()
        undo.callback(_quietly, os.symlink, text, old)


def _copy(source: Path, target: Path) -> None:
    if source.suffix in WEIGHTS:  # gigabytes, and whoever saves new ones puts them in the place of the old
        with contextlib.suppress(OSError):
            os.link(source.resolve(), target)
            return
    shutil.copy2(source, target)


def _finish(output: Path, partial: Path) -> Path:
    """Give the folder that holds all the next name that is free, and remove the folders that this left empty."""
    names = (PREVIOUS if n == 1 else f"{PREVIOUS}-{n}" for n in itertools.count(1))
    target = next(output / name for name in names if not os.path.lexists(output / name))
    _quietly((partial / _PLAN).unlink)
    os.rename(partial, target)
    _quietly(atomic.flush, output)
    for folder in sorted((p for p in target.rglob("*") if p.is_dir() and not p.is_symlink()), reverse=True):
        if folder.name != COMPLETIONS:  # the new run's trainer expects it
            _quietly((output / folder.relative_to(target)).rmdir)
    return target


def _quietly(function, *args) -> None:
    with contextlib.suppress(OSError):
        function(*args)
