"""The numbers that a run can use, refused here with what to set instead: TRL would divide by some and train on others.

Checked by `MultiTurnGRPOConfig`, so that settings files, the command line and Python are held to the same ranges.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from progpo_trl.settings_values import nearest


class Range(NamedTuple):
    """Allowed values: low <= x <= high, without `low` itself where it is `above`; null where it is `optional`."""

    low: float
    high: float = math.inf
    above: bool = False
    optional: bool = False
    hint: str = ""

    def fault(self, name: str, value: float | None) -> str | None:
        """Why `value` is refused, or None."""
        if value is None:
            return None if self.optional else f"{name} must be {self}, got null{self.hint}"
        fits = self.low < value if self.above else self.low <= value
        if fits and value <= self.high and math.isfinite(value):
            return None
        return f"{name} must be {self}, got {value:g}{self.hint}"

    def __str__(self) -> str:
        if math.isfinite(self.high):
            words = "above {} and at most {}" if self.above else "between {} and {}"
            return words.format(self.low, self.high)
        return f"a number {'>' if self.above else '>='} {self.low}"


_COUNT = Range(1)
_OPTIONAL_COUNT = Range(1, optional=True)

_RANGES = {
    # sampling
    "temperature": Range(
        0, above=True, hint="; sampling needs a temperature (greedy evaluation is eval_temperature: 0)"
    ),
    "top_p": Range(0, 1, above=True),
    "min_p": Range(0, 1, optional=True),
    "top_k": Range(0, hint="; 0 samples from all tokens"),
    "repetition_penalty": Range(0, above=True, hint="; 1.0 is none"),
    "eval_temperature": Range(0),
    "max_completion_length": _COUNT,
    # when; 0 and less have messages of their own
    "save_steps": Range(-math.inf),
    "eval_steps": Range(-math.inf, optional=True),
    "logging_steps": Range(-math.inf),
    # loss
    "learning_rate": Range(0),
    "beta": Range(0),
    "epsilon": Range(0, above=True),
    "epsilon_high": Range(0, above=True, optional=True),
    "delta": Range(0, above=True, optional=True),
    "num_iterations": _COUNT,
    "invalid_action_penalty": Range(0),
    # batches
    "num_generations": Range(2, hint="; an advantage compares the episodes of one task"),
    "per_device_train_batch_size": _COUNT,
    "gradient_accumulation_steps": _COUNT,
    "steps_per_generation": _OPTIONAL_COUNT,
    "generation_batch_size": _OPTIONAL_COUNT,
    "groups_per_generation": _OPTIONAL_COUNT,
    "updates_per_generation": _OPTIONAL_COUNT,
    "max_generations": _OPTIONAL_COUNT,
    "save_every_generations": _OPTIONAL_COUNT,
    "eval_every_generations": _OPTIONAL_COUNT,
    "rows_per_forward": _OPTIONAL_COUNT,
    "log_tables_every_generations": _OPTIONAL_COUNT,
    "log_table_episodes": _COUNT,
    "max_tokens_per_forward": _OPTIONAL_COUNT,
    # rollout
    "history": Range(0),
    "max_turns": _OPTIONAL_COUNT,
    "max_context_length": _OPTIONAL_COUNT,
    "episodes_per_forward": _OPTIONAL_COUNT,
    "environment_retries": Range(0),
    "max_concurrent_requests": _COUNT,
    "vllm_request_timeout": Range(0, above=True),
    "vllm_request_retries": Range(0),
    "max_dropped_fraction": Range(0, 1),
    "eval_tasks": _OPTIONAL_COUNT,
}

_CHOICES = {
    "context": ("window", "full"),
    "invalid_action": ("format", "admissible", "either"),
    "rollout_schedule": ("lockstep", "streaming"),
    "vllm_mode": ("colocate", "server"),
    "importance_sampling_level": ("token", "sequence"),
}


def check_ranges(config: Any) -> None:
    """Raise ValueError for the first field of `config` whose value no run can use."""
    for name, choices in _CHOICES.items():
        value = getattr(config, name)
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(choices)}{nearest(str(value), choices)}")
    for name, allowed in _RANGES.items():
        if fault := allowed.fault(name, getattr(config, name)):
            raise ValueError(fault)
