"""A run that is set aside is moved whole, and nothing else is: by what lies in the folder, and when moving fails."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from progpo_trl import earlier_run
from progpo_trl.earlier_run import set_aside_earlier_run
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.locks import only_one_in
from progpo_trl.evaluation.results import FORMAT
from progpo_trl.run_files import files_of_run

RECIPE = "# progpo_trl 1\n\nseed: 0\n"
EPISODE = json.dumps({"step": 0, "task_id": "a", "steps": []}) + "\n"
PLAYED = json.dumps({"task_id": "a", "steps": [], "game": {}}) + "\n"
EVALUATION = json.dumps({"format": FORMAT, "complete": True}, indent=1)
CARD = "---\ntags:\n- trl\n- progpo_trl\n- grpo\n---\n\n# A run\n"

OURS = {
    "README.md": CARD,
    "config.json": "{}",
    "config.yaml": RECIPE,
    "model.safetensors": "weights",
    "tokenizer.json": "{}",
    "episodes.jsonl": EPISODE,
    "summary.json": "{}",
    "trainer_state.json": "{}",
    "training_args.bin": "",
    "learning_curve.png": "",
    "evaluation-4.json": EVALUATION,
    "evaluation-4.episodes.jsonl": EPISODE,
    ".summary.json.partial": "",
    "explain-step1-group0.html": "",
    "completions/completions_00001.parquet": "",
    "evaluation/evaluation.json": EVALUATION,
    "evaluation/episodes.jsonl": PLAYED,
    "evaluation-seen/evaluation.json": EVALUATION,
    "evaluation-seen/episodes.part-0.jsonl": PLAYED,
    "eval/seen/evaluation.json": EVALUATION,
    "react/evaluation.json": EVALUATION,
    "react/calls.jsonl": "",
    "pictures/learning_curves.png": "",
    "pictures/all_fail.png": "",
    "publish/README.md": CARD,
    "publish/config.yaml": RECIPE,
    "publish/model.safetensors": "weights",
    "publish-checkpoint-4/README.md": CARD,
    "runs/Jan01_host/events.out.tfevents.1": "",
    "superseded-checkpoint-4/trainer_state.json": "{}",
    "superseded-checkpoint-4/optimizer.pt": "",
}
THEIRS = {
    "notes.txt": "mine",
    "my-config.yaml": "a: 1",
    "all_fail.png": "mine",
    "explain.html": "mine",
    "evaluation/notes.txt": "mine",
    "evaluations/table.csv": "mine",
    "eval/evaluation.json": '{"mine": 1}',
    "publish/todo.txt": "mine",
    "pictures/cat.png": "mine",
    "data/episodes.jsonl": EPISODE,
    "runs/other/config.yaml": RECIPE,
    "runs/other/model.safetensors": "weights",
    "another/config.yaml": RECIPE,
    "another/evaluation.json": EVALUATION,
    "wandb/run-1/run.wandb": "",
    "prompts/prompt.jinja": "mine",
}


def fill(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def contents(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_all_that_is_of_the_run_moves_and_nothing_else(tmp_path):
    fill(tmp_path, OURS | THEIRS)
    earlier = set_aside_earlier_run(tmp_path, "tiny")
    assert earlier == tmp_path / "previous-run"
    assert contents(earlier) == OURS
    shutil.rmtree(earlier)
    assert contents(tmp_path) == THEIRS
    assert not (tmp_path / "react").exists(), "a folder of the run alone leaves no empty one"
    assert (tmp_path / "completions").is_dir(), "the new run's trainer has made it by then"
    assert set_aside_earlier_run(tmp_path, "tiny") is None


def test_every_earlier_run_gets_a_folder_of_its_own(tmp_path):
    for n, name in enumerate(["previous-run", "previous-run-3", "previous-run-4"]):
        fill(tmp_path, {"config.yaml": RECIPE, "episodes.jsonl": EPISODE, "summary.json": str(n)})
        if n == 1:
            (tmp_path / "previous-run-2").symlink_to("nowhere")
        assert set_aside_earlier_run(tmp_path, "tiny") == tmp_path / name
        assert (tmp_path / name / "summary.json").read_text() == str(n)


@pytest.mark.parametrize("name", ["episodes.jsonl", "summary.json", "evaluation/evaluation.json"])
def test_a_run_that_was_killed_is_one_too(tmp_path, name):
    files = {"config.yaml": RECIPE, name: EVALUATION}
    fill(tmp_path, files)
    assert contents(set_aside_earlier_run(tmp_path, "tiny")) == files
    assert not (tmp_path / "config.yaml").exists()


def test_a_run_of_a_script_is_known_without_a_recipe(tmp_path):
    for files in ({"episodes.jsonl": EPISODE, "model.safetensors": ""}, {"README.md": CARD, "config.json": "{}"}):
        fill(tmp_path, files)
        assert contents(set_aside_earlier_run(tmp_path, "tiny")) == files


@pytest.mark.parametrize(
    "files",
    [
        {"config.yaml": RECIPE},
        {"config.yaml": "name: mine\n", "episodes.jsonl": EPISODE, "README.md": CARD},
        {"README.md": "My project.", "model.safetensors": "", "config.json": "{}"},
        {"episodes.jsonl": "my own\n", "summary.json": "{}"},
        {"README.md": "---\ntags:\n- mine\n---\n- progpo_trl\n", "config.json": "{}"},
    ],
)
def test_what_is_no_run_stays(tmp_path, files):
    fill(tmp_path, files)
    assert set_aside_earlier_run(tmp_path, "tiny") is None
    assert contents(tmp_path) == files


def test_the_model_that_is_trained_stays_and_the_earlier_run_has_it_too(tmp_path):
    fill(tmp_path, OURS | {"prompt.jinja": "{{ task }}"})
    earlier = set_aside_earlier_run(tmp_path, str(tmp_path))
    model = {"model.safetensors", "config.json", "tokenizer.json", "prompt.jinja"}
    assert contents(earlier) == OURS | {"prompt.jinja": "{{ task }}"}
    shutil.rmtree(earlier)
    assert set(contents(tmp_path)) == model


@pytest.mark.parametrize("place", ["publish", "superseded-checkpoint-4", "superseded-checkpoint-4/inside"])
def test_a_model_inside_the_folder_stays(tmp_path, place):
    fill(tmp_path, OURS)
    (tmp_path / place).mkdir(exist_ok=True)
    before = contents(tmp_path / place)
    earlier = set_aside_earlier_run(tmp_path, str(tmp_path / place))
    assert contents(tmp_path / place) == before
    assert (earlier / "model.safetensors").is_file()
    assert not (tmp_path / "model.safetensors").exists()


def test_links_lead_where_they_led(tmp_path):
    run, store = tmp_path / "run", tmp_path / "store"
    fill(store, {"weights": "weights", "seen/evaluation.json": EVALUATION})
    fill(run, {"config.yaml": RECIPE, "summary.json": "{}", "mine/card": CARD})
    links = {
        "model.safetensors": "../store/weights",
        "episodes.jsonl": str(store / "weights"),
        "README.md": "mine/card",
        "learning_curve.png": "summary.json",
        "evaluation": "../store/seen",
        "config.json": "nowhere",
    }
    for name, text in links.items():
        (run / name).symlink_to(text)
    earlier = set_aside_earlier_run(run, "tiny")
    assert {p.name for p in run.iterdir()} == {"mine", "previous-run"}
    assert (earlier / "model.safetensors").read_text() == (earlier / "episodes.jsonl").read_text() == "weights"
    assert (earlier / "README.md").read_text() == CARD
    assert os.readlink(earlier / "learning_curve.png") == "summary.json"
    assert (earlier / "evaluation" / "evaluation.json").read_text() == EVALUATION
    assert (store / "seen" / "evaluation.json").is_file()
    assert (earlier / "config.json").is_symlink()


def _failing_rename(monkeypatch, allowed, *, also_back=False):
    """os.rename of the module fails after `allowed` calls, once or for good."""
    rename, calls = os.rename, []

    def limited(old, new):
        calls.append(old)
        if len(calls) == allowed + 1 or (also_back and len(calls) > allowed):
            raise OSError(errno.ENOSPC, "No space left on device", str(old))
        rename(old, new)

    monkeypatch.setattr(earlier_run.os, "rename", limited)


def test_a_move_that_fails_leaves_all_where_it_was(tmp_path, monkeypatch):
    fill(tmp_path, OURS | THEIRS)
    (tmp_path / "tokenizer_config.json").symlink_to("notes.txt")
    before = contents(tmp_path)
    for steps in range(len(list(files_of_run(tmp_path)))):
        with monkeypatch.context() as patch:
            _failing_rename(patch, steps)
            with pytest.raises(OSError, match="No space left"):
                set_aside_earlier_run(tmp_path, "tiny")
        assert contents(tmp_path) == before, steps
        assert os.readlink(tmp_path / "tokenizer_config.json") == "notes.txt"
        assert not (tmp_path / ".previous-run.partial").exists()
    assert contents(set_aside_earlier_run(tmp_path, "tiny")) == OURS | {"tokenizer_config.json": "mine"}


@pytest.mark.parametrize("steps", [1, 9, 29, 30])
def test_a_move_that_was_killed_is_finished_by_the_next_run(tmp_path, monkeypatch, steps):
    fill(tmp_path, OURS)
    assert len(list(files_of_run(tmp_path))) == 30
    with monkeypatch.context() as patch:
        _failing_rename(patch, steps, also_back=True)  # nothing is moved back, as by a process that is gone
        with pytest.raises(OSError, match="No space"):
            set_aside_earlier_run(tmp_path, "tiny")
    assert (tmp_path / "config.yaml").exists() == (steps < 30), "moved last, so that the run is known as one"
    assert not (tmp_path / "previous-run").exists()
    earlier = set_aside_earlier_run(tmp_path, "tiny")
    assert contents(earlier) == OURS
    assert [p.name for p in tmp_path.iterdir() if p.name != "completions"] == ["previous-run"]


def test_what_a_killed_move_left_is_not_mixed_with_another_run(tmp_path):
    fill(tmp_path / ".previous-run.partial", {"episodes.jsonl": "first\n"})
    fill(tmp_path, {"config.yaml": RECIPE, "episodes.jsonl": EPISODE})
    assert set_aside_earlier_run(tmp_path, "tiny") == tmp_path / "previous-run-2"
    assert contents(tmp_path / "previous-run") == {"episodes.jsonl": "first\n"}
    assert contents(tmp_path / "previous-run-2") == {"config.yaml": RECIPE, "episodes.jsonl": EPISODE}


def test_an_evaluation_that_is_going_on_is_not_moved(tmp_path):
    fill(tmp_path, OURS)
    before = contents(tmp_path)
    with only_one_in(tmp_path / "evaluation"), pytest.raises(EvaluationError, match="another evaluation is writing"):
        set_aside_earlier_run(tmp_path, "tiny")
    assert contents(tmp_path) == before
    (tmp_path / "evaluation" / ".evaluation.lock").touch()  # as a killed one leaves it
    assert contents(set_aside_earlier_run(tmp_path, "tiny")) == OURS


def test_the_folder_may_be_a_link_and_be_named_from_within(tmp_path, monkeypatch):
    fill(tmp_path / "run", OURS)
    (tmp_path / "link").symlink_to("run")
    monkeypatch.chdir(tmp_path / "link")
    assert set_aside_earlier_run(Path("."), "tiny") == Path("previous-run")
    assert contents(tmp_path / "run" / "previous-run") == OURS
