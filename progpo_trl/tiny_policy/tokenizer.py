"""The tiny policy's tokenizer: `Qwen2Tokenizer` with a vocabulary of a few hundred tokens.

It is the big models' class (byte-level BPE, so any text round-trips, after Qwen's NFC normalisation), their ChatML
template without a default system message, and their action format. What keeps an episode short are added tokens,
none of them special unless said, so that decoding keeps them:
- names with their number (" shelf 1") and without (" shelf"), and the game's fixed phrases between two names;
- the action format: `<think></think><action>` and `</action>` cost one token each;
- special: `<|im_start|>user` and `<|im_start|>assistant` with their newline. The text, and so the ids of a
  conversation extended turn by turn, are what they would be without.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

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
MAX_LENGTH = 2048
N_BYTES = 256


def action_text(command: str) -> str:
    """The response that plays `command`."""
    return f"{ACTION_OPEN}{command}{ACTION_CLOSE}"


def build_tokenizer(
    texts: Iterable[str], kinds: Sequence[str], vocab_size: int = 576, n_merges: int = 96, min_count: int = 30
) -> Qwen2Tokenizer:
    """Learn a vocabulary of `vocab_size` tokens. Deterministic in its arguments.

    texts: prompts and commands, as often as they occur; kinds: the nouns of the world in the text's spelling.
    First come the bytes and `n_merges` BPE merges (for verbs and for text of any other kind), then the nouns, the
    phrases seen `min_count` times between two of them, and as many numbered names as still fit, frequent ones first.
    """
    nouns = "|".join(sorted(kinds, key=lambda kind: (-len(kind), kind)))
    names: Counter[str] = Counter()
    phrases: Counter[str] = Counter()
    for text in texts:
        # Odd places hold names, even ones what stands between them.
        parts = re.split(rf"( (?:{nouns})(?: \d+)?)(?![a-z\d])", text)
        names.update(parts[1::2])
        phrases.update(part for part in parts[::2] if part)

    def by_count(counts: Counter[str]) -> list[str]:
        return sorted(counts, key=lambda token: (-counts[token], token))

    # Single words are left to the merges: as added tokens they would cut through words of other texts.
    added = [f" {kind}" for kind in sorted(kinds)]
    added += [p for p in by_count(phrases) if phrases[p] >= min_count and not re.fullmatch(r" ?[A-Za-z]+|\W+", p)]
    rest = [p for p in by_count(phrases) if p not in added for _ in range(phrases[p])]
    room = vocab_size - len(SPECIAL) - N_BYTES - n_merges - len(added) - 2
    return assemble(rest, added + [name for name in by_count(names) if name not in added][:room], n_merges)


def assemble(texts: Sequence[str], added: Sequence[str], n_merges: int) -> Qwen2Tokenizer:
    """The tokenizer with the tokens `added`, and up to `n_merges` merges learned from `texts` for everything else."""
    from tokenizers import AddedToken, Tokenizer, models, trainers
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    alphabet = sorted(ByteLevel.alphabet())
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=N_BYTES + n_merges, initial_alphabet=alphabet, show_progress=False)
    learned.train_from_iterator(texts, trainer)
    model = json.loads(learned.to_str())["model"]
    vocab = {token: i for i, token in enumerate(SPECIAL)}
    for token in sorted(model["vocab"], key=model["vocab"].get):
        vocab[token] = len(vocab)
    tokenizer = Qwen2Tokenizer(
        vocab=vocab, merges=[tuple(pair) for pair in model["merges"]], unk_token=PAD, eos_token=END, pad_token=PAD
    )
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL], special_tokens=True)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in (ACTION_OPEN, ACTION_CLOSE, *added)])
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.model_max_length = MAX_LENGTH
    return tokenizer
