"""resume_from_checkpoint: which checkpoint it means, and what is said about one that cannot be continued exactly."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import pytest
from test_checkpoint_files import FAULTS, checkpoint

from progpo_trl.checkpoint_files import SAVING, write_manifest
from progpo_trl.settings import SettingsError
from progpo_trl.settings_resume import resume_checkpoint


def args(folder, asked, max_steps=100, updates=1):
    return SimpleNamespace(
        output_dir=str(folder),
        resume_from_checkpoint=asked,
        max_steps=max_steps,
        steps_per_generation=updates,
        num_iterations=1,
        gradient_accumulation_steps=1,
    )


@pytest.mark.parametrize(("damage", "fault"), FAULTS)
def test_faults_are_said_with_what_to_use_instead(tmp_path, damage, fault):
    good, path = checkpoint(tmp_path / "run", 1), checkpoint(tmp_path / "run", 2)
    damage(path)
    with pytest.raises(
        SettingsError,
        match=f"resume_from_checkpoint: .*checkpoint-2: .*{fault}.*; the newest complete one is "
        f"--resume_from_checkpoint {re.escape(str(good))}",
    ):
        resume_checkpoint(args(tmp_path / "run", str(path)))
    (good / "trainer_state.json").unlink()
    with pytest.raises(SettingsError, match=f"no complete checkpoint in .*checkpoint-2: .*{fault}.*checkpoint-1: "):
        resume_checkpoint(args(tmp_path / "run", "last"))


@pytest.mark.parametrize("asked", [None, False, "false", "no", "None"])
def test_no_is_no(tmp_path, asked):
    assert resume_checkpoint(args(tmp_path, asked)) is None


@pytest.mark.parametrize("asked", ["last", "true", "True", True])
def test_last_is_the_newest_by_number_that_is_complete(tmp_path, asked):
    for step in (2, 9, 10, 11):
        checkpoint(tmp_path, step)
    assert resume_checkpoint(args(tmp_path, asked)) == str(tmp_path / "checkpoint-11")
    (tmp_path / "checkpoint-11" / "trainer_state.json").unlink()
    os.truncate(tmp_path / "checkpoint-10" / "model.safetensors", 50)
    with pytest.warns(UserWarning, match="from checkpoint-9; .*checkpoint-11: .*missing; checkpoint-10: .*damaged"):
        assert resume_checkpoint(args(tmp_path, asked)) == str(tmp_path / "checkpoint-9")


def test_a_runs_folder_is_refused_with_its_newest_checkpoint(tmp_path):
    """The folder of a finished run holds weights and a trainer_state.json, but no optimizer: Adam would begin anew."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    good = checkpoint(run, 4)
    for name in ("model.safetensors", "trainer_state.json"):
        (run / name).write_bytes((good / name).read_bytes())
    with pytest.raises(SettingsError, match=f"is a run's folder.*--resume_from_checkpoint {re.escape(str(good))}$"):
        resume_checkpoint(args(elsewhere, str(run)))
    for file in good.iterdir():
        file.unlink()
    good.rmdir()
    with pytest.raises(SettingsError, match=r"no optimizer \(optimizer.pt\), no learning rate schedule"):
        resume_checkpoint(args(elsewhere, str(run)))


def test_half_written_folders_are_not_taken(tmp_path):
    path = checkpoint(tmp_path / SAVING, 4)
    with pytest.raises(SettingsError, match="there is no checkpoint in"):
        resume_checkpoint(args(tmp_path, "last"))
    with pytest.raises(SettingsError, match="checkpoint-4: is half-written"):
        resume_checkpoint(args(tmp_path, str(path)))


def test_a_checkpoint_that_was_about_to_be_replaced_is_found(tmp_path):
    checkpoint(tmp_path / SAVING, 4).rename(tmp_path / SAVING / "replaced-checkpoint-4")
    assert resume_checkpoint(args(tmp_path, "last")) == str(tmp_path / "checkpoint-4")


def test_inside_a_generation_is_refused(tmp_path):
    checkpoint(tmp_path, 6)
    assert resume_checkpoint(args(tmp_path, "last", updates=3))
    with pytest.raises(
        SettingsError, match=r"lies inside a generation \(step 6; generations end every 4.*checkpoint-4"
    ):
        resume_checkpoint(args(tmp_path, "last", updates=4))


def test_other_batches_and_missing_optimizers_are_refused(tmp_path):
    path = checkpoint(tmp_path, 6)
    write_manifest(path, updates_per_generation=3)
    assert resume_checkpoint(args(tmp_path, "last", updates=3))
    with pytest.raises(SettingsError, match="made with 3 optimizer steps per generation, these settings take 2"):
        resume_checkpoint(args(tmp_path, "last", updates=2))
    write_manifest(path, updates_per_generation=3, only_model=True)
    with pytest.raises(SettingsError, match=f"save_only_model and holds no optimizer.*--model_name_or_path {path}$"):
        resume_checkpoint(args(tmp_path, "last", updates=3))
    (path / "adapter_config.json").write_text("{}")
    with pytest.raises(SettingsError, match="merge the adapter in .*checkpoint-6 into its base model"):
        resume_checkpoint(args(tmp_path, "last", updates=3))


def test_nothing_to_resume(tmp_path):
    with pytest.raises(SettingsError, match="there is no checkpoint in"):
        resume_checkpoint(args(tmp_path / "nowhere", "last"))
    with pytest.raises(SettingsError, match="nowhere: there is no such folder$"):
        resume_checkpoint(args(tmp_path, str(tmp_path / "nowhere")))
    path = checkpoint(tmp_path, 5)
    with pytest.raises(SettingsError, match="no such folder; did you mean ") as caught:
        resume_checkpoint(args(tmp_path, "checkpoint-5"))
    assert f"--resume_from_checkpoint {path}" in str(caught.value)


def test_nothing_to_train(tmp_path):
    path = checkpoint(tmp_path, 6)
    assert resume_checkpoint(args(tmp_path, "last", max_steps=8, updates=2)) == str(path)
    assert resume_checkpoint(args(tmp_path, "last", max_steps=-1)) == str(path)
    # trained, but the run ended before it had written its results
    assert resume_checkpoint(args(tmp_path, "last", max_steps=6)) == str(path)
    (tmp_path / "summary.json").touch()
    refused = "is at step 6 and max_steps is 6: nothing is left to train; .*--max_generations 4 or more"
    for asked in ("last", str(path)):
        with pytest.raises(SettingsError, match=refused):
            resume_checkpoint(args(tmp_path, asked, max_steps=6, updates=2))
    with pytest.raises(SettingsError, match="max_steps is 5: nothing is left"):
        resume_checkpoint(args(tmp_path, "last", max_steps=5))


def test_a_fresh_run_does_not_mix_with_an_earlier_one(tmp_path):
    (tmp_path / "checkpoint-26").mkdir()
    with pytest.raises(SettingsError, match=r"holds checkpoints of an earlier run \(checkpoint-26.*_checkpoint last"):
        resume_checkpoint(args(tmp_path, None))
