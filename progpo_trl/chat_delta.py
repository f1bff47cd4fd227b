"""The tokens a chat template puts between a sampled assistant turn and the next one."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from progpo_trl.memo import Memo


def rendered(tokenizer, messages: list[dict[str, str]], options: dict[str, Any]) -> str:
    """The text of a chat up to the header of the next assistant turn. ValueError, which names the tokenizer's folder,
    when its chat template is damaged or does not take such a chat."""
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    except Exception as error:
        # A template is a program of the model's author; whatever it raises is its fault.
        name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        place = os.path.join(name, "chat_template.jinja")
        place = place if os.path.isfile(place) else f"the chat template of {name}"
        line = getattr(error, "lineno", None)
        said = f"line {line}: {error.message}" if line else str(error) or type(error).__name__
        raise ValueError(f"{place} cannot be used: {said}") from error


class ChatDelta:
    """Token ids that follow a SAMPLED assistant turn: its end if it was cut off, then a user message and the header
    of the next assistant turn.

    The text is taken from one rendering of a conversation in which a marker stands for the assistant's message, so
    the chat template need not render earlier turns as it renders the last (Qwen3's does not).
    """

    MARKER = "\u241fSAMPLED\u241f"

    def __init__(self, tokenizer, template_kwargs: dict[str, Any] | None = None):
        self._tokenizer, self._kwargs = tokenizer, template_kwargs or {}
        self._ids = Memo(self._tokenise)
        self._frame = self._frame_of_text()
        self.end_of_turn = self._check()

    def __call__(self, completion_ids: np.ndarray, user_text: str) -> np.ndarray:
        """int32 ids to append after `completion_ids` for the next turn, whose user message is `user_text`."""
        ids = self._ids(user_text)
        ended = len(completion_ids) > 0 and completion_ids[-1] == self.end_of_turn
        return ids[1:] if ended else ids

    def _tail(self, user_text: str) -> str:
        """What the chat template writes after the assistant's message."""
        messages = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": self.MARKER},
            {"role": "user", "content": user_text},
        ]
        text = rendered(self._tokenizer, messages, self._kwargs)
        _, marker, tail = text.partition(self.MARKER)
        if not marker:
            raise ValueError("the chat template drops the assistant's message: full context cannot be built with it")
        return tail

    def _frame_of_text(self) -> tuple[str, str] | None:
        """What stands around the user's text in `_tail`, if the template writes plain text as it is; else None."""
        probes = ("y", "You open the drawer 1. In it, you see a pen 2.\n\n(3 left)")
        before, found, after = self._tail(probes[0]).partition(probes[0])
        verbatim = bool(found) and self._tail(probes[1]) == before + probes[1] + after
        return (before, after) if verbatim else None

    def _tokenise(self, user_text: str) -> np.ndarray:
        # Rendering a chat template takes longer than tokenising what it gives. Templates that look into a message look
        # for tags or trim it, so text without either is put into the frame it would be rendered in.
        if self._frame is not None and "<" not in user_text and user_text == user_text.strip() != "":
            tail = user_text.join(self._frame)
        else:
            tail = self._tail(user_text)
        return np.array(self._tokenizer(tail, add_special_tokens=False)["input_ids"], np.int32)

    def _check(self) -> int:
        ids = self._tokenise("y")
        end = int(ids[0])
        if end not in self._tokenizer.all_special_ids and end not in self._tokenizer.added_tokens_decoder:
            raise ValueError(
                "the chat template does not end an assistant turn with one special token; use context='window', "
                "which rebuilds the prompt every turn"
            )
        return end
