"""Reads what an OpenAI-compatible endpoint sent back. It is data from outside: any bytes have a defined result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from progpo_trl.evaluation.chat import Completion, clean_text

# No real count is larger; one that is says nothing.
_MOST_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class Failure:
    """A request without an answer. kind: what is counted; detail: the server's words; retry: whether another try may
    help; after: seconds the server asks to wait; paid: whether a provider may send a bill for it all the same."""

    kind: str
    detail: str = ""
    retry: bool = True
    after: float | None = None
    paid: bool = False


# Beginnings of a key that are shorter say nothing about it ("sk-proj"). Local servers take words of any length for
# a key ("EMPTY"), which a model may well say: only real ones are struck out of its answers.
_KEY_CHARACTERS, _REAL_KEY_CHARACTERS = 8, 16


def without_key(text: str, key: str) -> str:
    """`text` with the key struck out, and with any beginning of it of `_KEY_CHARACTERS` or more."""
    if not key:
        return text
    pieces, at = [], 0
    while (found := text.find(key[:_KEY_CHARACTERS], at)) >= 0:
        pieces += [text[at:found], "***"]
        at = found
        for ours, theirs in zip(key, text[found : found + len(key)], strict=False):
            if ours != theirs:
                break
            at += 1
    return "".join([*pieces, text[at:]])


def read_answer(body: bytes, content_type: str, key: str = "") -> Completion | Failure:
    """The answer in the body of a 200. Without one: bad_json, content_type or no_answer, all worth another try.

    key: struck out of whatever comes back.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        kind = "bad_json" if "json" in content_type.lower() or not content_type else "content_type"
        what = error_text(content_type, key) or "no content type"
        return Failure(kind, f"the answer is no JSON ({what}, {len(body)} bytes)", paid=True)
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        content, refusal = _text(message.get("content")), message.get("refusal")
        reason = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        error = answer.get("error") if isinstance(answer, dict) else None
        said = error_text(_inner(error), key) or "the answer has no choices[0].message"
        return Failure("no_answer", said, paid=True)
    key = key if len(key) >= _REAL_KEY_CHARACTERS else ""
    refused = (isinstance(refusal, str) and bool(refusal)) or reason == "content_filter"
    # A refusal is no command, whatever it says.
    text, cut = clean_text("" if refused else without_key(content, key))
    prompt, completion = _usage(answer.get("usage"))
    model = answer.get("model")
    served_by = clean_text(without_key(model, key))[0][:200] if isinstance(model, str) else None
    return Completion(text, prompt, completion, reason == "length" or cut, refused, served_by=served_by)


def _text(content: Any) -> str:
    """Content is a text, null, or a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    raise TypeError("content is neither text nor parts")


def _usage(usage: Any) -> tuple[int | None, int | None]:
    """(prompt, completion) tokens; None for what is not told. Some endpoints leave thoughts out of the completion and
    have them only in the total."""
    if not isinstance(usage, dict):
        return None, None
    prompt, completion, total = (_count(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
    if prompt is not None and completion is not None and total is not None:
        completion = max(completion, total - prompt)
    return prompt, completion


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def error_text(error: Any, key: str = "") -> str:
    """The message in an error body, on one line and without the key; empty when there is none."""
    return _line(error, key)[:300]


def _line(error: Any, key: str = "") -> str:
    if isinstance(error, dict):
        error = error.get("message") or error.get("error") or error.get("detail") or ""
    # The key goes before anything is cut off: half of it in the place of the cut would not be known for one.
    text = without_key(str(error or ""), key)[:2000]
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _inner(body: Any) -> Any:
    """The error in an error's body. Gemini's endpoint has it in a list, others under "error", some bare."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body.get("error", body) if isinstance(body, dict) else body


# Names of errors, in `code`, `type` or `status`; they are compared whole. In messages only whole phrases are looked
# for: a word alone ("safety", "context") is as likely the name of a field that the endpoint does not know.
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error", "request_too_large"}
_TOO_LONG_SAID = (
    "maximum context length",  # OpenAI, vLLM, Mistral, DeepSeek
    "model's context length",  # SGLang
    "context window",
    "available context size",  # llama.cpp
    "greater than the context length",  # LM Studio
    "prompt is too long",  # Anthropic
    "input is too long",
    "too many tokens",
    "exceeds the maximum number of tokens",  # Gemini
    "maximum model length",  # vLLM's engine
    "maximum prompt length",  # xAI
    "`max_new_tokens` must be <=",  # TGI
    "range of input length",  # DashScope
)
_FILTERED = {
    "content_filter",
    "content_policy_violation",
    "responsibleaipolicyviolation",  # Azure
    "datainspectionfailed",  # DashScope
    "data_inspection_failed",
}
_FILTERED_SAID = (
    "content management policy",  # Azure
    "content filtering policy",  # Anthropic
    "filtered due to",
    "result of our safety system",  # OpenAI
    "violating our usage policy",
    "inappropriate content",  # DashScope
    "requires moderation",  # OpenRouter
)
_KEY = {"invalid_api_key", "api_key_invalid", "authentication_error", "unauthenticated"}
_KEY_SAID = ("api key not valid", "incorrect api key", "invalid api key", "api key expired")
_QUOTA = {"insufficient_quota", "arrearage"}
_QUOTA_SAID = ("insufficient_quota", "credit balance is too low")


def read_error(status: int, body: Any, after: float | None, key: str = "") -> Completion | Failure:
    """What an error status means. A provider's content filter is a refusal, so it is an answer.

    body: as JSON, or text; key: struck out of whatever comes back. Failures that are not worth another try: "context"
    (too long), "quota", "key", "not_found", "rejected".
    """
    inner = _inner(body)
    detail = f"HTTP {status}: {error_text(inner, key) or 'no message'}"
    names, said = _names(inner), _line(inner).lower()

    def is_one(known: set[str], phrases: tuple[str, ...]) -> bool:
        return bool(names & known) or any(phrase in said for phrase in phrases)

    if status == 402 or (400 <= status < 500 and is_one(_QUOTA, _QUOTA_SAID)):
        return Failure("quota", detail, retry=False)
    if status == 429:
        return Failure("rate_limited", detail, after=after)
    if status in (408, 409, 425) or status >= 500:
        return Failure("timeout" if status == 408 else "server_error", detail, after=after)
    if status not in (401, 404) and is_one(_FILTERED, _FILTERED_SAID):
        return Completion("", 0, 0, refused=True)
    if status in (401, 403) or is_one(_KEY, _KEY_SAID):
        return Failure("key", detail, retry=False)
    if status == 404:
        return Failure("not_found", detail, retry=False)
    if status == 413 or is_one(_TOO_LONG, _TOO_LONG_SAID):
        return Failure("context", detail, retry=False)
    return Failure("rejected", detail, retry=False)


def _names(error: Any) -> set[str]:
    """What an error calls itself; a number in one field says nothing about the others."""
    fields = ("code", "type", "status", "reason")
    values = (part.get(name) for part in _parts(error) for name in fields)
    return {value.lower() for value in values if isinstance(value, str)}


def _parts(error: Any) -> Iterator[dict[str, Any]]:
    """The error and what it holds: Azure says more in "innererror", Gemini in "details"."""
    if isinstance(error, dict):
        details = error.get("details")
        for part in (error, error.get("innererror"), *(details[:10] if isinstance(details, list) else ())):
            if isinstance(part, dict):
                yield part
