"""What a recipe that lies with a model may not choose: code that is run on the machine of whoever downloads it.

Attention kernels are native code of a repository of the Hub, and options of `from_pretrained` can name more of it. A
person who wants them says so on the command line, or in a file of their own (--config).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.model_arguments import ModelArguments

ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3")
# Options of `from_pretrained` that are numbers and names, and choose no code.
LOADING = (
    *("dtype", "torch_dtype", "revision", "variant", "subfolder", "use_cache", "low_cpu_mem_usage"),
    *("device_map", "max_memory", "max_position_embeddings", "rope_parameters", "rope_scaling", "rope_theta"),
)


def names(words: Sequence[str]) -> list[str]:
    """The settings that the words of a command line give, as `name` or `name.key`."""
    return [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]


def take_out(
    training: MultiTurnGRPOConfig, model_args: ModelArguments, given: Collection[str], recipe: str
) -> str | None:
    """Take what `recipe` may not choose out of its settings; a line that says so, where there was something to take.

    given: `names` of the command line, which are the person's own and stay.
    """
    left: dict[str, Any] = {}
    attention = model_args.attn_implementation
    if "attn_implementation" not in given and attention not in (None, *ATTENTION):
        left["attn_implementation"] = attention
        model_args.attn_implementation = None
    if training.model_init_kwargs and "model_init_kwargs" not in given:
        own = {name.partition(".")[2] for name in given if name.startswith("model_init_kwargs.")}
        kept = dict(training.model_init_kwargs)
        for key, value in training.model_init_kwargs.items():
            if key not in (*own, *LOADING) and not (key == "attn_implementation" and value in ATTENTION):
                left[f"model_init_kwargs.{key}"] = kept.pop(key)
        training.model_init_kwargs = kept
    # trust_remote_code has an error of its own where a model needs it.
    said = [f"{k} {repr(v)[:80]}" for k, v in left.items() if k != "model_init_kwargs.trust_remote_code"]
    if not said:
        return None
    return (
        f"{recipe}: {', '.join(said)}: not taken, since the file came with the model and this may choose code to run; "
        "who trusts it gives it on the command line"
    )
