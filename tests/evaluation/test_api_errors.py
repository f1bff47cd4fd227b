"""What endpoints say when they refuse: which run stops, which game is lost, and that no key is told on."""

import json
import logging

import pytest
from endpoint import play
from stub_api import KEY, StubApi, door, in_a_list, numbered, unknown_field, whole

from progpo_trl.evaluation import EvaluationError
from progpo_trl.evaluation.api import ApiModel, ApiSettings
from progpo_trl.evaluation.api_answers import read_answer, read_error, without_key
from progpo_trl.evaluation.api_client import Client
from progpo_trl.evaluation.chat import Completion, Stopped

pytest.importorskip("openai")


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("STUB_KEY", KEY)


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


def test_a_key_is_asked_for_where_there_is_none(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EvaluationError, match="OPENAI_API_KEY"):
        ApiModel(ApiSettings("gpt-4o"))
    ApiModel(ApiSettings("local", "http://127.0.0.1:1/v1"))  # local servers need none


def test_the_key_of_a_provider_is_not_sent_to_whoever_listens(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
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
