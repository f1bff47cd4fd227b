"""The kinds of files that a published folder is made of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from progpo_trl.evaluation.policy_files import ADAPTER_CONFIG
from progpo_trl.publishing.errors import PublishError
from progpo_trl.settings_values import one_line

CARD, RECIPE, PROMPT = "README.md", "config.yaml", "prompt.jinja"
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "chat_template.jinja"),
)
ADAPTER = (ADAPTER_CONFIG, "adapter_model.safetensors", "adapter_model.bin")
MODEL = (
    *("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json"),
    *("pytorch_model*.bin", "pytorch_model.bin.index.json"),
)
WEIGHTS = (".safetensors", ".bin")
_NAMES = {CARD, RECIPE, PROMPT, *(name for name in (*TOKENIZER, *ADAPTER, *MODEL) if "*" not in name)}
_EVALUATION = re.compile(r"evaluation(?:-\d+)?\.json")
_SHARD = re.compile(r"model(?:-\d+-of-\d+)?\.safetensors|pytorch_model(?:-\d+-of-\d+)?\.bin")


def is_ours(name: str) -> bool:
    """Whether a path in a repository or a folder is one that publishing writes, of any run."""
    return name in _NAMES or is_evaluation(name) or _SHARD.fullmatch(name) is not None


def is_evaluation(name: str) -> bool:
    """Whether a file of this name is an evaluation: a published one, or a training's own."""
    return _EVALUATION.fullmatch(name) is not None


def evaluation_name(i: int) -> str:
    """The name of the i-th evaluation, from 0."""
    return "evaluation.json" if i == 0 else f"evaluation-{i + 1}.json"


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. PublishError when it cannot be read or holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PublishError(f"{path}: cannot be read: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise PublishError(f"{path}: is no JSON object")
    return value
