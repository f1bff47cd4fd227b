"""Settings that would be read and then do nothing: each is refused, with what to set in its place.

Two kinds: inherited ones that nothing here reads (`refuse_unused`), and ones that count only beside another
(`refuse_idle`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from progpo_trl.settings_values import Setting

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig

_PANEL = "the evaluation plays the panel of tasks, it has no batches of rows"
_ROWS = "TRL's loss is normalised by the rows of the update"

# Fields of transformers' TrainingArguments and of TRL's GRPOConfig that no code of a run reads, and why.
UNUSED = {
    "label_smoothing_factor": "the loss has no labels; use beta to keep the policy near the reference",
    "label_names": "the loss has no labels",
    "prediction_loss_only": _PANEL,
    "per_device_eval_batch_size": _PANEL,
    "eval_accumulation_steps": _PANEL,
    "eval_do_concat_batches": _PANEL,
    "eval_use_gather_object": _PANEL,
    "batch_eval_metrics": _PANEL,
    "include_for_metrics": _PANEL,
    "bf16_full_eval": "the evaluation plays in the precision that is trained",
    "fp16_full_eval": "the evaluation plays in the precision that is trained",
    "train_sampling_strategy": "the order of tasks follows from data_seed; rows are sorted by max_tokens_per_forward",
    "length_column_name": "rows are sorted by max_tokens_per_forward",
    "dataloader_drop_last": "every generation is a whole one",
    "remove_unused_columns": "the columns of the data name the tasks",
    "average_tokens_across_devices": _ROWS,
    "auto_find_batch_size": "it would change what an update is; bound memory with max_tokens_per_forward",
    "enable_jit_checkpoint": "SIGTERM saves a checkpoint at the end of a generation without it",
    "log_multimodal": "rows are text",
    "do_predict": "use progpo evaluate",
}

# A setting, or a family of them by its prefix (ends in _) -> the setting it needs, and the value that must have
# (None: it is a flag).
_NEEDS = {
    "lora_": ("use_peft", None),
    "use_rslora": ("use_peft", None),
    "use_dora": ("use_peft", None),
    "bnb_4bit_": ("load_in_4bit", None),
    "use_bnb_nested_quant": ("load_in_4bit", None),
    "vllm_": ("use_vllm", None),
    "sapo_": ("loss_type", "sapo"),
    "vespo_": ("loss_type", "vespo"),
}


def refuse_unused(config: MultiTurnGRPOConfig) -> None:
    """ValueError at the first inherited setting that differs from its default though nothing reads it."""
    for name, why in UNUSED.items():
        field = type(config).__dataclass_fields__.get(name)
        if field is None:  # another version of transformers has no such setting
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if (getattr(config, name) or None) != (default or None):
            raise ValueError(f"{name} has no effect here: {why}; remove it")


def is_idle(name: str, values: Mapping[str, Any]) -> bool:
    """Whether a setting does nothing, given `values`: name -> value of every setting."""
    return any(
        not (values.get(needed) if value is None else values.get(needed) == value) for needed, value in needed_by(name)
    )


def needed_by(name: str) -> list[tuple[str, Any]]:
    """Without what a setting does nothing: (another setting, the value it must have; None: a flag that is on)."""
    return [
        need for family, need in _NEEDS.items() if name == family or (family.endswith("_") and name.startswith(family))
    ]


def refuse_idle(settings: Mapping[str, Setting], values: Mapping[str, Any]) -> None:
    """SettingsError at the first setting that was given without the one that makes it count.

    settings, values: by name, as given and converted. A flag that is given and off (`--use_peft false` over a recipe
    that has LoRA's numbers) is a decision and no slip.
    """
    for name, setting in settings.items():
        for needed, value in needed_by(name):
            idle = needed not in values if value is None else values.get(needed) != value
            if idle and values.get(name) is not None:
                wanted = "true" if value is None else value
                raise setting.fail(name, f"has no effect without {needed}: {wanted}; set that too, or remove it")
