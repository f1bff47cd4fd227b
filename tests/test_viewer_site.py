"""`progpo view` as a server and as an exported file, asked without a browser."""

import base64
import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser

import pytest
from play_sites import serving
from viewer_runs import EVIL, episode, opened, step, write, write_run

from progpo_trl.cli import main
from progpo_trl.viewer.export import export
from progpo_trl.viewer.page import page, policy, script
from progpo_trl.viewer.site import LONGEST, MOST_ROWS, ViewSite
from progpo_trl.web.server import HOST


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "run"
    long = "x" * 1_000_000 + "the end"
    write(
        folder,
        episode(task=EVIL, steps=[step(response=EVIL, observation=long)], final_observation=long),
        episode(index=1, group=1, task_id="task-1"),
    )
    with serving(ViewSite(opened(folder))) as server:
        yield server


def ask(server, path, **query):
    """(status, headers, body) of a request."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=30)
    connection.request("GET", path + ("?" + urllib.parse.urlencode(query) if query else ""))
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, response.headers, body


def test_the_page_runs_its_own_script_and_nothing_else(server):
    status, headers, text = ask(server, "/")
    assert status == 200
    given = headers["Content-Security-Policy"]
    assert given == policy(True) + "; frame-ancestors 'none'"
    assert "unsafe" not in given
    assert given.startswith("default-src 'none'; ")
    assert "connect-src 'self'" in given
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert scripts == [script()]
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function"):
        assert forbidden not in script()
    assert "connect-src" not in policy(False)


def test_answers(server):
    status, headers, text = ask(server, "/run.json")
    assert (status, headers.get_content_type()) == (200, "application/json")
    content = json.loads(text)
    assert content["sources"][0]["rows"]["index"] == [0, 1]
    assert content["sources"][0]["instructions"][0] == EVIL[-400:]
    assert "script-src" not in headers["Content-Security-Policy"]
    one, two = json.loads(ask(server, "/episodes.json", source=0, rows="0,1")[2])
    assert one["steps"][0]["response"] == EVIL
    assert one["steps"][0]["observation"] == {"cut": "x" * LONGEST, "length": 1_000_007}
    assert two["task_id"] == "task-1"
    for where in ({"step": 0, "field": "observation"}, {"step": "", "field": "final_observation"}):
        whole = json.loads(ask(server, "/text.json", source=0, row=0, **where)[2])
        assert whole.endswith("xthe end")
        assert len(whole) == 1_000_007
    assert json.loads(ask(server, "/search.json", source=0, q="THE END")[2]) == [0]


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/episodes.json", {"source": 0, "rows": "2"}, 404),
        ("/episodes.json", {"source": 1, "rows": "0"}, 404),
        ("/episodes.json", {"source": -1, "rows": "0"}, 400),
        ("/episodes.json", {"source": 0, "rows": "-1"}, 400),
        ("/episodes.json", {"source": 0}, 400),
        ("/episodes.json", {"source": 0, "rows": ",".join("0" * (MOST_ROWS + 1))}, 400),
        ("/text.json", {"source": 0, "row": 0, "step": 5, "field": "observation"}, 404),
        ("/text.json", {"source": 0, "row": 0, "step": 0, "field": "reward"}, 404),
        ("/text.json", {"source": 0, "row": 0, "field": "__class__"}, 404),
        ("/search.json", {"source": 0, "q": ""}, 400),
        ("/search.json", {"source": 0, "q": "x" * 401}, 400),
        ("/../../etc/passwd", {}, 404),
        ("/favicon.ico", {}, 404),
    ],
)
def test_wrong_requests(server, path, query, status):
    assert ask(server, path, **query)[0] == status


def test_it_is_for_reading_by_this_machine(server):
    form = urllib.parse.urlencode({"token": server.site.token})
    for body, status in ((form, 405), ("", 403)):
        connection = http.client.HTTPConnection(HOST, server.server_port, timeout=30)
        connection.request("POST", "/", body, {"Content-Type": "application/x-www-form-urlencoded"})
        assert connection.getresponse().status == status
        connection.close()
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=30)
    connection.request("GET", "/run.json", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 403
    connection.close()


def test_new_generations_on_reload_and_a_rewritten_file(tmp_path):
    path = write(tmp_path, episode())
    with serving(ViewSite(opened(tmp_path))) as server:
        assert json.loads(ask(server, "/run.json")[2])["sources"][0]["sections"] == [0]
        with open(path, "a") as file:
            file.write(json.dumps(episode(step=1, index=1)) + "\n" + '{"step": 2, "ta')
        content = json.loads(ask(server, "/run.json")[2])
        assert content["sources"][0]["sections"] == [0, 1]
        assert "the last line is not complete yet (15 bytes)" in content["notices"][0]
        write(tmp_path, episode(task_id="another"), episode(index=1, task_id="one"))
        status, _, text = ask(server, "/episodes.json", source=0, rows="0")
        assert (status, "Load it again" in text) == (409, True)
        assert json.loads(ask(server, "/run.json")[2])["sources"][0]["tasks"] == ["another", "one"]
        path.unlink()
        assert ask(server, "/run.json")[0] == 404


# ---- the exported file ---------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """The script elements of a page by their id (None: the one that runs), and its Content-Security-Policy."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.policy, self._open, self._in = {}, None, False, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "script":
            assert set(attributes) <= {"id", "type"}
            self._open, self._in = True, attributes.get("id")
            self.scripts[self._in] = ""
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]

    def handle_endtag(self, tag):
        self._open = False

    def handle_data(self, data):
        if self._open:
            self.scripts[self._in] += data


def contents(path):
    """(the document, {source: {place: record}}, the elements) of an exported file."""
    found = Elements(path.read_text(encoding="utf-8"))
    run = json.loads(found.scripts["run"])
    records = {}
    for number, places in enumerate(run["chunks"]):
        for place, name in places.items():
            unpacked = json.loads(gzip.decompress(base64.b64decode(found.scripts[name])))
            records.setdefault(number, {})[int(place)] = unpacked[place]
    return run, records, found


def test_an_export_holds_everything_and_runs_one_script(tmp_path):
    folder = tmp_path / "run"
    write_run(folder, 3, groups=3, rollouts=4, level="easy", steps=8, evaluated=2)
    with open(folder / "episodes.jsonl", "a") as file:
        file.write(json.dumps(episode(step=3, task_id=EVIL, steps=[step(response=EVIL * 3)])) + "\n")
    out = tmp_path / "run.html"
    assert export(opened(folder), out, max_episodes=1000) == []
    run, records, found = contents(out)
    assert found.policy == policy(False)
    assert found.scripts[None] == script()
    lines = (folder / "episodes.jsonl").read_text().splitlines()
    assert [records[0][i] for i in range(len(lines))] == [json.loads(line) for line in lines]
    assert len(records[1]) == 4
    assert run["notices"] == []
    assert not list(tmp_path.glob(".*"))


def test_a_place_that_cannot_be_written_is_one_line_without_error_numbers(tmp_path, capsys):
    folder = tmp_path / "run"
    write(folder, episode())
    assert main(["view", str(folder), "--export", str(tmp_path / "nowhere" / "x.html")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"progpo view: error: {tmp_path}/nowhere/.x.html.partial: No such file or directory"


def test_what_an_export_leaves_out_is_said(tmp_path):
    folder = tmp_path / "run"
    records = [episode(step=g, group=i // 2, index=i) for g in range(5) for i in range(4)]
    write(folder, *records)
    out = tmp_path / "run.html"
    (said,) = export(opened(folder), out, max_episodes=7)
    assert said == (
        "training: this file holds 6 of 20 episodes, of updates 3 to 4; the learning curves are of all "
        "(--max-episodes 7)."
    )
    run, found, _ = contents(out)
    assert run["notices"] == [said]
    assert [(found[0][i]["step"], found[0][i]["group"]) for i in range(6)] == [(3, 1)] * 2 + [(4, 0)] * 2 + [
        (4, 1)
    ] * 2
    assert run["sources"][0]["total"] == 20
    assert len(run["charts"][0]["x"]) == 5
    assert "6 of 20" in export(opened(folder), out, max_episodes=6, last_generations=2)[0]
    assert "8 of 20" in export(opened(folder), out, max_episodes=99, last_generations=2)[0]
    assert "2 of 20" in export(opened(folder), out, max_episodes=1)[0]


# ---- the command ---------------------------------------------------------------------------------------------------


def test_the_command_exports(tmp_path, capsys):
    write(tmp_path / "run", episode())
    assert main(["view", str(tmp_path / "run"), "--export", str(tmp_path / "out.html")]) == 0
    assert re.search(r"out\.html \(0\.\d MB\)", capsys.readouterr().out)
    assert len(contents(tmp_path / "out.html")[1][0]) == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere"], "nowhere: there is no such file or folder"),
        (["."], "holds no episodes.jsonl"),
        (["run", "--port", "70000"], "--port: expected 0 to 65535, got 70000"),
        (["run", "--export", "."], "is a folder; name a file"),
        (["run", "--export", "no/where.html"], "No such file or directory"),
        (["run", "--max-episodes", "0"], "--max-episodes: expected at least 1"),
        (["run", "--last-generations", "0"], "--last-generations: expected at least 1"),
        (["run", "--evaluation", "gone"], "gone: holds no episodes.jsonl"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, problem):
    write(tmp_path / "run", episode())
    monkeypatch.chdir(tmp_path)
    assert main(["view", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("progpo view: error: ")
    assert problem in err
    assert err.count("\n") == 1


def test_the_command_serves_until_ctrl_c(tmp_path):
    write(tmp_path / "run", episode())
    words = [sys.executable, "-m", "progpo_trl", "view", str(tmp_path / "run"), "--port", "0", "--no-browser"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as process:
        try:
            line = process.stdout.readline()
            port = int(re.fullmatch(rf"run on http://{re.escape(HOST)}:(\d+) \(Ctrl-C ends it\)\n", line)[1])
            connection = http.client.HTTPConnection(HOST, port, timeout=30)
            connection.request("GET", "/run.json")
            assert json.loads(connection.getresponse().read())["name"] == "run"
            connection.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(240) == 0
            assert "Stopped." in process.stdout.read()
        finally:
            process.kill()  # nobody waits for one that does not stop


def test_the_name_of_a_folder_is_escaped():
    assert "<b>" not in page("<b>", exported=True)[0]
