"""Warm start of the tiny policy: supervised learning on noisy expert play.

A trace is one episode as the policy will see it at training time: the same prompt template, chat template and action
format, as one conversation in full context. The loss is the mean cross-entropy of all tokens: actions weigh 1,
commands the game refused 0 (the policy has to know what comes after them, not to repeat them), and everything else
`observation_weight` (predicting the world teaches the model to look things up).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from progpo_trl.contexts import PromptTemplate, TurnView
from progpo_trl.tiny_policy.tokenizer import ASSISTANT, END, MAX_LENGTH, PAD, USER, action_text

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM, Qwen2Tokenizer


@dataclass(frozen=True)
class Phase:
    """One stretch of training: traces of experts that act well with probability `p_expert`, drawn from `levels` (one
    named twice comes twice as often); `p_wrong` is the share of commands that the game refuses.

    steps: optimizer steps; batch_size: traces a step; learning_rate: peak of the cosine.
    """

    p_expert: float
    p_wrong: float
    steps: int
    batch_size: int
    learning_rate: float
    observation_weight: float
    levels: tuple[str, ...]


# What a token of a trace is: part of what the policy reads, an action of its own, or a command not to be learned.
READ, OWN, REFUSED = range(3)


@cache
def _template() -> PromptTemplate:
    return PromptTemplate("tiny")


@lru_cache(maxsize=100_000)
def prompt(observation: str) -> str:
    """The user message for `observation` in full context, as the trainer renders it."""
    return _template().render("full", TurnView(observation, None, "", (), 0))


class TraceEncoder:
    """Turns an episode into token ids and loss weights, exactly as the chat template renders the conversation."""

    def __init__(self, tokenizer: Qwen2Tokenizer):
        self._tokenizer = tokenizer
        self._ids: dict[str, list[int]] = {}

    def __call__(
        self, observations: Sequence[str], commands: Sequence[str], refused: Sequence[bool]
    ) -> tuple[list[int], list[int]]:
        """Token ids of the conversation up to the last command, and what each is (READ, OWN or REFUSED).

        refused: of each command, whether the environment refused it.
        """
        ids: list[int] = []
        roles: list[int] = []
        for step, command in enumerate(commands):
            # The newline after an answer belongs to the next turn: the policy stops at END.
            before = ("\n" if step else "") + USER + prompt(observations[step]) + END + "\n" + ASSISTANT
            for text, role in ((before, READ), (action_text(command) + END, REFUSED if refused[step] else OWN)):
                if text not in self._ids:
                    self._ids[text] = self._tokenizer.encode(text, add_special_tokens=False)
                ids += self._ids[text]
                roles += [role] * len(self._ids[text])
        return ids, roles


def new_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2.5-architecture model of about 0.14M parameters with random weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    pad, end = tokenizer.convert_tokens_to_ids([PAD, END])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.05,
        use_sliding_window=False,
        bos_token_id=None,
        pad_token_id=pad,
        eos_token_id=end,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = end
    model.generation_config.pad_token_id = pad
    model.generation_config.do_sample = True
    return model


def batches(
    traces: Iterator[tuple[list[int], list[int]]], batch_size: int, observation_weight: float, pad: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Right-padded (batch, length) ids and float loss weights; padding weighs 0."""
    import torch

    weight_of = torch.zeros(3)
    weight_of[READ], weight_of[OWN] = observation_weight, 1.0
    while True:
        rows = [next(traces) for _ in range(batch_size)]
        length = max(len(ids) for ids, _ in rows)
        ids = torch.full((batch_size, length), pad)
        weights = torch.zeros(batch_size, length)
        for i, (row, roles) in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            weights[i, : len(row)] = weight_of[torch.tensor(roles)]
        yield ids, weights


def fit(
    model: Qwen2ForCausalLM,
    phase: Phase,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    report: Callable[[int, float, float], None],
) -> None:
    """Train `model` in place; `report(step, action_loss, observation_loss)` is called after each step (losses in nats
    a token)."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    warmup = min(20, phase.steps)
    model.train()
    for step in range(1, phase.steps + 1):
        cosine = 0.5 * (1 + math.cos(math.pi * step / phase.steps))
        for group in optimizer.param_groups:
            group["lr"] = phase.learning_rate * min(1.0, step / warmup) * (0.1 + 0.9 * cosine)
        ids, weights = next(data)
        # Padding is on the right and attention causal, so no mask is needed; the head only sees tokens with a weight.
        hidden = model.model(input_ids=ids).last_hidden_state
        row, column = (weights[:, 1:] > 0).nonzero(as_tuple=True)
        weight = weights[row, column + 1]
        losses = torch.nn.functional.cross_entropy(
            model.lm_head(hidden[row, column]), ids[row, column + 1], reduction="none"
        )
        optimizer.zero_grad(set_to_none=True)
        ((losses * weight).sum() / weight.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        own = weight == 1.0
        report(step, losses[own].mean().item(), losses[~own].mean().item())
    model.eval()
