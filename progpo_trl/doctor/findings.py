"""What a check finds, and how checks are run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """status: "ok", "warning" (it runs, but) or "problem" (it does not); what: it is about; text: how it is; advice:
    what to do, empty when there is nothing."""

    status: str
    what: str
    text: str
    advice: str = ""


@dataclass
class Case:
    """What is examined. settings: of the recipe, as written, empty without one; launcher: what the accelerate config
    `launcher_file` says."""

    recipe: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    launcher: Mapping[str, Any] = field(default_factory=dict)
    launcher_file: str | None = None

    @property
    def environment(self) -> Mapping[str, Any]:
        """The recipe's section of that name."""
        section = self.settings.get("environment")
        return section if isinstance(section, Mapping) else {}

    def needs(self, *environments: str) -> bool:
        """Whether the recipe plays one of these environments."""
        return self.environment.get("name") in environments


Check = Callable[[Case], Iterable[Finding]]


def examine(case: Case, checks: Sequence[Check]) -> Iterator[Finding]:
    """The findings of every check; one that raises is itself a finding."""
    for check in checks:
        began = time.perf_counter()
        try:
            yield from check(case)
        except Exception as error:  # noqa: BLE001
            # Whatever a broken installation raises is what the doctor is asked about.
            took = time.perf_counter() - began
            text = " ".join(str(error).split()) or "no message"
            yield Finding(
                PROBLEM,
                check.__name__.removeprefix("check_").replace("_", " "),
                f"cannot be examined: {type(error).__name__}: {text[:300]} (after {took:.1f} s)",
                "mend what the message names, then ask again",
            )
