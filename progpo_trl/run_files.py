"""Which files in a folder a run left there, and the commands that look at a run.

Told by name where a run writes under that name itself; where a name may be anybody's, by content, too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from progpo_trl.checkpoint_files import PREFIX, STATE
from progpo_trl.evaluation.call_log import CALLS
from progpo_trl.evaluation.locks import LOCK
from progpo_trl.evaluation.results import EPISODES, EVALUATION
from progpo_trl.publishing.files import CARD, PROMPT, RECIPE, is_evaluation, is_ours

# What runs that are set aside are called, with -2, -3, ... from the second on.
PREVIOUS = "previous-run"
COMPLETIONS = "completions"  # TRL's tables of them (log_completions)
_OF_TRAINING = {EPISODES, "summary.json", "learning_curve.png", STATE, "training_args.bin"}
_EVALUATED_EPISODES = re.compile(r"evaluation-\d+\.episodes\.jsonl")
_EXPLAINED = re.compile(r"explain-step\d+-group\d+\.html")
_OLDER_RECIPE = re.compile(r"config-until-step-\d+\.yaml")  # of a run that went on with other settings
_PUBLISHED = re.compile(rf"publish(?:-{PREFIX}\d+)?")
_SUPERSEDED = re.compile(rf"superseded-{PREFIX}\d+")
_PART = re.compile(r"episodes\.part-\d+\.jsonl")
_TABLE = re.compile(r"completions_\d+\.parquet")
# Of `progpo plots`; the first two are always there.
_PLOTS = ("learning_curves.png", "all_fail.png", "success_by_task_type.png", "advantages.png")
_LONGEST = 1 << 24  # characters of an episode that is read to tell what a file is
# The beginning of every evaluation.json.
_EVALUATION_MARK = '"format": "progpo_trl evaluation '


def is_run(folder: Path) -> bool:
    """Whether a run began here: its recipe says so or, after a run in Python, its episodes or its card."""
    try:
        return _head(folder / RECIPE).startswith("# progpo_trl ")
    except FileNotFoundError:
        return _is_card(folder / CARD) or _is_training(folder / EPISODES)


def is_previous(name: str) -> bool:
    """Whether a folder of this name holds a run that was set aside."""
    return re.fullmatch(rf"{PREVIOUS}(?:-\d+)?", name) is not None


def is_model(relative: Path) -> bool:
    """Whether a place in a run's folder is of its model or tokenizer."""
    name = relative.name
    ours = is_ours(name) and not is_evaluation(name) and name not in (CARD, RECIPE, PROMPT)
    return relative.parent == Path() and ours


def is_training_evaluation(name: str) -> bool:
    """Whether a training evaluated its weights into a file of this name after its first update."""
    found = re.fullmatch(r"evaluation-(\d+)(?:\.episodes\.jsonl|\.json)", name)
    return found is not None and int(found[1]) > 0


def files_of_run(folder: Path) -> list[Path]:
    """The run's files, relative to its folder; checkpoints that were superseded and links to folders are one place.

    Checkpoints (a run can go on from them), runs that were set aside or lie inside, and other people's files, also
    those in the run's own folders, are none of them. W&B has its own place and its own names of runs.
    """
    found = [path for path in _files(folder) if _at_top(path.name)] + _plots(folder)
    for path in _folders(folder):
        found += _in_folder(path)
    for path in evaluation_folders(folder):
        found += _evaluation(path)
    return list(dict.fromkeys(_up_to_a_link(path.relative_to(folder), folder) for path in found))


def evaluation_folders(folder: Path) -> Iterator[Path]:
    """The folders in that of a run that hold an evaluation of it by `progpo evaluate`: any that are called eval* or
    lie in one of those, and others that name the run."""
    for path in _folders(folder):
        if is_previous(path.name) or (path / RECIPE).is_file():
            continue
        if _is_evaluation(path):
            if path.name.startswith("eval") or _is_of_run(path / EVALUATION, folder):
                yield path
        elif path.name.startswith("eval"):
            yield from (p for p in _folders(path) if _is_evaluation(p) and not (p / RECIPE).is_file())


def _at_top(name: str) -> bool:
    partial = re.fullmatch(r"\.(.+)\.partial", name)  # of a process that was killed
    name = partial[1] if partial else name
    if name in _OF_TRAINING or (is_ours(name) and name != PROMPT):
        return True
    return any(pattern.fullmatch(name) for pattern in (_EVALUATED_EPISODES, _EXPLAINED, _OLDER_RECIPE))


def _in_folder(path: Path) -> list[Path]:
    """The run's places in one of the folders inside its own."""
    name = path.name
    if is_previous(name) or name.startswith((PREFIX, ".")):
        return []
    if _SUPERSEDED.fullmatch(name):
        return [path] if (path / STATE).is_file() else []
    if _PUBLISHED.fullmatch(name):
        return [p for p in _files(path) if is_ours(p.name)] if _is_card(path / CARD) else []
    if name == COMPLETIONS:
        return [p for p in _files(path) if _TABLE.fullmatch(p.name)]
    if name == "runs":  # of transformers' TensorBoard callback: runs/<time>_<host>
        return sorted(p for p in path.glob("*/events.out.tfevents.*") if p.is_file())
    return [] if is_run(path) else _plots(path)


def _evaluation(folder: Path) -> list[Path]:
    known = {EVALUATION, EPISODES, CALLS, LOCK, f".{EVALUATION}.partial", f".{EPISODES}.partial"}
    return [path for path in _files(folder) if path.name in known or _PART.fullmatch(path.name)]


def _plots(folder: Path) -> list[Path]:
    if not all((folder / name).is_file() for name in _PLOTS[:2]):
        return []
    return [folder / name for name in _PLOTS if (folder / name).is_file()]


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder that can be looked into."""
    return sorted(p for p in folder.iterdir() if p.is_dir() and os.access(p, os.R_OK | os.X_OK))


def _files(folder: Path) -> list[Path]:
    """The files in a folder, links to nothing among them."""
    return sorted(path for path in folder.iterdir() if not path.is_dir())


def _up_to_a_link(place: Path, folder: Path) -> Path:
    """`place`, or the link to a folder that it is reached through: what that leads to lies elsewhere and stays."""
    around = [parent for parent in reversed(place.parents) if parent.name]
    return next((parent for parent in around if (folder / parent).is_symlink()), place)


def _is_evaluation(folder: Path) -> bool:
    try:
        return _EVALUATION_MARK in _head(folder / EVALUATION)
    except FileNotFoundError:
        return False


def _is_of_run(evaluation: Path, run: Path) -> bool:
    """Whether an evaluation says that it is of a run in this folder; the path may be from elsewhere."""
    try:
        name = json.loads(evaluation.read_text(encoding="utf-8"))["agent"]["run"]
        return Path(name).resolve() == run.resolve() or Path(name).name == run.resolve().name
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _is_card(path: Path) -> bool:
    """Whether a README.md is a card that progpo_trl wrote: the tags at its head say so."""
    try:
        head = _head(path)
    except FileNotFoundError:
        return False
    return head.startswith("---\n") and "\n- progpo_trl\n" in head.partition("\n---\n")[0] + "\n"


def _is_training(path: Path) -> bool:
    """Whether a file of episodes begins with one of a training."""
    if not path.is_file():
        return False
    with open(path, encoding="utf-8", errors="replace") as file:
        line = file.readline(_LONGEST)
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and {"step", "steps", "task_id"} <= set(first) and "game" not in first


def _head(path: Path) -> str:
    """The beginning of a file; FileNotFoundError where there is none."""
    if not path.is_file():
        raise FileNotFoundError(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(1 << 16)
