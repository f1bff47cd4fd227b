"""The learning rate of a resumed run: the restored optimizer's where nothing changed, else what is asked for now."""

import json
import logging

import pytest
import resume_run
import torch

from progpo_trl.settings import SettingsError

pytestmark = pytest.mark.slow

SHORT = {"updates_per_generation": 1, "eval_every_generations": None, "logging_steps": 1, "warmup_steps": 0}


def train(base, folder, generations, resume=None, **settings):
    trainer = resume_run.make_trainer(base, str(folder), **SHORT | {"max_generations": generations} | settings)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(folder, step):
    """Update -> learning rate, of the log in a checkpoint (transformers logs the rate that the next update takes)."""
    log = json.loads((folder / f"checkpoint-{step}" / "trainer_state.json").read_text())["log_history"]
    return {entry["step"]: entry["learning_rate"] for entry in log if "learning_rate" in entry}


def held(folder, step):
    """The rate in a checkpoint's optimizer and schedule."""
    optimizer, schedule = (
        torch.load(folder / f"checkpoint-{step}" / f"{name}.pt", weights_only=False)
        for name in ("optimizer", "scheduler")
    )
    (rate,) = set(schedule["_last_lr"])
    assert all(group["lr"] == rate for group in optimizer["param_groups"])
    return rate


def weights(folder, step):
    return (folder / f"checkpoint-{step}" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_a_run_that_is_prolonged_takes_the_rate_of_the_longer_schedule(base, tmp_path, caplog, schedule):
    """At the end of a linear schedule the rate is 0: the first update of the longer run must not be taken with it."""
    train(base, tmp_path, 2, lr_scheduler_type=schedule)
    assert held(tmp_path, 2) == (1e-3 if schedule == "constant" else 0.0)
    with caplog.at_level(logging.WARNING, logger="progpo_trl"):
        train(base, tmp_path, 4, resume="last", lr_scheduler_type=schedule)
    said = "the learning rate goes on with 0.0005 instead of 0:" in caplog.text
    assert said == (schedule != "constant")
    assert weights(tmp_path, 3) != weights(tmp_path, 2), "update 3 was taken with a rate of 0"
    # A run of 4 from the start has the same rates from there on.
    train(base, tmp_path / "planned", 4, lr_scheduler_type=schedule)
    assert logged(tmp_path, 4)[4] == logged(tmp_path / "planned", 4)[4]
    for step in (3, 4):
        assert held(tmp_path, step) == held(tmp_path / "planned", step)


def test_the_first_update_takes_exactly_that_rate(base, tmp_path):
    train(base, tmp_path, 2)
    taken = []
    trainer = resume_run.make_trainer(base, str(tmp_path), **SHORT | {"max_generations": 4})

    class Watch(resume_run.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, optimizer, **kwargs):
            taken.append([group["lr"] for group in optimizer.param_groups])

    trainer.add_callback(Watch())
    trainer.train(resume_from_checkpoint="last")
    assert [set(rates) for rates in taken] == [{1e-3 * 0.5}, {1e-3 * 0.25}]


def test_another_learning_rate_is_refused_where_no_settings_are_recorded(base, tmp_path):
    """The rate in the checkpoint would win, and the run's files would name the other one."""
    train(base, tmp_path, 2)
    for file in (tmp_path / "checkpoint-2").glob("manifest.json"):
        file.unlink()
    with pytest.raises(SettingsError, match="made with learning_rate 0.001, and 0.5 is asked for: .*put them back"):
        train(base, tmp_path, 4, resume="last", learning_rate=0.5)
    train(base, tmp_path, 4, resume="last")
