"""The server of `progpo play --serve`: whatever it is asked, it answers, escapes what it shows, and goes on."""

import http.client
import json
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urlencode

import numpy as np
import pytest
from play_sites import EVIL, exit_code, hostile_tasks, play_site, serving

from progpo_trl.environments import load_environment
from progpo_trl.environments.webshop.store import build_store, generated_source
from progpo_trl.play.record import EpisodeFile
from progpo_trl.play.site import MOST_EPISODES
from progpo_trl.web.pages import content_security_policy, style
from progpo_trl.web.server import HOST, MOST_BYTES, Response, Site

SENT = EVIL.replace("\ud800", "")  # half a character cannot be sent
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def rooms():
    return load_environment("alfworld_generated")


@pytest.fixture(scope="module")
def server(rooms):
    with serving(play_site(rooms, "--seed", "1", expert=True)) as server:
        yield server


def ask(server, method, path, body=None, headers=None, **fields):
    """(status, headers, text) of a request; fields: of a form, sent with the right token unless they bring one."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=30)
    headers = dict(headers or {})
    if method == "POST" and body is None:
        body = urlencode({"token": server.site.token} | fields, errors="surrogatepass")
    if body is not None:
        headers.setdefault("Content-Type", FORM)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers, text


def begin(server, **fields):
    status, headers, _ = ask(server, "POST", "/start", **fields)
    assert status == 303
    return headers["Location"]


def at(text):
    return re.search(r'name="at" value="(\d+)"', text)[1]


def act(server, path, what="step", **fields):
    """Send a form of the page as it is now; the page after it."""
    page = ask(server, "GET", path)[2]
    status, headers, text = ask(server, "POST", f"{path}/{what}", **({"at": at(page)} | fields))
    assert (status, headers["Location"]) == (303, path), text
    return ask(server, "GET", path)[2]


def status_line(page):
    return " ".join(unescape(re.sub("<[^>]*>", " ", re.search(r'id="status".*?</p>', page, re.S)[0])).split())


def test_an_episode(server):
    first = ask(server, "GET", "/")[2]
    assert "valid_unseen (256)" in first
    path = begin(server, task="easy/valid_unseen/000000")
    page = ask(server, "GET", path)[2]
    assert "put a keychain in sidetable." in page
    assert "0 of at most 12 steps taken" in status_line(page)
    assert re.search(r'<button name="command" value="\d+">go to safe 1</button>', page)
    assert "What would the expert do?" in page
    for n in range(1, 13):
        hinted = ask(server, "GET", f"{path}?hint=1")[2]
        command = re.search(r"The expert: <code>(.*?)</code>", hinted)[1]
        page = act(server, path, action=command)
        if "What would" not in page:
            break
        assert f"{n} of at most 12" in status_line(page)
    assert re.search(r"success after \d+ steps?, return 10", status_line(page))
    assert "reward 10" in page
    assert ask(server, "POST", f"{path}/step", at=at(page), action="look")[0] == 400
    page = act(server, path, "undo")
    assert f"{n - 1} of at most 12" in status_line(page)
    page = act(server, path, "restart")
    assert "0 of at most" in status_line(page)
    page = act(server, path, action="sing")
    assert "not one of the commands" in page
    assert "Nothing happens." in page


def test_a_shop_is_bought_from():
    tasks = load_environment("webshop_generated", products=100)
    with serving(play_site(tasks, expert=True)) as server:
        path = begin(server, task=tasks.task_ids("dev")[0])
        page = act(server, path, query="  [classic]  ]things[ ")
        assert "search[classic things]" in page
        assert "Page 1 of" in page
        page = act(server, path, "undo")
        for _ in range(15):
            hinted = ask(server, "GET", f"{path}?hint=1")[2]
            command = unescape(re.search(r"The expert: <code>(.*?)</code>", hinted)[1])
            searched = re.fullmatch(r"search\[(.*)\]", command)
            page = act(server, path, **({"query": searched[1]} if searched else {"action": command}))
            if "Bought" in page:
                break
        assert re.search(r"success after \d+ steps, return 10, score 1", status_line(page))
        assert "<dt>r type</dt><dd>1</dd>" in page
        page = act(server, path, "undo")
        assert page.count('class="option" aria-pressed="true"') == page.count("<fieldset><legend>")
        status, _, page = ask(server, "POST", f"{path}/step", at=at(page), query=" [] ")
        assert status == 400
        assert "a search needs words" in page
        page = act(server, path, action=f"click[{'x' * 900}]")
        assert "click[x" in page


class Tags(HTMLParser):
    """All tags and attribute names of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_text_of_environments_is_escaped():
    with serving(play_site(hostile_tasks(), show_prompt=True)) as server:
        path = begin(server, task=f"task-{SENT}")
        pages = [ask(server, "GET", "/")[2], ask(server, "GET", path)[2]]
        pages.append(act(server, path, action=f"do {SENT}"))
        pages.append(ask(server, "POST", "/start", task=f"no {SENT}", split=f"no {SENT}")[2])
        pages.append(act(server, path, action="end"))
        pages.append(ask(server, "GET", f"/play/{SENT.translate(_PLAIN)}")[2])
    for page in pages[:-1]:
        assert "&lt;script&gt;alert(" in page
    for page in pages:
        found = Tags(page)
        assert not found.tags & {"script", "img", "iframe", "object"}
        assert not any(name.startswith("on") for name in found.attributes)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", page)


_PLAIN = dict.fromkeys((*range(33), 127), "%20")


def test_headers(server):
    for path, status in (("/", 200), ("/nowhere", 404)):
        got, headers, text = ask(server, "GET", path)
        assert got == status
        policy = headers["Content-Security-Policy"]
        assert policy.startswith(content_security_policy())
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
        assert f"<style>{style()}</style>" in text
        assert not re.search(r"(?:src|href)=\"(?!/|data:,)", text)  # nothing from elsewhere
        status, headers, nothing = ask(server, "HEAD", path)
        assert (status, nothing) == (got, "")


def test_it_listens_to_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    with socket.socket() as other:
        other.settimeout(5)
        assert other.connect_ex(("127.0.0.2", server.server_port)) != 0
    for host, status in {
        f"127.0.0.1:{server.server_port}": 200,
        f"LOCALHOST:{server.server_port}": 200,
        "localhost": 403,
        "127.0.0.1": 403,
        f"rebound.example:{server.server_port}": 403,
        f"127.0.0.1:{server.server_port}.example": 403,
        "": 403,
    }.items():
        assert ask(server, "GET", "/", headers={"Host": host})[0] == status, host


def test_only_its_own_pages_act(server):
    path = begin(server)
    before = ask(server, "GET", path)[2]
    own = {"Origin": server.url}
    form = {"action": "look", "at": at(before)}
    for fields, headers, status in (
        ({"token": ""}, {}, 403),
        ({"token": "wrong"}, {}, 403),
        ({"token": "\u00e9"}, {}, 403),
        ({"token": server.site.token[:-1]}, own, 403),
        ({}, {"Origin": "http://evil.example"}, 403),
        ({}, {"Origin": "null"}, 403),
        ({}, {"Host": "evil.example"}, 403),
        ({}, {"Content-Type": "text/plain"}, 415),
        ({}, {"Content-Type": "application/json"}, 415),
    ):
        assert ask(server, "POST", f"{path}/step", headers=headers, **form | fields)[0] == status, (fields, headers)
    assert ask(server, "POST", f"{path}/step", body=urlencode(form))[0] == 403
    assert ask(server, "GET", f"{path}/step?{urlencode(form | {'token': server.site.token})}")[0] == 405
    assert ask(server, "GET", path)[2] == before
    assert ask(server, "POST", f"{path}/step", headers=own, **form)[0] == 303


def test_what_is_not_there(server):
    path = begin(server)
    for method, where, status in (
        ("GET", "/nothing", 404),
        ("GET", "/play/unknown-one", 404),
        ("POST", "/play/unknown-one/step", 404),
        ("POST", path, 405),
        ("GET", f"{path}/undo", 405),
        ("POST", f"{path}/explode", 404),
        ("GET", "/start", 404),
        ("GET", f"{path}/../..", 404),
        ("GET", "//evil.example", 404),
        ("PUT", "/", 501),
        ("DELETE", path, 501),
    ):
        assert ask(server, method, where)[0] == status, (method, where)
    assert ask(server, "POST", "/start", task="easy/valid_unseen/999999")[0] == 404
    status, _, page = ask(server, "POST", "/start", split="tset")
    assert status == 404
    assert "no split" in page


def raw(server, *parts):
    """What comes back for bytes that are no well-formed request."""
    with socket.create_connection((HOST, server.server_port), timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


def test_malformed_requests_are_refused_and_it_goes_on(server):
    path, here = begin(server), f"Host: 127.0.0.1:{server.server_port}\r\n".encode()
    post = b"POST %s/step HTTP/1.1\r\n" % path.encode() + here
    form = f"Content-Type: {FORM}\r\n".encode()
    token = f"token={server.site.token}".encode()
    for request, status in (
        (b"\x00\xff\xfe\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n" + here + b"\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\n" + here + here + b"\r\n", 403),
        (b"GET http://[::bad/ HTTP/1.1\r\n" + here + b"\r\n", 400),
        (b"GET /?" + b"&".join(b"a=%d" % i for i in range(99)) + b" HTTP/1.1\r\n" + here + b"\r\n", 400),
        (b"GET /?a=%ff HTTP/1.1\r\n" + here + b"\r\n", 400),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + here + b"\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + here + b"A: b\r\n" * 200 + b"\r\n", 431),
        (post + form + b"\r\n", 400),
        (post + form + b"Content-Length: -1\r\n\r\n", 400),
        (post + form + b"Content-Length: 1e3\r\n\r\n", 400),
        (post + form + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nab=cd", 400),
        (post + form + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (post + form + b"Content-Length: 500\r\n\r\n" + token, 400),
        (post + form + b"Content-Length: 9\r\n\r\na=%ff&b=c", 400),
        (post + form + b"Content-Length: 4\r\n\r\na=\xff\xfe", 400),
        (post + form + b"Content-Length: %d\r\n\r\n" % (MOST_BYTES + 1) + b"a" * (MOST_BYTES + 1), 413),
        (post + form + b"Content-Length: 999999999999999999\r\n\r\nab", 413),
        (post + form + b"Content-Length: %d\r\n\r\n" % len(token) + token, 409),
        (b"", None),
    ):
        answer = raw(server, request)
        assert (answer.split(b" ")[1:2] or [None])[0] == (None if status is None else b"%d" % status), request[:200]
    rng = random.Random(0)
    for _ in range(30):
        raw(server, post[: rng.randint(0, len(post))] + rng.randbytes(rng.randint(0, 99)))
    assert ask(server, "GET", path)[0] == 200


def test_a_fault_of_a_site_is_said_and_it_goes_on(caplog):
    class Faulty(Site):
        def respond(self, request):
            return Response(f"fine, {1 / len(request.query)}")

    with serving(Faulty()) as server:
        status, _, page = ask(server, "GET", "/fault")
        assert (status, "fine" in page, "ZeroDivisionError" in page) == (500, False, False)
        assert ask(server, "GET", "/?a=1")[2] == "fine, 1.0"
    assert "GET /fault failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_damaged_files_are_said_and_it_goes_on(tmp_path, caplog):
    store = build_store(generated_source(60), tmp_path / "store")
    path = store / "products.npy"
    tasks = load_environment("webshop_generated", products=60, store=str(store))
    goal = tasks.catalogue.goals[tasks.ids.goal(tasks.task_ids("dev")[0])]
    with serving(play_site(tasks)) as server:
        one = begin(server, task=tasks.task_ids("dev")[0])
        content, ends = bytearray(path.read_bytes()), np.load(store / "product_ends.npy")
        positions = tasks.catalogue.goals.positions
        damaged = set(range(60)) - set(positions[tasks.splits["dev"]].tolist())
        for position in damaged:
            content[128 + int(ends[position]) - 9] ^= 1  # 128 bytes are the file's header
        other = next(task for task in tasks.task_ids("train") if positions[tasks.ids.goal(task)] in damaged)
        path.write_bytes(content)
        tasks.catalogue.products._kept.cache_clear()
        for where, fields in ((f"{one}/step", {"at": "0", "query": goal.instruction}), ("/start", {"task": other})):
            status, _, page = ask(server, "POST", where, **fields)
            assert status == 500
            assert re.search(r"files are damaged: .*products.npy, record \d+: is damaged", page)
        assert ask(server, "GET", "/")[0] == 200
    assert caplog.text == ""


def test_fields_of_forms_that_are_wrong(server):
    path = begin(server)
    for fields in ({}, {"at": "0"}, {"at": "0", "action": ""}, {"at": "x", "action": "look"}, {"at": "-1"}):
        assert ask(server, "POST", f"{path}/step", **fields)[0] in (400, 409), fields
    page = ask(server, "GET", path)[2]
    assert "0 of at most" in status_line(page)
    page = act(server, path, action="\u4e2d\ud800 \x00\x1b".encode("utf-8", "replace").decode())
    assert "1 of at most" in status_line(page)


def test_tabs_do_not_disturb_one_another(server):
    one, two = begin(server, task="easy/valid_unseen/000000"), begin(server, task="easy/valid_unseen/000000")
    assert one != two
    old = ask(server, "GET", one)[2]
    act(server, one, action="go to safe 1")
    assert "0 of at most" in status_line(ask(server, "GET", two)[2])
    # A second tab of the same episode: what was not seen is not acted on.
    status, _, page = ask(server, "POST", f"{one}/step", at=at(old), action="look")
    assert status == 409
    assert "went on elsewhere" in page
    assert "1 of at most" in status_line(page)
    act(server, one, "undo")
    assert ask(server, "POST", f"{one}/undo", at=at(old))[0] == 409  # as many steps as it knew, but another state


def test_the_oldest_episode_gives_way_and_is_saved(rooms, tmp_path):
    path = tmp_path / "played.jsonl"
    site = play_site(rooms, file=EpisodeFile(path))
    with serving(site) as server:
        first, second = begin(server), begin(server)
        act(server, first, action="look")
        act(server, second, action="inventory")
        assert path.read_text() == ""
        for _ in range(MOST_EPISODES - 1):
            begin(server)
        assert ask(server, "GET", first)[0] == 404
        assert ask(server, "GET", second)[0] == 200
        while "What would" not in (page := act(server, second, action="look")) and 'name="action"' in page:
            pass
        act(server, second, "undo")
        act(server, second, action="look")  # the same end: saved once
    site.close()
    actions = [[s["action"] for s in json.loads(line)["steps"]] for line in path.read_text().splitlines()]
    assert actions == [["look"], ["inventory"] + ["look"] * 11]


def test_the_command_serves_until_ctrl_c(tmp_path):
    words = [sys.executable, "-m", "progpo_trl", "play", "alfworld_generated", "--serve", "--port", "0"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, words)
    said = b""
    while b"\n" not in said:
        said += os.read(terminal, 4096)
    port, path = re.search(rb"http://127\.0\.0\.1:(\d+)(/play/\S+) ", said).groups()
    connection = http.client.HTTPConnection(HOST, int(port), timeout=30)
    connection.request("GET", path.decode())
    assert connection.getresponse().status == 200
    taken = subprocess.run([*words[:-1], port.decode()], capture_output=True, text=True, timeout=240, check=False)
    assert taken.returncode == 2
    assert re.fullmatch(r"progpo play: error: port \d+ cannot be used: .*--port 0 takes a free one\n", taken.stderr)
    os.kill(pid, signal.SIGINT)
    assert exit_code(pid) == 0
    assert os.read(terminal, 4096).split() == [b"Stopped."]
    os.close(terminal)
