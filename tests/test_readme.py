"""What the README says can be done is done: its program and its estimator, as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "advantages"))

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


def test_the_program_with_an_environment_of_its_own(tmp_path):
    from progpo_trl.tiny_policy import checkpoint_path

    (program,) = [b for b in BLOCKS if "class GuessTheNumber" in b]
    assert len(program.splitlines()) < 60
    (tmp_path / "guess.py").write_text(program)
    env = os.environ | {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true", "WANDB_MODE": "disabled"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "guess.py", str(checkpoint_path()), str(tmp_path / "run"), "2"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "'eval_success'" in done.stdout
    assert len((tmp_path / "run" / "episodes.jsonl").read_text().splitlines()) == 2 * 32


def test_the_estimator():
    from test_properties import batch_of, episode

    (code,) = [b for b in BLOCKS if "def reward_to_go" in b]
    scope = {"np": np}
    exec(code, scope)  # our own README
    batch = batch_of([episode(0, "abc", 10.0), episode(0, "ab", 0.0, valid=[True, False]), episode(1, "a", 5.0)])
    assert scope["reward_to_go"](batch).tolist() == pytest.approx([10, 10, 10, 0, -0.1, 5])
    crashed = batch_of([episode(0, "ab", 1.0), episode(0, "abc", dropped=True), episode(0, "a", 5.0)])
    assert scope["reward_to_go"](crashed).tolist() == pytest.approx([1, 1, 5])


def test_the_first_screen_names_the_commands():
    head = "\n".join(README.splitlines()[:40])
    for words in ("make quickstart", "make test", "accelerate launch", "docs/images/quickstart.png"):
        assert words in head
