"""Reads what an OpenAI-compatible endpoint sent back. It is data from outside: any bytes have a defined result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from progpo_trl.evaluation.chat import Completion, clean_text

# No real count is larger; one that is says nothing.
_MOST_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class Failure:
    """A request without an answer. kind: what is counted; detail: the server's words; retry: whether another try may
    help; after: seconds the server asks to wait."""

    kind: str
    detail: str = ""
    retry: bool = True
    after: float | None = None


def read_answer(body: bytes, content_type: str) -> Completion | Failure:
    """The answer in the body of a 200. Without one: bad_json, content_type or no_answer, all worth another try."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        kind = "bad_json" if "json" in content_type.lower() or not content_type else "content_type"
        return Failure(kind, f"the answer is no JSON ({content_type or 'no content type'}, {len(body)} bytes)")
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        content, refusal = _text(message.get("content")), message.get("refusal")
        reason = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        error = answer.get("error") if isinstance(answer, dict) else None
        return Failure("no_answer", error_text(error) or "the answer has no choices[0].message")
    refused = (isinstance(refusal, str) and bool(refusal)) or reason == "content_filter"
    # A refusal is no command, whatever it says.
    text, cut = clean_text("" if refused else content)
    prompt, completion = _usage(answer.get("usage"))
    model = answer.get("model")
    served_by = clean_text(model)[0][:200] if isinstance(model, str) else None
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


def error_text(error: Any) -> str:
    """The message in an error body, on one line; empty when there is none."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("error") or error.get("detail") or ""
    return " ".join("".join(c if c.isprintable() else " " for c in str(error or "")[:2000]).split())[:300]


_TOO_LONG = ("context length", "context_length", "maximum context", "context window", "too many tokens", "token limit")
_FILTERED = ("content_filter", "content_policy", "content management policy", "safety")


def read_error(status: int, body: Any, after: float | None) -> Completion | Failure:
    """What an error status means. A provider's content filter is a refusal, so it is an answer.

    Failures that are not worth another try: "context" (too long), "quota", "key", "not_found", "rejected".
    """
    inner = body.get("error", body) if isinstance(body, dict) else body
    detail = f"HTTP {status}: {error_text(inner) or 'no message'}"
    code = str(inner.get("code") or inner.get("type") or "") if isinstance(inner, dict) else ""
    words = f"{code} {error_text(inner)}".lower()
    if status == 429:
        if "insufficient_quota" in words:
            return Failure("quota", detail, retry=False)
        return Failure("rate_limited", detail, after=after)
    if status in (408, 409, 425) or status >= 500:
        return Failure("timeout" if status == 408 else "server_error", detail, after=after)
    if status in (401, 403):
        return Failure("key", detail, retry=False)
    if status == 402:
        return Failure("quota", detail, retry=False)
    if status == 404:
        return Failure("not_found", detail, retry=False)
    if status == 413 or any(word in words for word in _TOO_LONG):
        return Failure("context", detail, retry=False)
    if any(word in words for word in _FILTERED):
        return Completion("", 0, 0, refused=True)
    return Failure("rejected", detail, retry=False)
