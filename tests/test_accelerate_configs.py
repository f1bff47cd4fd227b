"""The accelerate configs are what accelerate itself reads them as."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "accelerate_configs"
EXPECTED = {"single_gpu": "NO", "multi_gpu": "MULTI_GPU", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED", "fsdp2": "FSDP"}


def load(name: str):
    # accelerate's own loader refuses keys that it does not know.
    from accelerate.commands.config.config_args import load_config_from_file

    return load_config_from_file(str(FOLDER / f"{name}.yaml"))


def test_there_is_one_for_every_way_to_launch():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize(("name", "kind"), EXPECTED.items())
def test_accelerate_reads_it(name, kind):
    config = load(name)
    assert str(config.distributed_type).rpartition(".")[2] == kind
    assert config.mixed_precision == "bf16"
    assert config.num_machines == 1
    assert config.use_cpu is False
    assert config.num_processes == 1 if name == "single_gpu" else config.num_processes > 1


@pytest.mark.parametrize(("name", "stage"), [("zero2", 2), ("zero3", 3)])
def test_zero_stages(name, stage):
    deepspeed = load(name).deepspeed_config
    assert deepspeed["zero_stage"] == stage
    assert deepspeed["zero3_init_flag"] is (stage == 3)
    assert deepspeed.get("zero3_save_16bit_model", False) is (stage == 3)


def test_fsdp2():
    fsdp = load("fsdp2").fsdp_config
    assert fsdp["fsdp_version"] == 2
    assert fsdp["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP"
    assert fsdp["fsdp_state_dict_type"] == "FULL_STATE_DICT"
    assert fsdp["fsdp_activation_checkpointing"] is False  # the trainer checkpoints; twice is an error


@pytest.mark.parametrize("name", EXPECTED)
def test_accelerate_launch_accepts_it(name):
    """The launcher's own validation, up to the point where it would look for GPUs."""
    from accelerate.commands import launch

    words = ["--config_file", str(FOLDER / f"{name}.yaml"), "--num_processes", "2", "-m", "progpo_trl.train"]
    arguments = launch.launch_command_parser().parse_args([*words, "--config", "quickstart"])
    assert arguments.training_script == "progpo_trl.train"
    assert arguments.training_script_args == ["--config", "quickstart"]
    checked, _, _ = launch._validate_launch_command(arguments)
    assert checked.num_processes == 2
    assert checked.use_deepspeed is name.startswith("zero")
    assert checked.use_fsdp is (name == "fsdp2")
