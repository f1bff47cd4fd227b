"""Starting `accelerate launch` with the shipped configs, and reading what its processes left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "accelerate_configs"
LAUNCHED = str(Path(__file__).parent / "launched.py")

# A quickstart of two updates. Plain SGD without clipping: the difference of two runs' weights is that of their
# gradients. rows_per_forward makes several passes of every slice, the last of them smaller.
QUICK = [
    *("--config", "quickstart", "--evaluate_around_training", "false", "--context", "window"),
    *("--groups_per_generation", "2", "--num_generations", "4", "--max_generations", "2", "--rows_per_forward", "7"),
    *("--optim", "sgd", "--learning_rate", "1", "--lr_scheduler_type", "constant", "--max_grad_norm", "0"),
]


def launch(config: str, processes: int, *command: str, seconds: float = 480, **environment: str) -> str:
    """Run `accelerate launch --config_file <config>.yaml --num_processes <processes> <command>`; what it printed.

    The processes are ended with the test when they take longer than `seconds`.
    """
    words = ["--config_file", str(CONFIGS / f"{config}.yaml"), "--num_processes", str(processes), *command]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ACCELERATE_", "FSDP_"))}
    env |= {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), env.get("PYTHONPATH", "")]),
        **environment,
    }
    started = subprocess.Popen(
        [sys.executable, "-m", "accelerate.commands.launch", *words],
        env=env,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        output, _ = started.communicate()
        raise AssertionError(f"accelerate launch took more than {seconds:g} s:\n{output[-4000:]}") from None
    assert started.returncode == 0, output[-6000:]
    return output


def ranks(output: Path, world: int) -> list[dict]:
    """What every process wrote; a process that was not there, or was not one of `world`, fails."""
    assert len(list(output.glob("rank*.json"))) == world
    facts = [json.loads((output / f"rank{i}.json").read_text()) for i in range(world)]
    assert [f["world"] for f in facts] == [world] * world, "the launcher did not start one world of all processes"
    return facts


def weights(output: Path) -> dict:
    return load_file(output / "model.safetensors")


def largest_difference(a: dict, b: dict) -> float:
    """Over the tensors of `b`; a tied head may be written twice."""
    assert set(b) <= set(a)
    return max((a[name].double() - b[name].double()).abs().max().item() for name in b)


def responses(output: Path) -> list[list[str]]:
    """Every training episode's responses, in the order they were written."""
    lines = (output / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    return [[step["response"] for step in json.loads(line)["steps"]] for line in lines]
