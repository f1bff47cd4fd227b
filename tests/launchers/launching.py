"""Starting `accelerate launch` with the shipped configs, and reading what its processes left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
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


def launch(
    config: str, processes: int, *command: str, machines: int = 1, seconds: float = 480, **environment: str
) -> str:
    """Run `accelerate launch --config_file <config>.yaml --num_processes <processes> <command>`; what it printed.

    machines: so many launchers, as on as many machines, meet on this one. They are ended when they take longer than
    `seconds`, and when one fails.
    """
    words = ["--config_file", str(CONFIGS / f"{config}.yaml"), "--num_processes", str(processes)]
    # Accelerate's own choice is one port for everybody, and another launcher may be about to take it.
    words += ["--main_process_port", str(_free_port())]
    if machines > 1:
        words += ["--num_machines", str(machines), "--main_process_ip", "127.0.0.1"]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ACCELERATE_", "FSDP_"))}
    env |= {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), env.get("PYTHONPATH", "")]),
        **environment,
    }
    launchers, deadline = [], time.monotonic() + seconds
    with tempfile.TemporaryFile("w+") as output:
        try:
            for rank in range(machines):
                where = ["--machine_rank", str(rank)] if machines > 1 else []
                launchers.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "accelerate.commands.launch", *words, *where, *command],
                        env=env,
                        cwd=REPOSITORY,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            while any(one.poll() is None for one in launchers) and not any(one.poll() for one in launchers):
                if time.monotonic() > deadline:
                    raise AssertionError(f"accelerate launch took more than {seconds:g} s:\n{_tail(output)}")
                time.sleep(0.1)
            assert all(one.poll() == 0 for one in launchers), _tail(output)
        finally:
            for one in launchers:
                _end(one)
        output.seek(0)
        return output.read()


def _end(launcher: subprocess.Popen) -> None:
    """torchrun ends its workers on SIGTERM; killed on the spot it would leave them, each in a session of its own."""
    if launcher.poll() is not None:
        return
    launcher.send_signal(signal.SIGTERM)
    try:
        launcher.wait(40)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()


def _tail(output) -> str:
    output.seek(0)
    return output.read()[-6000:]


def _free_port() -> int:
    """Not one that the system gives to whoever asks for any port, so that it is still free when it is taken."""
    while True:
        port = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


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
