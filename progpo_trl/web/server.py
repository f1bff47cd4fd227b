"""A web server for one person at this machine.

It listens on 127.0.0.1 alone. Another site's page in the same browser can neither read from it nor act through it:
requests must name this server as their host, which a name made to point here does not (DNS rebinding), and every POST
must carry a token that only our own pages hold (CSRF). Whatever a request holds, it gets an answer, and the server
goes on.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import socket
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from progpo_trl import __version__
from progpo_trl.web.pages import content_security_policy, render

HOST = "127.0.0.1"
MOST_BYTES = 64 * 1024  # of a POST's body
MOST_FIELDS = 32  # of a form or a query
TOKEN = "token"  # the form field
_SECONDS = 30  # for a request to arrive
_DRAINED = 1024 * 1024  # bytes of a refused body that are still read, so that its sender reads the answer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What a site is asked. method: GET or POST; path: without the query; query, form: their fields, the last of each
    name."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    form: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """What it answers: a page, or with `location` the way to another one of the site.

    policy: the page's Content-Security-Policy, by default that of a page without scripts.
    """

    body: str = ""
    status: int = HTTPStatus.OK
    location: str | None = None
    content_type: str = "text/html; charset=utf-8"
    policy: str | None = None


class RequestError(Exception):
    """A request that cannot be answered as asked. status: 4xx or 500; problem: in words, for a person."""

    def __init__(self, status: int, problem: str):
        super().__init__(status, problem)
        self.status, self.problem = status, problem


class Site(ABC):
    """Answers requests. It is called from several threads at once.

    token: what its forms must carry in the hidden field `token`; the server has checked it before a POST gets here.
    """

    def __init__(self):
        self.token = secrets.token_urlsafe(24)

    @abstractmethod
    def respond(self, request: Request) -> Response:
        """The answer. RequestError for what is not there or not allowed."""


class LocalServer(ThreadingHTTPServer):
    """Serves `site` on 127.0.0.1; port 0 takes a free one. OSError when the port cannot be used."""

    daemon_threads = True

    def __init__(self, site: Site, port: int = 0):
        self.site = site
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """Where it is, without a slash at the end."""
        return f"http://{HOST}:{self.server_port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that requests may call this server."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def run(self) -> None:
        """Serve until Ctrl-C."""
        try:
            self.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            self.server_close()

    def server_bind(self) -> None:
        # As the base class, but without a name look-up, which may take seconds and leaves the machine.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request, client_address) -> None:
        """A connection that broke is the browser's business; anything else is logged."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            logger.exception("a request failed")


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer
    server_version, sys_version = f"progpo_trl/{__version__}", ""
    timeout = _SECONDS
    default_request_version = "HTTP/1.0"  # so that a refused first line gets a status line as well

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        try:
            response = self.server.site.respond(self._request(method))
        except RequestError as error:
            response = _problem(error.status, error.problem)
        except (ConnectionError, TimeoutError):
            raise
        except Exception:  # whatever a page does wrong, the server and its other pages go on; the log has the fault
            logger.exception("%s %s failed", method, self.path)
            response = _problem(500, "This page has a fault. The terminal that runs the server says more.")
        self._send(response)

    def _request(self, method: str) -> Request:
        """The request, checked. The body is read first: a browser that still writes does not read a refusal."""
        body = self._body() if method == "POST" else b""
        self._check_origin()
        try:
            parts = urlsplit(self.path)
            query = _fields(parts.query)
            form = _fields(body.decode("ascii"))
        except ValueError:
            raise RequestError(400, "The request is malformed.") from None
        if method == "POST":
            given = form.pop(TOKEN, "").encode()
            if not hmac.compare_digest(given, self.server.site.token.encode()):
                raise RequestError(403, "This form is not from a page of this server. Load the page again.")
        return Request(method, parts.path, query, form)

    def _check_origin(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].strip().lower() not in self.server.hosts:
            raise RequestError(403, f"This server is {self.server.url} and answers to no other name.")
        origins = [f"http://{host}" for host in self.server.hosts]
        if any(origin.lower() not in origins for origin in self.headers.get_all("Origin") or []):
            raise RequestError(403, "The request comes from another site.")

    def _body(self) -> bytes:
        if self.headers.get_all("Transfer-Encoding"):
            raise RequestError(400, "The request's length is not given.")
        lengths = self.headers.get_all("Content-Length") or []
        if len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,18}", lengths[0].strip(), re.ASCII):
            raise RequestError(400, "The request's length is not given.")
        length = int(lengths[0])
        if length > MOST_BYTES:
            self.rfile.read(min(length, _DRAINED))
            raise RequestError(413, f"A form may have {MOST_BYTES} bytes.")
        body = self.rfile.read(length)
        if len(body) < length:
            raise RequestError(400, "The request is cut off.")
        if self.headers.get_content_type() != "application/x-www-form-urlencoded":
            raise RequestError(415, "Only forms are understood.")
        return body

    def _send(self, response: Response) -> None:
        body = response.body.encode("utf-8", errors="replace")
        self.send_response(response.status)
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": (response.policy or content_security_policy()) + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        if response.location is not None:
            headers["Location"] = response.location
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args) -> None:
        """Requests are not logged: the terminal is the player's."""


def _fields(text: str) -> dict[str, str]:
    """The fields of a form or a query; ValueError for too many, or for what is not UTF-8."""
    pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    return dict(pairs)


def _problem(status: int, problem: str) -> Response:
    title = HTTPStatus(status).phrase
    return Response(render("problem.html", title=title, problem=problem), status)
