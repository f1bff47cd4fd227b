"""A chat endpoint on 127.0.0.1 that answers by a function and misbehaves when it is told to."""

import hashlib
import json
import random
import re
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk-secret-0123456789"


class StubApi:
    """answer: (messages, body) -> text, or a whole response object as a dict.

    faults: what to do instead, for the first requests (None: behave); each is a name of `_FAULTS`, a tuple of it and
    an argument. hold_after: requests beyond so many get no answer until `release` is set.
    """

    def __init__(self, answer, faults=(), hold_after=None, usage=True):
        self.answer, self.faults, self.hold_after, self.usage = answer, list(faults), hold_after, usage
        self.lock, self.release = threading.Lock(), threading.Event()
        self.requests, self.headers, self.answered = [], [], Counter()
        self.held = 0
        self.server = _Server(("127.0.0.1", 0), _Handler)
        self.server.stub = self
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


class _Server(ThreadingHTTPServer):
    """Says nothing of clients that did not wait for their answer; faults of its own are printed."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        stub = self.server.stub
        raw = self.rfile.read(int(self.headers["content-length"]))
        body = json.loads(raw)
        with stub.lock:
            stub.requests.append(body)
            stub.headers.append({name.lower(): value for name, value in self.headers.items()})
            fault = stub.faults.pop(0) if stub.faults else None
            hold = stub.hold_after is not None and len(stub.requests) > stub.hold_after
            stub.held += hold
        if hold:
            stub.release.wait(60)
            self.close_connection = True
            return
        if fault is not None:
            name, *argument = (fault,) if isinstance(fault, str) else fault
            getattr(self, name)(*argument)
            return
        answer = stub.answer(body["messages"], body)
        with stub.lock:
            stub.answered[hashlib.sha256(raw).hexdigest()] += 1
        self.reply(200, json.dumps(answer if isinstance(answer, dict) else whole(answer, usage=stub.usage)))

    def reply(self, status, text, headers=(), content_type="application/json", length=None):
        data = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def status(self, status, message="no", code=None, headers=()):
        self.reply(status, json.dumps({"error": {"message": message, "code": code}}), headers)

    def error(self, status, body):
        """A body of any shape; `in_a_list`, `numbered` and `unknown_field` are those of real servers."""
        self.reply(status, json.dumps(body))

    def slow(self, seconds):
        self.server.stub.release.wait(seconds)
        self.close_connection = True

    def drip(self, seconds):
        """Sends a byte now and then, so that no single read is slow."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(int(seconds / 0.05)):
            try:
                self.wfile.write(b" ")
                self.wfile.flush()
            except OSError:
                break
            if self.server.stub.release.wait(0.05):
                break
        self.close_connection = True

    def drop(self):
        self.close_connection = True

    def half(self):
        """The connection ends within the body."""
        self.reply(200, json.dumps(whole("open 1"))[:40], length=500)
        self.close_connection = True

    def raw(self, text, content_type="application/json"):
        self.reply(200, text, content_type=content_type)

    def echo_key(self, status):
        self.status(status, f"Incorrect API key provided: {self.headers['authorization'].split()[1]}")

    def log_message(self, *_):
        pass


def in_a_list(message, status="INVALID_ARGUMENT"):
    """As Gemini's endpoint writes an error."""
    return [{"error": {"code": 400, "message": message, "status": status}}]


def numbered(message, kind):
    """As llama.cpp and vLLM do: the code is the HTTP status again, and what it is stands in `type`."""
    return {"error": {"code": 400, "message": message, "type": kind}}


def unknown_field(name):
    """As Gemini's endpoint refuses a field that it does not know."""
    return in_a_list(f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.')


def whole(text, *, usage=True, **message):
    """A response object."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    out = {"id": "x", "object": "chat.completion", "created": 0, "model": "stub-1", "choices": [choice]}
    if usage:
        out["usage"] = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return out


def react_expert(messages, body):
    """Plays ALFWorld's searching expert by what is in a ReAct chat, and nothing else."""
    from progpo_trl.environments.alfworld.expert import SearchingExpert

    first = messages[0]["content"].rpartition("Observation: ")[2].partition("\n\nCommands")[0]
    expert = SearchingExpert(first, random.Random(0))
    for said, seen in zip(messages[1::2], messages[2::2], strict=True):
        action = re.search("Action: (.*)", said["content"])[1]
        expert.observe(action, seen["content"].removeprefix("Observation: ").partition("\n\nCommands")[0])
    commands = re.findall(r"^- (.*)$", messages[-1]["content"], re.MULTILINE)
    return f"Thought: I go on.\nAction: {expert.act(commands)}"


def door(messages, body):
    """Opens the door that is seen."""
    return "open " + re.findall(r"Door (\d+)", messages[-1]["content"])[-1]
