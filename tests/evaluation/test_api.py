"""An endpoint may do what it likes: the run ends, what happened is counted, nothing secret is written."""

import json
import logging
import threading
import time

import pytest
from stub_api import KEY, StubApi, door, in_a_list, numbered, unknown_field, whole
from worlds import doors

from progpo_trl.evaluation import EvaluationError, evaluate
from progpo_trl.evaluation.api import ApiModel, ApiSettings
from progpo_trl.evaluation.api_answers import read_answer, read_error, without_key
from progpo_trl.evaluation.api_client import Client
from progpo_trl.evaluation.api_limits import Bucket, Budget, backoff, retry_after
from progpo_trl.evaluation.call_log import CallLog
from progpo_trl.evaluation.chat import MAX_CHARACTERS, Call, Completion, Stopped
from progpo_trl.evaluation.prompted import PromptAgent

pytest.importorskip("openai")


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("STUB_KEY", KEY)


def agent(stub, folder=None, **options):
    options = {"concurrency": 1, "longest_backoff": 0.01, "timeout": 10, "key_variable": "STUB_KEY", **options}
    log = CallLog(None if folder is None else folder / "calls.jsonl")
    return PromptAgent(ApiModel(ApiSettings("stub", stub.url, **options), log))


def play(stub, n=3, folder=None, temperatures=(0.0,), resume=False, **options):
    player = agent(stub, folder, **options)
    return evaluate(player, doors(n), temperatures=temperatures, out=folder, progress=False, resume=resume)


def notes(content):
    return [game["notes"] for game in content["games"]]


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


def test_retry_after_is_waited_for():
    with StubApi(door, [("status", 429, "slow down", None, [("Retry-After", "0.3")])]) as stub:
        began = time.monotonic()
        play(stub, 1)
        assert time.monotonic() - began > 0.3


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


def test_a_body_without_end_is_not_read_to_it_and_counts_at_its_most(monkeypatch, tmp_path):
    monkeypatch.setattr("progpo_trl.evaluation.api_client.MAX_BYTES", 200_000)
    # little beyond the limit: a socket takes that up, so that the stub can send it all
    answers = iter([whole("x" * 210_000), whole("open 0")])
    with StubApi(lambda messages, body: next(answers)) as stub:
        content = play(stub, 1, tmp_path, price_in=0, price_out=1000)
    assert (content["games"][0]["success"], content["totals"]["truncated"]) == (True, 1)
    assert [line["charged"][1] for line in calls(tmp_path)] == [512, 10]


def calls(folder):
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]


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


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (("echo_key", 401), "key in STUB_KEY is not accepted"),
        (("status", 404, "no such model"), "no model 'stub'"),
        (("status", 402), "nothing left"),
        (("status", 429, "quota", "insufficient_quota"), "nothing left"),
        (("status", 400, "unknown field seed"), "api-extra"),
        (("error", 400, unknown_field("safety_settings")), "Unknown name .safety_settings.*api-extra"),
        (("status", 400, "unknown field content_filter"), "unknown field content_filter; "),
        (("error", 400, numbered("max_tokens is too large: 8192", "invalid_request_error")), "max_completion_length"),
        (("error", 400, in_a_list("API key not valid. Please pass a valid API key.")), "key in STUB_KEY is not acc"),
        (("status", 400, "Your credit balance is too low to access the API."), "nothing left"),
        (("status", 429, "tomorrow", None, [("Retry-After", "86400")]), "asks to wait 86400 seconds"),
    ],
)
def test_what_no_retry_mends_stops_the_run_at_once(fault, message, caplog):
    with StubApi(door, [fault]) as stub, pytest.raises(Stopped, match=message) as caught:
        play(stub)
    assert len(stub.requests) == 1
    assert KEY not in str(caught.value)
    assert KEY not in caplog.text


def test_the_key_is_in_no_message_and_no_log(caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    faults = [("echo_key", 500)] * 3
    with StubApi(door, faults) as stub:
        content = play(stub, 2, retries=1, folder=tmp_path)
    assert content["totals"]["failures"] == {"server_error": 3}
    assert "***" in caplog.text
    assert KEY not in caplog.text
    assert not any(KEY in path.read_text() for path in tmp_path.iterdir())


def test_a_key_at_the_place_of_a_cut_is_not_left_in_part(caplog, tmp_path):
    """Messages are cut at 300 characters; servers cut what they repeat, too."""
    at_the_cut = ("status", 500, "x" * 285 + " " + KEY)
    bad = ("status", 400, "x" * 285 + KEY)
    cut_by_the_server = ("status", 500, f"no access for {KEY[:12]}... here")
    in_the_type = ("raw", "no", f"text/{KEY}")
    with StubApi(door, [None, at_the_cut, cut_by_the_server, in_the_type, bad, None, None, None, bad]) as stub:
        content = play(stub, 5, tmp_path)
    assert content["games"][1]["stop_reason"] == "environment_error"
    assert content["totals"]["failures"] == {}
    written = caplog.text + "".join(path.read_text() for path in tmp_path.iterdir())
    assert written.count("***") >= 4
    assert KEY[:8] not in written


def test_a_key_that_comes_back_as_an_answer_is_struck_out(tmp_path):
    with StubApi(lambda messages, body: {**whole(f"open 0 {KEY}"), "model": f"proxy {KEY}"}) as stub:
        content = play(stub, 1, tmp_path)
    assert content["totals"]["served_by"] == ["proxy ***"]
    assert not any(KEY[:8] in path.read_text() for path in tmp_path.iterdir())
    # a word that a local server takes for a key is one that a model may say
    assert read_answer(json.dumps(whole("go to EMPTY")).encode(), "", "EMPTY").text == "go to EMPTY"


def test_one_rejected_request_loses_its_game_alone():
    bad = ("status", 400, "cannot read this")
    with StubApi(door, [None, bad, *[None] * 3, bad]) as stub:
        content = play(stub, 5)
    assert [g["stop_reason"] for g in content["games"]] == ["success", "environment_error", *["success"] * 3]


def test_a_content_filter_is_a_refusal():
    with StubApi(door, [("status", 400, "filtered", "content_filter")]) as stub:
        content = play(stub, 1)
    assert (content["games"][0]["steps"], content["totals"]["refused"]) == (2, 1)


TOO_LONG = [
    (400, {"error": {"message": "too long", "code": "context_length_exceeded", "type": "invalid_request_error"}}),
    (400, numbered("the request exceeds the available context size, try increasing it", "exceed_context_size_error")),
    (400, numbered("no words", "exceed_context_size_error")),
    (400, {"type": "error", "error": {"type": "x", "message": "prompt is too long: 205000 tokens > 200000 maximum"}}),
    (400, in_a_list("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")),
    (400, numbered("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", "BadRequest")),
    (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}),
    (400, {"error": {"code": "invalid_parameter_error", "message": "Range of input length should be [1, 30720]"}}),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens.", "code": 400}),
    (400, {"message": "The input (9 tokens) is longer than the model's context length (8 tokens).", "code": 400}),
    (413, "too large"),
]
FILTERED = [
    (400, {"error": {"message": "no", "code": "content_filter", "status": 400}}),
    (400, {"error": {"message": "no", "code": 1, "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
    (400, {"error": {"message": "The response was filtered due to the prompt triggering a policy.", "code": None}}),
    (400, {"error": {"message": "Your request was rejected as a result of our safety system.", "type": "x"}}),
    (400, {"error": {"message": "Output blocked by content filtering policy", "type": "invalid_request_error"}}),
    (400, {"error": {"message": "Input data may contain inappropriate content.", "code": "DataInspectionFailed"}}),
    (403, {"error": {"message": "This model requires moderation; your input was flagged", "code": 403}}),
]
OTHER = [
    ("key", 400, in_a_list("API key not valid. Please pass a valid API key.")),
    ("key", 400, [{"error": {"code": 400, "message": "x", "details": [{"reason": "API_KEY_INVALID"}]}}]),
    ("key", 403, {"error": {"message": "no", "code": 403}}),
    ("quota", 429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}),
    ("quota", 429, {"error": {"message": "x", "type": "insufficient_quota", "code": 429}}),
    ("quota", 400, {"error": {"message": "Access denied", "code": "Arrearage"}}),
    ("rate_limited", 429, in_a_list("Resource has been exhausted (e.g. check quota).", "RESOURCE_EXHAUSTED")),
    ("rejected", 400, unknown_field("safety_settings")),
    ("rejected", 400, {"error": {"message": "Unrecognized request argument supplied: safety_identifier"}}),
    ("rejected", 400, {"error": {"message": "unknown field context_length"}}),
    ("rejected", 400, {"error": {"message": "unknown field content_filter", "code": 400}}),
    ("rejected", 400, numbered("max_tokens is too large: 100000", "invalid_request_error")),
    ("rejected", 400, [{"error": {"message": "a"}}, {"error": {"message": "b"}}]),
]


@pytest.mark.parametrize(
    ("kind", "status", "body"),
    [("context", *one) for one in TOO_LONG] + [("refused", *one) for one in FILTERED] + OTHER,
)
def test_what_real_servers_say(kind, status, body):
    """Messages as their projects and providers write them, as far as they are public."""
    found = read_error(status, body, None)
    assert ("refused" if isinstance(found, Completion) and found.refused else found.kind) == kind
    if kind == "rejected" and isinstance(body, dict):
        assert body["error"]["message"] in found.detail


@pytest.mark.parametrize("concurrency", [1, 4])
def test_settings_under_which_no_game_can_begin_stop_the_run(concurrency, tmp_path):
    said = "This model's maximum context length is 4096 tokens. However, you requested 8700 tokens."
    with StubApi(door, [("error", 400, numbered(said, "BadRequestError"))] * 100) as stub:
        with pytest.raises(Stopped, match=r"no game can begin.*512 tokens \(HTTP 400.*--max_completion_length"):
            play(stub, 30, tmp_path, concurrency=concurrency)
        assert len(stub.requests) <= 3 * concurrency
        # nothing of it is kept: with the server set right, the same command goes on
        stub.faults.clear()
        content = play(stub, 30, tmp_path, concurrency=concurrency, resume=True)
    assert content["results"][0]["success"]["rate"] == 1.0
    assert content["games_kept_from_before"] == 0


def test_a_game_that_is_too_long_for_the_model_is_one_where_others_are_not():
    long = ("status", 400, "too long", "context_length_exceeded")
    with StubApi(door, [long, None, long]) as stub:
        content = play(stub, 3)
    assert [g["stop_reason"] for g in content["games"]] == ["context_limit", "success", "context_limit"]
    assert content["results"][0]["context_limit"] == pytest.approx(2 / 3)


def test_a_context_that_is_full_drops_history_then_ends_the_episode():
    long = ("status", 400, "too long", "context_length_exceeded")

    def look(messages, body):
        return "look"

    with StubApi(look, [None, None, long, None, long, long]) as stub:
        content = play(stub, 1)
    game = content["games"][0]
    # the third turn goes through with less history, the fourth does not even without
    assert (game["stop_reason"], game["steps"]) == ("context_limit", 3)
    assert game["notes"]["ended"]["turn"] == 4
    assert len(stub.requests) == 6


def test_a_budget_of_requests_stops_and_is_gone_on_with(tmp_path):
    with StubApi(door, [("status", 500)]) as stub:
        with pytest.raises(Stopped, match="--max-requests is 3"):
            play(stub, 4, tmp_path, max_requests=3)
        assert len(stub.requests) == 3
        with pytest.raises(Stopped, match="3 requests were made"):
            play(stub, 4, tmp_path, max_requests=3, resume=True)
        content = play(stub, 4, tmp_path, max_requests=5, resume=True)
    assert len(stub.requests) == 5
    assert content["totals"]["calls"] == 4
    assert sum(stub.answered.values()) == 4


def test_a_budget_of_money_is_not_exceeded(tmp_path):
    def dear(messages, body):
        return {**whole("look"), "usage": {"prompt_tokens": 10, "completion_tokens": 512}}

    with StubApi(dear) as stub, pytest.raises(Stopped, match="--max-cost 3"):
        play(stub, 4, tmp_path, price_in=0, price_out=1000, max_cost=3, concurrency=4)
    spent = sum(line["completion_tokens"] for line in calls(tmp_path))
    assert spent * 1000 / 1e6 <= 3
    assert len(stub.requests) == 5  # 0.512 each


def test_what_may_be_billed_without_an_answer_counts_towards_the_limit(tmp_path):
    """0.512 a call at most: two broken answers and a dropped one leave room for one more of four."""
    broken = [("raw", "{"), ("raw", "{}"), "half", ("status", 500)]
    with StubApi(door, broken) as stub:
        with pytest.raises(Stopped, match=r"1\.5360 is spent and the next call may cost 0\.5120"):
            play(stub, 1, tmp_path, price_in=0, price_out=1000, max_cost=2)
        # the 500 says that there was no answer
        assert [line["charged"][1] for line in calls(tmp_path)] == [512] * 3
        content = play(stub, 1, tmp_path, price_in=0, price_out=1000, max_cost=3, resume=True)
    assert [line["charged"][1] for line in calls(tmp_path)] == [512] * 3 + [0, 10]
    assert content["totals"]["cost"] == pytest.approx(0.01)


def test_nothing_is_charged_where_nobody_listens(tmp_path):
    with StubApi(door) as stub:
        pass
    with pytest.raises(Stopped):
        play(stub, 5, tmp_path, retries=0, price_in=0, price_out=1000)
    assert {(line["failed"], *line["charged"]) for line in calls(tmp_path)} == {("connection", 0, 0)}


def test_an_older_log_of_failures_is_read(tmp_path):
    with StubApi(door, [("status", 500)]) as stub:
        play(stub, 1, tmp_path)
    path = tmp_path / "calls.jsonl"
    old = [{k: v for k, v in line.items() if "failed" not in line or k != "charged"} for line in calls(tmp_path)]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    log = CallLog(path)
    log.open()
    assert (log.requests, log.completion_tokens) == (2, 10)
    log.close()


def test_an_answer_may_be_as_long_as_the_other_name_of_the_limit_says(tmp_path):
    extra = {"max_tokens": None, "max_completion_tokens": 2000}
    with StubApi(door) as stub, pytest.raises(Stopped, match="may cost 2.0000"):
        play(stub, 1, tmp_path, extra=extra, price_in=0, price_out=1000, max_cost=1)


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


def test_a_key_is_asked_for_where_there_is_none(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EvaluationError, match="OPENAI_API_KEY"):
        ApiModel(ApiSettings("gpt-4o"))
    ApiModel(ApiSettings("local", "http://127.0.0.1:1/v1"))  # local servers need none


def test_the_key_of_a_provider_is_not_sent_to_whoever_listens(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with StubApi(door) as stub:
        play(stub, 1, key_variable=None)
        assert stub.headers[0]["authorization"] == "Bearer none"
        play(stub, 1, key_variable="OPENAI_API_KEY")  # named, so it is meant
        assert stub.headers[1]["authorization"] == f"Bearer {KEY}"
        stub.faults.append(("status", 401))
        with pytest.raises(Stopped, match="goes over https alone unless you say --api-key-env OPENAI_API_KEY"):
            play(stub, 1, key_variable=None)
    for url in (None, "https://example.org/v1"):
        assert Client(url, None, 1.0)._openai.api_key == KEY
    with pytest.raises(EvaluationError, match="set the environment variable NOT_THERE"):
        Client("http://127.0.0.1:1/v1", "NOT_THERE", 1.0)


def test_the_rate_of_requests_and_tokens():
    now = [0.0]
    bucket = Bucket(60, lambda: now[0])  # one a second, six at once
    assert [bucket.take(1) for _ in range(6)] == [0.0] * 6
    assert bucket.take(1) == pytest.approx(1.0)
    now[0] += 1.0
    assert (bucket.take(1), bucket.take(1)) == (0.0, pytest.approx(1.0))
    now[0] += 100.0
    assert bucket.take(30) == 0.0  # more than a burst, when it is full
    assert bucket.take(1) == pytest.approx(25.0)
    bucket.correct(24)
    assert bucket.take(1) == pytest.approx(1.0)
    assert Bucket(None).take(1e9) == 0.0


@pytest.mark.parametrize(
    ("games", "rates", "seconds"),
    [
        # Six go out at once, then one a second.
        (7, {"requests_per_minute": 60}, 1.0),
        # 3,000 tokens at once, then 500 a second; an answer of 110 settles what was set apart for it.
        (30, {"tokens_per_minute": 30_000}, (29 * 110 + 512 - 3_000) / 500),
    ],
)
def test_requests_wait_for_the_rate(games, rates, seconds):
    """Only the shortest time is asserted: a busy machine may always take longer."""
    with StubApi(door) as stub:
        began = time.monotonic()
        play(stub, games, **rates)
        assert time.monotonic() - began > seconds


def test_a_budget_is_reserved_while_calls_are_under_way():
    budget, used = Budget(2, None, 0, 0), lambda: (0, 0, 0)
    settle = budget.reserve(used, 1, 1)
    budget.reserve(used, 1, 1)
    with pytest.raises(Stopped):
        budget.reserve(used, 1, 1)
    settle(lambda: None)
    budget.reserve(used, 1, 1)


def test_backoff_grows_to_a_bound_with_jitter():
    class Most:
        def uniform(self, low, high):
            return high

    assert [backoff(n, 10.0, Most()) for n in (1, 2, 3, 4, 5, 500)] == [1, 2, 4, 8, 10, 10]


def test_retry_after_in_all_its_forms():
    assert retry_after({"retry-after": "2"}) == 2.0
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, lambda: 1445412480 - 7) == 7.0
    assert retry_after({"retry-after": "-5"}) == 0.0
    assert [retry_after({"retry-after": v}) for v in ("soon", "nan", "")] == [None] * 3
    assert retry_after({}) is None


def test_token_counts_that_cannot_be_are_not_told():
    def usage(**counts):
        found = read_answer(json.dumps({**whole("x"), "usage": counts}).encode(), "application/json")
        return found.prompt_tokens, found.completion_tokens

    assert usage(prompt_tokens=5, completion_tokens=2, total_tokens=20) == (5, 15)  # thoughts are paid for too
    assert usage(prompt_tokens=-1, completion_tokens=True) == (None, None)
    assert usage(prompt_tokens=10**30, completion_tokens="7") == (None, None)
    assert usage() == (None, None)


def test_hostile_texts_are_bounded_and_printable():
    found = read_answer(json.dumps(whole("y" * 300_000)).encode(), "")
    assert (len(found.text), found.truncated) == (MAX_CHARACTERS, True)
    found = read_error(500, {"error": {"message": "a\x1b[31m\n\n" + "b" * 10_000}}, None)
    assert found.detail.isprintable()
    assert len(found.detail) < 400
    for body in (None, [], "text", {"error": None}, {"error": "text"}, {"error": {"message": {}}}, {"detail": 3}):
        assert read_error(418, body, None).kind == "rejected"


@pytest.mark.parametrize(
    ("text", "out"),
    [
        (f"a {KEY} b {KEY}", "a *** b ***"),
        (f"a{KEY[:8]}", "a***"),
        (f"{KEY[:12]}!", "***!"),
        (KEY[:7], KEY[:7]),
        (KEY[:8] * 3, "***" * 3),
        ("", ""),
    ],
)
def test_a_key_and_its_beginnings(text, out):
    assert without_key(text, KEY) == out
    assert without_key(text, "") == text


def test_calls_have_seeds_of_their_own():
    calls = [Call("s", t, seed, "g", trial, turn) for t in (0.0, 1.0) for seed in (0, 1) for trial in (1, 2)
             for turn in (1, 2)]  # fmt: skip
    assert len({call.stream() for call in calls}) == 8  # the temperature draws nothing
    assert all(0 <= call.stream() < 2**31 for call in calls)
