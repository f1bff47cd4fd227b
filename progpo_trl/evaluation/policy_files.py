"""Reads a policy from its files: a model's folder or Hub id, a LoRA adapter, a checkpoint or a whole run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.settings_values import one_line

if TYPE_CHECKING:
    from progpo_trl.evaluation.policy_agent import PlaySettings, PolicyAgent

ADAPTER_CONFIG = "adapter_config.json"
_WEIGHTS = ("*.safetensors", "*.bin")
_READ = 2**20


def load_policy(
    model: str | None,
    adapter: str | None = None,
    *,
    settings: PlaySettings | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    batch_size: int = 64,
    autocast: Any = None,
    facts: dict[str, Any] | None = None,
    **options: Any,
) -> PolicyAgent:
    """The agent of a model and, with `adapter`, the LoRA adapter on it.

    model: a folder, a Hub id or the name of a shipped tiny policy; a folder or Hub id with an adapter in it brings
    its base model along (None: the base model that `adapter` names). facts: joins what is kept of who played.
    options: of `from_pretrained` (revision, attn_implementation, quantization_config, ..); trust_remote_code is off
    unless it is given.

    Raises EvaluationError, which names the folder and what is wrong with it: missing or damaged files, weights that
    the model needs and the files lack, an adapter of another model, code of its own that is not trusted.
    """
    from progpo_trl.evaluation.policy_agent import PolicyAgent

    if adapter is None and model is not None and _is_adapter(model):
        model, adapter = None, model
    base = _base_of(adapter) if model is None and adapter is not None else model
    if base is None:
        raise EvaluationError("no model: give --model a folder, a model of the Hub, or a run's folder")
    place = _place(base)
    with _naming(base):
        loaded, tokenizer = _load_model(place, base, _dtype(dtype), device, options)
    if adapter is not None:
        with _naming(adapter):
            loaded = _add_adapter(loaded, adapter)
    who = {
        "model": base,
        "weights_sha256": weights_hash(place, getattr(loaded.config, "_commit_hash", None)),
        "adapter": adapter,
        "adapter_sha256": None if adapter is None else weights_hash(adapter),
        **(facts or {}),
    }
    return PolicyAgent(loaded, tokenizer, settings, who=who, batch_size=batch_size, autocast=autocast)


def _load_model(place: str, name: str, dtype, device: str, options: dict[str, Any]):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    options = {"trust_remote_code": False, **options}  # left out, transformers would ask on the terminal
    shared = {key: options[key] for key in ("revision", "trust_remote_code") if key in options}
    tokenizer = AutoTokenizer.from_pretrained(place, **shared)
    if tokenizer.chat_template is None:
        raise EvaluationError(f"{name}: its tokenizer has no chat template; an instruct model has one")
    asked = {key: options[key] for key in ("attn_implementation",) if key in options}
    _check_attention(name, AutoConfig.from_pretrained(place, **shared, **asked), asked.get("attn_implementation"))
    model, found = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, output_loading_info=True, **options)
    lacking = sorted(found.get("missing_keys") or [])
    if lacking:
        # transformers draws them at random and warns; a number of such a model means nothing
        raise EvaluationError(f"{name}: {len(lacking)} of its weights are not in the files, {lacking[0]} for example")
    wrong = sorted(str(key) for key in found.get("mismatched_keys") or [])
    if wrong:
        raise EvaluationError(f"{name}: {len(wrong)} of its weights have another shape, {wrong[0]} for example")
    return (model if "quantization_config" in options else model.to(device)), tokenizer


def _check_attention(name: str, config, asked: str | None) -> None:
    """A kernel is native code of another repository: a model's own files must not choose that it is run here.

    config: as the model is loaded with it; a name in it can win over the one that was asked for.
    """
    parts = [config, *(getattr(config, part, None) for part in config.sub_configs)]
    for kernel in (getattr(part, "_attn_implementation", None) for part in parts):
        if kernel not in (None, asked) and "/" in str(kernel):
            raise EvaluationError(
                f"{name}: its config.json asks for the attention kernel {str(kernel)[:80]!r}, which is code of "
                "another repository: take that out of the file, or if you trust it name it with --attn_implementation"
            )


def _add_adapter(model, adapter: str):
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")
        return PeftModel.from_pretrained(model, adapter)


def _dtype(name: str):
    import torch

    value = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "auto": "auto"}.get(name)
    if value is None:
        raise EvaluationError(f"dtype {name!r} is not one of float32, bfloat16, float16, auto")
    return value


def _place(name: str) -> str:
    """Where the model `name` is read from; a folder must be one."""
    from progpo_trl.train import TINY_POLICIES

    if name in TINY_POLICIES:
        from progpo_trl.tiny_policy import checkpoint_path

        return str(checkpoint_path(TINY_POLICIES[name]))
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise EvaluationError(f"{name}: holds no model (no config.json{_hint(folder)})")
        return str(folder)
    if folder.is_file() or name.startswith((".", "/", "~")):
        raise EvaluationError(f"{name}: there is no such folder")
    return name


def _hint(folder: Path) -> str:
    inside = sorted(p.name for p in folder.glob("checkpoint-*") if p.is_dir())
    return f"; there is {inside[-1]} in it" if inside else ""


def _is_adapter(name: str) -> bool:
    """Whether a folder or Hub id holds an adapter instead of a model."""
    from progpo_trl.train import TINY_POLICIES

    folder = Path(name).expanduser()
    if name in TINY_POLICIES:
        return False
    if folder.is_dir():
        return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()
    if name.startswith((".", "/", "~")):
        return False
    from transformers.utils import find_adapter_config_file

    try:
        return find_adapter_config_file(name) is not None
    except (OSError, ValueError):
        return False  # loading it as a model says what is wrong


def _base_of(adapter: str) -> str:
    """The base model that an adapter names."""
    from transformers.utils import find_adapter_config_file

    try:
        path = find_adapter_config_file(adapter)
        base = None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvaluationError(f"{adapter}: its {ADAPTER_CONFIG} cannot be read: {one_line(error)}") from None
    if not base:
        raise EvaluationError(f"{adapter}: {'names no base model' if path else 'holds no adapter'}; give --model")
    return str(base)


def weights_hash(name: str, commit: str | None = None) -> str | None:
    """SHA-256 over names and contents of the weights' files of a folder or of a model in the Hub's cache."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            folder = Path(snapshot_download(name, revision=commit, local_files_only=True))
        except (LocalEntryNotFoundError, ValueError, OSError):
            return None
    files = sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))
    kept = [f for f in files if not f.name.startswith(("optimizer", "training_args", "scheduler"))]
    lines = "".join(f"{file.name} {_file_hash(file)}\n" for file in kept)
    return hashlib.sha256(lines.encode()).hexdigest() if kept else None


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_READ):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Any error inside means that the files of `name` cannot be used."""
    try:
        yield
    except EvaluationError:
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise EvaluationError(
                f"{name}: needs code of its own to be run, which stays off unless you turn it on: read that code, and "
                "if you trust it say --trust_remote_code true"
            ) from error
        # transformers, peft, safetensors, torch and json raise many kinds for damaged files.
        raise EvaluationError(f"{name}: cannot be loaded: {_short(error)}") from error


def _short(error: Exception) -> str:
    text = one_line(error)
    return text if len(text) <= 300 else text[:297] + "..."
