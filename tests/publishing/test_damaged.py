"""`progpo publish` with a run whose files say what no run writes: the card is made, or one line says what is wrong."""

import copy
import json
import shutil

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file
from test_card import SUMMARY, evaluation, part

from progpo_trl.cli import main
from progpo_trl.evaluation.results import FORMAT

MISSING = object()
VALUES = [None, 7, 10**400, "text", [1], {"a": 1}, MISSING]
GAME = {"split": "valid_seen", "task_id": "a", "task_type": "pick", "temperature": 0.4, "seed": 0, "success": True}
GAME |= {"score": None, "return": 1.0, "steps": 3, "stop_reason": "success", "format_invalid": 0, "inadmissible": 0}
GAME |= {"truncated": 0, "repeated": 0, "loop": False, "tokens": 9, "error": None}
PLAYED = {"context": "window", "history": 2, "chat_template_kwargs": {"enable_thinking": False}, "top_p": 1.0}
CONTENTS = {
    "summary.json": SUMMARY
    | {"machine": {"gpus": ["one"], "cpus": 2}, "versions": {"torch": "2"}, "data": {"train": {"total": 3}}}
    | {"episodes": 8, "generations": 1, "updates": 2, "weights_step": 1, "seed": 0, "train_seconds": 4000.5},
    "config.yaml": {
        "model_name_or_path": "tiny",
        "environment": {"name": "alfworld_generated", "level": "easy", "eval_split": "valid_seen"},
        "advantage": {"name": "gigpo"},
        "progress_fallback": {"lambda_aux": 0.3},
        "prompt_template": "mine.jinja",
        "system_prompt": "be good",
        "chat_template_kwargs": {"enable_thinking": True},
        "output_dir": "runs/x",
        "use_peft": True,
        "lora_r": 4,
        "max_turns": 9,
        "learning_rate": 1e-5,
    },
    "evaluation/evaluation.json": evaluation(
        format=FORMAT,
        complete=True,
        games=[GAME],
        results=[part(0.4, context_limit=0.0, tokens_per_step=5.0)],
        machine={"device": "cpu"},
        agent={"kind": "policy", "weights_sha256": "w", "training_seed": 3, "settings": PLAYED},
        environment={"name": "alfworld_generated", "level": "hard"},
        conditions={"max_turns": 50, "action_format": "tags"},
    ),
}


def places(value, at=()):
    """The paths of all fields, of lists those of the first item."""
    if at:
        yield at
    if isinstance(value, dict):
        for name, item in value.items():
            yield from places(item, (*at, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*at, 0))


def changed(content, at, value):
    content = copy.deepcopy(content)
    of = content
    for name in at[:-1]:
        of = of[name]
    if value is MISSING:
        del of[at[-1]]
    else:
        of[at[-1]] = value
    return content


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The least that can be published, with an evaluation."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    (folder / "evaluation").mkdir(parents=True)
    save_file({"w": np.zeros(1, np.float32)}, folder / "model.safetensors")
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    (folder / "mine.jinja").write_text("{{ observation }}")
    for name, content in CONTENTS.items():
        (folder / name).write_text(json.dumps(content))  # which is YAML, too
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTENTS)
def test_every_field_may_be_damaged(name, run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("progpo_trl.atomic.flush", lambda path: None)  # no power is lost here, and it takes its time
    folder = shutil.copytree(run, tmp_path / "run")
    if name == "summary.json":
        shutil.rmtree(folder / "evaluation")  # the card has the rates of the summary where there are no others
    words = ["publish", str(folder), "--dry-run"]
    assert main(words) == 0
    for at in places(CONTENTS[name]):
        for value in VALUES:
            (folder / name).write_text(json.dumps(changed(CONTENTS[name], at, value)))
            capsys.readouterr()
            code, said = main(words), capsys.readouterr().err
            assert code == 0 or (code == 2 and said.count("\n") == 1 and len(said) < 700), (at, value, said)
            named = (name.rpartition("/")[2], "the base model: ", "prompt_template ")
            assert code == 0 or any(word in said for word in named), (at, value, said)


@pytest.mark.parametrize(
    ("name", "at", "value", "said"),
    [
        ("summary.json", ("machine", "gpus"), 7, "summary.json: is damaged: machine.gpus is 7; move it away"),
        ("summary.json", ("train_seconds",), -1, "summary.json: is damaged: train_seconds is -1; move it away"),
        ("config.yaml", ("environment",), "text", "config.yaml:1: environment: expected a mapping, got 'text'"),
        (
            "config.yaml",
            ("environment", "name"),
            [1],
            "config.yaml:1: environment.name: expected text, got a list [1]",
        ),
        ("config.yaml", ("model_name_or_path",), {"a": 1}, "config.yaml:1: model_name_or_path: expected text, got a "),
        ("evaluation/evaluation.json", ("agent", "settings"), 1, "settings must be names with values, not 1; make it"),
        ("evaluation/evaluation.json", ("command",), "progpo", "command must be a list of words, not 'progpo'; make"),
        ("evaluation/evaluation.json", ("panels", 0, "data_sha256"), [], "is damaged: "),
    ],
)
def test_what_is_damaged_is_named(name, at, value, said, run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / name).write_text(json.dumps(changed(CONTENTS[name], at, value)))
    assert main(["publish", str(folder), "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_an_adapter_whose_base_is_no_name(run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": 7}')
    assert main(["publish", str(folder), "--dry-run"]) == 2
    assert "adapter_config.json: base_model_name_or_path must be text, not 7" in capsys.readouterr().err


def test_settings_keep_what_they_were_written_as(run, tmp_path):
    """A model called 7 is called so."""
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "config.yaml").write_text("model_name_or_path: 7\nenvironment: {name: alfworld_generated}\nseed: 3\n")
    assert main(["publish", str(folder), "--dry-run"]) == 0
    found = yaml.safe_load((folder / "publish" / "config.yaml").read_text())
    assert found == {"model_name_or_path": "7", "environment": {"name": "alfworld_generated"}, "seed": 3}
