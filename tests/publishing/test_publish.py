"""`progpo publish` and `progpo run` on real runs of the tiny policy: what is published plays as what was trained."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, metadata_load
from small_disk import files_of_at_most

from progpo_trl.cli import main
from progpo_trl.evaluation.results import percent
from progpo_trl.publishing.errors import PublishError
from progpo_trl.publishing.folder import prepare
from progpo_trl.publishing.local import scan

SHORT = ["--max_generations", "2", "--groups_per_generation", "2", "--num_generations", "2"]
SHORT += ["--evaluate_around_training", "false", "--environment.n_eval", "6", "--eval_tasks", "6"]
LORA = ["--use_peft", "true", "--lora_r", "4", "--lora_target_modules", "all-linear"]
KINDS = ("full", "lora")
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
FILES = {
    "full": {"model.safetensors", "config.json", "generation_config.json"},
    "lora": {"adapter_model.safetensors", "adapter_config.json"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A full and a LoRA run, each evaluated greedily on six games, in a folder that no public file may name."""
    folder = tmp_path_factory.mktemp("home-of-alice")
    for kind in KINDS:
        words = ["--config", "quickstart", *SHORT, "--output_dir", str(folder / kind)]
        words += [*LORA, "--save_every_generations", "1"] if kind == "lora" else []
        assert main(["train", *words]) == 0
        assert main(["evaluate", str(folder / kind), "--temperatures", "0"]) == 0
    return folder


@pytest.fixture(scope="module")
def published(runs, tmp_path_factory):
    """The folders that `--dry-run` writes, moved away from their runs."""
    away = tmp_path_factory.mktemp("away")
    for kind in KINDS:
        words = [str(runs / kind), "--dry-run", "--out", str(runs / "out" / kind), "--repo", f"alice/{kind}"]
        assert main(["publish", *words, "--license", "apache-2.0"]) == 0
        shutil.copytree(runs / "out" / kind, away / kind)
    return away


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_published(kind, runs, published, capsys):
    folder = published / kind
    names = {p.name for p in folder.iterdir()}
    assert names == FILES[kind] | TOKENIZER | {"README.md", "config.yaml", "evaluation.json"}
    assert scan(folder) == []
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            assert "home-of-alice" not in path.read_text(), path
    # again, to the default place: the listing has every file and its size
    assert main(["publish", str(runs / kind), "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert {line.split()[0] for line in out.splitlines() if line.startswith("  ") and "in all" not in line} == names
    assert f"the folder is {runs / kind / 'publish'}" in out
    assert "Only 6 games" in err


@pytest.mark.parametrize("kind", KINDS)
def test_the_card_states_what_the_evaluation_measured(kind, published):
    card = ModelCard.load(published / kind / "README.md")
    evaluation = json.loads((published / kind / "evaluation.json").read_text())
    (part,) = evaluation["results"]
    (result,) = card.data.eval_results  # huggingface_hub has read model-index and found it valid
    assert result.metric_value == round(part["success"]["rate"], 4)
    assert result.dataset_split == "valid_unseen"
    assert result.dataset_revision == evaluation["panels"][0]["data_sha256"]
    assert result.metric_args["games"] == 6
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == {"full": "transformers", "lora": "peft"}[kind]
    assert {"progpo", "grpo", "alfworld_generated", "trl"} <= set(card.data.tags)
    assert card.data.get("base_model") is None  # the tiny policy is on no Hub
    text = card.text
    percent = f"{100 * part['success']['rate']:.1f} %"
    assert f"| valid_unseen, greedy | **all** | 6 | {percent} |" in text
    assert "> **WARNING:** Only 6 games" in text
    assert "[arXiv:2607.22724](https://arxiv.org/abs/2607.22724)" in text
    assert "[arXiv:2402.03300](https://arxiv.org/abs/2402.03300)" in text
    assert f"progpo run alice/{kind}" in text
    assert re.search(r"\| seed \| 0 \|", text)
    assert evaluation["panels"][0]["data_sha256"][:12] in text
    command = re.search(r"^progpo evaluate alice/.*$", text, re.M)[0]
    assert shlex.split(command)[-2:] == ["--temperatures", "0"]
    command = re.search(rf"^progpo evaluate --model {kind} .*$", text, re.M)[0]
    again = ["--split", "valid_unseen", "--temperatures", "0", "--seeds", "0", "--tasks", "6"]
    assert shlex.split(command)[4:] == again


@pytest.mark.parametrize("kind", KINDS)
def test_the_snippet_of_the_card_loads_the_weights(kind, runs, published, monkeypatch):
    import torch

    code = re.search(r"```python\n(.*?)```", (published / kind / "README.md").read_text(), re.S)[1]
    scope = {}
    exec(code.replace(f'"alice/{kind}"', repr(str(published / kind))), scope)  # our own card
    tensors = {name: value for name, value in scope["model"].named_parameters() if kind == "full" or "lora_B" in name}
    assert tensors
    assert all(torch.isfinite(value).all() for value in tensors.values())
    assert any(value.abs().sum() > 0 for value in tensors.values())
    assert scope["tokenizer"]("go to bed 1")["input_ids"]


@pytest.mark.slow
def test_a_new_process_reproduces_every_game(published, tmp_path, hub, monkeypatch):
    """From the folders alone, away from the runs, the same record of every game; and from the Hub, by its id."""
    code = (
        "import sys\nfrom progpo_trl.cli import main\nfor kind in ('full', 'lora'):\n"
        "    words = ['--model', sys.argv[1] + '/' + kind, '--temperatures', '0', '--out', sys.argv[2] + '/' + kind]\n"
        "    assert main(['evaluate', *words]) == 0\n"
        "print('from the Hub')\n"
        "assert main(['run', 'alice/lora', '--task', 'easy/valid_unseen/000001']) == 0\n"
    )
    hub.files.update({path.name: path.read_bytes() for path in (published / "lora").iterdir()})
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    words = [sys.executable, "-W", "ignore", "-c", code, str(published), str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    for kind in KINDS:
        before, after = (json.loads((f / kind / "evaluation.json").read_text()) for f in (published, tmp_path))
        assert after["games"] == before["games"]
        assert after["panels"] == before["panels"]
        assert len(after["games"]) == 6
        key = "adapter_sha256" if kind == "lora" else "weights_sha256"
        assert after["agent"][key] == before["agent"][key]
    (game,) = [g for g in after["games"] if g["task_id"] == "easy/valid_unseen/000001"]
    shown = done.stdout.partition("from the Hub")[2]
    assert f"{'SOLVED' if game['success'] else 'not solved'}: {game['steps']} actions" in shown


@pytest.mark.parametrize("kind", KINDS)
def test_run_plays_what_was_measured(kind, runs, published, capsys):
    lines = (runs / kind / "evaluation" / "episodes.jsonl").read_text().splitlines()
    for episode in map(json.loads, lines[:2]):
        assert main(["run", str(published / kind), "--task", episode["task_id"]]) == 0
        out = capsys.readouterr().out
        assert [line[2:] for line in out.splitlines() if line.startswith("> ")] == [
            s["action"] for s in episode["steps"]
        ]
        for step in episode["steps"]:
            assert step["response"] in out
        n = len(episode["steps"])
        assert re.search(rf"^{'SOLVED' if episode['success'] else 'not solved'}: {n} actions, return", out, re.M)


def test_run_several_games_sampled(published, capsys):
    words = ["run", str(published / "lora"), "--episodes", "2", "--temperature", "1", "--environment.max_steps", "3"]
    assert main([*words, "--seed", "4"]) == 0
    first = capsys.readouterr().out
    assert re.search(r"Solved [012] of 2\.", first)
    assert main([*words, "--seed", "4"]) == 0
    assert capsys.readouterr().out == first
    assert main([*words, "--seed", "5"]) == 0
    assert capsys.readouterr().out != first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--task", "easy/valid_unseen/00000x"],
            "--task easy/valid_unseen/00000x: there is no such task; did you mean",
        ),
        (["--temperatur", "1"], "there is no option --temperatur; did you mean 'temperature'"),
        (["--split", "dev"], "--split dev"),
        (["--episodes", "0"], "--episodes must be at least 1"),
        (["--temperature", "-1"], "--temperature must be at least 0 and finite"),
        (["other"], "unexpected 'other'"),
    ],
)
def test_run_asked_wrongly(words, said, published, capsys):
    assert main(["run", str(published / "lora"), *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("progpo run: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_run_of_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name, said in (
        ("alice/agent", "offline"),
        (str(tmp_path), "holds no config.yaml"),
        ("./no", "no such folder"),
    ):
        assert main(["run", name]) == 2
        assert said in capsys.readouterr().err


def test_a_checkpoint_is_published_with_the_evaluation_that_is_not_its_own(runs, tmp_path):
    prepared = prepare(runs / "lora" / "checkpoint-1", tmp_path / "out", repo="alice/one")
    assert {"adapter_model.safetensors", "config.yaml", "evaluation.json"} <= set(prepared.files)
    assert not {"optimizer.pt", "trainer_state.json", "manifest.json"} & set(prepared.files)
    assert any("of other weights" in warning for warning in prepared.warnings)


def test_the_folder_of_a_checkpoint_is_written_beside_it(runs, monkeypatch):
    checkpoint = runs / "lora" / "checkpoint-1"
    before = sorted(checkpoint.iterdir())
    assert main(["publish", str(checkpoint), "--dry-run"]) == 0
    assert (runs / "lora" / "publish-checkpoint-1" / "README.md").is_file()
    monkeypatch.chdir(checkpoint)
    assert main(["publish", ".", "--dry-run"]) == 0
    assert sorted(checkpoint.iterdir()) == before


def copy_of(run: Path, to: Path) -> Path:
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("evaluation", "publish", "checkpoint-*", "*.png"))
    return to


@pytest.mark.parametrize(("kind", "name"), [("full", "qwen2"), ("lora", "LORA"), ("lora", "full")])
def test_a_run_may_be_called_as_a_value_in_its_files(kind, name, runs, published, tmp_path, monkeypatch):
    copy_of(runs / kind, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main(["publish", name, "--repo", "me/agent", "--dry-run"]) == 0
    for path in (published / kind).iterdir():
        if path.name not in ("README.md", "config.yaml", "evaluation.json"):
            assert (tmp_path / name / "publish" / path.name).read_bytes() == path.read_bytes(), path.name
    ours, theirs = (yaml.safe_load((f / "config.yaml").read_text()) for f in (published / kind, Path(name, "publish")))
    assert theirs == ours | {"output_dir": "runs/agent"}


def test_without_an_evaluation_the_card_says_so(runs, tmp_path):
    run = copy_of(runs / "full", tmp_path / "run")
    prepared = prepare(run, tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert "> **WARNING:** This model was not evaluated" in card.text
    assert "Not evaluated." in card.text
    assert card.data.eval_results is None
    assert "evaluation.json" not in prepared.files
    assert "model-index" not in metadata_load(tmp_path / "out" / "README.md")


def test_other_data_and_other_agents(runs, tmp_path):
    run = copy_of(runs / "full", tmp_path / "run")
    content = json.loads((runs / "full" / "evaluation" / "evaluation.json").read_text())
    content["environment"]["level"] = "hard"
    content["agent"]["settings"]["context"] = "window"
    other = tmp_path / "evaluation.json"
    other.write_text(json.dumps(content))
    own = runs / "full" / "evaluation" / "evaluation.json"
    prepared = prepare(run, tmp_path / "out", evaluation_files=[own, other])
    assert {"evaluation.json", "evaluation-2.json"} <= set(prepared.files)
    assert (tmp_path / "out" / "README.md").read_text().count("Training seed: 0.") == 2
    warnings = "\n".join(prepared.warnings)
    assert "on other data than the recipe's: level 'easy' trained, 'hard' evaluated" in warnings
    assert "context 'full' trained, 'window' evaluated" in warnings
    content["agent"]["kind"] = "expert"
    other.write_text(json.dumps(content))
    with pytest.raises(PublishError, match="not of a trained policy but of 'expert'"):
        prepare(run, tmp_path / "out2", evaluation_files=[other])


def test_the_recipe_loses_what_is_the_authors(runs, tmp_path):
    run = copy_of(runs / "full", tmp_path / "run")
    template = tmp_path / "mine.jinja"
    template.write_text((Path(sys.modules["progpo_trl"].__file__).parent / "prompts" / "tiny.jinja").read_text())
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings |= {"prompt_template": str(template), "push_to_hub": True, "hub_model_id": "alice/secret"}
    settings |= {"hub_token": "hf_" + "a" * 34, "deepspeed": "/home/alice/ds.json", "run_name": "alice-7"}
    settings |= {"system_prompt": "/no_think Play well."}
    settings["environment"] |= {"name": "alfworld", "games": "/data/alice/alfworld"}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    prepared = prepare(run, tmp_path / "out", repo="alice/agent")
    text = (tmp_path / "out" / "config.yaml").read_text()
    public = yaml.safe_load(text)
    assert public["prompt_template"] == "prompt.jinja"
    assert "prompt.jinja" in prepared.files
    assert public["output_dir"] == "runs/agent"
    assert public["system_prompt"] == "/no_think Play well."
    assert "games" not in public["environment"]
    assert not {"push_to_hub", "hub_model_id", "hub_token", "deepspeed", "run_name"} & set(public)
    assert "alice" not in text
    assert "# left out, since it is of the author's machine: deepspeed" in text


def test_the_prompt_beside_the_recipe_is_found_from_anywhere(runs, tmp_path, monkeypatch, capsys):
    run = copy_of(runs / "full", tmp_path / "run")
    template = tmp_path / "mine.jinja"
    template.write_text("Look: {{ observation }}")
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + f"prompt_template: {template}\n")
    prepare(run, tmp_path / "out")
    template.unlink()
    monkeypatch.chdir(tmp_path)
    assert main(["run", "out", "--environment.max_steps", "1"]) == 0
    assert "1 action" in capsys.readouterr().out


def test_secrets_and_paths_stop_it(runs, tmp_path, monkeypatch):
    run = copy_of(runs / "full", tmp_path / "run")
    template = (run / "chat_template.jinja").read_text()
    for bad, said in (
        ("hf_" + "b" * 34, "chat_template.jinja, line .*: a Hugging Face token"),
        ("{# see /home/alice/notes.txt #}", "the path /home/alice/notes.txt"),
        ("my-secret-value-123", r"the value of \$ALICE_TOKEN"),
    ):
        monkeypatch.setenv("ALICE_TOKEN", "my-secret-value-123")
        (run / "chat_template.jinja").write_text(template + "\n" + bad)
        with pytest.raises(PublishError, match=said) as caught:
            prepare(run, tmp_path / "out")
        assert "my-secret" not in str(caught.value)
        assert "bbbb" not in str(caught.value)
        assert not (tmp_path / "out").exists()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


def test_a_local_base_needs_a_name(runs, tmp_path):
    run = copy_of(runs / "lora", tmp_path / "run")
    adapter = json.loads((run / "adapter_config.json").read_text())
    adapter["base_model_name_or_path"] = str(tmp_path / "base-of-alice")
    (run / "adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(PublishError, match="--base-model ID"):
        prepare(run, tmp_path / "out")
    prepare(run, tmp_path / "out", base_model="Qwen/Qwen2.5-0.5B-Instruct")
    public = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert public["base_model_name_or_path"] == "Qwen/Qwen2.5-0.5B-Instruct"
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "Qwen/Qwen2.5-0.5B-Instruct"
    assert "AutoPeftModelForCausalLM" in card.text
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["model_name_or_path"] == card.data.base_model


def test_what_cannot_be_published(runs, tmp_path, capsys):
    def said(*words: str) -> str:
        assert main(["publish", *map(str, words)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("progpo publish: error: ")
        assert err.count("\n") == 1
        return err

    run = copy_of(runs / "full", tmp_path / "run")
    assert "--dry-run only writes" in said(run)
    assert "no such folder" in said(tmp_path / "none", "--dry-run")
    assert "--repo" in said(run, "--repo", "a/b/c", "--dry-run")
    assert "the folder of the run itself" in said(run, "--dry-run", "--out", run)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    assert "holds other files (thesis.tex)" in said(run, "--dry-run", "--out", tmp_path / "home")
    assert "cannot be read" in said(run, "--dry-run", "--evaluation", tmp_path / "none.json")
    weights = run / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors: is damaged" in said(run, "--dry-run")
    weights.unlink()
    assert "holds neither a model nor an adapter" in said(run, "--dry-run")
    for number in (1, 9, 10, 11):
        (run / f"checkpoint-{number}").mkdir()
    assert f"publish a checkpoint in it, such as {run / 'checkpoint-11'}" in said(run, "--dry-run")
    (run / "config.yaml").unlink()
    assert "--config FILE" in said(run, "--dry-run")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "x"
    assert "the Hub knows no such id" in said(run, "--dry-run", "--license", "My Own License (c)")


def test_a_full_disk_is_not_blamed_on_what_is_read(runs, tmp_path, capsys):
    words = ["publish", str(runs / "full"), "--dry-run", "--out", str(tmp_path / "out")]
    with files_of_at_most(1000):
        assert main(words) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(rf"progpo publish: error: {tmp_path}/out(/[\w.]+)?: File too large\n", error), error
    assert not list(tmp_path.iterdir())


def test_the_command_uploads_the_folder(hub, runs, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["publish", str(runs / "lora"), "--out", str(out), "--repo", "alice/lora"]) == 0
    assert hub.files == {path.name: path.read_bytes() for path in out.iterdir()}
    assert len(hub.commits) == 1
    assert f"Published: {hub.url}/alice/lora" in capsys.readouterr().out
    hub.failing["/commit/"] = (500, "try later")
    assert main(["publish", str(runs / "lora"), "--out", str(out), "--repo", "alice/lora"]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    refused = "progpo publish: error: the Hub refused the upload (500: try later)"
    assert err == f"{refused}; nothing was uploaded, the prepared folder is {out}"


@pytest.mark.parametrize("broken", [False, True])
def test_a_training_that_pushes_gives_no_more_away(broken, hub, tmp_path, capsys):
    if broken:
        hub.failing["/commit/"] = (403, "read-only token")
    words = ["train", "--config", "quickstart", *SHORT, "--output_dir", str(tmp_path / "run"), "--seed", "1"]
    words += [*LORA, "--push_to_hub", "true", "--hub_model_id", "alice/pushed", "--save_every_generations", "1"]
    assert main(words) == int(broken)
    if broken:
        assert "the training is done, the upload failed: the token may not write" in capsys.readouterr().err
        assert (tmp_path / "run" / "adapter_model.safetensors").is_file()
        return
    assert set(hub.files) == FILES["lora"] | TOKENIZER | {"README.md", "config.yaml"}
    assert hub.files["adapter_model.safetensors"] == (tmp_path / "run" / "adapter_model.safetensors").read_bytes()
    assert hub.commits[-1] == "End of training"
    assert "Training in progress, step 1" in hub.commits
    assert str(tmp_path).encode() not in b"".join(hub.files.values())
    assert not list((tmp_path / "run").glob(".publish*"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run with checkpoints that was measured before and after its training, started with tokens."""
    run = tmp_path_factory.mktemp("measured") / "run"
    words = ["train", "--config", "quickstart", *SHORT, "--evaluate_around_training", "true", "--output_dir", str(run)]
    words += ["--save_every_generations", "1", f"--hub_token={HUB_TOKEN}", "--learning_rate", "0.001"]
    assert main([*words, "--model_init_kwargs", f"{{token: {HUB_TOKEN}, low_cpu_mem_usage: true}}"]) == 0
    return run


HUB_TOKEN = "hf_" + "Zz9" * 11


def test_a_token_is_in_no_file_of_a_run(measured):
    import torch

    for path in measured.rglob("*"):
        assert not path.is_file() or HUB_TOKEN.encode() not in path.read_bytes(), path
    assert "--hub_token=***" in json.loads((measured / "summary.json").read_text())["command"]
    for folder in (measured, measured / "checkpoint-1"):
        args = torch.load(folder / "training_args.bin", weights_only=False)
        assert (args.hub_token, args.learning_rate, args.output_dir) == (None, 0.001, str(measured))
        assert "token" not in args.model_init_kwargs
        assert args.model_init_kwargs["low_cpu_mem_usage"] is True


def test_the_cards_of_a_run_state_what_it_measured(measured, tmp_path):
    summary = json.loads((measured / "summary.json").read_text())
    prepare(measured, tmp_path / "out")
    for folder in (measured, tmp_path / "out"):
        text = (folder / "README.md").read_text()
        assert "Before and after training, the same 6 games of valid_unseen" in text
        for how, key in (("temperature 1", "success"), ("greedy", "greedy")):
            ends = [
                f"{percent(rate['rate'])} ({percent(rate['low'])} to {percent(rate['high'])})"
                for rate in (summary[f"{key}_before"], summary[f"{key}_after"])
            ]
            assert f"| {how} | **all** | {ends[0]} | {ends[1]} |" in text
        assert "nothing is known of how well it plays" not in text
        assert "Only 6 games of valid" in text
        assert "level: easy" in text
        assert "lambda_aux: 0.3" in text
        assert "Not evaluated." not in text
    # a checkpoint has other weights
    assert "nothing is known of how well" in "\n".join(prepare(measured / "checkpoint-1", tmp_path / "one").warnings)
    unmeasured = Path(shutil.copytree(measured, tmp_path / "run"))
    (unmeasured / "summary.json").unlink()
    assert "nothing is known of how well" in "\n".join(prepare(unmeasured, tmp_path / "none").warnings)


def test_the_command_of_the_card_measures_the_same_games(runs, tmp_path, monkeypatch):
    words = ["--temperatures", "0", "--tasks=3", "--environment.level=hard", "--max-turns=5"]
    assert main(["evaluate", str(runs / "full"), *words, "--out", str(tmp_path / "first")]) == 0
    prepare(runs / "full", tmp_path / "agent", evaluation_files=[tmp_path / "first" / "evaluation.json"])
    command = re.search(r"^progpo (evaluate --model .*)$", (tmp_path / "agent" / "README.md").read_text(), re.M)[1]
    monkeypatch.chdir(tmp_path)
    shutil.move("agent", shlex.split(command)[2])
    assert main([*shlex.split(command), "--out", "second"]) == 0
    first, second = (json.loads(Path(name, "evaluation.json").read_text()) for name in ("first", "second"))
    for part in ("games", "panels", "conditions"):
        assert second[part] == first[part]
    assert len(first["games"]) == 3
    assert first["conditions"]["max_turns"] == 5


def test_an_evaluations_command_is_published_without_its_secrets(runs, tmp_path):
    content = json.loads((runs / "full" / "evaluation" / "evaluation.json").read_text())
    content["command"] += ["--environment.api_key", "swordfish"]
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(content))
    prepare(runs / "full", tmp_path / "out", evaluation_files=[path])
    for name in ("evaluation.json", "README.md"):
        text = (tmp_path / "out" / name).read_text()
        assert "swordfish" not in text
        assert "--environment.api_key" in text


def test_the_run_has_our_card(runs):
    for kind in KINDS:
        card = ModelCard.load(runs / kind / "README.md")
        assert "Model Card for Model ID" not in card.text
        assert "None" not in card.text
        assert str(runs) not in card.text
        assert "ProGPO" in card.text
        assert "level: easy" in card.text
        assert "2607.22724" in card.text
