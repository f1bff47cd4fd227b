"""The settings that make a run the experiment it is, as its checkpoints record them, and how they differ from others.

A run that goes on must keep these; what `MAY_CHANGE` names is free. Every other setting is recorded and compared, one
that a new version of a library brings as well, until somebody decides that it is harmless.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from progpo_trl.checkpoint_files import generation_updates
from progpo_trl.secret_values import is_secret_name
from progpo_trl.settings_sections import convert_section, section_options
from progpo_trl.settings_unused import UNUSED, is_idle, needed_by
from progpo_trl.settings_values import SettingsError, convert, read_file

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.model_arguments import ModelArguments
    from progpo_trl.settings import ScriptArguments

# Why a setting may change while a run goes on -> the settings. Beside what they say here they decide nothing about
# which policy, on which tasks, is trained towards what.
_FREE = {
    "how long, from where": "max_generations max_steps num_train_epochs resume_from_checkpoint "
    "restore_callback_states_from_checkpoint do_train do_eval do_predict",
    "what is saved, where, how often": "output_dir save_strategy save_steps save_every_generations save_total_limit "
    "save_only_model save_on_each_node save_episodes enable_jit_checkpoint load_best_model_at_end",
    "publishing": "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision "
    "log_completions_hub_repo",
    "logs": "logging_strategy logging_steps logging_first_step logging_nan_inf_filter logging_dir log_on_each_node "
    "log_level log_level_replica log_completions log_multimodal log_unique_prompts log_tables_every_generations "
    "log_table_episodes num_completions_to_print include_num_input_tokens_seen disable_tqdm show_rollout_progress "
    "report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id debug skip_memory_metrics",
    "evaluation, which trains nothing": "evaluate_around_training eval_strategy eval_steps eval_every_generations "
    "eval_delay eval_on_start eval_tasks eval_temperature eval_seed eval_do_concat_batches eval_use_gather_object "
    "eval_accumulation_steps per_device_eval_batch_size prediction_loss_only include_for_metrics batch_eval_metrics "
    "num_generations_eval bf16_full_eval fp16_full_eval environment.eval_split environment.n_eval",
    # The episodes of a generation and its updates follow from these, and those are compared (`_DERIVED`).
    "how a generation is split into batches": "groups_per_generation updates_per_generation steps_per_generation "
    "per_device_train_batch_size gradient_accumulation_steps rows_per_forward max_tokens_per_forward "
    "episodes_per_forward",
    # Other hardware adds up in another order and rounds otherwise; the weights' own dtype is no part of this.
    "precision and kernels of the hardware": "bf16 fp16 tf32 attn_implementation use_liger_kernel liger_kernel_config "
    "torch_compile torch_compile_backend torch_compile_mode full_determinism pad_to_multiple_of",
    "memory": "gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing "
    "activation_checkpointing_kwargs torch_empty_cache_steps use_cache cache_implementation",
    "devices and processes": "use_cpu local_rank ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers "
    "ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed ds3_gather_for_generation accelerator_config "
    "parallelism_config",
    "data loading": "dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
    "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order",
    # The bounds of vLLM's importance ratio belong to the loss and are compared.
    "what generates": "use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url "
    "vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization "
    "vllm_max_model_length vllm_tensor_parallel_size vllm_request_timeout vllm_request_retries rollout_schedule "
    "max_concurrent_requests use_transformers_continuous_batching transformers_continuous_batching_config "
    "use_transformers_paged",
    "what is done about errors": "environment_retries max_dropped_fraction",
    "where things lie and who may load them": "trust_remote_code environment.store model_init_kwargs.cache_dir "
    "model_init_kwargs.device_map model_init_kwargs.local_files_only model_init_kwargs.max_memory "
    "model_init_kwargs.use_safetensors model_init_kwargs.trust_remote_code model_init_kwargs.low_cpu_mem_usage "
    "model_init_kwargs.attn_implementation model_init_kwargs.use_kernels",
}
MAY_CHANGE = frozenset(" ".join(_FREE.values()).split())
# What the free batch settings come to, over all processes.
_DERIVED = {
    "generation_batch_size": "episodes per generation",
    "updates_per_generation": "optimizer steps per generation",
}
# Options of an adapter's own configuration, as PEFT has them.
_ADAPTER = (
    "peft_type r lora_alpha lora_dropout use_rslora use_dora bias target_modules target_parameters modules_to_save "
    "layers_to_transform rank_pattern alpha_pattern"
).split()
# A best checkpoint is one by some metric. Naming the first or dropping the last compares nothing with another.
_COMPARED_IF_BOTH = ("metric_for_best_model", "greater_is_better")


def of_run(script: ScriptArguments, args: MultiTurnGRPOConfig, model_args: ModelArguments) -> dict[str, Any]:
    """What a run of the command line is recorded as: "name" or "section.option" -> JSON value, defaults filled in."""
    from progpo_trl.advantages import make_estimator

    try:
        estimator = make_estimator(script.advantage, script.progress_fallback)
    except (ValueError, TypeError) as error:
        raise SettingsError(str(error)) from error
    values = {name: getattr(part, name) for part in (model_args, args) for name in _names(type(part))}
    sections = _environment(script.environment) | _estimator(estimator)
    return _as_json(sections | {"reward_funcs": ["environment_return"]} | _compared(values) | _derived(args))


def of_trainer(
    args: MultiTurnGRPOConfig, estimator: Callable, reward_funcs: Iterable[str], adapters: Mapping[str, Any]
) -> dict[str, Any]:
    """What a trainer made in Python is recorded as; its base model and environment are objects without names.

    adapters: the model's `peft_config`, by adapter.
    """
    values = {name: getattr(args, name) for name in _names(type(args))}
    parts = {"reward_funcs": list(reward_funcs), "adapters": sorted(adapters)}
    for adapter, options in adapters.items():
        parts |= {f"adapters.{adapter}.{key}": getattr(options, key, None) for key in _ADAPTER}
    return _as_json(_estimator(estimator) | parts | _compared(values) | _derived(args))


def of_asked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The same of settings as they were asked for, without making a configuration of them: that would set up devices.

    Comparable with its like only: what a configuration derives from its settings is not in it.
    """
    from progpo_trl.advantages import make_estimator

    values = {name: default for cls in _classes() for name, default in _defaults(cls).items()} | dict(asked)
    estimator = make_estimator(asked.get("advantage"), asked.get("progress_fallback"))
    settings = _environment(values.get("environment", {})) | _estimator(estimator) | _compared(values)
    if groups := values["groups_per_generation"]:
        settings |= {
            "generation_batch_size": groups * values["num_generations"],
            "updates_per_generation": (values["updates_per_generation"] or 1) * values["num_iterations"],
        }
    return _as_json(settings)


def read_asked(config: Path) -> dict[str, Any]:
    """What the config.yaml of a run asks for, as `settings.parse` types it. SettingsError for a damaged one."""
    from progpo_trl.settings import ScriptArguments

    hints = {name: hint for cls in (*_classes(), ScriptArguments) for name, hint in get_type_hints(cls).items()}
    asked = {}
    for name, setting in read_file(config).items():
        if name in ("environment", "advantage", "progress_fallback"):
            asked[name] = convert_section(name, setting)
        elif name in hints:
            asked[name] = convert(name, setting, hints[name])
    return asked


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two records, one setting a line: "name: then, now other"."""
    changed = [name for name in ("advantage.name", "environment.name") if _differ(name, then, now)]
    # Options of another estimator or environment say nothing more.
    gone = tuple(f"{name.partition('.')[0]}." for name in changed)
    changed += [n for n in now if n not in changed and not n.startswith(gone) and _differ(n, then, now)]
    return [f"{_title(name)}: {_shown(then.get(name))}, now {_shown(now[name])}" for name in changed]


def not_recorded(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The parts of a run that a record leaves out (see `of_trainer`), which nobody can compare."""
    parts = {"model_name_or_path": "model", "environment.name": "environment"}
    return [part for name, part in parts.items() if name in now and name not in then]


def _differ(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if any(then.get(needed) != now.get(needed) for needed, _ in needed_by(name) if needed in now):
        return False  # what it counts beside has changed, and that is said
    if name in then and name in now:
        old, new = then[name], now[name]
        if name in _COMPARED_IF_BOTH and None in (old, new):
            return False
        return old != new and not _moved(old, new)
    # A record that lacks a setting is of a version that did not know it, and so had what is now the default.
    *others, model = _classes()
    known = [_defaults(cls) for cls in (*others, *([model] if "model_name_or_path" in then else []))]
    defaults = {key: value for part in known for key, value in part.items()}
    return (
        name in now and name not in _DERIVED and name in defaults and now[name] not in (None, _as_json(defaults[name]))
    )


def _moved(old: Any, new: Any) -> bool:
    """Whether a folder was moved, as from machine to machine: it has the same name, and is no more where it was."""
    if not all(isinstance(path, str) and os.path.isabs(path) for path in (old, new)):
        return False
    return Path(old).name == Path(new).name and not Path(old).exists()


def _compared(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `values` that may not change, without the sections."""
    sections = ("environment", "advantage", "progress_fallback")
    kept = {name: value for name, value in values.items() if _counts(name) and name not in sections}
    for name in kept:
        if not name.startswith("vllm_") and is_idle(name, values):  # what generates may change, and vLLM with it
            kept[name] = None
    if kept.get("optim") == "adamw_torch_fused":  # the same arithmetic; which of both is the default is torch's age
        kept["optim"] = "adamw_torch"
    if kept.get("data_seed") == values.get("seed"):  # as where none is given
        kept["data_seed"] = None
    if isinstance(kept.get("lora_target_modules"), (list, tuple)):
        kept["lora_target_modules"] = sorted(kept["lora_target_modules"])
    if isinstance(kept.get("model_init_kwargs"), Mapping):
        loading = kept["model_init_kwargs"].items()
        kept["model_init_kwargs"] = {key: value for key, value in loading if _counts(f"model_init_kwargs.{key}")}
    kept["prompt_template"] = _with_digest(kept["prompt_template"])
    if (model := kept.get("model_name_or_path")) and os.path.isdir(os.path.expanduser(model)):
        kept["model_name_or_path"] = _absolute(model)
    return {name: value for name, value in kept.items() if name not in _DERIVED}


def _counts(name: str) -> bool:
    return name not in MAY_CHANGE and name not in UNUSED and not is_secret_name(name)


def _derived(args: MultiTurnGRPOConfig) -> dict[str, Any]:
    return {
        "generation_batch_size": args.generation_batch_size,
        "updates_per_generation": generation_updates(args),
    }


def _environment(section: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an environment, its defaults filled in; folders and files by their whole path."""
    options = section_options("environment", section.get("name"))
    values = {key: default for key, (_, default) in options.items()} | dict(section)
    found = {}
    for key, value in values.items():
        if value is not None and "Path" in str(options.get(key, ("",))[0]):
            value = _absolute(value)
        if _counts(f"environment.{key}"):
            found[f"environment.{key}"] = value
    return found


def _estimator(estimator: Any) -> dict[str, Any]:
    """The options of an estimator and of ProGPO around it; of a function its name."""
    from progpo_trl.advantages import ESTIMATORS, ProGPO

    found: dict[str, Any] = {"progress_fallback": isinstance(estimator, ProGPO)}
    if isinstance(estimator, ProGPO):
        found |= {f"progress_fallback.{key}": value for key, value in _options(estimator) if key != "base"}
        estimator = estimator.base
    names = {cls: name for name, cls in ESTIMATORS.items()}
    found["advantage.name"] = names.get(type(estimator)) or _qualified(estimator)
    return found | {f"advantage.{key}": value for key, value in _options(estimator)}


def _options(estimator: Any) -> list[tuple[str, Any]]:
    if not dataclasses.is_dataclass(estimator):
        return []
    return [(f.name, getattr(estimator, f.name)) for f in dataclasses.fields(estimator) if f.init]


def _qualified(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _with_digest(prompt: str | None) -> str | None:
    """A prompt in a file is its text, wherever the file lies; a name is that of a prompt of this package."""
    if prompt is None or not prompt.endswith(".jinja"):
        return prompt
    try:
        text = Path(prompt).expanduser().read_bytes()
    except OSError:
        return prompt
    return f"file of sha256 {hashlib.sha256(text).hexdigest()[:12]}"


def _absolute(path: str | Path) -> str:
    return str(Path(path).expanduser().resolve())


def _as_json(value: Any) -> Any:
    """`value` as it comes back from a JSON file; nothing given and an empty list or mapping are the same."""
    return json.loads(json.dumps(_plain(value), allow_nan=True))


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if not is_secret_name(str(key))} or None
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value] or None
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value)) or None
    return _qualified(value)


def _classes() -> tuple[type, ...]:
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.model_arguments import ModelArguments

    return MultiTurnGRPOConfig, ModelArguments


def _names(cls: type) -> list[str]:
    return [f.name for f in dataclasses.fields(cls) if f.init]


def _defaults(cls: type) -> dict[str, Any]:
    none = dataclasses.MISSING
    return {
        f.name: f.default if f.default is not none else f.default_factory() if f.default_factory is not none else None
        for f in dataclasses.fields(cls)
        if f.init
    }


def _title(name: str) -> str:
    return f"{name} ({_DERIVED[name]})" if name in _DERIVED else name


def _shown(value: Any) -> str:
    """A value in one line; text as it is, unless its lines or blanks would be lost. Paths may differ at their end."""
    plain = isinstance(value, str) and value.isprintable() and value.strip() == value != ""
    text = value if plain else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-60:]} ({len(text)} characters)"
