"""`progpo evaluate`: a run's own settings, checkpoints, adapters, several runs, mistakes."""

import json
import shutil

import pytest
from small_disk import files_of_at_most

from progpo_trl.cli import main
from progpo_trl.evaluate import _split_words
from progpo_trl.evaluation.policy_files import weights_hash

SMALL = ["--tasks", "6", "--temperatures", "0"]


def content(folder):
    return json.loads((folder / "evaluation.json").read_text())


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A very short training of the quickstart that evaluates its panel and keeps a checkpoint."""
    out = tmp_path_factory.mktemp("runs") / "run0"
    words = ["--max_generations", "2", "--groups_per_generation", "2", "--num_generations", "2", "--seed", "7"]
    words += ["--evaluate_around_training", "false", "--save_every_generations", "1", "--eval_every_generations", "1"]
    words += [
        "--environment.n_eval",
        "12",
        "--eval_tasks",
        "6",
        "--eval_temperature",
        "0.4",
        "--learning_rate",
        "1e-2",
    ]
    assert main(["train", "--config", "quickstart", *words, "--output_dir", str(out)]) == 0
    return out


def test_a_run_is_evaluated_with_its_own_settings_as_it_was_in_training(run_dir, capsys):
    assert main(["evaluate", str(run_dir), "--tasks", "6"]) == 0
    found = content(run_dir / "evaluation")
    assert found["agent"]["training_seed"] == 7
    assert found["agent"]["run"] == str(run_dir)
    assert found["agent"]["settings"]["context"] == "full"
    assert found["environment"]["n_eval"] == 12
    assert found["command"] == ["progpo", "evaluate", str(run_dir), "--tasks", "6"]
    assert [r["temperature"] for r in found["results"]] == [0.4, 0.0]
    out = capsys.readouterr().out
    assert "valid_unseen, temperature 0.4: 6 games, sampling seed 0" in out
    # The last evaluation of the training played the same weights on the same panel with the same randomness.
    trained = json.loads((run_dir / "evaluation-2.json").read_text())
    assert trained["panels"] == found["panels"]
    assert trained["conditions"] == found["conditions"]
    assert trained["games"] == [g for g in found["games"] if g["temperature"] == 0.4]
    assert trained["results"] == found["results"][:1]
    texts = (run_dir / "evaluation-2.episodes.jsonl").read_text().splitlines()
    ours = (run_dir / "evaluation" / "episodes.jsonl").read_text().splitlines()[:6]
    assert [json.loads(a)["steps"] for a in texts] == [json.loads(b)["steps"] for b in ours]
    assert main(["compare", str(run_dir / "evaluation-2.json"), str(run_dir), "--temperature", "0.4"]) == 0


def test_a_checkpoint_has_the_settings_of_its_run(run_dir, tmp_path):
    words = ["evaluate", "--model", str(run_dir / "checkpoint-1"), "--tasks", "6", "--temperatures", "0.4"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    found = content(tmp_path)
    assert found["games"] == json.loads((run_dir / "evaluation-1.json").read_text())["games"]
    played, last = (weights_hash(str(folder)) for folder in (run_dir / "checkpoint-1", run_dir))
    assert found["agent"]["weights_sha256"] == played != last


def test_several_runs_are_reported_over_training_runs(run_dir, tmp_path, capsys):
    names = ("a", "b")
    for name, step in zip(names, (1, 2), strict=True):
        shutil.copytree(run_dir / f"checkpoint-{step}", tmp_path / name)
        shutil.copy(run_dir / "config.yaml", tmp_path / name)
    assert main(["evaluate", *(str(tmp_path / name) for name in names), *SMALL]) == 0
    out = capsys.readouterr().out
    assert "**mean over 2 training runs**" in out
    assert main(["evaluate", str(tmp_path / "a"), str(tmp_path / "b"), *SMALL, "--out", "x"]) == 2


def test_overrides_reach_the_game(run_dir, tmp_path):
    words = ["--environment.max_steps", "3", "--max_completion_length", "8", "--out", str(tmp_path / "out")]
    assert main(["evaluate", str(run_dir), *SMALL, *words]) == 0
    found = content(tmp_path / "out")
    assert found["conditions"]["max_turns"] == 3
    assert found["agent"]["settings"]["max_completion_length"] == 8
    assert max(g["steps"] for g in found["games"]) <= 3


def test_a_lora_run_by_its_folder(tmp_path):
    out = tmp_path / "lora"
    words = ["--max_generations", "1", "--groups_per_generation", "2", "--num_generations", "2", "--use_peft"]
    words += ["--lora_r", "2", "--lora_target_modules", "all-linear", "--evaluate_around_training", "false"]
    assert main(["train", "--config", "quickstart", *words, "--output_dir", str(out)]) == 0
    assert main(["evaluate", str(out), *SMALL]) == 0
    agent = content(out / "evaluation")["agent"]
    assert agent["adapter"] == str(out)
    assert agent["adapter_sha256"]
    assert agent["weights_sha256"]


def test_interrupted_and_resumed(run_dir, tmp_path, capsys, monkeypatch):
    from progpo_trl.evaluation.policy_agent import PolicyAgent

    words = ["evaluate", str(run_dir), *SMALL, "--batch-size", "2", "--out", str(tmp_path)]
    batch, played = PolicyAgent._play_batch, []

    def play(self, generation, context, games, *rest):
        if len(played) == 4 and not capsys.resumed:
            raise KeyboardInterrupt
        played.extend(game.task_id for game in games)
        batch(self, generation, context, games, *rest)

    monkeypatch.setattr(PolicyAgent, "_play_batch", play)
    capsys.resumed = False
    assert main(words) == 130
    assert f"finished games are in {tmp_path}: go on with --resume" in capsys.readouterr().err
    capsys.resumed = True
    assert main([*words, "--resume"]) == 0
    assert len(played) == len(set(played)) == 6
    assert content(tmp_path)["games_kept_from_before"] == 4


CODE = """
import pathlib
from transformers import Qwen2Config, Qwen2ForCausalLM
pathlib.Path({marker!r}).touch()
class OwnConfig(Qwen2Config):
    model_type = "own_code"
class OwnModel(Qwen2ForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder as somebody published it: a model with code of its own, and a recipe that trusts it in every way."""
    import transformers.dynamic_module_utils as modules

    from progpo_trl.tiny_policy import checkpoint_path

    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)  # whoever asks there gets no answer
    folder = tmp_path / "published"
    shutil.copytree(checkpoint_path(), folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own_code", "auto_map": own}))
    (folder / "own.py").write_text(CODE.format(marker=str(tmp_path / "was-run")))
    recipe = "environment: {name: alfworld_generated, level: easy, n_eval: 2}\nmodel_name_or_path: x\nuse_cpu: true\n"
    recipe += "context: full\nprompt_template: tiny\nmax_completion_length: 4\nmax_turns: 1\nbf16: false\n"
    recipe += "trust_remote_code: true\n"
    (folder / "config.yaml").write_text(recipe + "model_init_kwargs: {trust_remote_code: true}\n")
    (tmp_path / "text.yaml").write_text(recipe + "model_init_kwargs: '{\"trust_remote_code\": true}'\n")
    return folder


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("words", [["evaluate"], ["evaluate", "--model"], ["run"]])
def test_a_published_recipe_cannot_have_its_code_run(published, words, text, capsys):
    if text:
        shutil.copy("text.yaml", published / "config.yaml")
    assert main([*words, str(published)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(f"progpo {words[0]}: error: {published}: needs code of its own to be run")
    assert error.endswith("say --trust_remote_code true")
    assert not (published.parent / "was-run").exists()


@pytest.mark.parametrize("words", [["--trust_remote_code"], ["--config", "mine.yaml"]])
@pytest.mark.parametrize("command", ["evaluate", "run"])
def test_a_person_can_trust_a_models_code(published, command, words, capsys):
    shutil.copy(published / "config.yaml", "mine.yaml")
    more = ["--model", str(published), *SMALL, "--out", "out"] if command == "evaluate" else [str(published)]
    assert main([command, *more, *words]) == 0
    assert (published.parent / "was-run").exists()


@pytest.fixture
def kernels(published, monkeypatch):
    """The same recipe on a model without code, that asks for a kernel of somebody's; what the model is loaded with."""
    from transformers import AutoModelForCausalLM

    from progpo_trl.tiny_policy import checkpoint_path

    shutil.copy(checkpoint_path() / "config.json", published)
    with open(published / "config.yaml", "a") as file:
        file.write("attn_implementation: evil/kernel\n")
    text = (published / "config.yaml").read_text()
    more = "model_init_kwargs: {allow_all_kernels: true, use_kernels: true, dtype: float32, "
    (published / "config.yaml").write_text(text.replace("model_init_kwargs: {", more))
    asked = []
    load = AutoModelForCausalLM.from_pretrained

    def note(*words, **options):
        asked.append(options)
        # What is left to prove is that nothing of it gets here; no kernel is ever fetched.
        return load(*words, dtype="float32", output_loading_info=True)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", note)
    return asked


@pytest.mark.parametrize("command", ["evaluate", "run"])
def test_a_published_recipe_chooses_no_kernel(published, kernels, command, capsys):
    more = ["--model", str(published), *SMALL, "--out", "out"] if command == "evaluate" else [str(published)]
    assert main([command, *more]) == 0
    (options,) = kernels
    assert not {"attn_implementation", "allow_all_kernels", "use_kernels"} & set(options)
    assert options["trust_remote_code"] is False
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "not taken" in line]
    assert line.startswith(f"progpo {command}: {published}/config.yaml: attn_implementation 'evil/kernel', ")
    for name in ("allow_all_kernels", "use_kernels"):
        assert f"model_init_kwargs.{name} True" in line
    assert "dtype" not in line


@pytest.mark.parametrize(
    ("words", "took"),
    [
        (["--config", "mine.yaml"], ("evil/kernel", True)),
        (["--attn_implementation", "my/kernel"], ("my/kernel", None)),
        (["--model_init_kwargs.allow_all_kernels", "true"], (None, True)),
        (["--model_init_kwargs", "{allow_all_kernels: true}", "--attn_implementation=sdpa"], ("sdpa", True)),
    ],
)
def test_a_person_chooses_kernels(published, kernels, words, took):
    shutil.copy(published / "config.yaml", "mine.yaml")
    assert main(["run", str(published), *words]) == 0
    (options,) = kernels
    assert (options.get("attn_implementation"), options.get("allow_all_kernels")) == took
    assert options.get("use_kernels") == (True if "mine.yaml" in words else None)


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_a_published_recipe_chooses_among_the_attentions_of_the_package(published, kernels, name, capsys):
    text = (published / "config.yaml").read_text().replace("evil/kernel", name)
    (published / "config.yaml").write_text(text)
    assert main(["run", str(published)]) == 0
    assert kernels[0]["attn_implementation"] == name
    assert "attn_implementation" not in capsys.readouterr().err


@pytest.mark.parametrize(("where", "code"), [("attn_implementation", 0), ("_attn_implementation", 2)])
def test_a_models_own_file_chooses_no_kernel(published, where, code, capsys):
    from progpo_trl.tiny_policy import checkpoint_path

    config = json.loads((checkpoint_path() / "config.json").read_text())
    (published / "config.json").write_text(json.dumps(config | {where: "evil/kernel"}))
    assert main(["run", str(published)]) == 2
    assert "its config.json asks for the attention kernel 'evil/kernel'" in capsys.readouterr().err
    # transformers lets the second of them win over what it is asked for
    assert main(["run", str(published), "--attn_implementation", "sdpa"]) == code
    assert "`kernels` is" not in capsys.readouterr().err  # nobody asked that package for one


def test_whose_words_are_whose():
    ours, theirs = _split_words(
        [
            "run",
            "--environment",
            "alfworld",
            "--environment.games",
            "here",
            "--seeds",
            "0",
            "1",
            "--top_k=3",
            "--resume",
        ]
    )
    assert ours == ["run", "--seeds", "0", "1", "--resume"]
    assert theirs == ["--environment.name", "alfworld", "--environment.games", "here", "--top_k=3"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["--config", "quickstart", "--learning_rate", "1"], "progpo evaluate has no use for --learning_rate"),
        (
            ["--config", "quickstart", "--temperature", "1"],
            "progpo evaluate has no --temperature; it is --temperatures",
        ),
        (["--config", "quickstart", "--split", "trian"], "no split 'trian'; there are train, valid_unseen"),
        (["--config", "quickstart", "--tasks", "0"], "at least 1"),
        (["--config", "quickstart", "--repetition_penalty", "1.2"], "repetition_penalty and generation_kwargs"),
        (["--config", "quickstart", "--environment.levle", "easy"], "did you mean 'environment.level'"),
        (["--config", "quickstrat"], "no recipe of that name; did you mean 'quickstart'"),
        (["--model", "./nowhere", "--environment", "alfworld_generated"], "./nowhere: there is no such folder"),
        (["--config", "quickstart", "--seeds", "0", "-1"], "a sampling seed must be at least 0, got -1"),
        (["--config", "quickstart", "--out", "taken/here"], "taken is a file (taken/here would lie in it)"),
        (["--config", "quickstart", "--model_init_kwargs.device", "cpu"], "the model takes no 'device'"),
        (["--config", "quickstart", "--out", ""], "--out is empty; name a folder"),
        (["--config", "quickstart", "--tsaks", "3"], "no use for --tsaks; did you mean 'tasks'?"),
        (["--config", "quickstart", "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--model", "tiny"], "no environment"),
        (["--agent", "oracle", "--model", "tiny", "--environment", "alfworld_generated"], "plays without a model"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    assert main(["evaluate", *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("progpo evaluate: error: ")
    assert message in error
    assert not list(tmp_path.rglob("*.json"))


def test_a_second_one_on_a_folder_is_refused_before_a_model_is_loaded(run_dir, tmp_path, capsys, monkeypatch):
    from progpo_trl.evaluation import agent_options
    from progpo_trl.evaluation.locks import only_one_in

    words = ["evaluate", str(run_dir), *SMALL, "--out", str(tmp_path / "out"), "--resume"]
    (tmp_path / "out").mkdir()
    with only_one_in(tmp_path / "out"), monkeypatch.context() as patch:
        patch.setattr(agent_options, "policy", lambda *_: pytest.fail("a model is loaded"))
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"progpo evaluate: error: another evaluation is writing to {tmp_path / 'out'} ")
    assert main(words) == 0


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    out = capsys.readouterr().out
    for option in ("--model", "--adapter", "--split", "--temperatures", "--seeds", "--agent", "--resume", "--dtype"):
        assert option in out


def test_a_full_disk_is_named(run_dir, tmp_path, capsys):
    words = ["evaluate", str(run_dir), *SMALL, "--out", str(tmp_path / "out")]
    with files_of_at_most(4000):
        assert main(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"progpo evaluate: error: {tmp_path / 'out' / 'episodes.part-0.jsonl'}: File too large"
    assert main([*words, "--resume"]) == 0  # with room again, past the half line
    assert len(content(tmp_path / "out")["games"]) == 6
