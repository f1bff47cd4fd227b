"""Tiny runs in processes of their own, to be killed and resumed. The functions here run inside those processes.

Processes are forked from a server that has imported everything once, so that a new one costs milliseconds. They share
nothing with the test's process.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch
import toy
from transformers import Qwen2ForCausalLM, TrainerCallback

from progpo_trl import MultiTurnGRPOTrainer, atomic
from progpo_trl.checkpoint_files import CheckpointNotSaved
from progpo_trl.stopping import StopSignals

TOKENIZER = toy.make_tokenizer()
CONTEXT = multiprocessing.get_context("forkserver")


@contextmanager
def server():
    """Starts the server that processes are forked from; it ends with this process."""
    here = Path(__file__).parent
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS", "HF_HUB_OFFLINE")}
    paths = [str(here), str(here.parents[1]), before["PYTHONPATH"]]
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    CONTEXT.set_forkserver_preload(["resume_run", "progpo_trl.train", "peft"])
    try:
        yield start
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def start(function: Callable, *args, log: Path, ranks: int = 1, **kwargs) -> list:
    """Run `function` in `ranks` new processes, which log to `log`; returns the processes."""
    store = port = None
    if ranks > 1:  # the store they meet at is served here, as torchrun does it, on a port that nobody can take before
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = store.port
    processes = [
        CONTEXT.Process(target=_enter, args=(function, args, kwargs, str(log), rank, ranks, port))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
        process.store = store  # which lives as long as they do
    return processes


def finish(processes: list, timeout: float = 300.0) -> list[int]:
    """Wait for the processes; their exit codes, negative for signals. A process that hangs fails the test."""
    for process in processes:
        process.join(timeout)
    hanging = [p for p in processes if p.exitcode is None]
    for process in hanging:
        process.kill()
        process.join()
    assert not hanging, "a process hangs"
    return [process.exitcode for process in processes]


def _enter(function, args, kwargs, log: str, rank: int, ranks: int, port: int | None) -> None:
    descriptor = os.open(log if rank == 0 else f"{log}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # On a busy machine seconds may pass between two signals that are one request.
    StopSignals.REPEATED = math.inf
    torch.set_num_threads(1)
    if ranks > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "ACCELERATE_USE_CPU": "true",
        }
    kwargs = kwargs | ({"ranks": ranks} if ranks > 1 else {})
    code = function(*args, **kwargs)
    sys.stdout.flush()
    sys.stderr.flush()
    if ranks > 1:
        torch.distributed.destroy_process_group()
    # Without this process's clean-up, which would wait for what a test left behind.
    os._exit(code or 0)


# ------------------------------------------------------------------------------------------------------------- runs


class At(TrainerCallback):
    """Send this process a signal at an event of training. rank: only there; None everywhere."""

    def __init__(self, event: str, step: int, number: int = signal.SIGKILL, rank: int | None = None):
        self.step, self.number, self.rank = step, number, rank
        setattr(self, event, self._act)

    def _act(self, args, state, control, **kwargs):
        if state.global_step == self.step and self.rank in (None, int(os.environ.get("RANK", 0))):
            os.kill(os.getpid(), self.number)


class Trainer(MultiTurnGRPOTrainer):
    """Sends this process a signal at the `turn`-th prompt of a rollout (evaluation: `evaluating`).

    turn None: the first prompt of TRL's generation.
    """

    def signal_at(self, number: int, step: int, turn: int | None, evaluating: bool = False, rank: int | None = None):
        self._plan = (number, step, turn, evaluating, rank)

    _plan = None
    _panel = False

    def evaluate_panel(self, *args, **kwargs):
        self._panel = True
        try:
            return super().evaluate_panel(*args, **kwargs)
        finally:
            self._panel = False

    def _own_turn(self, generation, streams, live, ids):
        self._maybe_signal(len(live[0].steps))
        return super()._own_turn(generation, streams, live, ids)

    def _any_live(self, flag):  # TRL's generation
        self._maybe_signal(None)
        return super()._any_live(flag)

    def _maybe_signal(self, at: int | None):
        if self._plan:
            number, step, turn, evaluating, rank = self._plan
            here = self.state.global_step == step and self._panel == evaluating
            if here and at == turn and rank in (None, self.accelerator.process_index):
                self._plan = None
                signal.raise_signal(number)


def base_model(folder: Path) -> str:
    """A tiny policy on disk, since reference models are loaded from there. Its dropout moves torch's generator."""
    model = toy.make_model(
        TOKENIZER, hidden_size=8, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1,
        num_hidden_layers=1, attention_dropout=0.1,
    )  # fmt: skip
    model.save_pretrained(folder)
    return str(folder)


def make_trainer(
    base: str, folder: str, lora: bool = False, callbacks=None, n_tasks: int = 6, cls=None, **config
) -> Trainer:
    from peft import LoraConfig

    if lora:
        lora = LoraConfig(r=2, lora_alpha=8, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
    return (cls or Trainer)(
        base if config.get("beta") or lora else Qwen2ForCausalLM.from_pretrained(base),
        toy.config(folder, **SETTINGS | config),
        environment=toy.tasks(n=n_tasks, n_eval=3),
        processing_class=TOKENIZER,
        peft_config=lora or None,
        callbacks=callbacks,
    )


# Three generations are one epoch of six tasks. Logging falls between checkpoints on purpose.
SETTINGS = {
    "max_generations": 5,
    "updates_per_generation": 2,
    "save_every_generations": 1,
    "eval_every_generations": 2,
    "logging_steps": 3,
    "lr_scheduler_type": "linear",
    "warmup_steps": 2,
    "max_turns": 2,
    "max_completion_length": 6,
    "num_generations": 2,
    "disable_dropout": False,
}


def train(base, folder, kill=(), at=None, signals=False, resume=None, ranks=1, **settings) -> int:
    """Train; `kill`: (event, step) at which this process kills itself; `at`: arguments of Trainer.signal_at."""
    trainer = make_trainer(base, folder, callbacks=[At(*k) for k in kill], **settings)
    assert trainer.accelerator.num_processes == ranks, "the launcher did not start a distributed run"
    if at:
        trainer.signal_at(**at)
    try:
        if not signals:
            trainer.train(resume_from_checkpoint=resume)
            return 0
        before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        try:
            with trainer.save_on_signals():
                trainer.train(resume_from_checkpoint=resume)
        finally:
            assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    except KeyboardInterrupt as stop:
        print(f"interrupted, saved {stop.checkpoint}")
        return 128 + stop.signum
    return 0


class FullDisk(TrainerCallback):
    """From the end of a step on no file can grow beyond `limit` bytes."""

    def __init__(self, step: int, limit: int):
        self.step, self.limit = step, limit

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, resource.RLIM_INFINITY))


def train_on_a_full_disk(base, folder, step, limit, **settings) -> int:
    """Train and save the final model; 3, with the reason printed, when the disk is too full for that."""
    trainer = make_trainer(base, folder, callbacks=[FullDisk(step, limit)], **settings)
    try:
        trainer.train()
        trainer.save_final_model(folder)
    except CheckpointNotSaved as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(f"said: {error}")
        return 3
    return 0


def train_impatiently(base, folder, **settings) -> int:
    """Train where every further signal counts as a second one."""
    StopSignals.REPEATED = 0.0
    return train(base, folder, signals=True, **settings)


def launch(base, folder, **settings) -> int:
    """Train on two processes under torchrun's agent, which passes signals on to them."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="run", rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=0, monitor_interval=0.1, start_method="fork",
    )  # fmt: skip
    elastic_launch(config, _launched)(base, folder, settings)
    return 0


def _launched(base, folder, settings) -> None:
    # What comes after the training's end, on a busy machine, does not take this process's last words.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    (Path(folder) / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    code = train(base, folder, signals=True, ranks=2, **settings)
    sys.stdout.flush()
    torch.distributed.destroy_process_group()
    os._exit(code)


def train_and_die(base, folder, name: str, call: int, **settings) -> int:
    """Train with a SIGKILL just before the `call`-th call of the function `name` of saving."""
    import shutil

    module = {"flush": atomic, "rename": os, "rmtree": shutil, "save": torch}[name]
    original, left = getattr(module, name), call

    def counted(*args, **kwargs):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(module, name, counted)
    return train(base, folder, **settings)


def command(*words: str) -> int:
    """`progpo WORDS`."""
    from progpo_trl.cli import main

    return main(list(words))
