"""Every answer that was paid for, on the disk before it is used, so that a killed evaluation never pays twice.

One JSON object a line. An answer: the call it belongs to, the SHA-256 of the request, text, token counts. A failed
request: the same with "failed", its kind, and what it may have cost. Keys and headers are never written.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from progpo_trl.evaluation.chat import Call, Completion
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.locks import take

CALLS = "calls.jsonl"

_Key = tuple[Call, str]


class CallLog:
    """The calls of one evaluation; with path None they are only remembered.

    Between `open` and `close` the file is locked: two processes on one folder would pay twice.
    """

    def __init__(self, path: Path | None = None):
        self._path, self._lock, self._held = path, threading.Lock(), None
        self._answers: dict[_Key, Completion] = {}
        self._failures: dict[_Key, Counter[str]] = {}
        self.requests = self.prompt_tokens = self.completion_tokens = 0

    def open(self) -> None:
        """Lock the file and read what is in it; EvaluationError when another process has it or it cannot be used."""
        if self._path is None or self._held is not None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._held = open(self._path, "a+b")  # noqa: SIM115  (held until `close`)
        except OSError as error:
            raise EvaluationError(f"{self._path}: cannot be written: {error.strerror}") from None
        if not take(self._held):
            self.close()
            raise EvaluationError(f"{self._path}: another evaluation is writing it; wait for it to end")
        with self._lock:
            self._read()

    def close(self) -> None:
        """Let go of the file. Answers that still arrive are written all the same."""
        if self._held is not None:
            self._held.close()
            self._held = None

    @property
    def answered(self) -> bool:
        """Whether there is any answer."""
        return bool(self._answers)

    def find(self, call: Call, request: str) -> Completion | None:
        """The answer to this request in this call, if there is one."""
        with self._lock:
            return self._answers.get((call, request))

    def failures(self, call: Call, request: str) -> dict[str, int]:
        """How often the request failed, by kind."""
        with self._lock:
            return dict(self._failures.get((call, request), {}))

    def add(self, call: Call, request: str, answer: Completion, charged: tuple[int, int]) -> Completion:
        """Write an answer; returns it with the failures before it.

        charged: (prompt, completion) tokens that count towards the budget, estimated where the answer has none.
        """
        with self._lock:
            line = _call_json(call, request) | {
                "text": answer.text,
                "prompt_tokens": answer.prompt_tokens,
                "completion_tokens": answer.completion_tokens,
                "truncated": answer.truncated,
                "refused": answer.refused,
                "served_by": answer.served_by,
                "charged": list(charged),
            }
            self._write(line)
            self._take(line)
            return self._answers[call, request]

    def add_failure(self, call: Call, request: str, kind: str, charged: tuple[int, int] = (0, 0)) -> None:
        """Write that a request failed; charged: as of `add`, for what a provider may bill all the same."""
        with self._lock:
            line = _call_json(call, request) | {"failed": kind, "charged": list(charged)}
            self._write(line)
            self._take(line)

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is None:
            return
        data = json.dumps(line).encode() + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise
        finally:
            os.close(file)

    def _read(self) -> None:
        self._answers, self._failures = {}, {}
        self.requests = self.prompt_tokens = self.completion_tokens = 0
        self._held.seek(0)
        text = b"\n"
        for text in self._held:
            # A killed process may have left half a line.
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                self._take(json.loads(text))
        if not text.endswith(b"\n"):
            self._held.write(b"\n")
            self._held.flush()

    def _take(self, line: dict[str, Any]) -> None:
        call, request = Call(**line["call"]), str(line["request"])
        prompt, completion = line.get("charged", (0, 0)) if "failed" in line else line["charged"]
        if "failed" in line:
            self._failures.setdefault((call, request), Counter())[str(line["failed"])] += 1
        else:
            self._answers[call, request] = Completion(
                str(line["text"]),
                line["prompt_tokens"],
                line["completion_tokens"],
                bool(line["truncated"]),
                bool(line["refused"]),
                dict(self._failures.get((call, request), {})),
                line["served_by"],
            )
        self.prompt_tokens += int(prompt)
        self.completion_tokens += int(completion)
        self.requests += 1


def _call_json(call: Call, request: str) -> dict[str, Any]:
    return {"call": asdict(call), "request": request}
