"""The numbers that a run can use, refused here with what to set instead: TRL would divide by some and train on others.

Checked by `MultiTurnGRPOConfig`, so that settings files, the command line and Python are held to the same ranges.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import fields
from numbers import Real
from typing import Any, NamedTuple

from progpo_trl.settings_values import nearest


class Range(NamedTuple):
    """Allowed values: low <= x <= high, without `low` itself where it is `above`, without `high` where it is `below`;
    also the one value `also`; null where it is `optional`."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False
    also: float | None = None
    optional: bool = False
    hint: str = ""

    def fault(self, name: str, value: float | None) -> str | None:
        """Why `value` is refused, or None."""
        if value is None:
            return None if self.optional else f"{name} must be {self}, got null{self.hint}"
        fits = self.low < value if self.above else self.low <= value
        fits = fits and (value < self.high if self.below else value <= self.high)
        if (fits and math.isfinite(value)) or value == self.also:
            return None
        return f"{name} must be {self}, got {_number(value)}{self.hint}"

    def __str__(self) -> str:
        also = "" if self.also is None else f"{self.also:g} or "
        if math.isfinite(self.high):
            if not (self.above or self.below):
                return f"{also}between {_number(self.low)} and {_number(self.high)}"
            low, high = "above" if self.above else "at least", "below" if self.below else "at most"
            return f"{also}{low} {self.low:g} and {high} {self.high:g}"
        return f"{also}a number {'>' if self.above else '>='} {self.low:g}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


# Counts are multiplied with one another and with lengths, which must stay within what arrays hold.
LARGEST = 2**31 - 1
_SEED = Range(0, 2**32 - 1)  # numpy takes no other

_COUNT = Range(1)
_OPTIONAL_COUNT = Range(1, optional=True)

# Logits are divided by the temperature: far below this they overflow, and the loss with them.
_COLDEST = 1e-3

_RANGES = {
    # sampling
    "temperature": Range(_COLDEST, hint="; sampling needs a temperature (greedy evaluation is eval_temperature: 0)"),
    "top_p": Range(0, 1, above=True),
    "min_p": Range(0, 1, optional=True),
    "top_k": Range(0, hint="; 0 samples from all tokens"),
    "repetition_penalty": Range(0, above=True, hint="; 1.0 is none"),
    "eval_temperature": Range(_COLDEST, also=0, hint="; 0 is greedy"),
    "max_completion_length": _COUNT,
    # how long
    "num_train_epochs": Range(0, above=True, hint="; max_generations is the length of a run in generations"),
    "max_steps": Range(1, also=-1, hint="; -1 leaves the length to max_generations or num_train_epochs"),
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
    "off_policy_mask_threshold": Range(0, above=True, optional=True),
    "vllm_importance_sampling_clip_max": Range(0, above=True, optional=True),
    "vllm_importance_sampling_clip_min": Range(0, optional=True),
    # optimizer
    "adam_beta1": Range(0, 1, below=True),
    "adam_beta2": Range(0, 1, below=True),
    "adam_epsilon": Range(0, above=True),
    "weight_decay": Range(0),
    "max_grad_norm": Range(0, hint="; 0 leaves gradients as they are"),
    "warmup_steps": Range(0),
    "torch_empty_cache_steps": _OPTIONAL_COUNT,
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
    # seeds
    "seed": _SEED,
    "data_seed": _SEED._replace(optional=True),
    "eval_seed": _SEED,
}

_CHOICES = {
    "context": ("window", "full"),
    "invalid_action": ("format", "admissible", "either"),
    "rollout_schedule": ("lockstep", "streaming"),
    "vllm_mode": ("colocate", "server"),
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}


def check_ranges(config: Any) -> None:
    """Raise ValueError for the first field of `config` whose value no run can use."""
    for name, choices in _CHOICES.items():
        value = getattr(config, name)
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(choices)}{nearest(str(value), choices)}")
    for name in (*config._VALID_DICT_FIELDS, "liger_kernel_config"):
        _check_mapping(name, getattr(config, name))
    for field in fields(config):
        value = getattr(config, field.name, None)
        if type(value) is int and abs(value) > LARGEST and _RANGES.get(field.name, _COUNT).high == math.inf:
            end = f"at most {LARGEST}" if value > 0 else f"at least {-LARGEST}"
            raise ValueError(f"{field.name} must be {end}, got {value}")
    for name, allowed in _RANGES.items():
        if fault := allowed.fault(name, getattr(config, name)):
            raise ValueError(fault)
    _check_reward_weights(config.reward_weights)
    _check_padding(config.pad_to_multiple_of)
    if not config.use_vllm:
        # vLLM's names are those of its SamplingParams, known only where it is installed.
        _check_generation_kwargs(config.generation_kwargs)


def _check_reward_weights(weights: Any) -> None:
    if weights is None:
        return
    numbers = isinstance(weights, (list, tuple)) and all(
        isinstance(w, Real) and not isinstance(w, bool) and math.isfinite(w) for w in weights
    )
    if not numbers:
        raise ValueError(f"reward_weights must be a list of finite numbers, got {weights!r}")


def _check_padding(value: Any) -> None:
    """TRL takes "auto", "none" and a number in letters, too."""
    if isinstance(value, str) and value.lower() not in ("auto", "none", "null"):
        value = int(value) if re.fullmatch(r"[0-9]{1,10}", value) else 0
    if isinstance(value, int) and not 1 <= value <= LARGEST:
        raise ValueError(f"pad_to_multiple_of must be a whole number from 1 to {LARGEST}, auto or null")


_FILES = ("accelerator_config", "fsdp_config", "deepspeed")  # these may be the name of one


def _check_mapping(name: str, value: Any) -> None:
    """Text is JSON, which transformers reads after this; what it cannot read as a mapping it would keep as text."""
    if isinstance(value, str) and (name not in _FILES or value.startswith("{")):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"{name} must be a mapping, got {value!r:.80}") from None
    if isinstance(value, (bool, int, float, list, tuple)) or (isinstance(value, str) and name not in _FILES):
        raise ValueError(f"{name} must be a mapping, got {value!r:.80}")
    if isinstance(value, str) and name != "deepspeed" and not os.path.isfile(value):  # deepspeed takes base64, too
        raise ValueError(f"{name} must be a mapping or a file that holds one, got {value!r:.80}")
    if name == "accelerator_config" and isinstance(value, dict):
        from transformers.trainer_pt_utils import AcceleratorConfig

        known = AcceleratorConfig.__dataclass_fields__
        for key in value:
            if key not in known:
                raise ValueError(f"accelerator_config has no {key!r:.80}{nearest(str(key), known)}")
    if name == "chat_template_kwargs":
        own = sorted({"add_generation_prompt", "conversation", "tokenize"} & set(value or ()))
        if own:
            raise ValueError(f"chat_template_kwargs: {own[0]} is what the trainer itself says: remove it")


_NOT_FOR_TURNS = {
    "stop_strings": "a turn ends at the model's end tokens or at max_completion_length",
    **dict.fromkeys(
        ("num_beams", "num_return_sequences", "return_dict_in_generate"), "a turn is one sampled sequence of ids"
    ),
}


def _check_generation_kwargs(options: Any) -> None:
    """transformers keeps a name that it does not know as an attribute, which nothing reads."""
    options = json.loads(options) if isinstance(options, str) else options
    if not options:
        return
    from transformers import GenerationConfig

    # TRL sets the compilation itself; the version is no option.
    own = {"disable_compile", "transformers_version"}
    known = [name for name in vars(GenerationConfig()) if not name.startswith("_") and name not in own]
    for name in options:
        if name in _NOT_FOR_TURNS:
            raise ValueError(f"generation_kwargs: {name} is not supported: {_NOT_FOR_TURNS[name]}")
        if name not in known:
            raise ValueError(f"generation_kwargs: transformers' generate takes no {name!r}{nearest(str(name), known)}")
