"""resume_from_checkpoint: what counts as a complete checkpoint, and what is said about one that does not."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from progpo_trl.settings import SettingsError
from progpo_trl.settings_resume import checkpoint_fault, newest_complete, resume_checkpoint


def checkpoint(folder, step, weights="model.safetensors"):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    tensors = {"a": torch.zeros(100)}
    (path / weights).parent.mkdir(exist_ok=True)
    save_file(tensors, path / weights) if weights.endswith("safetensors") else torch.save(tensors, path / weights)
    torch.save({"state": torch.zeros(100)}, path / "optimizer.pt")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def args(folder, asked, max_steps=100):
    return SimpleNamespace(output_dir=str(folder), resume_from_checkpoint=asked, max_steps=max_steps)


@pytest.mark.parametrize(
    "weights", ["model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "ref/adapter_model.safetensors"]
)
def test_complete_checkpoints(tmp_path, weights):
    assert checkpoint_fault(checkpoint(tmp_path, 1, weights)) is None


@pytest.mark.parametrize("sharded", ["pytorch_model_fsdp_0", "global_step4"])
def test_sharded_checkpoints_are_complete(tmp_path, sharded):
    path = checkpoint(tmp_path, 4)
    (path / "model.safetensors").unlink()
    (path / sharded).mkdir()
    assert checkpoint_fault(path) is None


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda p: (p / "trainer_state.json").unlink(), "no complete checkpoint: trainer_state.json is missing"),
        (lambda p: (p / "trainer_state.json").write_text("{"), "trainer_state.json cannot be read"),
        (lambda p: (p / "trainer_state.json").write_text("{}"), "trainer_state.json states no global_step"),
        (lambda p: (p / "model.safetensors").unlink(), "there are no weights in it"),
        (lambda p: os.truncate(p / "model.safetensors", 0), "model.safetensors is damaged"),
        (lambda p: os.truncate(p / "model.safetensors", 200), "model.safetensors is damaged"),
        (lambda p: os.truncate(p / "optimizer.pt", 500), "optimizer.pt is damaged"),
        (
            lambda p: (p / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}'),
            "model-2.safetensors is missing",
        ),
    ],
)
def test_faults_are_named(tmp_path, damage, fault):
    path = checkpoint(tmp_path, 1)
    damage(path)
    assert fault in checkpoint_fault(path)
    with pytest.raises(SettingsError, match=f"resume_from_checkpoint: .*checkpoint-1: .*{fault}"):
        resume_checkpoint(args(tmp_path, str(path)))
    with pytest.raises(SettingsError, match=f"there is no complete checkpoint in .*checkpoint-1: .*{fault}"):
        resume_checkpoint(args(tmp_path, "last"))


@pytest.mark.parametrize("asked", [None, False, "false", "no", "None"])
def test_no_is_no(tmp_path, asked):
    assert resume_checkpoint(args(tmp_path, asked)) is None


@pytest.mark.parametrize("asked", ["last", "true", "True", True])
def test_last_is_the_newest_by_number_that_is_complete(tmp_path, asked):
    for step in (2, 9, 10, 11):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    assert resume_checkpoint(args(tmp_path, asked)) == str(tmp_path / "checkpoint-11")
    (tmp_path / "checkpoint-11" / "trainer_state.json").unlink()
    os.truncate(tmp_path / "checkpoint-10" / "model.safetensors", 50)
    with pytest.warns(UserWarning, match="from checkpoint-9; .*checkpoint-11: .*missing; checkpoint-10: .*damaged"):
        assert resume_checkpoint(args(tmp_path, asked)) == str(tmp_path / "checkpoint-9")
    assert [path.name for path, _ in newest_complete(tmp_path)[1]] == ["checkpoint-11", "checkpoint-10"]


def test_nothing_to_resume_or_to_train(tmp_path):
    with pytest.raises(SettingsError, match="there is no checkpoint in"):
        resume_checkpoint(args(tmp_path / "nowhere", "last"))
    with pytest.raises(SettingsError, match="nowhere: there is no such folder"):
        resume_checkpoint(args(tmp_path, str(tmp_path / "nowhere")))
    path = checkpoint(tmp_path, 5)
    assert resume_checkpoint(args(tmp_path, "last", max_steps=6)) == str(path)
    assert resume_checkpoint(args(tmp_path, "last", max_steps=-1)) == str(path)
    for asked in ("last", str(path)):
        with pytest.raises(SettingsError, match="is at step 5 and max_steps is 5: nothing is left to train"):
            resume_checkpoint(args(tmp_path, asked, max_steps=5))


def test_a_fresh_run_does_not_mix_with_an_earlier_one(tmp_path):
    (tmp_path / "checkpoint-26").mkdir()
    with pytest.raises(SettingsError, match=r"holds checkpoints of an earlier run \(checkpoint-26"):
        resume_checkpoint(SimpleNamespace(resume_from_checkpoint=None, output_dir=str(tmp_path), max_steps=5))
