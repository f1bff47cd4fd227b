"""The tiny policy's tokenizer: a byte-level BPE small enough for a model of 0.1M parameters.

Any text round-trips (all 256 bytes are in the vocabulary). Two things keep an episode short:
- the split pattern makes a numbered name (" shelf 1") one piece, and the text between two names another, so that the
  fixed phrases of the game become single tokens;
- the action format costs two tokens: `<think></think><action>` and `</action>` are added as a whole. They are not
  special, so decoding keeps them.
The chat template is Qwen2.5's ChatML without a default system message. `<|im_start|>user` and
`<|im_start|>assistant` with their newline are single special tokens; the text, and so the ids of a conversation that
is extended turn by turn, are the same as without.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END = "<|endoftext|>", "<|im_end|>"
USER, ASSISTANT = "<|im_start|>user\n", "<|im_start|>assistant\n"
ACTION_OPEN, ACTION_CLOSE = "<think></think><action>", "</action>"
SPECIAL = (PAD, END, "<|im_start|>", USER, ASSISTANT)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

_PIECES = "|".join(
    (
        r" ?[a-z]+ \d+",  # a numbered name
        r"[^\d\n]{1,40}?(?= [a-z]+ \d)",  # what stands before one
        r"(?<=\d)[^\d\n]{1,40}\z",  # what stands after the last one
        r"\A[^\d\n]{1,40}\z",  # a short text without any
        r" ?\p{L}+",
        r" ?\d+",
        r" ?[^\s\p{L}\d]+",
        r"\s+",
    )
)


def action_text(command: str) -> str:
    """The response that plays `command`."""
    return f"{ACTION_OPEN}{command}{ACTION_CLOSE}"


def build_tokenizer(texts: Iterable[str], vocab_size: int, n_merges: int = 96) -> PreTrainedTokenizerFast:
    """Learn the vocabulary from `texts` (observations and commands). Deterministic in the texts.

    A plain BPE of this size would spend half of its vocabulary on halves of words. So only `n_merges` merges are
    learned, for text of any other kind; the rest of `vocab_size` goes to the most frequent whole pieces, which
    `ignore_merges` makes the model look up first.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts = Counter(piece for text in texts for piece, _ in split.pre_tokenize_str(text))
    pieces = sorted(counts, key=lambda piece: (-counts[piece], piece))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learned = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + n_merges, initial_alphabet=alphabet, max_token_length=4, show_progress=False
    )
    learned.train_from_iterator((piece for piece in pieces for _ in range(counts[piece])), trainer)
    model = json.loads(learned.to_str())["model"]

    vocab = {token: i for i, token in enumerate(SPECIAL)}
    for token in [*sorted(model["vocab"], key=model["vocab"].get), *pieces]:
        if len(vocab) == vocab_size - 2:
            break
        vocab.setdefault(token, len(vocab))
    merges = [tuple(pair) for pair in model["merges"]]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in (ACTION_OPEN, ACTION_CLOSE)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = 2048
    return tokenizer
