"""The accelerate configs are what accelerate itself reads them as. tests/launchers trains with them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import yaml

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


def unknown_keys(text: str) -> list[str]:
    """Keys of a config that neither accelerate's config class nor its launcher takes.

    accelerate refuses unknown names at the top; those of the nested sections it takes over without a look.
    """
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    config = yaml.safe_load(text)
    launcher = {action.dest for action in launch_command_parser()._actions}
    unknown = [key for key in config if key not in {field.name for field in dataclasses.fields(ClusterConfig)}]
    for section in ("deepspeed_config", "fsdp_config"):
        unknown += [f"{section}.{key}" for key in config.get(section, {}) if key not in launcher]
    return unknown


@pytest.mark.parametrize("name", EXPECTED)
def test_every_key_is_known_to_accelerate(name):
    assert unknown_keys((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "key", "full"),
    [
        ("multi_gpu", "num_processes", "num_processes"),
        ("zero3", "zero3_save_16bit_model", "deepspeed_config.zero3_save_16bit_model"),
        ("fsdp2", "fsdp_state_dict_type", "fsdp_config.fsdp_state_dict_type"),
    ],
)
def test_a_misspelt_key_is_noticed(name, key, full):
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert unknown_keys(text.replace(f"{key}:", f"{key}x:")) == [f"{full}x"]


def launched_environment(name: str) -> dict[str, str]:
    """The variables in which `accelerate launch` hands the config over to the processes it starts."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    words = ["--config_file", str(FOLDER / f"{name}.yaml"), "-m", "progpo_trl.train"]
    arguments, defaults, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
    if not arguments.use_deepspeed:
        return prepare_multi_gpu_env(arguments)
    arguments.deepspeed_fields_from_accelerate_config = ",".join([*defaults.deepspeed_config, "mixed_precision"])
    return prepare_deepspeed_cmd_env(arguments)[1]


@pytest.mark.parametrize(("name", "stage"), [("zero2", 2), ("zero3", 3)])
def test_the_processes_make_of_zero_what_the_file_says(monkeypatch, name, stage):
    from accelerate.utils import DeepSpeedPlugin

    for variable, value in launched_environment(name).items():
        monkeypatch.setenv(variable, value)
    plugin = DeepSpeedPlugin()
    zero = plugin.deepspeed_config["zero_optimization"]
    assert zero["stage"] == stage
    assert zero["stage3_gather_16bit_weights_on_model_save"] is (stage == 3)
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "none"
    assert plugin.zero3_init_flag is (stage == 3)
    # The number of rows varies: neither may be fixed in the file.
    assert plugin.gradient_accumulation_steps == plugin.deepspeed_config["train_micro_batch_size_per_gpu"] == "auto"
    plugin.set_mixed_precision("bf16")
    assert plugin.deepspeed_config["bf16"]["enabled"] is True


def test_the_processes_make_of_fsdp2_what_the_file_says(monkeypatch):
    from accelerate.utils import FullyShardedDataParallelPlugin

    for variable, value in launched_environment("fsdp2").items():
        monkeypatch.setenv(variable, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert plugin.activation_checkpointing is False
    assert plugin.cpu_ram_efficient_loading is True


@pytest.mark.parametrize("launcher", ["no", "bf16", "fp16"])
@pytest.mark.parametrize(("recipe", "result"), [({"bf16": False}, "no"), ({"bf16": True}, "bf16"), ({}, "bf16")])
def test_the_recipe_decides_about_precision(monkeypatch, tmp_path, launcher, recipe, result):
    from progpo_trl import MultiTurnGRPOConfig

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    args = MultiTurnGRPOConfig(output_dir=str(tmp_path), use_cpu=True, **recipe)
    assert args.mixed_precision == result
    # DeepSpeed and Accelerator() read the variable itself where nothing was asked for.
    assert recipe.get("bf16", True) or os.environ["ACCELERATE_MIXED_PRECISION"] == "no"


def test_without_a_launcher_nothing_is_set(monkeypatch, tmp_path):
    from progpo_trl import MultiTurnGRPOConfig

    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    assert MultiTurnGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False).mixed_precision == "no"
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ
