"""How fast and how much an endpoint is asked: rates a minute, waits after failures, a budget."""

from __future__ import annotations

import email.utils
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from progpo_trl.evaluation.chat import Stopped

# Providers count in windows shorter than a minute; no more than this share of a minute's amount goes out in a burst.
BURST = 0.1
# Tokens are counted by the provider; before an answer they are guessed from the characters (English has 4 a token).
CHARACTERS_A_TOKEN = 3


# Of `Budget.reserve`.
Settle = Callable[[Callable[[], Any]], Any]


def guess_tokens(characters: int) -> int:
    """Tokens of a text of so many characters, rather too many than too few for English."""
    return characters // CHARACTERS_A_TOKEN + 1


class Bucket:
    """At most `per_minute` units a minute, in small bursts; None is no limit. Safe to use from several threads."""

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic):
        self._rate = None if per_minute is None else per_minute / 60
        self._most = 0.0 if per_minute is None else max(1.0, per_minute * BURST)
        self._there, self._clock, self._then, self._lock = self._most, clock, clock(), threading.Lock()

    def take(self, amount: float) -> float:
        """Take `amount` now and return 0, or return the seconds after which to ask again.

        More than a burst is given when the bucket is full, and waited for afterwards.
        """
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            self._there = min(self._most, self._there + (now - self._then) * self._rate)
            self._then = now
            lacking = min(amount, self._most) - self._there
            if lacking > 1e-9:
                return lacking / self._rate
            self._there -= amount
            return 0.0

    def correct(self, amount: float) -> None:
        """Give back what was taken too much (or, negative, take what was taken too little)."""
        if self._rate is not None:
            with self._lock:
                self._there += amount


class Budget:
    """What an evaluation may use up, in all its runs: requests, and money at the prices given (per million tokens)."""

    def __init__(self, max_requests: int | None, max_cost: float | None, price_in: float, price_out: float):
        self._most_requests, self._most_cost = max_requests, max_cost
        self._in, self._out = price_in / 1e6, price_out / 1e6
        self._requests, self._cost, self._lock = 0, 0.0, threading.Lock()

    def cost(self, prompt: int, completion: int) -> float:
        """What so many tokens cost."""
        return prompt * self._in + completion * self._out

    def reserve(self, used: Callable[[], tuple[int, int, int]], prompt: int, completion: int) -> Settle:
        """Set apart one request of so many tokens. The function returned ends that: it calls the one it is given,
        which adds what was really used to `used`, so that nothing is ever counted twice or not at all.

        used: (requests, prompt tokens, completion tokens) so far. Raises Stopped when the request could go over.
        """
        cost = self.cost(prompt, completion)
        with self._lock:
            requests, *tokens = used()
            if self._most_requests is not None and requests + self._requests + 1 > self._most_requests:
                raise Stopped(f"{requests} requests were made, and --max-requests is {self._most_requests}")
            spent = self.cost(*tokens)
            if self._most_cost is not None and spent + self._cost + cost > self._most_cost:
                raise Stopped(
                    f"{spent:.4f} is spent and the next call may cost {cost:.4f}, which with what is under way would "
                    f"be more than --max-cost {self._most_cost:g}"
                )
            self._requests += 1
            self._cost += cost

        def settle(write: Callable[[], Any]) -> Any:
            with self._lock:
                self._requests -= 1
                self._cost -= cost
                return write()

        return settle


def backoff(failures: int, longest: float, rng: random.Random) -> float:
    """Seconds to wait after so many failures in a row: 1, 2, 4 ... up to `longest`, each with up to half off."""
    return min(longest, 2.0 ** min(failures - 1, 30)) * rng.uniform(0.5, 1.0)


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Seconds that the headers ask to wait: retry-after-ms, or Retry-After as seconds or as a date; else None."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - now()
            except (ValueError, OverflowError, TypeError):
                continue
        if seconds == seconds:  # not nan
            return max(0.0, seconds)
    return None
