"""A bounded memory of a function's results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class Memo:
    """A bounded memory of what a function gave: a group replays one game, so the same texts come back many times."""

    def __init__(self, compute: Callable[[Any], Any], size: int = 20_000):
        self._compute, self._size = compute, size
        self._known: OrderedDict[Any, Any] = OrderedDict()

    def __call__(self, key: Any) -> Any:
        value = self._known.get(key)
        if value is None:
            value = self._known[key] = self._compute(key)
            if len(self._known) > self._size:
                self._known.popitem(last=False)
        return value
