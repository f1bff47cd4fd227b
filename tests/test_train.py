"""`progpo train` end to end on the shipped tiny policy: what a run leaves, and what a person is told."""

import json

import pytest
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

from progpo_trl.cli import main
from progpo_trl.settings import SettingsError
from progpo_trl.train import main as train

pytestmark = pytest.mark.slow

SHORT = ["--max_generations", "2", "--eval_tasks", "8", "--groups_per_generation", "2", "--disable_tqdm", "true"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output = tmp_path_factory.mktemp("run")
    assert main(["train", "--config", "quickstart", *SHORT, "--output_dir", str(output)]) == 0
    return output


def test_summary(run):
    summary = json.loads((run / "summary.json").read_text())
    for when in ("before", "after"):
        for kind in ("success", "greedy"):
            rate = summary[f"{kind}_{when}"]
            assert rate["n"] == 8
            assert 0 <= rate["low"] <= rate["rate"] <= rate["high"] <= 1
        assert sum(r["n"] for r in summary[f"success_{when}_by_task_type"].values()) == 8
    assert summary["episodes"] == 2 * 2 * 8
    assert summary["train_seconds"] > 0
    assert summary["seed"] == 0
    assert {"torch", "trl", "transformers", "progpo_trl"} <= set(summary["versions"])
    assert summary["command"][:4] == ["progpo", "train", "--config", "quickstart"]


def test_episodes_and_curve(run):
    episodes = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    assert len(episodes) == 32
    assert {e["step"] for e in episodes} == {0, 1}
    assert all(e["steps"][0]["observation"].startswith("-= Welcome to TextWorld, ALFRED! =-") for e in episodes)
    with Image.open(run / "learning_curve.png") as image:
        assert image.width > 600


def test_the_model_loads_and_the_settings_can_be_read_again(run, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(run)
    tokenizer = AutoTokenizer.from_pretrained(run)
    assert model.config.vocab_size >= len(tokenizer)
    arguments = ["--config", str(run / "config.yaml"), "--output_dir", str(tmp_path)]
    assert main(["train", *arguments, "--evaluate_around_training", "false"]) == 0
    first, again = ((folder / "episodes.jsonl").read_text() for folder in (run, tmp_path))
    assert first == again


def test_lora_run_leaves_an_adapter(tmp_path):
    from peft import PeftModel

    from progpo_trl.tiny_policy import checkpoint_path

    lora = ["--use_peft", "true", "--lora_r", "4", "--lora_target_modules", "all-linear"]
    assert main(["train", "--config", "quickstart", *SHORT, *lora, "--output_dir", str(tmp_path)]) == 0
    base = AutoModelForCausalLM.from_pretrained(checkpoint_path())
    assert PeftModel.from_pretrained(base, tmp_path).peft_config["default"].r == 4


def test_resuming_needs_a_checkpoint(tmp_path):
    with pytest.raises(SettingsError, match="there is no checkpoint in"):
        train(["--config", "quickstart", *SHORT, "--resume_from_checkpoint", "last", "--output_dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--environment.split", "valid_unsen"], "environment: no split 'valid_unsen'"),
        (["--environment.level", "esay"], "easy"),
        (["--max_completion_length", "100000"], "leaves no room for a prompt"),
        (["--groups_per_generation", "9999999"], "cannot fill a generation"),
        (["--prompt_template", "tinny"], "did you mean 'tiny'"),
        (["--advantage.stats", "step"], "steps"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, capsys, arguments, message):
    assert main(["train", "--config", "quickstart", *SHORT, *arguments, "--output_dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("progpo train: error: ")
    assert message in error
