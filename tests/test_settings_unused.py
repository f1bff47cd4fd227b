"""Settings that would do nothing are refused, in Python and on the command line."""

import dataclasses
import inspect
import shutil

import pytest
import transformers
import trl

from progpo_trl.cli import main
from progpo_trl.config import MultiTurnGRPOConfig
from progpo_trl.settings import SettingsError, parse
from progpo_trl.settings_unused import UNUSED
from progpo_trl.tiny_policy import checkpoint_path

TINY = ["--environment.name", "alfworld_generated", "--model_name_or_path", "tiny"]
MINIMAL = [*TINY, "--use_cpu", "--bf16", "false", "--output_dir"]


def changed(name):
    """A value that is not the default."""
    field = MultiTurnGRPOConfig.__dataclass_fields__[name]
    if isinstance(field.default, bool) or "bool" in str(field.type):
        return not field.default
    if name == "include_for_metrics":
        return ["inputs"]
    if name == "label_names":
        return ["labels"]
    if name == "train_sampling_strategy":
        return "group_by_length"
    return 2 if isinstance(field.default, (int, float)) or field.default is None else "other"


@pytest.mark.parametrize("name", sorted(UNUSED))
def test_inherited_settings_that_nothing_reads(tmp_path, name):
    if name not in MultiTurnGRPOConfig.__dataclass_fields__:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    with pytest.raises(ValueError, match=f"{name} has no effect here: .*; remove it"):
        MultiTurnGRPOConfig(output_dir=str(tmp_path), use_cpu=True, **{name: changed(name)})
    field = MultiTurnGRPOConfig.__dataclass_fields__[name]
    if field.default is not dataclasses.MISSING:
        MultiTurnGRPOConfig(output_dir=str(tmp_path), use_cpu=True, **{name: field.default})


@pytest.mark.parametrize("name", ["label_smoothing_factor", "auto_find_batch_size", "prediction_loss_only"])
def test_they_are_settings_of_the_libraries_indeed(name):
    """Or a name in the list would guard nothing."""
    assert name in {f.name for f in dataclasses.fields(trl.GRPOConfig)}
    assert f"args.{name}" in inspect.getsource(transformers.Trainer)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lora_r", "4"], "command line: lora_r: has no effect without use_peft: true"),
        (["--lora_target_modules", "q_proj", "--load_in_4bit", "true"], "lora_target_modules: has no effect without"),
        (["--use_dora", "true"], "use_dora: has no effect without use_peft: true"),
        (["--bnb_4bit_quant_type", "fp4"], "has no effect without load_in_4bit: true"),
        (["--vllm_mode", "server"], "vllm_mode: has no effect without use_vllm: true"),
        (["--sapo_temperature_neg", "1.1"], "has no effect without loss_type: sapo"),
        (["--loss_type", "grpo", "--vespo_k_pos", "2"], "has no effect without loss_type: vespo"),
    ],
)
def test_settings_without_what_makes_them_count(tmp_path, words, said):
    with pytest.raises(SettingsError, match=said):
        parse([*MINIMAL, str(tmp_path), *words])


def test_what_is_switched_off_on_purpose_is_no_slip(tmp_path):
    _, _, model = parse([*MINIMAL, str(tmp_path), "--lora_r", "4", "--use_peft", "false"])
    assert not model.use_peft
    _, training, _ = parse([*MINIMAL, str(tmp_path), "--sapo_temperature_neg", "1.1", "--loss_type", "sapo"])
    assert training.sapo_temperature_neg == 1.1


@pytest.mark.parametrize("command", ["train", "evaluate", "run"])
def test_a_model_without_its_tokenizers_files_is_refused(tmp_path, capsys, command):
    model = tmp_path / "model"
    shutil.copytree(checkpoint_path(), model)
    (model / "tokenizer.json").unlink()
    words = {
        "train": ["--config", "quickstart", "--model_name_or_path", str(model), "--output_dir", str(tmp_path / "run")],
        "evaluate": ["--model", str(model), "--environment.name", "alfworld_generated", "--tasks", "1"],
        "run": [str(model), "--config", "quickstart"],
    }
    assert main([command, *words[command]]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{model} has no tokens for plain text (2 in all): tokenizer.json" in error
