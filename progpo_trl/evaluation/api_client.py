"""One request to an OpenAI-compatible endpoint: which address, with which key, and what came of it."""

from __future__ import annotations

import importlib
import os
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from progpo_trl.evaluation.api_answers import Failure, read_answer, read_error
from progpo_trl.evaluation.api_limits import retry_after
from progpo_trl.evaluation.chat import Completion
from progpo_trl.evaluation.errors import EvaluationError

KEY_VARIABLE = "OPENAI_API_KEY"
# An answer of this size is no answer of a chat model; it is not read to its end.
MAX_BYTES = 2**25
# Errors before anything was sent; after any other a provider may have begun to answer.
_NOTHING_SENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError")


class Client:
    """base_url: None for $OPENAI_BASE_URL, or OpenAI's; timeout: seconds for a whole answer.

    key_variable: the environment variable that holds the key. None: $OPENAI_API_KEY, which is a key of one provider
    and not of whoever listens at an address, so that it goes out over https alone.
    """

    def __init__(self, base_url: str | None, key_variable: str | None, timeout: float):
        try:
            import openai
        except ImportError:
            raise EvaluationError(
                "asking an endpoint needs the openai client: pip install 'progpo_trl[agents]'"
            ) from None
        self.key_variable, self._timeout = key_variable or KEY_VARIABLE, timeout
        key = os.environ.get(self.key_variable, "").strip()
        url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        if url is not None:
            check_url(url)
        if not key and (url is None or key_variable is not None):
            raise EvaluationError(f"no key: set the environment variable {self.key_variable}")
        if not key.isascii() or not key.isprintable():
            raise EvaluationError(f"the key in {self.key_variable} has characters that no key has")
        # Whether there is a key that stays here.
        self.kept_back = bool(key) and key_variable is None and url is not None and urlsplit(url).scheme != "https"
        self._key = "" if self.kept_back else key
        # Local servers want some key, whichever.
        self._openai = openai.OpenAI(api_key=self._key or "none", base_url=url, timeout=timeout, max_retries=0)
        parts = urlsplit(str(self._openai.base_url))
        self.host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    def send(self, body: dict[str, Any]) -> Completion | Failure:
        """One request. Only the endpoint's own words come back, with the key struck out of them."""
        import openai

        ends = time.monotonic() + self._timeout
        rest = {name: value for name, value in body.items() if name not in ("model", "messages")}
        try:
            with self._openai.chat.completions.with_streaming_response.create(
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
                        return Failure("timeout", f"no whole answer in {self._timeout:g} s", paid=True)
            return read_answer(bytes(data), content_type, self._key)
        except openai.APITimeoutError as error:
            cause = type(error.__cause__ or error).__name__
            return Failure("timeout", f"no answer in {self._timeout:g} s", paid=cause not in _NOTHING_SENT)
        except openai.APIStatusError as error:
            return read_error(error.status_code, error.body, retry_after(error.response.headers), self._key)
        except openai.APIConnectionError as error:
            cause = type(error.__cause__ or error).__name__
            return Failure("connection", cause, paid=cause not in _NOTHING_SENT)
        except _transport_errors() as error:
            name = type(error).__name__
            return Failure("timeout" if "Timeout" in name else "connection", name, paid=name not in _NOTHING_SENT)


def check_url(url: str) -> None:
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
