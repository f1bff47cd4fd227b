"""Checkpoint folders: what counts as complete, and that rotating, replacing and cleaning lose none that is good."""

from __future__ import annotations

import json
import os
import time

import pytest
import torch
from safetensors.torch import save_file

from progpo_trl import atomic
from progpo_trl.checkpoint_files import (
    SAVING,
    checkpoint_fault,
    clean,
    newest_complete,
    numbered,
    read_manifest,
    recover,
    rotate,
    set_aside_after,
    write_manifest,
)

# What training goes on with beside the weights, as transformers and TRL save it.
TRAINING = {
    "optimizer.pt": "optimizer",
    "scheduler.pt": "learning rate schedule",
    "rng_state.pth": "random generators",
}


def checkpoint(folder, step, weights="model.safetensors"):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    tensors = {"a": torch.zeros(100)}
    (path / weights).parent.mkdir(exist_ok=True)
    save_file(tensors, path / weights) if weights.endswith("safetensors") else torch.save(tensors, path / weights)
    for name in TRAINING:
        torch.save({"state": torch.zeros(100)}, path / name)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "weights", ["model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "ref/adapter_model.safetensors"]
)
@pytest.mark.parametrize("listed", [False, True])
def test_complete_checkpoints(tmp_path, weights, listed):
    path = checkpoint(tmp_path, 1, weights)
    if listed:
        write_manifest(path, processes=2)
        manifest = read_manifest(path)
        assert manifest["processes"] == 2
        assert sorted(manifest["files"]) == sorted([weights, *TRAINING, "trainer_state.json"])
    assert checkpoint_fault(path) is None


def sharded(folder, *names):
    """A checkpoint whose weights and optimizer are shards in folders, as several processes save it."""
    path = checkpoint(folder, 4)
    for name in ("model.safetensors", "optimizer.pt"):
        (path / name).unlink()
    (path / "rng_state.pth").rename(path / "rng_state_0.pth")
    for name in names:
        (path / name).mkdir()
        (path / name / "shard").touch()
    return path


def test_sharded_checkpoints_are_complete(tmp_path):
    assert checkpoint_fault(sharded(tmp_path / "fsdp", "pytorch_model_fsdp_0", "optimizer_0")) is None
    path = sharded(tmp_path / "deepspeed", "global_step4")
    (path / "scheduler.pt").unlink()  # DeepSpeed keeps it with the optimizer
    assert "latest, which names DeepSpeed's folder, is missing" in checkpoint_fault(path)
    (path / "latest").write_text("global_step4")
    assert checkpoint_fault(path) is None
    (path / "global_step4" / "shard").unlink()
    assert "no optimizer (optimizer.pt), no learning rate schedule (scheduler.pt)" in checkpoint_fault(path)
    assert "no optimizer" in checkpoint_fault(sharded(tmp_path / "weights", "pytorch_model_fsdp_0"))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("name", TRAINING)
def test_weights_alone_are_not_what_a_run_goes_on_from(tmp_path, name, listed):
    path = checkpoint(tmp_path, 4)
    (path / name).unlink()
    if listed:
        write_manifest(path)
    fault = checkpoint_fault(path)
    assert f"holds weights, but no {TRAINING[name]} ({name}): a run cannot go on from it" in fault
    assert f"--model_name_or_path {path}" in fault
    assert newest_complete(tmp_path) == (None, [(path, fault)])
    write_manifest(path, only_model=True)  # whole for what it says it is
    assert checkpoint_fault(path) is None


def test_a_runs_folder_is_no_checkpoint(tmp_path):
    """A finished run has all of a checkpoint's names but the optimizer's; even with that one it is none."""
    checkpoint(tmp_path, 4)
    for file in checkpoint(tmp_path / "aside", 4).iterdir():
        file.rename(tmp_path / file.name)
    assert "is a run's folder, no checkpoint" in checkpoint_fault(tmp_path)


FAULTS = [
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
    (lambda p: (p / "optimizer.pt").unlink(), "holds weights, but no optimizer"),
    (lambda p: (p / "manifest.json").write_text("["), "manifest.json cannot be read"),
    (lambda p: (p / "manifest.json").write_text("[]"), "manifest.json lists no files"),
]


@pytest.mark.parametrize(("damage", "fault"), FAULTS)
def test_faults_are_named(tmp_path, damage, fault):
    path = checkpoint(tmp_path, 1)
    damage(path)
    assert fault in checkpoint_fault(path)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json", "rng_state.pth"])
def test_the_manifest_finds_whatever_is_missing_or_cut(tmp_path, name):
    path = checkpoint(tmp_path, 1)
    torch.save(torch.zeros(9), path / "rng_state.pth")
    write_manifest(path)
    assert checkpoint_fault(path) is None
    size = (path / name).stat().st_size
    with open(path / name, "ab") as file:
        file.write(b" ")
    assert checkpoint_fault(path) == f"{name} is damaged: it has {size + 1} bytes instead of {size}"
    (path / name).unlink()
    assert checkpoint_fault(path) == f"is no complete checkpoint: {name} is missing"


def test_a_folder_in_the_making_is_no_checkpoint(tmp_path):
    path = checkpoint(tmp_path / SAVING, 3)
    assert "half-written" in checkpoint_fault(path)
    assert newest_complete(tmp_path) == (None, [])
    clean(tmp_path)
    assert names(tmp_path) == []


def test_the_newest_is_by_number_and_complete(tmp_path):
    for step in (2, 9, 10, 11):
        checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-12").write_text("a file")
    assert list(numbered(tmp_path)) == [2, 9, 10, 11]
    (tmp_path / "checkpoint-11" / "trainer_state.json").unlink()
    os.truncate(tmp_path / "checkpoint-10" / "model.safetensors", 50)
    path, skipped = newest_complete(tmp_path)
    assert path.name == "checkpoint-9"
    assert [p.name for p, _ in skipped] == ["checkpoint-11", "checkpoint-10"]


def test_rotation_keeps_the_newest_the_best_and_what_was_just_saved(tmp_path):
    for step in (1, 2, 3, 4):
        checkpoint(tmp_path, step)
        time.sleep(0.01)
    rotate(tmp_path, None, keep=())
    rotate(tmp_path, 4, keep=())
    assert list(numbered(tmp_path)) == [1, 2, 3, 4]
    rotate(tmp_path, 2, keep=(tmp_path / "checkpoint-4", str(tmp_path / "checkpoint-1")))
    assert list(numbered(tmp_path)) == [1, 4]
    # one that is numbered higher, but older, is no reason to lose the one just saved
    checkpoint(tmp_path, 3)
    rotate(tmp_path, 1, keep=(tmp_path / "checkpoint-3", None))
    assert names(tmp_path) == ["checkpoint-3"]


def test_replacing_a_checkpoint_never_leaves_none(tmp_path, monkeypatch):
    old, new = checkpoint(tmp_path, 1), checkpoint(tmp_path / SAVING, 1)
    (new / "new").touch()
    rename, calls = os.rename, []

    def killed(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            atomic.replace_folder(new, old)
    assert not old.exists()
    recover(tmp_path)
    assert checkpoint_fault(old) is None
    atomic.replace_folder(new, old)
    assert (old / "new").exists()
    clean(tmp_path)
    assert names(tmp_path) == ["checkpoint-1"]


def test_what_comes_after_the_resumed_step_is_set_aside(tmp_path):
    for step in (1, 2, 3):
        checkpoint(tmp_path, step)
    assert [p.name for p in set_aside_after(tmp_path, 1)] == ["superseded-checkpoint-2", "superseded-checkpoint-3"]
    checkpoint(tmp_path, 2)
    (tmp_path / "checkpoint-2" / "second").touch()
    set_aside_after(tmp_path, 1)
    assert list(numbered(tmp_path)) == [1]
    assert (tmp_path / "superseded-checkpoint-2" / "second").exists()
