"""A disk that is full: one line that says what is saved, and nothing half-written."""

from pathlib import Path

import pytest
import resume_run
from resume_run import finish
from test_resume import check_same

pytestmark = pytest.mark.slow


def test_a_full_disk_costs_no_checkpoint(start, base, tmp_path):
    """Weights that do not fit (an error of safetensors), then an optimizer that does not (one of torch)."""
    settings = {"max_generations": 2, "eval_every_generations": None, "save_episodes": False, "logging_steps": 1}
    first = tmp_path / "first"
    resume_run.make_trainer(base, str(first), **settings).train()
    weights, optimizer = (
        (first / "checkpoint-4" / file).stat().st_size for file in ("model.safetensors", "optimizer.pt")
    )
    for what, limit in (("weights", weights - 1), ("optimizer", optimizer - 1)):
        folder, log = tmp_path / what, tmp_path / f"{what}.log"
        full = start(resume_run.train_on_a_full_disk, base, str(folder), 3, limit, log=log, **settings)
        assert finish(full) == [3], log.read_text()
        assert f"said: cannot save step 4 in {folder}: " in log.read_text()
        assert f"the newest complete checkpoint is {folder / 'checkpoint-2'}" in log.read_text()
        assert not (folder / ".saving").exists()
        check_same(folder, first, 2)


def test_a_final_model_that_does_not_fit_is_one_line(start, base, tmp_path):
    settings = {"max_generations": 1, "eval_every_generations": None, "save_episodes": False, "save_strategy": "no"}
    settings["save_every_generations"] = None
    folder, log = tmp_path / "run", tmp_path / "log"
    limit = Path(base, "model.safetensors").stat().st_size // 2
    assert finish(start(resume_run.train_on_a_full_disk, base, str(folder), 2, limit, log=log, **settings)) == [3]
    assert f"said: cannot save the final model in {folder}: " in log.read_text()
    assert "there is no complete checkpoint yet" in log.read_text()
    assert not (folder / ".saving").exists()
