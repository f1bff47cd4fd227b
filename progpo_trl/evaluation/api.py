"""A chat model behind any OpenAI-compatible endpoint: OpenAI, Gemini's, a vLLM or trl server. See docs/agents.md.

The `openai` client carries the requests. Retries, limits and the log of paid answers are ours: they must be counted,
shared by all threads and survive a kill.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from progpo_trl.environments.base import TaskSet
from progpo_trl.evaluation.api_answers import Failure
from progpo_trl.evaluation.api_client import Client, check_url
from progpo_trl.evaluation.api_limits import Bucket, Budget, backoff, guess_tokens
from progpo_trl.evaluation.call_log import CallLog
from progpo_trl.evaluation.chat import Call, CallFailed, ChatModel, Completion, ContextTooLong, Message, Stopped
from progpo_trl.evaluation.errors import EvaluationError

logger = logging.getLogger(__name__)

# Who asks for a longer wait means "tomorrow": the evaluation stops and is resumed then.
LONGEST_WAIT = 600.0
# What the evaluation itself sets in every request, and keeps with the results by its own names.
_OURS = {"temperature": "--temperatures", "seed": "--seeds", "max_tokens": "--max_completion_length"}
# After so many calls in a row that failed for good, the endpoint is down: no more games are lost to it.
FAILED_IN_A_ROW = 5


@dataclass(frozen=True)
class ApiSettings:
    """How an endpoint is asked.

    model: as the endpoint names it; base_url: up to and with /v1 (None: $OPENAI_BASE_URL, or OpenAI's); key_variable:
    the environment variable that holds the key (None: OPENAI_API_KEY, sent over https alone). top_p: sent when it is
    not 1. extra: joins the request's body; a value of None takes a field out (`{"seed": None}` for endpoints that
    refuse it). timeout: seconds for a whole answer. retries: per call, after the first try. Rates are per minute;
    prices per million tokens.
    """

    model: str
    base_url: str | None = None
    key_variable: str | None = None
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
    top_p: float = 1.0

    def __post_init__(self):
        if self.key_variable is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_variable):
            raise EvaluationError("the key's environment variable is to be named, not the key itself given")
        if self.base_url is not None:
            check_url(self.base_url)
        for name, option in _OURS.items():
            if self.extra.get(name) is not None:
                # The results would be filed under a value that no request had.
                raise EvaluationError(f"--api-extra can only take {name} out (null); its value is {option}")
        if not 0 < self.top_p <= 1:
            raise EvaluationError(f"top_p must be more than 0 and at most 1, got {self.top_p:g}")
        if self.top_p != 1 and self.extra.get("top_p") is not None:
            raise EvaluationError("top_p is given twice, as --top_p and in --api-extra")
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
        self._client = Client(settings.base_url, settings.key_variable, settings.timeout)
        self._host = self._client.host
        self._requests, self._tokens = Bucket(settings.requests_per_minute), Bucket(settings.tokens_per_minute)
        self._budget = Budget(
            settings.max_requests, settings.max_cost, settings.price_in or 0.0, settings.price_out or 0.0
        )
        self._rng, self._lock, self._ending = random.Random(), threading.Lock(), threading.Event()
        self._not_before, self._failed_in_a_row = 0.0, 0
        self._under_way, self._count = threading.Condition(), 0
        self._told: set[str] = set()

    def facts(self) -> dict[str, Any]:
        """As `ChatModel.facts`: the host alone of the address, never the key."""
        settings = self.settings
        facts = {"kind": "api", "model": settings.model, "host": self._host, "extra": dict(settings.extra)}
        return facts | ({} if settings.top_p == 1 else {"top_p": settings.top_p})

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
        self.answered = self.log.answered

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
        body |= {} if self.settings.top_p == 1 else {"top_p": self.settings.top_p}
        body = {name: value for name, value in {**body, **self.settings.extra}.items() if value is not None}
        text = json.dumps(body, sort_keys=True)
        request = hashlib.sha256(f"{self._host}\n{text}".encode()).hexdigest()
        # By its other name, the endpoint's limit may be a higher one than ours.
        other = body.get("max_completion_tokens")
        most = max(max_tokens, other) if type(other) is int else max_tokens
        return self.log.find(call, request) or self._ask(call, request, body, guess_tokens(len(text)), most)

    def _ask(self, call: Call, request: str, body: dict[str, Any], prompt: int, most: int) -> Completion:
        for tries in range(1, self.settings.retries + 2):
            self._wait_for_rates(prompt + most)
            answer = self._request(call, request, body, prompt, most)
            if isinstance(answer, Completion):
                return answer
            again = tries <= self.settings.retries
            self._failed(answer, again)
            self._wait(self._pause(answer, tries) if again else 0.0)
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
            answer = self._client.send(body)
            if isinstance(answer, Completion):
                return settle(lambda: self._keep(call, request, answer, prompt, most))
            self._tokens.correct(prompt + most)
            # Nobody tells what a failed request has cost; the limit has to hold at the worst, too.
            settle(lambda: self.log.add_failure(call, request, answer.kind, (prompt, most) if answer.paid else (0, 0)))
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
        if answer.completion_tokens is None and answer.text:
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

    def _failed(self, failure: Failure, again: bool) -> None:
        """Tell it once of each kind; raise what no retry can mend."""
        if failure.kind == "context":
            raise ContextTooLong(failure.detail)
        with self._lock:
            new = failure.kind not in self._told
            self._told.add(failure.kind)
        if failure.retry:
            if new:
                then = "; trying again" if again else ""
                logger.warning("%s: %s (%s)%s", self._host, failure.kind, failure.detail, then)
            return
        if failure.kind == "rejected" and self.log.answered:
            # Others like it were answered: this one game has something that the endpoint will not take.
            raise CallFailed(f"{self._host} rejects a request: {failure.detail}")
        hints = {
            "key": self._key_hint(),
            "quota": "the account has nothing left to spend",
            "not_found": f"there is no model {self.settings.model!r}, or the address is wrong",
            "rejected": "a field that it does not know is taken out with --api-extra '{\"seed\": null}'; how long an "
            "answer may be is --max_completion_length",
        }
        # Some servers repeat parts of a key that they refuse.
        said = "" if failure.kind == "key" else f"{failure.detail}; "
        raise Stopped(f"{self._host}: {said}{hints[failure.kind]}")

    def _key_hint(self) -> str:
        name = self._client.key_variable
        if self._client.kept_back:
            return f"it wants a key, and the one in {name} goes over https alone unless you say --api-key-env {name}"
        return f"the key in {name} is not accepted"

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
