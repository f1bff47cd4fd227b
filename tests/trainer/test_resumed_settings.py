"""A run goes on with the settings it began with, from the command line and in Python, and its files say so."""

import json
import shutil

import pytest
import resume_run
import yaml

from progpo_trl.advantages import GiGPO
from progpo_trl.checkpoint_files import read_manifest, write_manifest
from progpo_trl.cli import main
from progpo_trl.settings import SettingsError

pytestmark = pytest.mark.slow

MINI = """
model_name_or_path: tiny
environment: {name: alfworld_generated, level: easy, n_eval: 8}
context: full
max_completion_length: 8
max_turns: 2
num_generations: 2
groups_per_generation: 2
max_generations: 2
learning_rate: 1e-3
bf16: false
use_cpu: true
gradient_checkpointing: false
seed: 0
save_every_generations: 1
disable_tqdm: true
show_rollout_progress: false
output_dir: run
"""
RESUME = ["--resume_from_checkpoint", "last"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of two generations: the folder in which `run` and `mini.yaml` lie."""
    folder = tmp_path_factory.mktemp("command")
    (folder / "mini.yaml").write_text(MINI)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--config", "mini.yaml"]) == 0
    return folder


def files(folder):
    """What a refusal must leave alone."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_experiment_is_refused_and_nothing_is_written(finished, monkeypatch, capsys):
    """A checkpoint of another model, environment, estimator, rate, seed, loss and temperature."""
    monkeypatch.chdir(finished)
    before = files(finished)
    words = ["--model_name_or_path", "tiny-hard", "--environment.level", "hard", "--advantage.name", "gigpo"]
    words += ["--learning_rate", "0.5", "--seed", "99", "--loss_type", "bnpo", "--temperature", "0.5"]
    assert main(["train", "--config", "mini.yaml", "--max_generations", "6", *words, *RESUME]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(
        "progpo train: error: resume_from_checkpoint: run/checkpoint-2 was made with other settings"
    )
    for change in (
        "model_name_or_path: tiny, now tiny-hard",
        "environment.level: easy, now hard",
        "advantage.name: grpo, now gigpo",
        "learning_rate: 0.001, now 0.5",
        "seed: 0, now 99",
        "loss_type: dapo, now bnpo",
        "temperature: 1.0, now 0.5",
    ):
        assert change in said
    assert "put them back, or begin a new run with these weights: --model_name_or_path run/checkpoint-2" in said
    assert files(finished) == before


def test_the_folder_of_a_finished_run_is_refused(finished, monkeypatch, capsys):
    monkeypatch.chdir(finished)
    before = files(finished)
    words = ["--max_generations", "6", "--output_dir", "other"]
    assert main(["train", "--config", "mini.yaml", *words, "--resume_from_checkpoint", "run"]) == 2
    said = capsys.readouterr().err
    assert "the newest complete one is --resume_from_checkpoint run/checkpoint-2" in said
    assert files(finished) == before


def copied(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_harmless_changes_go_on_and_the_settings_before_are_kept(finished, tmp_path, monkeypatch):
    run = copied(finished, tmp_path, monkeypatch)
    before = (run / "config.yaml").read_text()
    # The same settings, spelled otherwise, and one that may change.
    words = ["--learning_rate", "0.001", "--advantage.norm", "mean_std", "--output_dir", str(run)]
    assert main(["train", "--config", "mini.yaml", *words, "--max_generations", "3", *RESUME]) == 0
    assert (run / "config-until-step-2.yaml").read_text() == before
    assert yaml.safe_load((run / "config.yaml").read_text())["max_generations"] == 3
    assert json.loads((run / "trainer_state.json").read_text())["global_step"] == 3
    assert read_manifest(run / "checkpoint-3")["settings"] == read_manifest(run / "checkpoint-2")["settings"]
    # Going on once more with the same settings leaves one file of settings.
    (run / "summary.json").unlink(missing_ok=True)
    assert main(["train", "--config", "mini.yaml", *words, "--max_generations", "3", *RESUME]) == 0
    assert [path.name for path in run.glob("config-until-*")] == ["config-until-step-2.yaml"]


def test_a_run_of_an_older_version_is_judged_by_its_config(finished, tmp_path, monkeypatch, capsys):
    run = copied(finished, tmp_path, monkeypatch)
    forget(run / "checkpoint-2")
    words = ["train", "--config", "mini.yaml", "--max_generations", "3", *RESUME]
    assert main([*words, "--learning_rate", "0.5", "--environment.level", "hard"]) == 2
    said = capsys.readouterr().err
    assert "environment.level: easy, now hard; learning_rate: 0.001, now 0.5. That is" in said
    (run / "config.yaml").unlink()
    with pytest.warns(UserWarning, match=r"not say with which settings \(run/config.yaml: cannot be read: No such"):
        assert main([*words, "--temperature", "0.9"]) == 0


def test_a_checkpoint_of_a_run_elsewhere_does_not_overwrite_the_run_here(finished, tmp_path, monkeypatch, capsys):
    """Checkpoints of two runs are never mixed. Without any, what is here goes where an earlier run's results go."""
    run = copied(finished, tmp_path, monkeypatch)
    config = run / "config.yaml"
    before = config.read_text()
    assert main(["train", "--config", "mini.yaml", "--output_dir", "new"]) == 0
    words = ["--max_generations", "3", "--resume_from_checkpoint", "new/checkpoint-1"]
    weights = {path: path.read_bytes() for path in run.glob("checkpoint-*/*.safetensors")}
    assert weights
    capsys.readouterr()
    assert main(["train", "--config", "mini.yaml", *words]) == 2
    assert "which would be mixed with those to come: choose another --output_dir" in capsys.readouterr().err
    assert weights == {path: path.read_bytes() for path in run.glob("checkpoint-*/*.safetensors")}
    for path in run.glob("checkpoint-*"):
        shutil.rmtree(path)
    assert main(["train", "--config", "mini.yaml", *words]) == 0
    assert (run / "previous-run" / "config.yaml").read_text() == before
    assert not list(run.glob("config-until-*"))


def forget(checkpoint):
    """Make a checkpoint one of a version that recorded no settings."""
    facts = {key: value for key, value in read_manifest(checkpoint).items() if key not in ("settings", "files")}
    (checkpoint / "manifest.json").unlink()
    write_manifest(checkpoint, **facts)


# ---------------------------------------------------------------------------------------------------------- Python

SHORT = {"updates_per_generation": 1, "eval_every_generations": None, "max_generations": 1}


def trainer(base, folder, advantage=None, **settings):
    made = resume_run.make_trainer(base, str(folder), **SHORT | settings)
    if advantage is not None:
        made.advantage = advantage
    return made


def test_a_trainer_in_python_refuses_the_same(base, tmp_path):
    trainer(base, tmp_path).train()
    recorded = read_manifest(tmp_path / "checkpoint-1")["settings"]
    assert recorded["reward_funcs"] == ["environment_return"]
    assert "environment.name" not in recorded
    with pytest.raises(SettingsError, match="temperature: 1.0, now 0.5; beta: 0.0, now 0.1. That is another"):
        trainer(base, tmp_path, temperature=0.5, beta=0.1, max_generations=2).train(resume_from_checkpoint=True)
    with pytest.raises(SettingsError, match="other settings: advantage.name: grpo, now gigpo. That is"):
        trainer(base, tmp_path, GiGPO(), max_generations=2).train(resume_from_checkpoint=True)
    longer = trainer(base, tmp_path, max_generations=2, logging_steps=1)
    longer.train(resume_from_checkpoint=True)
    assert longer.state.global_step == 2


def test_another_adapter_is_refused(base, tmp_path):
    """Of the same shape, so that its weights fit: twice the scale is another policy."""
    trainer(base, tmp_path, lora=True).train()
    other = trainer(base, tmp_path, lora=True, max_generations=2)
    other.model.peft_config["default"].lora_alpha = 16
    with pytest.raises(SettingsError, match="other settings: adapters.default.lora_alpha: 8, now 16. That is"):
        other.train(resume_from_checkpoint=True)
    trainer(base, tmp_path, lora=True, max_generations=2).train(resume_from_checkpoint=True)
    with pytest.raises(SettingsError, match="adapters: .*default.*, now null"):
        trainer(base, tmp_path, max_generations=3).train(resume_from_checkpoint=True)


def test_a_checkpoint_without_a_record_goes_on_with_a_warning(base, tmp_path):
    trainer(base, tmp_path).train()
    forget(tmp_path / "checkpoint-1")
    with pytest.warns(UserWarning, match=r"does not say with which settings \(checkpoints of other"):
        trainer(base, tmp_path, max_generations=2).train(resume_from_checkpoint=True)


def test_a_trainers_checkpoint_is_complete_or_refused(base, tmp_path):
    trainer(base, tmp_path).train()
    checkpoint = tmp_path / "checkpoint-1"
    for name in ("manifest.json", "optimizer.pt"):
        (checkpoint / name).unlink()
    with pytest.raises(SettingsError, match=r"holds weights, but no optimizer \(optimizer.pt\)"):
        trainer(base, tmp_path, max_generations=2).train(resume_from_checkpoint=str(checkpoint))
