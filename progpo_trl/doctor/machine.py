"""Disk and memory against a rough estimate of what the recipe takes; whether its folder can be written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from progpo_trl.doctor.data import place_of
from progpo_trl.doctor.findings import OK, PROBLEM, WARNING, Case, Finding
from progpo_trl.doctor.recipe import model_config, processes
from progpo_trl.memory import AUTOCAST, BFLOAT16, FLOAT32, GB, QWEN, TILES_TORCH, TILES_TRITON, Dims, update_peak

_STEP = 700  # bytes of a step in episodes.jsonl beside its response: observation, numbers, a list of commands
_LITTLE = 2 * GB
_CGROUP = Path("/sys/fs/cgroup")


def dims_of(case: Case) -> Dims | None:
    """Dimensions of the recipe's model, if its config is here (or it is one of the recipes'); else None."""
    name = str(case.settings.get("model_name_or_path"))
    config = model_config(name)
    if config is None:
        return next((dims for size, dims in QWEN.items() if name.startswith(f"Qwen/Qwen2.5-{size}")), None)
    config = config.get("text_config", config)
    try:
        return Dims(
            config["hidden_size"],
            config["num_hidden_layers"],
            config["intermediate_size"],
            config["num_attention_heads"],
            config.get("num_key_value_heads") or config["num_attention_heads"],
            config["vocab_size"],
            bool(config.get("tie_word_embeddings")),
        )
    except (KeyError, TypeError):
        return None


def gb(value: float) -> str:
    """Gigabytes with two digits, or whole ones from ten on."""
    return f"{value / GB:.2g}" if value < 10 * GB else f"{value / GB:,.0f}"


def memory_of(dims: Dims, settings: Mapping[str, Any], world: int = 1, sharding: str = "none") -> dict[str, float]:
    """Bytes that each device holds in a run, by part: weights, gradients, Adam, reference, and the larger of the
    update's pass and the rollout. A rough estimate: buffers and fragments come on top.

    sharding: "none", "gradients" (ZeRO-2: gradients and Adam are shared out) or "all" (ZeRO-3, FSDP).
    """
    lora = bool(settings.get("use_peft"))
    element = 4 if str(settings.get("dtype", "float32")) in ("float32", "auto") else 2
    p = dims.parameters
    trained = dims.lora(int(settings.get("lora_r") or 16)) if lora else p
    weights = p * (0.55 if settings.get("load_in_4bit") else 1 if settings.get("load_in_8bit") else element)
    of_trained = 4 if lora else element
    share = 1 / world
    whole, parted = (share, share) if sharding == "all" else (1, share if sharding == "gradients" else 1)
    parts = {
        "weights": weights * whole + (4 * trained if lora else 0),
        "gradients": of_trained * trained * parted,
        "Adam": 2 * of_trained * trained * parted,
        "reference": weights * whole if float(settings.get("beta") or 0) > 0 and not lora else 0.0,
    }
    update, rollout = _update(dims, settings, trained if lora else None), _rollout(dims, settings, world)
    return parts | ({"update": update} if update >= rollout else {"rollout": rollout})


def _length(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of the longest row, and those of them that were sampled."""
    response = int(settings.get("max_completion_length") or 512)
    prompt = int(settings.get("max_context_length") or 2048)
    if settings.get("context") == "full":
        turns = max(1, prompt // (2 * response))
        return prompt + response, min(prompt, turns * response)
    return prompt + response, response


def _update(dims: Dims, settings: Mapping[str, Any], trained: int | None) -> float:
    length, sampled = _length(settings)
    rows = int(settings.get("rows_per_forward") or settings.get("per_device_train_batch_size") or 8)
    mixed = bool(settings.get("bf16", True)) and not settings.get("use_cpu")
    full = AUTOCAST if str(settings.get("dtype", "float32")) == "float32" else BFLOAT16
    precision = (BFLOAT16 if trained is not None else full) if mixed else FLOAT32
    peak = update_peak(
        dims,
        rows,
        length,
        rows * sampled,
        precision,
        checkpointing=bool(settings.get("gradient_checkpointing", True)),
        tiles=TILES_TORCH if settings.get("use_cpu") else TILES_TRITON,
        trained=trained,
    )
    gradients = (trained if trained is not None else dims.parameters) * 4
    return max(peak["head"], peak["mlp"], peak["embedding"] - gradients)


def _rollout(dims: Dims, settings: Mapping[str, Any], world: int) -> float:
    """Our own generation: the cache of the episodes that are decoded together, and drawing a token for each."""
    if settings.get("use_vllm"):
        return 0.0  # a share of the GPU, which the caller knows
    groups, each = int(settings.get("groups_per_generation") or 8), int(settings.get("num_generations") or 8)
    episodes = int(settings.get("episodes_per_forward") or max(1, groups * each // world))
    length, _ = _length(settings)
    element = 4 if settings.get("use_cpu") else 2
    return episodes * (length * dims.kv_bytes(element) + dims.vocabulary * 36)


def _sharding(case: Case) -> str:
    kind = str(case.launcher.get("distributed_type", "")).upper()
    stage = (case.launcher.get("deepspeed_config") or {}).get("zero_stage")
    if kind == "FSDP" or stage == 3:
        return "all"
    return "gradients" if stage == 2 else "none"


def check_memory(case: Case) -> Iterator[Finding]:
    """The estimate against the GPU's memory, or the machine's."""
    if case.recipe is None:
        total, free = _ram()
        yield Finding(OK, "memory", f"{free / GB:.0f} of {total / GB:.0f} GB free")
        return
    dims = dims_of(case)
    if dims is None:
        text = "no estimate: the model's config is not on this machine"
        yield Finding(OK, "memory", text)
        return
    world = processes(case)
    parts = memory_of(dims, case.settings, world, _sharding(case))
    needed = sum(parts.values())
    said = f"about {gb(needed)} GB a process (" + ", ".join(
        f"{name} {gb(value)}" for name, value in parts.items() if value
    )
    import torch

    if torch.cuda.is_available() and not case.settings.get("use_cpu"):
        _, room = torch.cuda.mem_get_info(0)
        of_vllm = float(case.settings.get("vllm_gpu_memory_utilization") or 0.3) * room
        room -= of_vllm if case.settings.get("use_vllm") and case.settings.get("vllm_mode") != "server" else 0
        where = f"{room / GB:.0f} GB of GPU memory"
    elif case.settings.get("use_cpu"):
        _, room = _ram()
        needed *= world
        where = f"{room / GB:.0f} GB of free memory"
    else:
        yield Finding(OK, "memory", f"{said}); there is no GPU here to compare with")
        return
    advice = "lower rows_per_forward, set gradient_checkpointing or use_peft, or share weights out (docs/scaling.md)"
    status = PROBLEM if needed > room else WARNING if needed > 0.85 * room else OK
    yield Finding(status, "memory", f"{said}), for {where}", "" if status == OK else advice)


def _ram() -> tuple[float, float]:
    """(bytes of memory, of which are free for use), of the machine or of the container with less."""
    import psutil

    memory = psutil.virtual_memory()
    total, free = float(memory.total), float(memory.available)
    try:
        limit, used = (float((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or "max"
        return total, free
    return min(total, limit), min(free, limit - used)


def disk_of(dims: Dims, settings: Mapping[str, Any]) -> dict[str, float]:
    """Bytes that a run writes, by part. A rough estimate."""
    element = 4 if str(settings.get("dtype", "float32")) in ("float32", "auto") else 2
    lora = bool(settings.get("use_peft"))
    trained = dims.lora(int(settings.get("lora_r") or 16)) * 4 if lora else dims.parameters * element
    generations, every = settings.get("max_generations") or 150, settings.get("save_every_generations")
    saves = 0 if not every else max(1, generations // every)
    limit = settings.get("save_total_limit")
    # One more while the oldest is still there, and the best one beside.
    kept = min(saves, limit + 2) if limit else saves
    each = 1 if settings.get("save_only_model") else 3
    episodes = generations * (settings.get("groups_per_generation") or 8) * (settings.get("num_generations") or 8)
    steps = int((settings.get("environment") or {}).get("max_steps") or 50) // 2  # episodes that are solved are short
    step = _STEP + 4 * int(settings.get("max_completion_length") or 512) // 2
    return {
        "checkpoints": float(kept * each * trained),
        "the model": float(trained),
        "episodes": float(episodes * steps * step) if settings.get("save_episodes", True) else 0.0,
    }


def check_disk(case: Case) -> Iterator[Finding]:
    """Free disk where the run writes."""
    output = str(case.settings.get("output_dir") or ".")
    place = place_of(output)
    free = float(shutil.disk_usage(place).free)
    dims = dims_of(case) if case.recipe else None
    if dims is None:
        status = WARNING if free < _LITTLE else OK
        yield Finding(status, "disk", f"{free / GB:.0f} GB free at {place}", "make room" if status == WARNING else "")
        return
    parts = disk_of(dims, case.settings)
    needed = sum(parts.values())
    said = ", ".join(f"{name} {gb(value)}" for name, value in parts.items() if value)
    text = f"about {gb(needed)} GB are written ({said}), {free / GB:.0f} GB are free at {place}"
    status = PROBLEM if needed > free else WARNING if needed > 0.8 * free else OK
    advice = "set save_total_limit or save_only_model, or another output_dir"
    yield Finding(status, "disk", text, "" if status == OK else advice)


def check_output_dir(case: Case) -> Iterator[Finding]:
    """Whether the run can write where it wants to."""
    output = case.settings.get("output_dir")
    if output is None:
        return
    place = place_of(str(output))
    if not place.is_dir():
        yield Finding(PROBLEM, "output_dir", f"{place} is a file", "choose another output_dir")
    elif not os.access(place, os.W_OK | os.X_OK):
        yield Finding(
            PROBLEM, "output_dir", f"{place} is not writable", "choose another output_dir, or change its rights"
        )
    elif any(Path(str(output)).expanduser().glob("checkpoint-*")):
        text = f"{output} holds checkpoints of an earlier run"
        yield Finding(WARNING, "output_dir", text, "go on with --resume_from_checkpoint last, or choose another")
    else:
        yield Finding(OK, "output_dir", f"{output} can be written")
