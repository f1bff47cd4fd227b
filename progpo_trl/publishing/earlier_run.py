"""What an earlier run left in a folder that a new one begins in: beside the new recipe it would pass for the new
run's."""

from __future__ import annotations

import itertools
from pathlib import Path

from progpo_trl.publishing.files import CARD, PROMPT, RECIPE, is_evaluation, is_ours

PREVIOUS = "previous-run"
_RESULTS = {CARD, "summary.json", "learning_curve.png", "trainer_state.json", "training_args.bin"}


def _is_run(recipe: Path) -> bool:
    try:
        with open(recipe, encoding="utf-8", errors="replace") as file:
            return file.readline().startswith("# progpo_trl ")
    except (FileNotFoundError, IsADirectoryError):
        return False


def set_aside_earlier_run(output: Path, model: str) -> Path | None:
    """Move the results of an earlier run in `output` into a folder in it, `previous-run` or `previous-run-2`, ...:
    model, tokenizer, evaluations, card, summary, and the recipe that belongs to them. Returns it; None where there are
    none. Nothing is deleted. OSError when they cannot be moved.

    model: what the new run trains, by its path or name. Where it lies in `output` itself its files stay: a run that is
    resumed loads them again. So does a prompt, which the new run may use. A folder without a recipe of `progpo train`
    is somebody else's: nothing in it is touched.
    """
    if not _is_run(output / RECIPE):
        return None
    trained_here = Path(model).expanduser().resolve() == output.resolve()
    names = {path.name for path in output.iterdir() if path.is_file()}
    found = {
        name
        for name in names
        if name in _RESULTS or (is_ours(name) and name != PROMPT and (is_evaluation(name) or not trained_here))
    }
    if not found - {RECIPE}:
        return None
    folders = (output / (PREVIOUS if n == 1 else f"{PREVIOUS}-{n}") for n in itertools.count(1))
    target = next(folder for folder in folders if not folder.exists())
    target.mkdir()
    for name in sorted(found | (names & {RECIPE})):
        (output / name).rename(target / name)
    return target
