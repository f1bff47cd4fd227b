"""Which method a run used, as a card names and cites it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAMES = {"TRLGRPO": "GRPO (as TRL computes it)"}


@dataclass(frozen=True)
class Method:
    """name: of the method; paper: its arXiv number, or None where there is none."""

    name: str
    paper: str | None = None

    @property
    def link(self) -> str | None:
        """Where the paper is."""
        return f"https://arxiv.org/abs/{self.paper}" if self.paper else None


def methods_of(estimator: Any) -> list[Method]:
    """An estimator's methods, a wrapper before what it wraps."""
    from progpo_trl.advantages import ProGPO

    if isinstance(estimator, ProGPO):
        return [Method("ProGPO", ProGPO.PAPER), *methods_of(estimator.base)]
    cls = estimator if isinstance(estimator, type) else type(estimator)
    if hasattr(cls, "PAPER"):
        return [Method(_NAMES.get(cls.__name__, cls.__name__), cls.PAPER)]
    # A function of the user's own, or an object that is called.
    return [Method(getattr(estimator, "__name__", cls.__name__))]


def methods_of_settings(settings: Mapping[str, Any]) -> list[Method]:
    """The methods of a recipe's sections `advantage` and `progress_fallback`."""
    from progpo_trl.advantages import ESTIMATORS, ProGPO

    name = str((settings.get("advantage") or {}).get("name", "grpo"))
    found = methods_of(ESTIMATORS[name]) if name in ESTIMATORS else [Method(name)]
    if settings.get("progress_fallback") is None:
        return found
    return [Method("ProGPO", ProGPO.PAPER), *found]
