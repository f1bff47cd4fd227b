"""A small HTTP server in the place of vLLM's, as TRL 1.16's client speaks to it (`trl vllm-serve` starts vLLM's own).

    python tests/trainer/vllm_stand_in.py --port 8000

Every completion is derived from its prompt, so that one that reached the wrong episode is found. With a policy it
samples from that policy instead, and takes the weights it is sent. Tests make it slow or faulty and read its `events`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Ordinary tokens of the toy tokenizer.
FIRST, LAST = 10, 400


def echo(prompt: list[int], max_tokens: int, end: int, seed: int | None = None) -> list[int]:
    """The tokens this server answers `prompt` with: `end` last, unless the limit cuts it off."""
    digest = hashlib.blake2b(f"{prompt}|{seed}".encode(), digest_size=32).digest()
    ids = [FIRST + byte % (LAST - FIRST) for byte in digest[1 : 2 + digest[0] % 15]]
    return [*ids, end][:max_tokens]


class Server(ThreadingHTTPServer):
    """Says nothing of clients that did not wait for their answer; faults of its own are printed."""

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class StandIn:
    """A context manager; `url` is where it listens.

    seeded: whether the answer depends on the request's seed too. misbehave: (number of the generation request,
    request) -> how to answer it wrongly (see `Handler`), or None. hold: prompt -> an event to wait for before the
    answer (for `hold_seconds` at most), or None. policy: answers instead of `echo` (`PolicyAnswers`).
    """

    def __init__(
        self,
        port: int = 0,
        *,
        seeded: bool = False,
        misbehave: Callable[[int, dict], str | None] = lambda number, request: None,
        hold: Callable[[list[int]], threading.Event | None] = lambda prompt: None,
        policy=None,
        max_model_len: int = 4096,
        update_seconds: float = 0.0,
        hold_seconds: float = 60.0,
    ):
        self.seeded, self.misbehave, self.hold, self.policy = seeded, misbehave, hold, policy
        self.max_model_len, self.update_seconds, self.hold_seconds = max_model_len, update_seconds, hold_seconds
        self.events: list[dict] = []
        self.updating = False
        self.lock = threading.Lock()
        self._server = Server(("127.0.0.1", port), type("_Handler", (Handler,), {"stand_in": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()

    def log(self, kind: str, **what) -> int:
        """Note an event; returns how many of its kind there were before."""
        with self.lock:
            before = sum(event["kind"] == kind for event in self.events)
            self.events.append({"kind": kind, "updating": self.updating, **what})
        return before

    def of_kind(self, kind: str) -> list[dict]:
        return [event for event in self.events if event["kind"] == kind]

    def answer(self, prompt: list[int], request: dict) -> tuple[list[int], list[float]]:
        if self.policy is not None:
            with self.lock:
                return self.policy(prompt, request)
        seed = request.get("seed") if self.seeded else None
        ids = echo(prompt, request["max_tokens"], request["stop_token_ids"][0], seed)
        return ids, [-0.5 - 0.01 * i for i in range(len(ids))]


class Handler(BaseHTTPRequestHandler):
    stand_in: StandIn
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        known = {
            "/health": {},
            "/v1/models": {"data": [{"id": "stand-in"}]},
            "/get_world_size": {"world_size": 1},
            "/server_info": {
                "vllm_config": {
                    "weight_transfer_config": {"backend": "nccl"},
                    "model_config": {
                        "logprobs_mode": "processed_logprobs",
                        "max_model_len": self.stand_in.max_model_len,
                    },
                }
            },
        }
        self._reply(known[path]) if path in known else self._reply({"error": path}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        stand_in, path = self.stand_in, self.path.split("?")[0]
        if path == "/v1/completions":
            return self._complete(json.loads(body))
        if path == "/stand_in/weights":  # in the place of NCCL
            stand_in.log("weight", name=self.headers["X-Name"])
            if stand_in.policy is not None:
                with stand_in.lock:
                    stand_in.policy.load(body)
        elif path in ("/start_weight_update", "/update_weights", "/finish_weight_update"):
            if path == "/start_weight_update":
                stand_in.updating = True
            elif path == "/finish_weight_update":
                threading.Event().wait(stand_in.update_seconds)
                stand_in.updating = False
            stand_in.log(path.strip("/"))
        elif path in ("/init_weight_transfer_engine", "/reset_prefix_cache"):
            stand_in.log(path.strip("/"))
        else:
            return self._reply({"error": path}, 404)
        return self._reply({"success": True})

    def _complete(self, request: dict) -> None:
        stand_in = self.stand_in
        prompts = request["prompt"]
        number = stand_in.log("asked", request=request)
        for prompt in prompts:
            if (event := stand_in.hold(prompt)) is not None:
                stand_in.log("held", prompt=prompt, opened=event.wait(stand_in.hold_seconds))
        fault = stand_in.misbehave(number, request)
        if fault in ("error", "refuse"):
            return self._reply({"error": "told to fail"}, 500 if fault == "error" else 400)
        if fault == "drop":
            self.close_connection = True
            return None
        choices = []
        for prompt in prompts:
            ids, logprobs = stand_in.answer(prompt, request)
            if fault == "empty":
                ids, logprobs = [], []
            if fault == "nan":
                logprobs = [float("nan"), *logprobs[1:]]
            if fault == "null":
                logprobs = [None, *logprobs[1:]]
            names = [f"token_id:{i}" for i in ids]
            top = [{name: value} for name, value in zip(names, logprobs, strict=True)]
            scores = {"tokens": names, "token_logprobs": logprobs, "top_logprobs": top}
            choices.append(
                {
                    "index": len(choices),
                    "prompt_token_ids": prompt,
                    "token_ids": ids,
                    "logprobs": None if fault == "no_logprobs" else scores,
                    "finish_reason": "stop",
                }
            )
        if fault == "swap":
            choices.reverse()
        if fault == "other":
            choices[0]["prompt_token_ids"] = prompts[0][1:]
        if fault == "short":
            choices.pop()
        # Noted before it is sent: the client may act on it at once.
        stand_in.log("answered", request=request, answers=[choice["token_ids"] for choice in choices])
        return self._reply({"choices": choices}, cut=fault == "cut")

    def _reply(self, answer: dict, status: int = 200, cut: bool = False) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut


class PolicyAnswers:
    """Answers of a policy of its own, whose weights follow those that are sent. For `StandIn(policy=...)`."""

    def __init__(self, model, end_ids: list[int], pad: int):
        self.model, self.end_ids, self.pad = model, end_ids, pad

    def __call__(self, prompt: list[int], request: dict) -> tuple[list[int], list[float]]:
        import numpy as np

        from progpo_trl.generation import CachedGeneration, Sampling

        sampling = Sampling(request["temperature"], request["top_p"], request["top_k"], request["min_p"] or None)
        generation = CachedGeneration(self.model, eos_token_ids=self.end_ids, pad_token_id=self.pad, sampling=sampling)
        stream = np.random.default_rng(request.get("seed"))
        (out,) = generation.turn([0], [np.array(prompt)], request["max_tokens"], [stream])
        return out.ids.tolist(), out.logprobs.tolist()

    def load(self, body: bytes) -> None:
        import torch
        from safetensors.torch import load

        with torch.no_grad():
            for name, tensor in load(body).items():
                self.model.get_parameter(name).copy_(tensor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: 8000)")
    with StandIn(parser.parse_args().port) as stand_in:
        print(stand_in.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
