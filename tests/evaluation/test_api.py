"""An endpoint may do what it likes: the run ends, what happened is counted, nothing secret is written."""

import json
import threading
import time

import pytest
from endpoint import notes, play
from stub_api import KEY, StubApi, door, whole

from progpo_trl.evaluation import EvaluationError
from progpo_trl.evaluation.api import ApiSettings
from progpo_trl.evaluation.api_answers import read_answer, read_error
from progpo_trl.evaluation.call_log import CallLog
from progpo_trl.evaluation.chat import MAX_CHARACTERS, Call, Stopped

pytest.importorskip("openai")


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("STUB_KEY", KEY)


def test_a_run_and_what_it_is_counted_as(tmp_path):
    with StubApi(door) as stub:
        content = play(stub, folder=tmp_path, price_in=2.0, price_out=8.0, temperatures=(0.4,))
    assert [g["success"] for g in content["games"]] == [True] * 3
    assert [g["steps"] for g in content["games"]] == [1] * 3
    assert [g["tokens"] for g in content["games"]] == [10] * 3
    assert notes(content) == [{"calls": 1, "prompt_tokens": 100, "completion_tokens": 10, "served_by": ["stub-1"]}] * 3
    totals = content["totals"]
    assert totals["calls"] == 3
    assert (totals["prompt_tokens"], totals["completion_tokens"]) == (300, 30)
    assert totals["cost"] == pytest.approx((300 * 2 + 30 * 8) / 1e6)
    chat = content["agent"]["chat"]
    assert (chat["model"], chat["host"]) == ("stub", stub.url.split("/")[2])
    assert content["agent"]["style"] == "prompt"
    body = stub.requests[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("stub", 0.4, 512)
    assert len({body["seed"] for body in stub.requests}) == 3
    assert stub.headers[0]["authorization"] == f"Bearer {KEY}"
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in written} == {"evaluation.json", "episodes.jsonl", "calls.jsonl"}
    assert not any(KEY.encode() in path.read_bytes() for path in written)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (("status", 429), "rate_limited"),
        (("status", 429, "slow down", None, [("Retry-After", "0.05")]), "rate_limited"),
        (("status", 500), "server_error"),
        (("status", 529), "server_error"),
        (("status", 408), "timeout"),
        ("drop", "connection"),
        ("half", "connection"),
        (("raw", json.dumps(whole("x"))[:50]), "bad_json"),
        (("raw", ""), "bad_json"),
        (("raw", b"\xff\xfe"), "bad_json"),
        (("raw", "[" * 100_000), "bad_json"),
        (("raw", "<html>busy</html>", "text/html"), "content_type"),
        (("raw", "{}"), "no_answer"),
        (("raw", '{"choices": []}'), "no_answer"),
        (("raw", '{"error": {"message": "overloaded"}}'), "no_answer"),
        (("raw", '{"choices": [{"message": {"content": 5}}]}'), "no_answer"),
    ],
)
def test_faults_are_tried_again_and_counted(fault, kind):
    with StubApi(door, [None, fault, fault]) as stub:
        content = play(stub)
    assert [g["success"] for g in content["games"]] == [True] * 3
    assert [n.get("failures") for n in notes(content)] == [None, {kind: 2}, None]
    assert content["totals"]["failures"] == {kind: 2}
    assert len(stub.requests) == 5


@pytest.mark.parametrize("fault", ["slow", "drip"])
def test_an_answer_that_does_not_end_is_given_up(fault):
    """On a busy machine a good answer may be late too; it is counted and asked for again like the others."""
    with StubApi(door, [None, (fault, 120), (fault, 120)]) as stub:
        began = time.monotonic()
        content = play(stub, timeout=0.5)
        assert time.monotonic() - began < 100, "nobody waits for the end of such an answer"
    assert [g["success"] for g in content["games"]] == [True] * 3
    failures = content["totals"]["failures"]
    assert set(failures) == {"timeout"}
    assert failures["timeout"] >= 2
    assert len(stub.requests) == 3 + failures["timeout"]


def test_answers_without_an_action_lose_a_step_not_the_run():
    answers = iter([
        whole("", refusal="I cannot help with that."),
        whole(None),
        whole("open 0", usage=False),
        whole("x" * 10_000_000),
        whole("\x00\x1b[31m\ud800 <action>open 1</action>"),
        whole([{"type": "text", "text": "open "}, {"type": "text", "text": "1"}]),
    ])  # fmt: skip
    with StubApi(lambda messages, body: next(answers)) as stub:
        content = play(stub, 2)
    first, second = notes(content)
    assert [g["success"] for g in content["games"]] == [True, True]
    assert (first["refused"], first["empty"], first["calls_without_usage"]) == (1, 1, 1)
    assert content["games"][0]["format_invalid"] == 2
    assert (second["truncated"], content["games"][1]["steps"]) == (1, 3)
    assert content["totals"]["calls"] == 6


def test_an_endpoint_that_gives_up_loses_no_game_to_the_model():
    down = [("status", 503)] * 2
    with StubApi(door, [None, *down, *[None] * 3, *down]) as stub:
        # the second game is lost, and again after all others; there is no other attempt
        content = play(stub, 5, retries=1)
    lost = content["games"][1]
    assert (lost["stop_reason"], lost["success"], lost["steps"]) == ("environment_error", False, 0)
    assert "HTTP 503" in lost["error"]
    assert content["results"][0]["lost"] == 1
    assert content["results"][0]["success"]["rate"] == 1.0


def test_a_lost_game_is_played_again_without_asking_twice():
    def open_late(messages, body):
        return "look" if len(stub.requests) == 1 else door(messages, body)

    with StubApi(open_late, [None, ("status", 503), ("status", 503)]) as stub:
        content = play(stub, 1, retries=1)
    assert content["games"][0]["success"]
    assert content["games"][0]["steps"] == 2
    assert len(stub.requests) == 4  # look, two failures, open: the first answer was kept
    assert content["games"][0]["notes"]["failures"] == {"server_error": 2}


def test_a_dead_endpoint_stops_the_run():
    with StubApi(door, [("status", 503)] * 100) as stub, pytest.raises(Stopped, match="5 calls in a row"):
        play(stub, 30, retries=0)
    assert len(stub.requests) == 5


def test_top_p_is_sent_and_kept_with_the_results():
    with StubApi(door) as stub:
        content = play(stub, 1, top_p=0.3)
        assert stub.requests[0]["top_p"] == 0.3
        assert content["agent"]["chat"]["top_p"] == 0.3
        assert "top_p" not in play(stub, 1)["agent"]["chat"]
        play(stub, 1, top_p=0.3, extra={"top_p": None})
    assert not any("top_p" in body for body in stub.requests[1:])


def test_temperature_and_other_fields_can_be_taken_out():
    extra = {"temperature": None, "max_tokens": None, "max_completion_tokens": 9, "seed": None}
    with StubApi(door) as stub:
        content = play(stub, 1, extra=extra, temperatures=(0.4, 0.0))
    assert set(stub.requests[0]) == {"model", "messages", "max_completion_tokens"}
    assert [g["temperature"] for g in content["games"]] == [None]


def test_calls_are_made_beside_each_other_but_not_too_many():
    barrier = threading.Barrier(3, timeout=60)

    def wait(messages, body):
        barrier.wait()
        return door(messages, body)

    with StubApi(wait) as stub:
        content = play(stub, 6, concurrency=3)
    assert all(g["success"] for g in content["games"])


def test_a_second_run_on_the_same_folder_is_refused(tmp_path):
    log, other = CallLog(tmp_path / "calls.jsonl"), CallLog(tmp_path / "calls.jsonl")
    log.open()
    with pytest.raises(EvaluationError, match="another evaluation"):
        other.open()
    log.close()
    other.open()
    other.close()


def test_a_damaged_log_gives_what_is_whole_in_it(tmp_path):
    with StubApi(door) as stub:
        play(stub, 3, tmp_path)
        path = tmp_path / "calls.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(lines[0] + b'[1]\n{"call": {}}\n\xff\n' + lines[1] + lines[2][:50])
        (tmp_path / "episodes.jsonl").unlink()
        play(stub, 3, tmp_path, resume=True)
    assert len(stub.requests) == 4  # the third was paid for twice: half its line was lost
    log = CallLog(path)
    log.open()
    assert log.requests == 3
    log.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "http://user:hunter2@host/v1"}, "no user, password"),
        ({"base_url": "http://host/v1?key=hunter2"}, "no user, password"),
        ({"base_url": "ftp://host"}, "must be like"),
        ({"base_url": "http://host:99999/v1"}, "must be like"),
        ({"key_variable": "sk-hunter2"}, "not the key itself"),
        ({"extra": {"temperature": 1}}, "can only take temperature out"),
        ({"extra": {"seed": 5}}, "can only take seed out"),
        ({"extra": {"max_tokens": 5}}, "--max_completion_length"),
        ({"top_p": 0.5, "extra": {"top_p": 0.4}}, "given twice"),
        ({"top_p": 0}, "top_p"),
        ({"max_cost": 1.0}, "needs prices"),
        ({"price_in": 1.0}, "both prices"),
        ({"price_in": float("nan"), "price_out": 1.0}, "price_in"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": 0}, "timeout"),
        ({"retries": -1}, "retries"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(EvaluationError, match=message) as caught:
        ApiSettings("m", **options)
    assert "hunter2" not in str(caught.value)


def test_hostile_texts_are_bounded_and_printable():
    found = read_answer(json.dumps(whole("y" * 300_000)).encode(), "")
    assert (len(found.text), found.truncated) == (MAX_CHARACTERS, True)
    found = read_error(500, {"error": {"message": "a\x1b[31m\n\n" + "b" * 10_000}}, None)
    assert found.detail.isprintable()
    assert len(found.detail) < 400
    for body in (None, [], "text", {"error": None}, {"error": "text"}, {"error": {"message": {}}}, {"detail": 3}):
        assert read_error(418, body, None).kind == "rejected"


def test_calls_have_seeds_of_their_own():
    calls = [Call("s", t, seed, "g", trial, turn) for t in (0.0, 1.0) for seed in (0, 1) for trial in (1, 2)
             for turn in (1, 2)]  # fmt: skip
    assert len({call.stream() for call in calls}) == 8  # the temperature draws nothing
    assert all(0 <= call.stream() < 2**31 for call in calls)
