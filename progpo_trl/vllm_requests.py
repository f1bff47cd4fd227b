"""Asking a vLLM server for one turn of one episode at a time, from every process by itself.

TRL gathers the prompts of all processes in the main one, sends them in one request and deals the answers out: nobody
goes on before the slowest. Here each process sends its own requests, a bounded number at once, and takes the answers
as they come.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import requests
from requests.adapters import HTTPAdapter
from trl.generation.vllm_client import VLLMClient

from progpo_trl.episodes import Episode
from progpo_trl.generation import Sampling, TurnOutput

# Seconds before the first repetition of a failed request; doubled for each further one, up to LONGEST_PAUSE.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
CONNECT_SECONDS = 10.0


def server_url(args) -> str:
    """Where the vLLM server of these settings is."""
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"


def request_seed(seed: int | str, step: int, task_id: str, sample: int, attempt: int, turn: int) -> int:
    """vLLM's seed for one turn of one episode, below 2**63: the same whatever else is generated, and where."""
    text = f"{seed}|{step}|{task_id}|{sample}|{attempt}|{turn}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def check_answers(
    where: str,
    prompts: Sequence[list[int]],
    answered: Sequence[list[int]],
    ids: Sequence[Sequence[int]],
    logprobs: Sequence | None,
    named: Sequence | None,
    max_new_tokens: int,
    need_logprobs: bool,
) -> list[list[float | None]] | None:
    """The log-probabilities of the sampled tokens, or RuntimeError if the answers are not those of `prompts`.

    answered: the prompts the backend says it answered; ids: the sampled tokens; logprobs, named: per sampled token the
    log-probabilities and the tokens they are of, as TRL returns both.
    """
    if len(ids) != len(prompts) or len(answered) != len(prompts):
        raise RuntimeError(f"{where} was sent {len(prompts)} prompts and answered {len(ids)}")
    for i, (prompt, echoed) in enumerate(zip(prompts, answered, strict=True)):
        if list(echoed) != prompt:
            raise RuntimeError(
                f"{where} answered for another prompt than the one it was sent ({i + 1} of {len(prompts)}, "
                f"{len(echoed)} tokens for {len(prompt)}): the episodes would get each other's responses"
            )
    longest = max(map(len, ids), default=0)
    if longest > max_new_tokens:
        raise RuntimeError(f"{where} sampled {longest} tokens; the limit sent was {max_new_tokens}")
    if logprobs is None:
        if need_logprobs:
            raise RuntimeError(
                f"{where} returned no log-probabilities of the sampled tokens, which the importance-sampling "
                "correction needs; vllm_importance_sampling_correction: false trains without it"
            )
        return None
    for i, (sampled, scores) in enumerate(zip(ids, logprobs, strict=True)):
        if len(scores) != len(sampled):
            raise RuntimeError(f"{where} returned {len(scores)} log-probabilities for {len(sampled)} tokens")
        # One entry a token was asked for: the sampled token's.
        if named is not None and any(token != of[0] for token, of in zip(sampled, named[i], strict=True)):
            raise RuntimeError(f"{where} returned log-probabilities of other tokens than the sampled ones")
    return [[entry[0] for entry in scores] for scores in logprobs]


def turn_output(ids: Sequence[int], logprobs: Sequence[float | None] | None, end_ids: Sequence[int]) -> TurnOutput:
    """A backend's answer as the output of a turn.

    An answer without any token becomes an end token of unknown log-probability: a turn has at least that. Unknown
    log-probabilities are NaN, whose importance ratio is 1 in TRL.
    """
    ids = list(ids) or [end_ids[0]]
    if logprobs is not None:
        logprobs = np.array([np.nan if x is None else x for x in logprobs] or [np.nan], np.float32)
    return TurnOutput(np.array(ids, np.int32), logprobs, ids[-1] not in end_ids)


class RequestClient(VLLMClient):
    """TRL's client, for this process's own prompts: every request waits a bounded time and is repeated a bounded
    number of times, after which RuntimeError says what the server did. It joins no weight transfer."""

    def __init__(self, base_url: str, *, start_seconds: float, seconds: float, retries: int, connections: int):
        super().__init__(base_url=base_url, connection_timeout=start_seconds)
        # TRL's adapter repeats requests too, but not those whose answer breaks off, and it has no time limit.
        adapter = HTTPAdapter(max_retries=0, pool_maxsize=connections)
        self.session.mount("http://", adapter)
        self.session.mount("https://", adapter)
        self.seconds, self.retries = seconds, retries
        self.stopped = threading.Event()

    def _post(self, url: str, **kwargs: Any) -> dict:
        pause = FIRST_PAUSE
        for left in range(self.retries, -1, -1):
            try:
                response = self.session.post(url, timeout=(CONNECT_SECONDS, self.seconds), **kwargs)
                if response.status_code == 200:
                    return response.json()
                fault = f"HTTP {response.status_code}: {response.text[:500]}"
                busy = response.status_code >= 500 or response.status_code == 429
            except requests.RequestException as error:
                fault, busy = f"{type(error).__name__}: {error}", True
            if not busy:
                raise RuntimeError(fault)  # the request itself is refused: asking again changes nothing
            if left and self.stopped.wait(pause):
                break
            pause = min(2 * pause, LONGEST_PAUSE)
        raise RuntimeError(f"{fault} (asked {self.retries + 1} times)")


class RequestPool:
    """`ask(*request)` in `workers` threads; answers in the order they are ready.

    The threads are daemons and nobody waits for them: an interrupted run ends at once, whatever the server does.
    """

    def __init__(self, ask: Callable[..., Any], workers: int):
        self._ask, self._workers, self._closed = ask, workers, False
        self._todo: SimpleQueue = SimpleQueue()
        self._done: SimpleQueue = SimpleQueue()
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    def send(self, key: Any, *request: Any) -> None:
        """Queue a request; its answer comes back with `key`."""
        self._todo.put((key, request))

    def receive(self) -> tuple[Any, Any, Exception | None]:
        """Wait for one (key, answer, error); either of the last two is None."""
        return self._done.get()

    def close(self) -> None:
        """Drop what has not been sent; threads end after the request they are in."""
        self._closed = True
        for _ in range(self._workers):
            self._todo.put(None)

    def _work(self) -> None:
        while (job := self._todo.get()) is not None and not self._closed:
            key, request = job
            try:
                self._done.put((key, self._ask(*request), None))
            except Exception as error:  # noqa: BLE001
                # It is raised in the thread that waits for the answer.
                self._done.put((key, None, error))


class EpisodeRequests:
    """The `TurnRequests` of one rollout (one attempt) of one process. A context manager.

    key: (seed, step, attempt). Every request carries the seed of its (task, sample, turn), so that an episode's
    randomness depends neither on other episodes nor on the process. An answer that does not come, or is not the
    prompt's, ends the rollout with a RuntimeError that names server, episode and turn.
    """

    def __init__(self, trainer, sampling: Sampling, key: tuple[int | str, int, int], *, expected: int):
        args, engine = trainer.args, trainer.vllm_generation
        self.end_ids, self.key = list(trainer.eos_token_ids), key
        self.limit, self.need_logprobs = args.max_completion_length, trainer.vllm_importance_sampling_correction
        self.where = f"the vLLM server at {server_url(args)}"
        self._open: dict[int, Episode] = {}
        self._options = {
            "repetition_penalty": engine.repetition_penalty,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p or 0.0,
            "max_tokens": self.limit,
            "logprobs": 0,
            "structured_outputs_regex": engine.structured_outputs_regex,
        }
        self._extra = {"stop_token_ids": self.end_ids} | engine.generation_kwargs
        workers = max(1, min(args.max_concurrent_requests, expected))
        self._client = RequestClient(
            server_url(args),
            start_seconds=args.vllm_server_timeout,
            seconds=args.vllm_request_timeout,
            retries=args.vllm_request_retries,
            connections=workers,
        )
        self._pool = RequestPool(self._ask, workers)

    def __enter__(self) -> EpisodeRequests:
        return self

    def __exit__(self, *_: Any) -> None:
        self._client.stopped.set()
        self._pool.close()

    def send(self, episode: Episode, prompt_ids: np.ndarray) -> None:
        """Ask for the next turn of `episode`."""
        seed, step, attempt = self.key
        turn_seed = request_seed(seed, step, episode.task_id, episode.index, attempt, len(episode.steps))
        self._open[id(episode)] = episode
        self._pool.send(id(episode), prompt_ids.tolist(), turn_seed)

    def receive(self) -> tuple[Episode, TurnOutput]:
        """Wait for the next answer, of whichever episode."""
        key, output, error = self._pool.receive()
        episode = self._open.pop(key)
        if error is not None:
            fault = error if isinstance(error, RuntimeError) else f"an answer that cannot be read: {error!r}"
            raise RuntimeError(
                f"{self.where} failed in turn {len(episode.steps) + 1} of episode {episode.index} "
                f"({episode.task_id}), with {len(self._open)} other requests of this process under way; all episodes "
                f"of this generation are lost, the last checkpoint is not: {fault}"
            ) from error
        return episode, output

    def _ask(self, prompt: list[int], seed: int) -> TurnOutput:
        out = self._client.generate([prompt], n=1, generation_kwargs={"seed": seed} | self._extra, **self._options)
        ids = out["completion_ids"]
        logprobs = check_answers(
            self.where,
            [prompt],
            out["prompt_ids"],
            ids,
            out["logprobs"],
            out["logprob_token_ids"],
            self.limit,
            self.need_logprobs,
        )
        return turn_output(ids[0], None if logprobs is None else logprobs[0], self.end_ids)
