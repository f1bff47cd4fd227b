"""Rates, budgets and waits of an endpoint: what may be asked, and what it may have cost."""

import json
import time

import pytest
from endpoint import calls, play
from stub_api import KEY, StubApi, door, whole

from progpo_trl.evaluation.api_answers import read_answer
from progpo_trl.evaluation.api_limits import Bucket, Budget, backoff, retry_after
from progpo_trl.evaluation.call_log import CallLog
from progpo_trl.evaluation.chat import Stopped

pytest.importorskip("openai")


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("STUB_KEY", KEY)


def test_retry_after_is_waited_for():
    with StubApi(door, [("status", 429, "slow down", None, [("Retry-After", "0.3")])]) as stub:
        began = time.monotonic()
        play(stub, 1)
        assert time.monotonic() - began > 0.3


def test_a_body_without_end_is_not_read_to_it_and_counts_at_its_most(monkeypatch, tmp_path):
    monkeypatch.setattr("progpo_trl.evaluation.api_client.MAX_BYTES", 200_000)
    # little beyond the limit: a socket takes that up, so that the stub can send it all
    answers = iter([whole("x" * 210_000), whole("open 0")])
    with StubApi(lambda messages, body: next(answers)) as stub:
        content = play(stub, 1, tmp_path, price_in=0, price_out=1000)
    assert (content["games"][0]["success"], content["totals"]["truncated"]) == (True, 1)
    assert [line["charged"][1] for line in calls(tmp_path)] == [512, 10]


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
