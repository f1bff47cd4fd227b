"""Signals: who handles them when, what they interrupt, and that everything is put back."""

import contextlib
import os
import signal
import threading
from types import SimpleNamespace

import pytest

from progpo_trl import stopping
from progpo_trl.stopping import SIGNALS, StopSignals, TrainingInterrupted


@pytest.fixture(autouse=True)
def _handlers():
    """As in a terminal: CI starts with SIGINT ignored."""
    before = [signal.signal(n, h) for n, h in zip(SIGNALS, (signal.default_int_handler, signal.SIG_DFL), strict=True)]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def handlers():
    return [signal.getsignal(n) for n in SIGNALS]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_interrupts_only_what_can_be_abandoned(number, capfd):
    stop, before = StopSignals(), handlers()
    with stop.handled():
        with stop.abandonable():
            pass
        signal.raise_signal(number)
        assert stop.agree(lambda n: n) == number
        with pytest.raises(TrainingInterrupted, match=signal.Signals(number).name), stop.abandonable():
            pytest.fail("a signal that came before must end it too")
    with stop.handled(), pytest.raises(TrainingInterrupted) as caught, stop.abandonable():
        signal.raise_signal(number)
    assert caught.value.signum == number
    assert handlers() == before
    assert capfd.readouterr().err.count("stopping") == 2


def test_another_process_s_signal_counts_and_is_not_the_first_of_two():
    stop = StopSignals()
    stop.REPEATED = 0.0
    with stop.handled():
        assert stop.agree(lambda mine: max(mine, signal.SIGTERM)) == signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)  # a second one would end this process


@pytest.mark.parametrize(("seconds", "ended"), [(0.0, False), (0.9, False), (1.1, True)])
def test_within_a_second_another_signal_is_the_same_request(monkeypatch, seconds, ended):
    """By a clock of its own, which no busy machine moves on."""

    class Ended(BaseException):
        pass

    def leave(code):
        assert code == 143
        raise Ended

    now = 100.0
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(os, "_exit", leave)
    stop = StopSignals()
    with stop.handled():
        signal.raise_signal(signal.SIGINT)
        now += seconds
        with pytest.raises(Ended) if ended else contextlib.nullcontext():
            signal.raise_signal(signal.SIGTERM)
        assert stop.agree(lambda n: n) == signal.SIGINT


def test_inactive_it_costs_nothing_and_asks_nobody():
    stop = StopSignals()
    assert stop.agree(lambda n: pytest.fail("collective")) == 0
    with stop.abandonable():
        pass


def test_what_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = StopSignals()
    with stop.handled():
        signal.raise_signal(signal.SIGINT)
        assert stop.agree(lambda n: n) == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_are_left_alone():
    stop, before, seen = StopSignals(), handlers(), []

    def work():
        with stop.handled():
            seen.extend([stop.active, handlers() == before])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, True]


def test_a_forked_worker_dies_of_the_signal():
    stop = StopSignals()
    with stop.handled():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
        assert stop.agree(lambda n: n) == 0
