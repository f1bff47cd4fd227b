"""A chat model on this machine: weights of transformers, decoded as a policy is, calls of several threads together."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from progpo_trl.evaluation.chat import Call, ChatModel, Completion, ContextTooLong, Message, Stopped, clean_text
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.plain_text import PlainText

if TYPE_CHECKING:
    from progpo_trl.evaluation.policy_agent import PolicyAgent

# Episodes in step with each other ask within this time of each other: their calls are decoded together.
GATHER = 0.02


@dataclass(slots=True)
class _Request:
    ids: np.ndarray
    temperature: float
    max_tokens: int
    seed: int
    answer: Future


class LocalChatModel(ChatModel):
    """The model of a `PolicyAgent` (`load_policy`), asked chat by chat.

    Up to its batch size calls are decoded at once; what a call samples depends on its own seed alone. It cannot stop
    at a text, so it goes on to its end token or `max_tokens`.
    """

    def __init__(self, policy: PolicyAgent):
        self._policy, self.concurrency = policy, policy.batch_size
        self._plain = PlainText(policy.tokenizer)
        self._requests: queue.Queue[_Request | None] = queue.Queue()
        self._worker: threading.Thread | None = None
        config = policy.model.config.get_text_config()
        self._window = getattr(config, "max_position_embeddings", None) or 2**30
        prompt = policy.settings.max_context_length
        if prompt is not None:
            self._window = min(self._window, prompt + policy.settings.max_completion_length)

    def facts(self) -> dict[str, Any]:
        """As `ChatModel.facts`."""
        facts = self._policy.facts()
        kept = ("top_p", "top_k", "min_p", "chat_template_kwargs", "max_context_length")
        settings = {name: facts["settings"][name] for name in kept}
        return {**facts, "kind": "local", "settings": settings}

    def machine(self) -> dict[str, Any]:
        """As `ChatModel.machine`."""
        return self._policy.machine()

    def start(self) -> None:
        """As `ChatModel.start`."""
        self._requests = queue.Queue()
        self._worker = threading.Thread(target=self._serve, args=(self._requests,), name="local chat", daemon=True)
        self._worker.start()

    def stop(self, *, abort: bool) -> None:
        """As `ChatModel.stop`."""
        self._requests.put(None)
        if self._worker is not None and not abort:
            self._worker.join()

    def complete(
        self,
        messages: Sequence[Message],
        *,
        temperature: float | None,
        max_tokens: int,
        call: Call,
        stop: Sequence[str] = (),
    ) -> Completion:
        """As `ChatModel.complete`."""
        tokenizer = self._policy.tokenizer
        try:
            text = tokenizer.apply_chat_template(
                [{**m, "content": self._plain(m["content"])} for m in messages],
                tokenize=False,
                add_generation_prompt=True,
                **dict(self._policy.settings.chat_template_kwargs or {}),
            )
        except Exception as error:
            # Templates raise what they like for roles they do not know.
            raise EvaluationError(f"the model's chat template cannot render this chat: {error}") from error
        ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
        if len(ids) + max_tokens > self._window:
            raise ContextTooLong(f"{len(ids)} prompt and {max_tokens} answer tokens in a window of {self._window}")
        request = _Request(ids, float(temperature or 0.0), max_tokens, call.stream(), Future())
        self._requests.put(request)
        output = self._result(request)
        text, cut = clean_text(tokenizer.decode(output.ids, skip_special_tokens=True))
        ends = [at for word in stop if (at := text.find(word)) >= 0]
        return Completion(
            text[: min(ends)] if ends else text, len(ids), len(output.ids), (output.truncated and not ends) or cut
        )

    def _result(self, request: _Request):
        while True:
            try:
                return request.answer.result(timeout=1.0)
            except TimeoutError:
                if self._worker is None or not self._worker.is_alive():
                    raise Stopped("the evaluation was stopped") from None

    def _serve(self, requests: queue.Queue) -> None:
        """Decode what is asked until None is."""
        while (first := requests.get()) is not None:
            batch = [first]
            ended = False
            while len(batch) < self.concurrency and not ended:
                try:
                    found = requests.get(timeout=GATHER)
                except queue.Empty:
                    break
                ended = found is None
                batch += [] if found is None else [found]
            try:
                self._decode(batch)
            except Exception as error:  # noqa: BLE001
                # Whoever asked is told: it stops the evaluation there.
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
            if ended:
                break
        while not requests.empty():
            if (left := requests.get()) is not None:
                left.answer.set_exception(Stopped("the evaluation was stopped"))

    def _decode(self, batch: list[_Request]) -> None:
        from progpo_trl.generation import episode_stream

        for how in dict.fromkeys((r.temperature, r.max_tokens) for r in batch):
            same = [r for r in batch if (r.temperature, r.max_tokens) == how]
            streams = [episode_stream(r.seed, 0, "chat", 0) for r in same]
            outputs = self._policy.decode(how[0], [r.ids for r in same], how[1], streams)
            for request, output in zip(same, outputs, strict=True):
                request.answer.set_result(output)
