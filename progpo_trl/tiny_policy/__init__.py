"""The tiny policy: a Qwen2.5-architecture model of 0.14M parameters that stands for the base instruct model.

It speaks ALFWorld's commands, or those of the generated shop, in the published action format, and solves few tasks: it
was trained on noisy expert play (`make.py`, `python -m progpo_trl.tiny_policy.make --help`). The weights are in the
package.
"""

from __future__ import annotations

from pathlib import Path

CHECKPOINTS = ("base", "base-hard", "base-shop")


def checkpoint_path(name: str = "base") -> Path:
    """Folder of a shipped checkpoint, for `AutoModelForCausalLM` and `AutoTokenizer.from_pretrained`.

    "base" solves about one in ten games of the level `easy`; "base-hard" about one in a hundred of `hard`;
    "base-shop" about one goal in seven of the generated shop's level `tiny`.
    Raises ValueError for any other name.
    """
    if name not in CHECKPOINTS:
        raise ValueError(f"no checkpoint {name!r}; there are {', '.join(CHECKPOINTS)}")
    return Path(__file__).parent / "checkpoints" / name
