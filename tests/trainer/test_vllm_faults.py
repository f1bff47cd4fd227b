"""Servers, environments and users that interrupt a rollout with vLLM: repeated, or ended with a clear error."""

import contextlib
import os
import signal
import threading
import time

import numpy as np
import pytest
import toy
import vllm_on_cpu
import vllm_run
from echo_run import Uneven
from vllm_stand_in import StandIn
from vllm_trainers import SCHEDULES, make, play, wrong_answers

from progpo_trl.episodes import StopReason
from progpo_trl.stopping import TrainingInterrupted


def first_only(fault):
    return lambda number, request: fault if number == 1 else None


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fault", ["error", "drop"])
def test_a_request_that_fails_once_is_repeated(install, tmp_path, schedule, fault):
    with StandIn(misbehave=first_only(fault)) as server:
        episodes = play(make(install, tmp_path, server, schedule))
    assert wrong_answers(vllm_run.record(episodes), toy.make_tokenizer().eos_token_id) == []
    assert len(server.of_kind("asked")) == len(server.of_kind("answered")) + 1


def test_an_answer_that_breaks_off_is_asked_for_again_when_streaming(install, tmp_path):
    with StandIn(misbehave=first_only("cut")) as server:
        episodes = play(make(install, tmp_path, server, "streaming"))
    assert wrong_answers(vllm_run.record(episodes), toy.make_tokenizer().eos_token_id) == []


LOCKSTEP = r"the vLLM server at http://127.0.0.1:\d+ "
STREAMING = LOCKSTEP + r"failed in turn \d of episode \d \(\d\), with \d other requests .*checkpoint is not: .*"


FAULTS = {
    "error": "500",
    "drop": "RemoteDisconnected",
    "cut": "IncompleteRead",
    "refuse": "400",
    "other": "answered for another prompt",
    "no_logprobs": "returned no log-probabilities.*vllm_importance_sampling_correction: false",
}
FAULTS_OF = {
    "lockstep": FAULTS | {"swap": FAULTS["other"], "short": "sent 4 prompts and answered 3", "null": "TypeError"},
    "streaming": FAULTS | {"short": "cannot be read: IndexError", "null": "cannot be read: TypeError"},
}


@pytest.mark.parametrize(
    ("schedule", "fault"), [(schedule, fault) for schedule in SCHEDULES for fault in FAULTS_OF[schedule]]
)
def test_faults_end_the_run_and_say_where(install, tmp_path, schedule, fault):
    streaming = schedule == "streaming"
    with StandIn(misbehave=lambda number, request: fault) as server:
        trainer = make(install, tmp_path, server, schedule, vllm_request_retries=2)
        with pytest.raises(
            RuntimeError, match=f"{STREAMING if streaming else LOCKSTEP}.*{FAULTS_OF[schedule][fault]}"
        ):
            play(trainer)
        trainer.vllm_generation.vllm_client.session.close()
    if streaming and fault in ("error", "refuse"):
        # each prompt is asked for three times, or once if the server refuses it
        times = [event["request"]["prompt"] for event in server.of_kind("asked")]
        assert max(times.count(p) for p in times) == {"error": 3, "refuse": 1}[fault]


def test_a_server_that_does_not_answer_in_time(install, tmp_path):
    gate = threading.Event()
    with StandIn(hold=lambda prompt: gate) as server:
        trainer = make(install, tmp_path, server, "streaming", vllm_request_timeout=0.1, vllm_request_retries=1)
        with pytest.raises(RuntimeError, match=r"ReadTimeout.*asked 2 times"):
            play(trainer, ["3"])
        gate.set()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_server_that_goes_away(install, tmp_path, schedule):
    with StandIn() as server:
        trainer = make(install, tmp_path, server, schedule, vllm_request_retries=0)
        play(trainer)
    with pytest.raises((RuntimeError, OSError), match="127.0.0.1|vLLM server"):
        play(trainer)


def test_a_server_that_is_down_at_the_start(install, tmp_path, capsys):
    from progpo_trl.cli import main

    with StandIn() as server:
        pass
    install(server.url)
    with pytest.raises(OSError, match="can't be reached at http://127.0.0.1.*Make sure the server is running"):
        vllm_run.make(tmp_path, server.url, vllm_mode="server")
    server_flags = ["--use_vllm", "true", "--vllm_mode", "server", "--vllm_server_base_url", server.url]
    argv = ["train", "--config", "quickstart", "--output_dir", str(tmp_path), *server_flags]
    assert main([*argv, "--vllm_server_timeout", "0"]) == 2
    error = capsys.readouterr().err
    assert "vLLM server can't be reached" in error
    assert "model_name_or_path" not in error


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("fault", "options"), [("empty", {}), ("nan", {}), ("no_logprobs", {"correct": False})])
def test_what_a_server_may_leave_out(install, tmp_path, schedule, fault, options):
    """Empty responses and unknown log-probabilities are trained on with an importance ratio of 1."""
    correct = options.get("correct", True)
    with StandIn(misbehave=lambda number, request: fault) as server:
        trainer = make(
            install, tmp_path, server, schedule, vllm_importance_sampling_correction=correct, max_generations=1
        )
        seen = []
        compute = trainer._compute_loss
        trainer._compute_loss = lambda model, inputs: seen.append(inputs) or compute(model, inputs)
        trainer.train()
        steps = play(trainer)[0].steps
    assert np.isfinite(trainer.state.log_history[0]["grad_norm"])
    if fault == "empty":
        assert steps[0].completion_ids.tolist() == [trainer.eos_token_ids[0]]
        assert not steps[0].truncated
    if fault == "no_logprobs":
        assert steps[0].logprobs is None
    else:
        assert np.isnan(steps[0].logprobs[0])
        assert (seen[0]["importance_sampling_ratio"][:, 0] == 1).all()


@pytest.mark.parametrize("handled", [False, True])
def test_an_interrupt_is_prompt(install, tmp_path, handled):
    """Ctrl-C while the server thinks: nobody waits for its answers, whether or not `save_on_signals` is in force."""
    gate, before = threading.Event(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with StandIn(hold=lambda prompt: gate) as server:
            trainer = make(install, tmp_path, server, "streaming", max_concurrent_requests=1)

            def interrupt():
                while not server.of_kind("asked"):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)

            threading.Thread(target=interrupt).start()
            started = time.perf_counter()
            handling = trainer.save_on_signals() if handled else contextlib.nullcontext()
            with handling, pytest.raises(TrainingInterrupted if handled else KeyboardInterrupt):
                play(trainer)
            assert time.perf_counter() - started < 40  # the gate would hold for 60 s
            gate.set()
            time.sleep(0.1)
            assert len(server.of_kind("asked")) == 1, "what was queued is not sent any more"
    finally:
        signal.signal(signal.SIGINT, before)


class Crashing(Uneven):
    """Breaks once in the second turn of task 3."""

    broken = False

    def step(self, action):
        result = super().step(action)
        if self.length == 4 and self.t == 2 and not Crashing.broken:
            Crashing.broken = True
            raise OSError("the door fell on the robot")
        return result


@pytest.mark.parametrize("case", list(vllm_run.CASES))
def test_an_environment_that_crashes_is_played_again_without_another_transfer(install, tmp_path, case):
    Crashing.broken = False
    with StandIn(seeded=True) as server:
        install(server.url)
        url = "" if case == "colocate" else server.url
        trainer = vllm_run.make(tmp_path, url, environment=Crashing, **vllm_run.CASES[case])
        episodes = play(trainer, ["3", "2"])
    assert Crashing.broken
    assert [(len(e.steps), e.stop_reason) for e in episodes] == [(4, StopReason.FAILURE), (3, StopReason.FAILURE)]
    if case == "colocate":
        calls = vllm_on_cpu.EchoEngine.instances[-1].calls
        assert [calls.count(name) for name in ("load", "wake weights", "wake kv_cache", "sleep")] == [1, 1, 1, 2]
    else:
        assert len(server.of_kind("finish_weight_update")) == 1


def test_a_rollout_that_fails_leaves_the_engine_asleep(install, tmp_path):
    install()
    trainer = vllm_run.make(tmp_path, "", **vllm_run.CASES["colocate"])
    engine = vllm_on_cpu.EchoEngine.instances[-1]
    trainer.context.prompts = lambda views: 1 / 0
    with pytest.raises(ZeroDivisionError):
        play(trainer)
    assert engine.awake == set()
    assert trainer.vllm_generation.enable_sleep_mode
    del trainer.context.prompts
    play(trainer)  # wakes and syncs again: the engine objects otherwise
    assert engine.calls[-1] == "sleep"
