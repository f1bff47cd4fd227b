"""The whole loop on the tiny policy, by the commands a person would type, from an empty directory."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from progpo_trl.cli import main

PANEL = ["--tasks", "12", "--temperatures", "0", "0.7", "--seeds", "0", "1"]


def results(folder: Path) -> dict:
    return json.loads((folder / "evaluation.json").read_text())


@pytest.mark.slow
def test_train_evaluate_compare_view_publish_and_load_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert not list(tmp_path.iterdir())
    settings = ["--max_generations", "2", "--evaluate_around_training", "false", "--report_to", "none"]
    assert main(["train", "--config", "quickstart", *settings, "--output_dir", "run"]) == 0

    assert main(["evaluate", "run", *PANEL, "--out", "run/evaluation"]) == 0
    assert main(["evaluate", "--config", "run/config.yaml", "--model", "tiny", *PANEL, "--out", "base"]) == 0
    trained, base = results(tmp_path / "run" / "evaluation"), results(tmp_path / "base")
    # Greedy play needs one sampling seed, sampled play both.
    assert len(trained["games"]) == len(base["games"]) == 12 * 3
    assert trained["games"] != base["games"], "two generations of training change how the policy plays"

    capsys.readouterr()
    assert main(["compare", "base", "run/evaluation", "--out", "comparison"]) == 0
    assert "| base" in capsys.readouterr().out
    assert {p.suffix for p in (tmp_path / "comparison").iterdir()} >= {".md", ".png"}

    assert main(["view", "run", "--export", "run.html"]) == 0
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    assert main(["plots", "run", "--out", "plots"]) == 0
    assert list((tmp_path / "plots").glob("*.png"))

    assert main(["publish", "run", "--repo", "someone/agent", "--dry-run", "--out", "folder"]) == 0
    card = (tmp_path / "folder" / "README.md").read_text()
    assert "model-index:" in card
    shutil.move(tmp_path / "folder", tmp_path / "downloaded")
    shutil.rmtree(tmp_path / "run")

    env = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "progpo_trl.evaluate", "downloaded", *PANEL, "--out", "again"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert results(tmp_path / "again")["games"] == trained["games"], "every game, to the last number"
