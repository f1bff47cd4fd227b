"""A run that is killed in the middle of an episode goes on without paying for any answer again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stub_api import KEY, StubApi, react_expert

from progpo_trl.environments.alfworld import GeneratedAlfworldTasks
from progpo_trl.evaluation import EvaluationError, evaluate
from progpo_trl.evaluation.api import ApiModel, ApiSettings
from progpo_trl.evaluation.call_log import CallLog
from progpo_trl.evaluation.react import ReactAgent

pytest.importorskip("openai")

RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_api_resume import run
run({url!r}, Path({folder!r}))
"""


def run(url, folder, resume=False):
    os.environ["STUB_KEY"] = KEY
    settings = ApiSettings("stub", url, key_variable="STUB_KEY", concurrency=2, timeout=30)
    agent = ReactAgent(ApiModel(settings, CallLog(folder / "calls.jsonl")))
    return evaluate(
        agent, GeneratedAlfworldTasks(n_eval=6), temperatures=(0.4,), out=folder, resume=resume, progress=False
    )


def test_kill_and_resume(tmp_path):
    with StubApi(react_expert) as stub:
        whole_run = run(stub.url, tmp_path / "whole")
        paid = stub.answered.copy()
    assert all(game["success"] for game in whole_run["games"])
    assert set(paid.values()) == {1}
    assert len(paid) > 20

    folder = tmp_path / "killed"
    with StubApi(react_expert, hold_after=len(paid) // 2) as stub:
        code = RUN.format(here=str(Path(__file__).parent), url=stub.url, folder=str(folder))
        child = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], stderr=subprocess.PIPE)
        try:
            # Both calls under way hang: whatever was answered before has been written.
            deadline = time.monotonic() + 120
            while stub.held < 2 and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert child.poll() is None, child.stderr.read().decode()
            child.send_signal(signal.SIGKILL)
        finally:
            child.kill()
            child.wait()
            child.stderr.close()
        stub.hold_after = None
        stub.release.set()
        assert not (folder / "episodes.jsonl").exists()
        with open(folder / "calls.jsonl", "a") as file:
            file.write('{"call": {"split": "valid_un')  # as a kill within a write would leave it
        with pytest.raises(EvaluationError, match="--resume"):
            run(stub.url, folder)
        resumed = run(stub.url, folder, resume=True)
        # The address is part of a request's hash, and the ports differ; how often each body was answered does not.
        assert set(stub.answered.values()) == {1}
        assert stub.answered == paid
    assert resumed["games"] == whole_run["games"]
    assert resumed["results"] == whole_run["results"]
    assert resumed["totals"] == whole_run["totals"]
    assert episodes(folder) == episodes(tmp_path / "whole")
    assert 0 < resumed["games_kept_from_before"] < 6


def episodes(folder):
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
