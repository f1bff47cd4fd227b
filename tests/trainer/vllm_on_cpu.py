"""TRL's real vLLM code without vLLM: what it imports from vllm is replaced, and nothing else.

In server mode the NCCL transfer of weights goes over HTTP to the stand-in (tests/trainer/vllm_stand_in.py); requests,
their answers and the order of calls are TRL's own. In colocate mode `EchoEngine` is the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import requests
from safetensors.torch import save
from trl.generation import vllm_client, vllm_generation
from vllm_stand_in import echo

_INIT_COMMUNICATOR = vllm_client.VLLMClient.init_communicator


def install(url: str = "", put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let TRL use a vLLM server at `url`, or an `EchoEngine`. put: setattr, or a version of it that is undone."""
    for module in (vllm_client, vllm_generation):
        put(module, "is_vllm_available", lambda min_version=None: True)
    put(vllm_client, "_HAS_STATEFUL_TRAINER_ENGINE", True)
    put(vllm_client, "_HAS_RESET_PREFIX_CACHE_SUCCESS", True)
    put(vllm_client, "get_ip", lambda: "127.0.0.1")
    put(vllm_client, "open_trainer_endpoint", lambda info: SimpleNamespace(group=SimpleNamespace(url=url)))
    put(vllm_client, "packed_nccl_broadcast_producer", _send_weights)
    put(vllm_generation, "LLM", EchoEngine)
    put(vllm_generation, "SamplingParams", Parameters)
    # TRL refuses CPUs, where there is no NCCL; the device is used for nothing else.
    put(vllm_client.VLLMClient, "init_communicator", lambda self, device: _INIT_COMMUNICATOR(self, "cuda"))


def _send_weights(iterator, group, src, post_iter_func) -> None:
    with requests.Session() as session:
        for item in iterator:
            body = save({item[0]: post_iter_func(item).detach().clone().contiguous()})
            answer = session.post(f"{group.group.url}/stand_in/weights", data=body, headers={"X-Name": item[0]})
            answer.raise_for_status()


class Parameters(SimpleNamespace):
    """vLLM's SamplingParams, as far as TRL and `EchoEngine` look at it."""


@dataclass
class _Logprob:
    logprob: float
    rank: int


class EchoEngine:
    """vLLM's LLM in colocate mode: answers by `echo`, and objects to what a sleeping engine cannot do."""

    instances: ClassVar[list[EchoEngine]] = []

    def __init__(self, **options):
        self.calls: list[str] = []
        self.parameters: list[Parameters] = []
        self.prompts: list[int] = []
        self.awake = {"weights", "kv_cache"}
        self.loaded = True
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=SimpleNamespace(load_weights=self._load)))
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=options["max_model_len"] or 4096),
            model_executor=SimpleNamespace(driver_worker=worker),
        )
        EchoEngine.instances.append(self)

    def _load(self, weights) -> None:
        assert "weights" in self.awake, "weights were loaded into unmapped memory"
        self.loaded = True
        if weights[0][0] == "model.norm.weight":  # once a transfer
            self.calls.append("load")

    def wake_up(self, tags) -> None:
        assert not self.awake & set(tags), f"{tags} is awake already"
        self.awake |= set(tags)
        self.calls.append(f"wake {' '.join(tags)}")

    def sleep(self, level) -> None:
        assert level == 2
        assert self.awake == {"weights", "kv_cache"}
        self.awake, self.loaded = set(), False
        self.calls.append("sleep")

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset")

    def generate(self, prompts, sampling_params, use_tqdm):
        assert self.awake == {"weights", "kv_cache"}, "asked while asleep"
        assert self.loaded, "asked with the weights discarded"
        self.calls.append("generate")
        self.parameters.append(sampling_params)
        self.prompts.append(len(prompts))
        return [self._output(prompt["prompt_token_ids"], sampling_params) for prompt in prompts]

    @staticmethod
    def _output(prompt: list[int], parameters: Parameters):
        ids = echo(prompt, parameters.max_tokens, parameters.stop_token_ids[0])
        logprobs = [{i: _Logprob(-0.5, 1)} for i in ids]
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[SimpleNamespace(token_ids=ids, logprobs=logprobs)])
