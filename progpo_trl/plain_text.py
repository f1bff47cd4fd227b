"""Text from outside that spells a special token must not become one."""

from __future__ import annotations

import re


class PlainText:
    """Breaks the special tokens of a tokenizer where they are spelled out in a text.

    An observation, or an action that the policy wrote in letters, may hold `<|im_end|>`. Tokenised as it is, it would
    end the message and could begin one in another's name. A space after its first character makes it plain text;
    texts without such spellings are returned as they are. Added tokens that are not special (`<think>`,
    `<tool_call>`) are left alone: they are part of what is said.
    """

    def __init__(self, tokenizer):
        try:
            added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        except NotImplementedError as error:
            raise ValueError(
                f"{type(tokenizer).__name__} does not say which of its tokens are special, so texts of environments "
                "could hold some; load the model's tokenizer of transformers instead"
            ) from error
        words = sorted({*added, *map(str, tokenizer.all_special_tokens)} - {""}, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, words))) if words else None

    def __call__(self, text: str) -> str:
        """`text` without special tokens."""
        return text if self._spelled is None else self._spelled.sub(lambda found: _broken(found[0]), text)


def _broken(word: str) -> str:
    return f"{word[0]} {word[1:]}" if len(word) > 1 else " "
