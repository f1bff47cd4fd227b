"""Turns through TRL's own generation: vLLM, continuous batching, `generate`, sharded weights.

`play_with_trl` plays episodes in lock-step, one call a turn on every process, or streaming (`vllm_requests`), where a
vLLM server is asked for every episode's turn by itself. `weights_in_vllm` goes around a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list

from progpo_trl.episodes import Episode
from progpo_trl.generation import Sampling, TurnOutput
from progpo_trl.rollout import play, play_streaming
from progpo_trl.stopping import TrainingInterrupted
from progpo_trl.vllm_requests import EpisodeRequests, check_answers, server_url, turn_output

_UNBOUNDED = 2**30


def play_with_trl(
    trainer, episodes: list[Episode], sampling: Sampling, key: tuple[int | str, int, int], **options: Any
) -> None:
    """Play `episodes` of this process by `args.rollout_schedule`; all processes call it together.

    key: (seed, step, attempt) of this rollout, from which streaming seeds every request. options: of `play`.
    """
    if trainer.args.rollout_schedule == "streaming":
        stopped = None
        try:
            with trainer._abandonable(), EpisodeRequests(trainer, sampling, key, expected=len(episodes)) as requests:
                play_streaming(episodes, requests=requests, **options)
        except TrainingInterrupted as stop:
            stopped = stop
        # The next rollout moves the weights, which no process may still be sampling from.
        trainer.accelerator.wait_for_everyone()
        if stopped is not None:
            raise stopped
        return
    generation = TRLGeneration(trainer, sampling)
    limit = trainer.args.max_completion_length
    play(episodes, generate=lambda live, ids: generation.turn(live, ids, limit), any_live=trainer._any_live, **options)


@contextmanager
def weights_in_vllm(trainer):
    """One rollout of `trainer`'s current weights; all processes enter it together. Nothing happens without vLLM.

    The weights go to vLLM once, at the start: always, since TRL compares step numbers only and would miss, say, the
    best checkpoint loaded after the last step. A colocated engine in sleep mode is held awake until the end: TRL puts
    it to sleep after every call, which discards the weights, and would move all of them again for every turn.
    """
    if not trainer.use_vllm:
        yield
        return
    vllm = trainer.vllm_generation
    sleeps = vllm.mode == "colocate" and vllm.enable_sleep_mode
    with trainer.rollout_log.clock.phase("weight_sync"):
        vllm.sync_weights()  # wakes a sleeping engine's weights
        trainer._last_loaded_step = trainer.state.global_step
        # Only the main process waits for a server's weights; in streaming the others would ask it meanwhile.
        trainer.accelerator.wait_for_everyone()
        if sleeps:
            vllm.llm.wake_up(tags=["kv_cache"])
    if not sleeps:
        yield
        return
    vllm.enable_sleep_mode = False
    try:
        yield
    finally:
        vllm.enable_sleep_mode = True
        vllm.llm.sleep(level=2)
        vllm._llm_weights_sleeping = True


def vllm_window(trainer) -> int:
    """Tokens of prompt and response together that vLLM takes: its engine may be set to less than the model's window.
    Without vLLM a number above every model's."""
    if not trainer.use_vllm:
        return _UNBOUNDED
    vllm = trainer.vllm_generation
    if vllm.mode == "colocate":
        return int(vllm.llm.llm_engine.model_config.max_model_len)
    answer = [None]
    if trainer.accelerator.is_main_process:
        answer = [vllm.vllm_client.get_server_info()["model_config"].get("max_model_len")]
    return int(broadcast_object_list(answer, from_process=0)[0] or _UNBOUNDED)


class TRLGeneration:
    """One turn through TRL's own generation, for all live episodes.

    Every process must call `turn` together and with equally many prompts, since TRL slices what a vLLM server (or a
    tensor-parallel group) returns by the local count, and sharded models run their layers in step. Processes with
    fewer live episodes send a filler whose answer is thrown away. num_generations is 1: TRL would otherwise
    de-duplicate prompts by that stride and answer for the wrong ones. What comes back from vLLM is compared with what
    was sent.
    """

    def __init__(self, trainer, sampling: Sampling):
        self.trainer, self.sampling = trainer, sampling

    def turn(self, keys, contexts: Sequence[np.ndarray], max_new_tokens: int) -> list[TurnOutput]:
        """As `CachedGeneration.turn`, with the backend's own randomness."""
        accelerator = self.trainer.accelerator
        prompts = [c.tolist() for c in contexts]
        n = len(prompts)
        most = n
        if accelerator.num_processes > 1:
            most = int(accelerator.gather(torch.tensor([n], device=accelerator.device)).max())
        filler = min(prompts, key=len) if prompts else [self.trainer.eos_token_ids[0]]
        with self._settings(max_new_tokens):
            ids, logprobs = self._ask(prompts + [filler] * (most - n), max_new_tokens)
        ends = self.trainer.eos_token_ids
        return [turn_output(ids[i], None if logprobs is None else logprobs[i], ends) for i in range(n)]

    def _ask(self, prompts: list[list[int]], max_new_tokens: int) -> tuple[list, list | None]:
        trainer = self.trainer
        if not trainer.use_vllm:
            return trainer._generate_single_turn(prompts, None, {}, num_generations=1)
        vllm = trainer.vllm_generation
        where = f"the vLLM server at {server_url(trainer.args)}" if vllm.mode == "server" else "vLLM"
        try:
            answered, ids, logprobs, named = vllm.generate(prompts=prompts, images=None, num_generations=1)
        except Exception as error:
            if vllm.mode == "server" and trainer.accelerator.is_main_process:
                # Only this process talks to the server; the others fail because it does.
                raise RuntimeError(
                    f"{where} failed in a turn of step {trainer.state.global_step}: {type(error).__name__}: {error}"
                ) from error
            raise
        scored = trainer.vllm_importance_sampling_correction
        logprobs = check_answers(where, prompts, answered, ids, logprobs, named, max_new_tokens, scored)
        return ids, logprobs

    @contextmanager
    def _settings(self, max_new_tokens: int):
        """TRL's generation settings for this turn, restored afterwards."""
        trainer, sampling = self.trainer, self.sampling
        if trainer.use_vllm:
            target = trainer.vllm_generation
            stops = {"stop_token_ids": list(trainer.eos_token_ids)}
            values = {
                "max_completion_length": max_new_tokens,
                "temperature": sampling.temperature,
                # vLLM ends a response where the model's files say; the trainer's end tokens may be more.
                "generation_kwargs": stops | target.generation_kwargs,
            }
        else:
            target = trainer.generation_config
            values = {"max_new_tokens": max_new_tokens, "do_sample": sampling.temperature > 0}
            if sampling.temperature > 0:
                values["temperature"] = sampling.temperature
        before = {name: getattr(target, name) for name in values}
        try:
            for name, value in values.items():
                setattr(target, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(target, name, value)
