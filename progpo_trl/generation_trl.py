"""Turns through TRL's own generation: vLLM, continuous batching, `generate`, sharded weights."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import torch

from progpo_trl.generation import Sampling, TurnOutput


class TRLGeneration:
    """One turn through TRL's own generation: vLLM, continuous batching, `generate`, sharded weights.

    Every process must call `turn` together and with equally many prompts, since TRL slices what a vLLM server (or a
    tensor-parallel group) returns by the local count, and sharded models run their layers in step. Processes with
    fewer live episodes send a filler whose answer is thrown away. num_generations is 1: TRL would otherwise
    de-duplicate prompts by that stride and answer for the wrong ones.
    """

    def __init__(self, trainer, sampling: Sampling):
        self.trainer, self.sampling = trainer, sampling

    def turn(self, keys, contexts, max_new_tokens: int, streams=None) -> list[TurnOutput]:
        """As `CachedGeneration.turn`; the backend's own randomness is used instead of `streams`."""
        trainer = self.trainer
        prompts = [c.tolist() for c in contexts]
        n = len(prompts)
        most = n
        if trainer.accelerator.num_processes > 1:
            local = torch.tensor([n], device=trainer.accelerator.device)
            most = int(trainer.accelerator.gather(local).max())
        filler = min(prompts, key=len) if prompts else [trainer.eos_token_ids[0]]
        with self._settings(max_new_tokens):
            ids, logprobs = trainer._generate_single_turn(prompts + [filler] * (most - n), None, {}, num_generations=1)
        return [self._output(ids[i], None if logprobs is None else logprobs[i]) for i in range(n)]

    def _output(self, ids, logprobs) -> TurnOutput:
        # A backend may return nothing at all; a turn has at least its end token.
        ids = list(ids) or [self.trainer.eos_token_ids[0]]
        if logprobs is not None:
            known = [np.nan if x is None else x for x in logprobs] or [np.nan]
            logprobs = np.array(known, np.float32)
        return TurnOutput(np.array(ids, np.int32), logprobs, ids[-1] not in self.trainer.eos_token_ids)

    @contextmanager
    def _settings(self, max_new_tokens: int):
        """TRL's generation settings for this turn, restored afterwards."""
        sampling = self.sampling
        if self.trainer.use_vllm:
            target = self.trainer.vllm_generation
            values = {"max_completion_length": max_new_tokens, "temperature": sampling.temperature}
        else:
            target = self.trainer.generation_config
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
