"""A killed and resumed run against one that was never interrupted: the same to the last bit, in new processes."""

import contextlib
import inspect
import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import resume_run
import torch
import transformers
from resume_run import finish

from progpo_trl.checkpoint_files import newest_complete, read_manifest

pytestmark = pytest.mark.slow

# What clocks decide. train_loss is transformers' mean over the updates of one call of train().
_TIMES = ("time/", "step_time", "train_")


@pytest.fixture(scope="module")
def straight(start, base, tmp_path_factory):
    """Runs that nothing interrupts, one per set of settings, with all their checkpoints."""
    known: dict[str, Path] = {}

    def run(**settings) -> Path:
        key = json.dumps(settings, sort_keys=True)
        if key not in known:
            folder = tmp_path_factory.mktemp("straight")
            assert set(finish(start(resume_run.train, base, str(folder), log=folder / "log", **settings))) == {0}
            known[key] = folder
        return known[key]

    return run


def same_values(a, b) -> bool:
    """Equality of nested lists, dicts and tensors, bit for bit; NaN equals NaN."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.ndim else a == b
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_values(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_values, a, b))
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return type(a) is type(b) and (a == b or a != a)


def without_times(values):
    if isinstance(values, list):
        return [without_times(v) for v in values]
    return {k: v for k, v in values.items() if not k.startswith(_TIMES)}


def check_same(got: Path, want: Path, step: int) -> None:
    """Two runs' checkpoints at `step`: weights, optimizer, schedule, generators, logs and what is not logged yet."""
    a, b = got / f"checkpoint-{step}", want / f"checkpoint-{step}"
    assert sorted(f.name for f in a.rglob("*")) == sorted(f.name for f in b.rglob("*"))
    weights = [f.relative_to(a) for f in a.rglob("*.safetensors")]
    assert weights
    for name in weights:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    for file in [*a.glob("optimizer.pt"), *a.glob("scheduler.pt"), *a.glob("rng_state*.pth")]:
        one, two = (torch.load(f, weights_only=False) for f in (file, b / file.name))
        assert same_values(one, two), file.name
    states = [json.loads((c / "trainer_state.json").read_text()) for c in (a, b)]
    logs = [without_times(s.pop("log_history")) for s in states]
    assert any("rollout/success" in entry for entry in logs[1])
    for state in states:  # the flags that were up at the moment of saving, which are not read back
        del state["stateful_callbacks"]["TrainerControl"]
    assert same_values(*logs)
    paths = [s.pop("best_model_checkpoint") for s in states]
    assert [p and Path(p).name for p in paths[:1]] == [p and Path(p).name for p in paths[1:]]
    assert same_values(*states)
    for file in a.glob("run_state_*.json"):
        pending = [json.loads((c / file.name).read_text()) for c in (a, b)]
        for state in pending:
            del state["seconds"], state["wandb_run_id"]
            state["metrics"] = without_times(state["metrics"])
        assert same_values(*pending), file.name


def check_same_episodes(got: Path, want: Path) -> None:
    assert (got / "episodes.jsonl").read_bytes() == (want / "episodes.jsonl").read_bytes()


def test_killed_and_resumed_three_times_equals_never_interrupted(start, base, straight, tmp_path):
    """In the first epoch, at its end and in the second; metrics pending; half a generation played in vain."""
    want, log = straight(), tmp_path / "log"
    for event, step in (("on_step_end", 5), ("on_step_end", 7), ("on_log", 9), (None, 0)):
        kill = [(event, step)] if event else []
        code = finish(start(resume_run.train, base, str(tmp_path), log=log, kill=kill, resume=step != 5))
        assert code == [-signal.SIGKILL if event else 0]
    check_same(tmp_path, want, 10)
    check_same_episodes(tmp_path, want)
    assert (want / "checkpoint-10" / "model.safetensors").read_bytes() != Path(base, "model.safetensors").read_bytes()
    tasks = [json.loads(line)["task_id"] for line in (want / "episodes.jsonl").read_text().splitlines()[::2]]
    assert sorted(tasks[:6]) == [str(i) for i in range(6)]
    assert tasks[6:] != tasks[:4], "the second epoch has an order of its own"


VARIANTS = {
    "lora with a reference": {"lora": True, "beta": 0.05, "context": "full", "logging_steps": 1},
    "full with a reference": {"beta": 0.05, "num_iterations": 2, "updates_per_generation": 1},
    # which samples from torch's global generator
    "with TRL's generation": {"repetition_penalty": 1.2},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_four_generations_equal_two_and_two(start, base, straight, tmp_path, name):
    settings, log = {**VARIANTS[name], "max_generations": 4}, tmp_path / "log"
    want = straight(**settings)
    kill = [("on_step_end", 5)]
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, kill=kill, **settings)) == [-signal.SIGKILL]
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume="last", **settings)) == [0]
    logged = json.loads((want / "checkpoint-8" / "trainer_state.json").read_text())["log_history"]
    assert any(entry.get("kl", 0) > 0 for entry in logged) == ("beta" in settings)
    check_same(tmp_path, want, 8)
    check_same_episodes(tmp_path, want)


def test_the_wandb_run_goes_on_under_its_id(start, base, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    settings = {
        "report_to": "wandb",
        "max_generations": 2,
        "updates_per_generation": 1,
        "eval_every_generations": None,
    }
    log = tmp_path / "log"
    run = start(wandb_train, base, str(tmp_path), log=log, kill=[("on_step_end", 2)], **settings)
    assert finish(run) == [-signal.SIGKILL]
    assert finish(start(wandb_train, base, str(tmp_path), log=log, resume=True, **settings)) == [0]
    first, second = (folder.name.rpartition("-")[2] for folder in sorted(tmp_path.glob("wandb/offline-run-*")))
    assert first == second
    saved = [json.loads((tmp_path / f"checkpoint-{i}" / "run_state_0.json").read_text()) for i in (1, 2)]
    assert [s["wandb_run_id"] for s in saved] == [first, first]


def wandb_train(base, folder, **kwargs) -> int:
    import os

    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": folder, "WANDB_SILENT": "true"}
    return resume_run.train(base, folder, **kwargs)


def test_the_best_checkpoint_survives_rotation_and_resuming(start, base, straight, tmp_path):
    settings = {
        "load_best_model_at_end": True,
        "eval_every_generations": 1,
        "save_total_limit": 1,
        "eval_temperature": 1.0,
        "max_generations": 4,
        "logging_steps": 2,
    }
    want, log = straight(**settings), tmp_path / "log"
    kill = [("on_step_end", 5)]
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, kill=kill, **settings)) == [-signal.SIGKILL]
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume=True, **settings)) == [0]
    kept = sorted(p.name for p in want.glob("checkpoint-*"))
    assert sorted(p.name for p in tmp_path.glob("checkpoint-*")) == kept
    for name in kept:
        check_same(tmp_path, want, int(name.removeprefix("checkpoint-")))


def test_the_mean_loss_of_a_resumed_run_is_of_its_own_steps(base, tmp_path):
    """Loss that was pending in a checkpoint is logged after it, but is none of the steps that were taken since."""
    settings = {"max_generations": 3, "logging_steps": 4, "eval_every_generations": None}
    resume_run.make_trainer(base, str(tmp_path), **settings).train()
    again = resume_run.make_trainer(base, str(tmp_path), **settings).train(resume_from_checkpoint=True)
    assert again.training_loss == 0.0, "no step was left to take"


# ---------------------------------------------------------------------------------------------------- two processes


PAIR = {"max_generations": 4, "ranks": 2}
# transformers 5.10 asks torch to load the optimizer onto "cpu:0", which it does not know; CPU processes only.
CAN_RESUME_PAIRS = 'device.type != "cpu"' in inspect.getsource(transformers.Trainer._load_optimizer_and_scheduler)


@pytest.mark.distributed
@pytest.mark.skipif(not CAN_RESUME_PAIRS, reason="this transformers cannot resume several processes on a CPU")
def test_two_processes_four_generations_equal_two_and_two(start, base, straight, tmp_path):
    want, log, kill = straight(**PAIR), tmp_path / "log", [("on_step_end", 5)]
    run = start(resume_run.train, base, str(tmp_path), log=log, kill=kill, **PAIR)
    assert finish(run) == [-signal.SIGKILL, -signal.SIGKILL]
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume=True, **PAIR)) == [0, 0]
    assert len(list((tmp_path / "checkpoint-8").glob("rng_state_*.pth"))) == 2
    check_same(tmp_path, want, 8)
    check_same_episodes(tmp_path, want)


# ---------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("number", "at", "saved"),
    [
        # in the first prompts of a rollout: it is dropped; generation 4 opens an epoch, which moves a generator
        (signal.SIGTERM, {"step": 6, "turn": 0}, 6),
        (signal.SIGINT, {"step": 4, "turn": 1}, 4),
        # in an evaluation: it is dropped and made up for
        (signal.SIGTERM, {"step": 4, "turn": 1, "evaluating": True}, 4),
        # in the last one, when all is trained
        (signal.SIGINT, {"step": 10, "turn": 0, "evaluating": True}, 10),
    ],
)
def test_a_signal_while_playing_saves_the_last_boundary(start, base, straight, tmp_path, number, at, saved):
    want, log = straight(), tmp_path / "log"
    run = start(resume_run.train, base, str(tmp_path), log=log, signals=True, at={"number": number, **at},
                save_every_generations=100)  # fmt: skip
    assert finish(run) == [128 + number]
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == [f"checkpoint-{saved}"]
    assert "stopping: saving the last complete generation" in log.read_text()
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume=True)) == [0]
    check_same(tmp_path, want, 10)
    check_same_episodes(tmp_path, want)


def test_a_signal_during_updates_finishes_them(start, base, straight, tmp_path):
    """At step 4, the end of the generation, an evaluation is due: the resumed run catches up on it."""
    want, log = straight(), tmp_path / "log"
    # Launchers repeat what a process has already got: that is no second signal.
    stop = [("on_step_begin", 3, signal.SIGTERM), ("on_pre_optimizer_step", 3, signal.SIGTERM)]
    run = start(resume_run.train, base, str(tmp_path), log=log, signals=True, kill=stop)
    assert finish(run) == [143]
    assert sorted(p.name for p in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    assert "eval_success" not in (tmp_path / "checkpoint-4" / "trainer_state.json").read_text()
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume=True)) == [0]
    check_same(tmp_path, want, 10)
    check_same_episodes(tmp_path, want)


def test_a_second_signal_ends_the_process_at_once(start, base, tmp_path):
    stop = [("on_step_begin", 3, signal.SIGTERM), ("on_pre_optimizer_step", 3, signal.SIGINT)]
    run = start(resume_run.train_impatiently, base, str(tmp_path), log=tmp_path / "log", kill=stop)
    assert finish(run) == [130]
    assert [p.name for p in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]


def test_nothing_is_saved_where_there_is_nothing(start, base, tmp_path):
    for name, settings, at in (
        ("first", {}, {"step": 0, "turn": 1}),
        ("off", {"save_every_generations": None}, {"step": 4, "turn": 1}),
    ):
        run = start(resume_run.train, base, str(tmp_path / name), log=tmp_path / "log", signals=True,
                    at={"number": signal.SIGTERM, **at}, **settings)  # fmt: skip
        assert finish(run) == [143]
        assert not list((tmp_path / name).glob("checkpoint-*"))
    assert (tmp_path / "log").read_text().count("saved None") == 2


@pytest.mark.distributed
@pytest.mark.parametrize(
    "signalled",
    [
        # one process in its rollout, the other gets it later, or never
        {"at": {"number": signal.SIGTERM, "step": 4, "turn": 0, "rank": 1}},
        {"at": {"number": signal.SIGTERM, "step": 4, "turn": 1, "evaluating": True, "rank": 0}},
        {"kill": [("on_step_begin", 3, signal.SIGTERM, 0), ("on_save", 4, signal.SIGTERM, 1)]},
        # where the two generate in step
        {"at": {"number": signal.SIGTERM, "step": 4, "turn": None, "rank": 1}, "repetition_penalty": 1.2},
    ],
)
def test_two_processes_stop_together(start, base, straight, tmp_path, signalled):
    log = tmp_path / "log"
    run = start(resume_run.train, base, str(tmp_path), log=log, signals=True, **PAIR, **signalled)
    assert finish(run) == [143, 143]
    assert {p.name for p in tmp_path.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    assert not (tmp_path / ".saving").exists()
    if CAN_RESUME_PAIRS and "repetition_penalty" not in signalled:
        assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume=True, **PAIR)) == [0, 0]
        check_same(tmp_path, straight(**PAIR), 8)
        check_same_episodes(tmp_path, straight(**PAIR))


@pytest.mark.distributed
@pytest.mark.skipif(not CAN_RESUME_PAIRS, reason="this transformers cannot resume several processes on a CPU")
def test_an_evaluation_that_is_due_is_made_by_all_processes_also_by_new_ones(start, base, tmp_path):
    log = tmp_path / "log"
    at = {"number": signal.SIGTERM, "step": 4, "turn": 1, "evaluating": True, "rank": 0}
    stopped = start(resume_run.train, base, str(tmp_path), log=log, signals=True, at=at, max_generations=3)
    assert finish(stopped) == [143]
    assert not (tmp_path / "evaluation-4.json").exists()
    pair = {"ranks": 2, "max_generations": 3}
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume=True, **pair)) == [0, 0]
    assert (tmp_path / "evaluation-4.json").exists()
    words = log.read_text()
    assert "was saved by 1 process(es) and this run has 2" in words
    assert "holds nothing of progpo_trl's own" not in words


@pytest.mark.parametrize("at", [{"evaluating": True, "turn": 1}, {"evaluating": False, "turn": None}])
def test_an_evaluation_at_the_end_of_an_epoch_is_made_after_a_signal(start, base, tmp_path, at):
    log = tmp_path / "log"
    settings = {
        "eval_every_generations": None, "save_every_generations": None, "eval_strategy": "epoch",
        "save_strategy": "epoch", "max_generations": 4, "logging_steps": 1,
    }  # fmt: skip
    kill = [] if at["evaluating"] else [("on_step_begin", 5, signal.SIGTERM, 0)]
    at = {"number": signal.SIGTERM, "step": 6, "rank": 0, **at} if at["evaluating"] else None
    run = start(resume_run.train, base, str(tmp_path), log=log, signals=True, at=at, kill=kill, **settings)
    assert finish(run) == [143]
    assert not (tmp_path / "evaluation-6.json").exists()
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume=True, **settings)) == [0]
    assert (tmp_path / "evaluation-6.json").exists()


@pytest.mark.distributed
def test_under_torchrun_everybody_may_get_the_signal_twice(start, base, tmp_path):
    """As from Slurm or a terminal: to the launcher and to all it started, and once more from the launcher."""
    log = tmp_path / "log"
    (agent,) = start(resume_run.launch, base, str(tmp_path), log=log, max_generations=200, save_total_limit=2)
    until = time.monotonic() + 240
    while not (tmp_path / "checkpoint-4").exists() and agent.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    workers = [int((tmp_path / f"pid-{rank}").read_text()) for rank in range(2)]
    for process in (workers[0], agent.pid, workers[1]):
        with contextlib.suppress(ProcessLookupError):  # all may have ended already, of the first's signal
            os.kill(process, signal.SIGTERM)
    assert finish([agent]) != [0]
    words = log.read_text()
    assert words.count("stopping: saving the last complete generation") == 1
    assert words.count("interrupted, saved") == 2
    assert "Unable to shutdown" not in words
    newest, skipped = newest_complete(tmp_path)
    assert words.count(f"saved {newest}") == 2
    assert not skipped
    assert read_manifest(newest)["processes"] == 2


# --------------------------------------------------------------------------------------------------------- kill -9

SHORT = {"updates_per_generation": 1, "max_generations": 6, "save_total_limit": 2, "eval_every_generations": None}


def test_killed_while_saving_at_any_call_the_run_goes_on(start, base, straight, tmp_path):
    """While files are written, flushed, renamed and rotated: no half-written folder ever passes for a checkpoint."""
    want, log = straight(**SHORT), tmp_path / "log"
    calls = [("save", 4), ("flush", 3), ("flush", 14), ("rename", 1), ("rename", 3), ("rmtree", 4), ("flush", 16)]
    for name, call in calls:
        settings = {"log": log, "resume": resumable(tmp_path), **SHORT}
        assert finish(start(resume_run.train_and_die, base, str(tmp_path), name, call, **settings)) == [
            -signal.SIGKILL
        ], (name, call)
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume=resumable(tmp_path), **SHORT)) == [0]
    check_same(tmp_path, want, 6)
    check_same_episodes(tmp_path, want)
    assert not (tmp_path / ".saving").exists()


def test_killed_at_random_times_the_run_goes_on(start, base, straight, tmp_path):
    want, log = straight(**SHORT), tmp_path / "log"
    rng = random.Random(0)
    for i in range(6):
        (process,) = start(resume_run.train, base, str(tmp_path), log=log, resume=resumable(tmp_path), **SHORT)
        if i % 2:  # while a checkpoint is being written
            until = time.monotonic() + 240
            while not (tmp_path / ".saving").exists() and process.is_alive() and time.monotonic() < until:
                time.sleep(0.001)
        else:
            time.sleep(rng.uniform(0.1, 1.0))
        process.kill()
        process.join()
    assert finish(start(resume_run.train, base, str(tmp_path), log=log, resume=resumable(tmp_path), **SHORT)) == [0]
    check_same(tmp_path, want, 6)
    check_same_episodes(tmp_path, want)


def resumable(folder: Path) -> bool:
    return any(folder.glob("checkpoint-*"))
