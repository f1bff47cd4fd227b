"""A chat model behind any OpenAI-compatible endpoint: OpenAI, Gemini's, a vLLM or trl server. See docs/agents.md.

The `openai` client carries the requests. Retries, limits and the log of paid answers are ours: they must be counted,
shared by all threads and survive a kill.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from progpo_trl.environments.base import TaskSet
from progpo_trl.evaluation.api_answers import Failure, read_answer, read_error
from progpo_trl.evaluation.api_limits import Bucket, Budget, backoff, guess_tokens, retry_after
from progpo_trl.evaluation.call_log import CallLog
from progpo_trl.evaluation.chat import Call, CallFailed, ChatModel, Completion, ContextTooLong, Message, Stopped
from progpo_trl.evaluation.errors import EvaluationError

logger = logging.getLogger(__name__)

KEY_VARIABLE = "OPENAI_API_KEY"
# An answer of this size is no answer of a chat model; it is not read to its end.
MAX_BYTES = 2**25
# Who asks for a longer wait means "tomorrow": the evaluation stops and is resumed then.
LONGEST_WAIT = 600.0
# After so many calls in a row that failed for good, the endpoint is down: no more games are lost to it.
FAILED_IN_A_ROW = 5


@dataclass(frozen=True)
class ApiSettings:
    """How an endpoint is asked.

    model: as the endpoint names it; base_url: up to and with /v1 (None: $OPENAI_BASE_URL, or OpenAI's); key_variable:
    the environment variable that holds the key. extra: joins the request's body; a value of None takes a field out
    (`{"seed": None}` for endpoints that refuse it). timeout: seconds for a whole answer. retries: per call, after the
    first try. Rates are per minute; prices per million tokens.
    """

    model: str
    base_url: str | None = None
    key_variable: str = KEY_VARIABLE
    extra: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 120.0
    retries: int = 8
    longest_backoff: float = 60.0
    concurrency: int = 8
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    price_in: float | None = None
    price_out: float | None = None
    max_cost: float | None = None
    max_requests: int | None = None

    def __post_init__(self):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_variable):
            raise EvaluationError("the key's environment variable is to be named, not the key itself given")
        if self.base_url is not None:
            _check_url(self.base_url)
        if (self.price_in is None) != (self.price_out is None):
            raise EvaluationError("give both prices, of tokens in and of tokens out, or none")
        if self.max_cost is not None and self.price_in is None:
            raise EvaluationError("a cost limit needs prices: give both, per million tokens")
        for name in ("timeout", "longest_backoff", "requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise EvaluationError(f"{name} must be more than 0, got {value}")
        for name, least in {"retries": 0, "concurrency": 1, "max_requests": 0, "max_cost": 0}.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise EvaluationError(f"{name} must be at least {least}, got {value}")
        for name in ("price_in", "price_out"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise EvaluationError(f"{name} must be at least 0, got {value}")


class ApiModel(ChatModel):
    """An endpoint's model. log: where paid answers are kept (`CallLog`); default: in memory."""

    def __init__(self, settings: ApiSettings, log: CallLog | None = None):
        self.settings, self.log = settings, log or CallLog()
        self.concurrency = settings.concurrency
        extra = settings.extra
        self.samples = not ("temperature" in extra and extra["temperature"] is None)
        self._client, self._host, self._secret = self._connect()
        self._requests, self._tokens = Bucket(settings.requests_per_minute), Bucket(settings.tokens_per_minute)
        self._budget = Budget(
            settings.max_requests, settings.max_cost, settings.price_in or 0.0, settings.price_out or 0.0
        )
        self._rng, self._lock, self._ending = random.Random(), threading.Lock(), threading.Event()
        self._not_before, self._failed_in_a_row = 0.0, 0
        self._under_way, self._count = threading.Condition(), 0
        self._told: set[str] = set()

    def _connect(self):
        try:
            import openai
        except ImportError:
            raise EvaluationError(
                "asking an endpoint needs the openai client: pip install 'progpo_trl[agents]'"
            ) from None
        settings = self.settings
        key = os.environ.get(settings.key_variable, "").strip()
        url = settings.base_url or os.environ.get("OPENAI_BASE_URL") or None
        if url is not None:
            _check_url(url)
        if not key and url is None:
            raise EvaluationError(f"no key: set the environment variable {settings.key_variable}")
        if not key.isascii() or not key.isprintable():
            raise EvaluationError(f"the key in {settings.key_variable} has characters that no key has")
        client = openai.OpenAI(
            # Local servers want some key, whichever.
            api_key=key or "none",
            base_url=url,
            timeout=settings.timeout,
            max_retries=0,
        )
        parts = urlsplit(str(client.base_url))
        host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        return client, host, key

    def facts(self) -> dict[str, Any]:
        """As `ChatModel.facts`: the host alone of the address, never the key."""
        return {"kind": "api", "model": self.settings.model, "host": self._host, "extra": dict(self.settings.extra)}

    def machine(self) -> dict[str, Any]:
        """As `ChatModel.machine`."""
        return {"device": "api", "concurrency": self.concurrency}

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """As `ChatModel.cost`."""
        return None if self.settings.price_in is None else self._budget.cost(prompt_tokens, completion_tokens)

    def prepare(self, tasks: TaskSet) -> None:
        """As `ChatModel.prepare`: one process asks; threads make it fast."""
        from progpo_trl.evaluation.processes import Processes

        if Processes().count > 1:
            raise EvaluationError("an endpoint is asked from one process: leave the launcher out, raise concurrency")

    def start(self) -> None:
        """As `ChatModel.start`: takes the log."""
        self._ending.clear()
        self._failed_in_a_row = 0
        self.log.open()

    def stop(self, *, abort: bool) -> None:
        """As `ChatModel.stop`. Nothing new is asked; what is under way is paid for, so it is waited for."""
        if abort:
            self._ending.set()
        try:
            with self._under_way:
                self._under_way.wait_for(lambda: self._count == 0, self.settings.timeout + 1)
        finally:
            self.log.close()

    def complete(
        self,
        messages: Sequence[Message],
        *,
        temperature: float | None,
        max_tokens: int,
        call: Call,
        stop: Sequence[str] = (),
    ) -> Completion:
        """As `ChatModel.complete`. An answer that is in the log is not asked for again."""
        body = {"model": self.settings.model, "messages": [dict(m) for m in messages], "max_tokens": max_tokens}
        body |= {"seed": call.stream()} | ({"stop": list(stop)} if stop else {})
        body |= {} if temperature is None else {"temperature": temperature}
        body = {name: value for name, value in {**body, **self.settings.extra}.items() if value is not None}
        text = json.dumps(body, sort_keys=True)
        request = hashlib.sha256(f"{self._host}\n{text}".encode()).hexdigest()
        return self.log.find(call, request) or self._ask(call, request, body, guess_tokens(len(text)), max_tokens)

    def _ask(self, call: Call, request: str, body: dict[str, Any], prompt: int, most: int) -> Completion:
        for tries in range(1, self.settings.retries + 2):
            self._wait_for_rates(prompt + most)
            answer = self._request(call, request, body, prompt, most)
            if isinstance(answer, Completion):
                return answer
            self._failed(answer)
            self._wait(self._pause(answer, tries) if tries <= self.settings.retries else 0.0)
        with self._lock:
            self._failed_in_a_row += 1
            down = self._failed_in_a_row >= FAILED_IN_A_ROW
        message = f"{self._host}: no answer in {tries} tries; the last: {answer.kind}: {answer.detail}"
        if down:
            raise Stopped(f"{message}. {FAILED_IN_A_ROW} calls in a row failed so")
        raise CallFailed(message)

    def _request(self, call: Call, request: str, body: dict[str, Any], prompt: int, most: int) -> Completion | Failure:
        """One request, written whatever comes of it."""
        with self._under_way:
            settle = self._budget.reserve(self._used, prompt, most)
            self._count += 1
        try:
            answer = self._send(body)
            if isinstance(answer, Completion):
                return settle(lambda: self._keep(call, request, answer, prompt, most))
            self._tokens.correct(prompt + most)
            settle(lambda: self.log.add_failure(call, request, answer.kind))
            return answer
        finally:
            with self._under_way:
                self._count -= 1
                self._under_way.notify_all()

    def _used(self) -> tuple[int, int, int]:
        return self.log.requests, self.log.prompt_tokens, self.log.completion_tokens

    def _keep(self, call: Call, request: str, answer: Completion, prompt: int, most: int) -> Completion:
        """Write a paid answer, and only then hand it on."""
        taken = most
        if answer.completion_tokens is None:
            most = min(most, guess_tokens(len(answer.text)))
        charged = (
            prompt if answer.prompt_tokens is None else answer.prompt_tokens,
            most if answer.completion_tokens is None else answer.completion_tokens,
        )
        answer = self.log.add(call, request, answer, charged)
        self._tokens.correct(prompt + taken - sum(charged))
        with self._lock:
            self._failed_in_a_row = 0
        return answer

    def _failed(self, failure: Failure) -> None:
        """Tell it once of each kind; raise what no retry can mend."""
        if failure.kind == "context":
            raise ContextTooLong(failure.detail)
        with self._lock:
            new = failure.kind not in self._told
            self._told.add(failure.kind)
        if failure.retry:
            if new:
                logger.warning("%s: %s (%s); trying again", self._host, failure.kind, failure.detail)
            return
        if failure.kind == "rejected" and self.log.answered:
            # Others like it were answered: this one game has something that the endpoint will not take.
            raise CallFailed(f"{self._host} rejects a request: {failure.detail}")
        hints = {
            "key": f"the key in {self.settings.key_variable} is not accepted",
            "quota": "the account has nothing left to spend",
            "not_found": f"there is no model {self.settings.model!r}, or the address is wrong",
            "rejected": "a field it does not know can be taken out with --api-extra '{\"seed\": null}'",
        }
        # Some servers repeat parts of a key that they refuse.
        said = "" if failure.kind == "key" else f"{failure.detail}; "
        raise Stopped(f"{self._host}: {said}{hints[failure.kind]}")

    def _pause(self, failure: Failure, tries: int) -> float:
        wait = backoff(tries, self.settings.longest_backoff, self._rng)
        if failure.after is None:
            return wait
        if failure.after > LONGEST_WAIT:
            raise Stopped(f"{self._host} asks to wait {failure.after:.0f} seconds: {failure.detail}")
        with self._lock:
            # All threads share the limit that one of them has run into.
            self._not_before = max(self._not_before, time.monotonic() + failure.after)
        # Not all at the same moment, either.
        return failure.after + self._rng.uniform(0.0, min(1.0, failure.after / 4))

    def _wait_for_rates(self, tokens: int) -> None:
        self._wait(0.0)
        while (wait := self._not_before - time.monotonic()) > 0 or (wait := self._requests.take(1)) > 0:
            self._wait(wait)
        while (wait := self._tokens.take(tokens)) > 0:
            self._wait(wait)

    def _wait(self, seconds: float) -> None:
        if self._ending.wait(seconds) if seconds > 0 else self._ending.is_set():
            raise Stopped("the evaluation was stopped")

    def _send(self, body: dict[str, Any]) -> Completion | Failure:
        """One request. Only the endpoint's own words come back, with the key struck out of them."""
        import openai

        ends = time.monotonic() + self.settings.timeout
        rest = {name: value for name, value in body.items() if name not in ("model", "messages")}
        try:
            with self._client.chat.completions.with_streaming_response.create(
                model=body["model"], messages=body["messages"], extra_body=rest
            ) as response:
                content_type = response.headers.get("content-type", "")
                data = bytearray()
                for block in response.iter_bytes():
                    data += block
                    if len(data) > MAX_BYTES:
                        # It was paid for, whatever it says.
                        return Completion("", truncated=True)
                    if time.monotonic() > ends:
                        return Failure("timeout", f"no whole answer in {self.settings.timeout:g} s")
            found = read_answer(bytes(data), content_type)
        except openai.APITimeoutError:
            return Failure("timeout", f"no answer in {self.settings.timeout:g} s")
        except openai.APIStatusError as error:
            found = read_error(error.status_code, error.body, retry_after(error.response.headers))
        except openai.APIConnectionError as error:
            return Failure("connection", type(error.__cause__ or error).__name__)
        except _transport_errors() as error:
            kind = "timeout" if "Timeout" in type(error).__name__ else "connection"
            return Failure(kind, type(error).__name__)
        if isinstance(found, Failure) and self._secret and self._secret in found.detail:
            return Failure(found.kind, found.detail.replace(self._secret, "***"), found.retry, found.after)
        return found


def _check_url(url: str) -> None:
    """Addresses are kept with the results (the command), so they must hold no secret."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise EvaluationError("the base URL must be like http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise EvaluationError("the base URL must hold no user, password or query: keys belong into the environment")


def _transport_errors() -> tuple[type[Exception], ...]:
    """What reading a body can raise: the errors of the HTTP library, which the client has changed once."""
    found: list[type[Exception]] = []
    for name in ("httpx2", "httpx"):
        with suppress(ImportError, AttributeError):
            found.append(importlib.import_module(name).HTTPError)
    return tuple(found)
