"""`progpo train` end to end on the shipped tiny policy: what a run leaves, and what a person is told."""

import contextlib
import importlib.util
import io
import json
import os
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

from progpo_trl.cli import main
from progpo_trl.settings import SettingsError
from progpo_trl.settings_resume import RESUME
from progpo_trl.train import main as train

pytestmark = pytest.mark.slow

SHORT = ["--max_generations", "2", "--eval_tasks", "8", "--groups_per_generation", "2", "--disable_tqdm", "true"]


@pytest.fixture(scope="module")
def run_and_words(tmp_path_factory):
    """A run's folder, and what it printed."""
    output = tmp_path_factory.mktemp("run")
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert main(["train", "--config", "quickstart", *SHORT, "--output_dir", str(output)]) == 0
    return output, told.getvalue()


@pytest.fixture(scope="module")
def run(run_and_words):
    return run_and_words[0]


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
    assert "data" in summary
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
    adapter = PeftModel.from_pretrained(base, tmp_path).peft_config["default"]
    assert (adapter.r, adapter.lora_dropout) == (4, 0.0), "with dropout the trained policy is not the one that played"


@pytest.mark.parametrize(
    ("missing", "arguments", "message"),
    [("vllm", ["--use_vllm"], "[vllm]"), ("bitsandbytes", ["--load_in_4bit"], "[quantization]")],
)
def test_missing_packages_name_our_extra(tmp_path, capsys, missing, arguments, message):
    if importlib.util.find_spec(missing):
        pytest.skip(f"{missing} is installed")
    assert main(["train", "--config", "quickstart", *SHORT, *arguments, "--output_dir", str(tmp_path)]) == 2
    assert f'pip install "progpo_trl{message}"' in capsys.readouterr().err.strip().splitlines()[-1]


def test_damaged_weights_are_one_line(tmp_path, capsys):
    from progpo_trl.tiny_policy import checkpoint_path

    model = tmp_path / "model"
    shutil.copytree(checkpoint_path(), model)
    os.truncate(model / "model.safetensors", 1000)
    words = ["--model_name_or_path", str(model), "--output_dir", str(tmp_path / "run")]
    assert main(["train", "--config", "quickstart", *SHORT, *words]) == 2
    assert f"error: model_name_or_path: {model}: " in capsys.readouterr().err


@pytest.fixture
def _terminal():
    """SIGINT as in a terminal: a shell starts background jobs, CI's among them, with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    ("saving", "saved"),
    [
        (["--save_every_generations", "2"], "saved {0}/checkpoint-1; go on with: progpo train --config quickstart "),
        ([], "no checkpoint was saved: save_strategy is no (--save_every_generations 1 saves every generation)"),
    ],
)
def test_signals_end_a_run_with_one_line(tmp_path, capsys, monkeypatch, number, code, saving, saved):
    _signal_in_rollout(monkeypatch, number, step=1)
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    words = ["--evaluate_around_training", "false", *saving, "--output_dir", str(tmp_path)]
    assert main(["train", "--config", "quickstart", *SHORT, *words]) == code
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith(f"progpo train: interrupted at generation 2; {saved.format(tmp_path)}")


def _signal_in_rollout(monkeypatch, number, step):
    from progpo_trl.trainer import MultiTurnGRPOTrainer

    rollout = MultiTurnGRPOTrainer.rollout

    def interrupted(self, inputs):
        if self.state.global_step == step:
            signal.raise_signal(number)
        return rollout(self, inputs)

    monkeypatch.setattr(MultiTurnGRPOTrainer, "rollout", interrupted)


@pytest.mark.usefixtures("_terminal")
def test_an_interrupted_run_goes_on_with_the_command_it_names(run, tmp_path, capsys, monkeypatch):
    """And leaves what a run leaves that nothing interrupted."""
    output = tmp_path / "a run"
    words = ["--save_every_generations=5", "--output_dir", str(output)]
    with monkeypatch.context() as patch:
        _signal_in_rollout(patch, signal.SIGINT, step=1)
        assert main(["train", "--config", "quickstart", *SHORT, *words]) == 130
    command = shlex.split(capsys.readouterr().err.rpartition("go on with: ")[2])
    assert command[:2] == ["progpo", "train"]
    assert main(command[1:]) == 0
    told = capsys.readouterr().out
    assert "before training: evaluated when the run began" in told
    assert "after training, greedy" in told
    one, other = (json.loads((folder / "summary.json").read_text()) for folder in (run, output))
    for summary in (one, other):
        for differs in ("command", "train_seconds", "train_cpu_seconds"):
            assert summary.pop(differs)
    assert other == one
    for name in ("model.safetensors", "episodes.jsonl", "tokenizer.json", "learning_curve.png"):
        assert (output / name).read_bytes() == (run / name).read_bytes(), name
    assert "resume" not in (output / "config.yaml").read_text()


def test_the_command_to_go_on_with_replaces_another_resume(monkeypatch):
    from progpo_trl.train import _again

    argv = ["--resume-from-checkpoint=x", "--config", "a b", "--resume_from_checkpoint", "y", "--seed", "1"]
    assert _again(argv) == "progpo train --config 'a b' --seed 1 --resume_from_checkpoint last"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert _again(argv) == "the same command and --resume_from_checkpoint last"


def test_the_command_to_go_on_with_has_every_word_but_secrets():
    from progpo_trl.train import _again

    argv = ["--config", "x", "--hub_token", "hf_abc", "--output_dir", "runs/hf_qwen25instructalfworld1"]
    command = "progpo train --config x --output_dir runs/hf_qwen25instructalfworld1 --resume_from_checkpoint last"
    assert _again(argv) == f"{command} (and your --hub_token)"
    argv += ["--model_init_kwargs={token: hf_abc}", "--hub_token=hf_abd"]
    assert _again(argv) == f"{command} (and your --hub_token, --model_init_kwargs)"


def test_signals_before_and_after_training(tmp_path, capsys, monkeypatch):
    from progpo_trl.reporting.summary import RunSummary

    def interrupted(*_):
        raise KeyboardInterrupt

    words = ["train", "--config", "quickstart", *SHORT, "--output_dir", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr("progpo_trl.train.build_trainer", interrupted)
        assert main(words) == 130
    assert "interrupted before training; nothing was saved" in capsys.readouterr().err
    monkeypatch.setattr(RunSummary, "evaluate", lambda self, when: interrupted() if when == "after" else None)
    assert main(words) == 130
    assert f"interrupted after training; the trained model is in {tmp_path}" in capsys.readouterr().err


def test_resuming_goes_on_from_the_newest_complete_checkpoint(tmp_path):
    words = ["--config", "quickstart", *SHORT, "--evaluate_around_training", "false", "--output_dir", str(tmp_path)]
    words += ["--save_every_generations", "1"]
    assert train(words) == 0
    with pytest.raises(SettingsError, match="checkpoint-2 is at step 2 and max_steps is 2: nothing is left to train"):
        train([*words, "--resume_from_checkpoint", "last"])
    # killed between the last checkpoint and the results: they are all that is left to do
    model, curve = ((tmp_path / name).read_bytes() for name in ("model.safetensors", "learning_curve.png"))
    for name in ("model.safetensors", "summary.json", "learning_curve.png"):
        (tmp_path / name).unlink()
    assert train([*words, "--resume_from_checkpoint", "last"]) == 0
    assert (tmp_path / "model.safetensors").read_bytes() == model
    assert (tmp_path / "learning_curve.png").read_bytes() == curve
    assert json.loads((tmp_path / "summary.json").read_text())["updates"] == 2
    os.truncate(tmp_path / "checkpoint-2" / "model.safetensors", 1000)
    first = (tmp_path / "episodes.jsonl").read_text().splitlines()
    with pytest.warns(
        UserWarning, match=r"resuming from checkpoint-1; .*\(checkpoint-2: model.safetensors is damaged"
    ):
        assert train([*words, "--resume_from_checkpoint", "true"]) == 0
    second = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert second[-16:] == first[-16:]


@pytest.mark.usefixtures("_terminal")
def test_an_earlier_runs_results_are_set_aside(run, tmp_path, capsys, monkeypatch):
    """A run that ends early must not stand beside the model and the numbers of the one before it."""
    from progpo_trl.publishing.errors import PublishError
    from progpo_trl.publishing.folder import prepare

    output = tmp_path / "run"
    shutil.copytree(run, output)
    (output / "notes.txt").write_text("mine")
    results = ("model.safetensors", "config.json", "tokenizer.json", "summary.json", "README.md", "config.yaml")
    results += ("learning_curve.png", "trainer_state.json", "training_args.bin", "episodes.jsonl")
    words = ["train", "--config", "quickstart", *SHORT, "--evaluate_around_training", "false", "--seed", "7"]
    words += ["--output_dir", str(output)]
    with monkeypatch.context() as patch:
        _signal_in_rollout(patch, signal.SIGINT, step=1)
        assert main(words) == 130
    earlier = output / "previous-run"
    assert f"{output} held an earlier run: it is in {earlier} now" in capsys.readouterr().out
    for name in results:
        assert (earlier / name).read_bytes() == (run / name).read_bytes(), name
        assert name in ("config.yaml", "episodes.jsonl") or not (output / name).exists(), name
    assert "seed: 7" in (output / "config.yaml").read_text()
    assert (output / "notes.txt").read_text() == "mine"
    with pytest.raises(PublishError, match="holds neither a model nor an adapter"):
        prepare(output, tmp_path / "out")
    prepare(earlier, tmp_path / "out")
    # of an interrupted run the episodes and the settings are all there is
    assert main(words) == 0
    assert {p.name for p in (output / "previous-run-2").iterdir()} == {"config.yaml", "episodes.jsonl"}
    assert main(words) == 0
    assert json.loads((output / "previous-run-3" / "summary.json").read_text())["seed"] == 7
    assert (earlier / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_every_command_knows_the_earlier_run_from_the_new_one(run, tmp_path, capsys):
    output = tmp_path / "run"
    shutil.copytree(run, output)
    assert main(["evaluate", str(output), "--tasks", "4", "--temperatures", "0"]) == 0
    assert main(["explain", str(output), "--group", "1"]) == 0
    assert main(["publish", str(output), "--dry-run"]) == 0
    account = (output / "explain-step1-group1.html").read_bytes()
    beside = tmp_path / "run-evaluation"
    shutil.copytree(output / "evaluation", beside)
    new = ["--evaluate_around_training", "false", "--save_episodes", "false", "--output_dir", str(output)]
    capsys.readouterr()
    assert main(["train", "--config", "quickstart", *SHORT, *new, "--advantage", "{name: gigpo}"]) == 0
    assert f"{beside} seems to be an evaluation of that run" in capsys.readouterr().out
    shutil.rmtree(beside)

    earlier = output / "previous-run"
    for command in (
        ["view", "--export", str(tmp_path / "run.html")],
        ["plots", "--out", str(tmp_path)],
        ["explain", "--group", "1"],
    ):
        capsys.readouterr()
        assert main([command[0], str(output), *command[1:]]) == 2, command
        assert "holds no episodes.jsonl" in capsys.readouterr().err
        assert main([command[0], str(earlier), *command[1:]]) == 0, command
        told = capsys.readouterr()
        assert "recorded other advantages" not in told.out
        assert command[0] != "plots" or "GRPO + ProGPO, 1 run: run/previous-run" in told.out
    assert (earlier / "explain-step1-group1.html").read_bytes() == account
    assert main(["compare", str(output), str(earlier)]) == 2
    assert f"{output}/evaluation.json: cannot be read: No such file" in capsys.readouterr().err

    assert main(["evaluate", str(output), "--tasks", "4", "--temperatures", "0"]) == 0
    assert main(["compare", str(output), str(earlier)]) == 0
    for place in (output, earlier):
        assert main(["publish", str(place), "--dry-run"]) == 0
        assert "other weights" not in (place / "publish" / "README.md").read_text()
        assert (place / "publish" / "evaluation.json").is_file()
        assert (place / "publish" / "model.safetensors").read_bytes() == (place / "model.safetensors").read_bytes()
    again = tmp_path / "again"
    assert main(["evaluate", str(earlier), "--tasks", "4", "--temperatures", "0", "--out", str(again)]) == 0
    one, other = (json.loads((p / "evaluation.json").read_text()) for p in (earlier / "evaluation", again))
    assert one["games"] == other["games"]
    assert one["agent"]["weights_sha256"] == other["agent"]["weights_sha256"]


@pytest.mark.usefixtures("_terminal")
def test_a_run_that_is_stopped_at_once_has_no_episodes(run, tmp_path, monkeypatch):
    output = tmp_path / "run"
    shutil.copytree(run, output)
    _signal_in_rollout(monkeypatch, signal.SIGINT, step=0)
    words = ["--evaluate_around_training", "false", "--output_dir", str(output)]
    assert main(["train", "--config", "quickstart", *SHORT, *words]) == 130
    assert {p.name for p in output.iterdir()} == {"config.yaml", "previous-run"}
    names = {p.name for p in run.iterdir()} - {".saving"}
    assert {p.name for p in (output / "previous-run").iterdir()} == names


def test_an_earlier_run_stays_when_the_new_one_cannot_begin(run, tmp_path, capsys):
    from progpo_trl.evaluation.locks import only_one_in

    output = tmp_path / "run"
    shutil.copytree(run, output)
    words = ["train", "--config", "quickstart", *SHORT, "--output_dir", str(output)]
    assert main([*words, "--environment.eval_split", "null"]) == 2
    (output / "evaluation").mkdir()
    evaluation = {"format": "progpo_trl evaluation 1", "complete": False}
    (output / "evaluation" / "evaluation.json").write_text(json.dumps(evaluation, indent=1))
    capsys.readouterr()
    with only_one_in(output / "evaluation"):
        assert main(words) == 2
    assert "holds an earlier run, and another evaluation is writing to" in capsys.readouterr().err
    (output / ".previous-run.partial").write_text("in the way")
    assert main(words) == 2
    assert "an earlier run's files cannot be moved, and stay where they were: " in capsys.readouterr().err
    for path in run.iterdir():
        assert (output / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_hint_at_the_end_of_a_run_leaves_it_where_it_is(run_and_words, tmp_path, monkeypatch):
    output, words = run_and_words
    assert f"another seed with `--seed 1 --output_dir {output}-seed1`" in words
    from progpo_trl.reporting.summary import another_seed

    runs = tmp_path / "my runs"
    assert another_seed(runs / "a-seed0", 0) == f"--seed 1 --output_dir '{runs}/a-seed1'"
    assert another_seed(runs / "a-seed0", 3) == f"--seed 4 --output_dir '{runs}/a-seed0-seed4'"
    (runs / "a-seed1").mkdir(parents=True)
    monkeypatch.chdir(runs / "a-seed1")
    assert another_seed(runs / "a-seed0", 0) == f"--seed 2 --output_dir '{runs}/a-seed2'"
    assert another_seed(Path(), 1) == f"--seed 2 --output_dir '{runs}/a-seed2'"
    monkeypatch.chdir(runs)
    assert another_seed(Path("a"), 1) == "--seed 2 --output_dir a-seed2"


def test_the_tasks_are_counted_once(tmp_path, capsys, monkeypatch):
    from progpo_trl.environments import TaskSet

    counted = []

    def count(self):
        counted.append(self.name)
        return {"skipped": {"without a goal": len(counted)}}

    monkeypatch.setattr(TaskSet, "data_summary", count)
    assert main(["train", "--config", "quickstart", *SHORT, "--output_dir", str(tmp_path)]) == 0
    assert counted == ["alfworld_generated"]
    assert "; left out: 1 without a goal" in capsys.readouterr().out
    assert json.loads((tmp_path / "summary.json").read_text())["data"] == {"skipped": {"without a goal": 1}}


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
        (["--model_name_or_path", "./nowhere"], "model_name_or_path: there is no folder ./nowhere"),
        (["--model_name_or_path", "org/nothing"], "model_name_or_path: org/nothing: "),
        (
            ["--model_init_kwargs.dtyp", "float32"],
            "model_init_kwargs: the model takes no 'dtyp'; did you mean 'dtype'",
        ),
        (["--model_init_kwargs", "float32"], "model_init_kwargs must be a mapping, got 'float32'"),
        (["--output_dir", f"{__file__}/inside"], "inside cannot be made: Not a directory"),
        (["--resume"], "--resume_from_checkpoint last"),
        (["--resume_from_checkpoint", "nowhere"], "resume_from_checkpoint: nowhere: there is no such folder"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, capsys, arguments, message):
    assert main(["train", "--config", "quickstart", *SHORT, "--output_dir", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("progpo train: error: ")
    assert message in error


def test_a_full_disk_is_one_line_and_loses_no_checkpoint(tmp_path, capsys, monkeypatch):
    import torch

    real = torch.save

    def full(value, path, *args, **kwargs):
        if "checkpoint-2" in str(path):
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0\nmore lines")
        return real(value, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full)
    settings = [
        *SHORT,
        "--max_generations",
        "3",
        "--save_every_generations",
        "1",
        "--evaluate_around_training",
        "false",
    ]
    assert main(["train", "--config", "quickstart", *settings, "--output_dir", str(tmp_path)]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "cannot save" in line]
    assert "step 2 " in line
    assert f"the newest complete checkpoint is {tmp_path / 'checkpoint-1'}" in line
    assert "--resume_from_checkpoint last" in line
    assert not (tmp_path / ".saving" / "checkpoint-2").exists()
    monkeypatch.setattr(torch, "save", real)
    assert main(["train", "--config", "quickstart", *settings, "--output_dir", str(tmp_path), *RESUME]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning_rate", "1e39", "--max_generations", "1"], "the sum of the weights after step 1 is "),
        (["--learning_rate", "1e30"], "the loss of step 2 is nan; training stops here"),
        (["--max_context_length", "3"], "no first prompt fits the context (task "),
    ],
)
def test_a_run_that_cannot_go_on_says_why_in_one_line_and_saves_no_model(tmp_path, capsys, arguments, message):
    words = ["--config", "quickstart", *SHORT, "--evaluate_around_training", "false", "--output_dir", str(tmp_path)]
    assert main(["train", *words, *arguments]) == 1
    error = capsys.readouterr().err
    assert error.strip().splitlines()[-1].startswith(f"progpo train: error: {message}")
    assert "Traceback" not in error
    assert not list(tmp_path.glob("*.safetensors"))
