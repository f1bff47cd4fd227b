"""A small Hub on 127.0.0.1: what uploads and downloads of a model ask for, as the real one answers it."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HubStub:
    """url: its address; files: path -> content of what was committed; commits: how often; failing: path part -> status
    and text that it answers with; private: of the repository that is there."""

    TOKEN = "hf_" + "t" * 34

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.stored: dict[str, bytes] = {}
        self.commits: list[str] = []
        self.tokens: set[str] = set()
        self.failing: dict[str, tuple[int, str]] = {}
        self.private = False
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                if "/resolve/" in self.path:
                    self._file(self.path.rpartition("/resolve/")[2].partition("/")[2])
                else:
                    self._answer(b"")

            do_HEAD = do_GET

            def _file(self, name: str) -> None:
                content = stub.files.get(name)
                self.send_response(404 if content is None else 200)
                self.send_header("X-Repo-Commit", "1" * 40)
                if content is None:
                    self.send_header("X-Error-Code", "EntryNotFound")
                    content = b""
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            def do_POST(self):
                self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

            do_PUT = do_POST

            def _answer(self, body: bytes) -> None:
                stub.tokens.add(self.headers.get("Authorization", ""))
                status, answer = stub.answer(self.command, self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict]:
        for part, (status, said) in self.failing.items():
            if part in path:
                return status, {"error": said, "url": f"{self.url}/alice/agent"}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.private = asked.get("visibility") == "private" or bool(asked.get("private"))
            return 200, {"url": f"{self.url}/{name}", "name": name}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            return 200, {"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]}
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            actions = [o | {"actions": {"upload": {"href": f"{self.url}/lfs/{o['oid']}"}}} for o in objects]
            return 200, {"transfer": "basic", "objects": actions}
        if method == "PUT":
            self.stored[path.rpartition("/")[2]] = body
            return 200, {}
        if "/commit/" in path:
            lines = [json.loads(line) for line in body.splitlines()]
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    self.files[value["path"]] = self.stored[value["oid"]]
                elif line["key"] == "deletedFile":
                    del self.files[value["path"]]
                else:
                    self.commits.append(value["summary"])
            return 200, {"commitUrl": f"{self.url}/alice/agent/commit/1", "commitOid": "1" * 40, "hookOutput": ""}
        return 200, {
            "id": "alice/agent",
            "private": self.private,
            "tags": [],
            "sha": "1" * 40,
            "siblings": [{"rfilename": n} for n in self.files],
        }
