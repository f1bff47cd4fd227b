"""Trainers that generate with vLLM's stand-ins, and what they play, for the tests of vLLM."""

import functools

import vllm_on_cpu
import vllm_run
from vllm_stand_in import echo

SCHEDULES = ("lockstep", "streaming")


def installer(patch):
    """`vllm_on_cpu.install`, undone with `patch`."""
    # TRL's colocate mode sets these, and the next trainer of this process would take itself for one of several.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        patch.setenv(name, "")
        patch.delenv(name)
    return functools.partial(vllm_on_cpu.install, put=functools.partial(patch.setattr, raising=False))


def make(install, tmp_path, server, schedule="lockstep", **options):
    install(server.url)
    trainer = vllm_run.make(tmp_path, server.url, vllm_mode="server", rollout_schedule=schedule, **options)
    retries = trainer.vllm_generation.vllm_client.session.adapters["http://"].max_retries
    trainer.vllm_generation.vllm_client.session.adapters["http://"].max_retries = retries.new(backoff_factor=0)
    return trainer


def play(trainer, tasks=("0", "1", "2", "3"), **options):
    episodes = [trainer._new_episode(task, i, i) for i, task in enumerate(tasks)]
    trainer.play_episodes(episodes, trainer.sampling, **{"seed": 1, "step": 0} | options)
    return episodes


def wrong_answers(record, end, limit=12):
    """Turns whose completion is not the echo of their prompt; record: of `vllm_run.record`."""
    return [
        (index, turn)
        for index, _, _, steps in record
        for turn, (prompt, completion) in enumerate(steps)
        if completion != echo(prompt, limit, end)
    ]
