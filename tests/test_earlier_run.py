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
EVALUATION = json.dumps({"format": FORMAT, "agent": {"kind": "api"}}, indent=1)
OF_RUN = json.dumps({"format": FORMAT, "agent": {"kind": "policy", "run": "runs/mine"}}, indent=1)
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
    "hard/evaluation.json": OF_RUN,
    "hard/calls.jsonl": "",
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
    "another/evaluation.json": OF_RUN,
    "react/evaluation.json": EVALUATION,
    "react/calls.jsonl": "",
    "other/evaluation.json": OF_RUN.replace("mine", "other"),
    "wandb/run-1/run.wandb": "",
    "prompts/prompt.jinja": "mine",
}


def fill(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def run(tmp_path):
    """The folder of a run, still empty."""
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def contents(folder):
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_all_that_is_of_the_run_moves_and_nothing_else(run):
    fill(run, OURS | THEIRS)
    earlier = set_aside_earlier_run(run, "tiny")
    assert earlier == run / "previous-run"
    assert contents(earlier) == OURS
    shutil.rmtree(earlier)
    assert contents(run) == THEIRS
    assert not (run / "hard").exists(), "a folder of the run alone leaves no empty one"
    assert (run / "completions").is_dir(), "the new run's trainer has made it by then"
    assert set_aside_earlier_run(run, "tiny") is None


def test_every_earlier_run_gets_a_folder_of_its_own(run):
    for n, name in enumerate(["previous-run", "previous-run-3", "previous-run-4"]):
        fill(run, {"config.yaml": RECIPE, "episodes.jsonl": EPISODE, "summary.json": str(n)})
        if n == 1:
            (run / "previous-run-2").symlink_to("nowhere")
        assert set_aside_earlier_run(run, "tiny") == run / name
        assert (run / name / "summary.json").read_text() == str(n)


@pytest.mark.parametrize("name", ["episodes.jsonl", "summary.json", "evaluation/evaluation.json"])
def test_a_run_that_was_killed_is_one_too(run, name):
    files = {"config.yaml": RECIPE, name: EVALUATION}
    fill(run, files)
    assert contents(set_aside_earlier_run(run, "tiny")) == files
    assert not (run / "config.yaml").exists()


def test_a_run_of_a_script_is_known_without_a_recipe(run):
    for files in ({"episodes.jsonl": EPISODE, "model.safetensors": ""}, {"README.md": CARD, "config.json": "{}"}):
        fill(run, files)
        assert contents(set_aside_earlier_run(run, "tiny")) == files


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
def test_what_is_no_run_stays(run, files):
    fill(run, files)
    assert set_aside_earlier_run(run, "tiny") is None
    assert contents(run) == files


def test_the_model_that_is_trained_stays_and_the_earlier_run_has_it_too(run):
    fill(run, OURS | {"prompt.jinja": "{{ task }}"})
    earlier = set_aside_earlier_run(run, str(run))
    model = {"model.safetensors", "config.json", "tokenizer.json", "prompt.jinja"}
    assert contents(earlier) == OURS | {"prompt.jinja": "{{ task }}"}
    shutil.rmtree(earlier)
    assert set(contents(run)) == model


@pytest.mark.parametrize("place", ["publish", "superseded-checkpoint-4", "superseded-checkpoint-4/inside"])
def test_a_model_inside_the_folder_stays(run, place):
    fill(run, OURS)
    (run / place).mkdir(exist_ok=True)
    before = contents(run / place)
    earlier = set_aside_earlier_run(run, str(run / place))
    assert contents(run / place) == before
    assert (earlier / "model.safetensors").is_file()
    assert not (run / "model.safetensors").exists()


def test_links_lead_where_they_led(run, tmp_path):
    store = tmp_path / "store"
    fill(store, {"weights": "weights", "seen/evaluation.json": EVALUATION})
    fill(run, {"config.yaml": RECIPE, "summary.json": "{}", "mine/card": CARD})
    links = {
        "model.safetensors": "../store/weights",
        "episodes.jsonl": str(store / "weights"),
        "README.md": "mine/card",
        "learning_curve.png": "summary.json",
        "evaluation": "../store/seen",
        "eval": "../store",
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
    assert (earlier / "eval" / "seen" / "evaluation.json").samefile(store / "seen" / "evaluation.json")
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


def test_a_move_that_fails_leaves_all_where_it_was(run, monkeypatch):
    fill(run, OURS | THEIRS)
    (run / "tokenizer_config.json").symlink_to("notes.txt")
    before = contents(run)
    for steps in range(len(files_of_run(run))):
        with monkeypatch.context() as patch:
            _failing_rename(patch, steps)
            with pytest.raises(OSError, match="No space left"):
                set_aside_earlier_run(run, "tiny")
        assert contents(run) == before, steps
        assert os.readlink(run / "tokenizer_config.json") == "notes.txt"
        assert not (run / ".previous-run.partial").exists()
    assert contents(set_aside_earlier_run(run, "tiny")) == OURS | {"tokenizer_config.json": "mine"}


@pytest.mark.parametrize("steps", [1, 9, 29, 30])
def test_a_move_that_was_killed_is_finished_by_the_next_run(run, monkeypatch, steps):
    fill(run, OURS)
    assert len(files_of_run(run)) == 30
    with monkeypatch.context() as patch:
        _failing_rename(patch, steps, also_back=True)  # nothing is moved back, as by a process that is gone
        with pytest.raises(OSError, match="No space"):
            set_aside_earlier_run(run, "tiny")
    assert (run / "config.yaml").exists() == (steps < 30), "moved last, so that the run is known as one"
    assert not (run / "previous-run").exists()
    earlier = set_aside_earlier_run(run, "tiny")
    assert contents(earlier) == OURS
    assert [p.name for p in run.iterdir() if p.name != "completions"] == ["previous-run"]


def test_a_killed_move_of_a_run_without_a_recipe_is_finished_too(run, monkeypatch):
    files = {name: text for name, text in OURS.items() if name != "config.yaml"} | {"episodes.jsonl": EPISODE}
    fill(run, files)
    for steps in range(1, len(files_of_run(run)) + 1):
        with monkeypatch.context() as patch:
            _failing_rename(patch, steps, also_back=True)
            with pytest.raises(OSError, match="No space"):
                set_aside_earlier_run(run, "tiny")
        earlier = set_aside_earlier_run(run, "tiny")
        assert contents(earlier) == files, f"killed at move {steps}"
        shutil.rmtree(earlier)
        fill(run, files)


@pytest.mark.parametrize("plan", ['["../mine.txt"]', '["TMP/mine.txt"]', "[7]", "{", "null", '[["a"]]'])
def test_a_plan_that_somebody_wrote_moves_nothing_from_elsewhere(run, tmp_path, plan):
    (tmp_path / "mine.txt").write_text("mine")
    fill(run, {"config.yaml": RECIPE, "episodes.jsonl": EPISODE})
    fill(run / ".previous-run.partial", {".moving.json": plan.replace("TMP", str(tmp_path))})
    assert contents(set_aside_earlier_run(run, "tiny")) == {"config.yaml": RECIPE, "episodes.jsonl": EPISODE}
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_what_a_killed_move_left_is_not_mixed_with_another_run(run):
    fill(run / ".previous-run.partial", {"episodes.jsonl": "first\n"})
    fill(run, {"config.yaml": RECIPE, "episodes.jsonl": EPISODE})
    assert set_aside_earlier_run(run, "tiny") == run / "previous-run-2"
    assert contents(run / "previous-run") == {"episodes.jsonl": "first\n"}
    assert contents(run / "previous-run-2") == {"config.yaml": RECIPE, "episodes.jsonl": EPISODE}


def test_a_folder_that_cannot_be_looked_into_stays(run):
    fill(run, OURS | {"lost+found/file": ""})
    (run / "lost+found").chmod(0)
    set_aside_earlier_run(run, "tiny")
    (run / "lost+found").chmod(0o755)
    assert (run / "lost+found" / "file").exists()


def test_an_evaluation_that_is_going_on_is_not_moved(run):
    fill(run, OURS)
    before = contents(run)
    with only_one_in(run / "evaluation"), pytest.raises(EvaluationError, match="another evaluation is writing"):
        set_aside_earlier_run(run, "tiny")
    assert contents(run) == before
    (run / "evaluation" / ".evaluation.lock").touch()  # as a killed one leaves it
    assert contents(set_aside_earlier_run(run, "tiny")) == OURS


def test_the_folder_may_be_a_link_and_be_named_from_within(run, tmp_path, monkeypatch):
    fill(run, OURS)
    (tmp_path / "link").symlink_to("mine")
    monkeypatch.chdir(tmp_path / "link")
    assert set_aside_earlier_run(Path("."), "tiny") == Path("previous-run")
    assert contents(run / "previous-run") == OURS
