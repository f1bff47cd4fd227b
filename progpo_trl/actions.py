"""From the text a policy produced to the action that is played, and whether the text had the required form.

Model text is data: it is searched, never evaluated, and any string has a defined result.
"""

from __future__ import annotations

import re
from typing import NamedTuple

FORMATS = ("think_action", "action", "text")  # see `project`

# A response without a readable action is played by its tail, as published; it is never admissible in practice. This
# is ALFWorld's length; a task set may name another.
FALLBACK_CHARACTERS = 30
# No environment has longer commands; a bound keeps a runaway response out of later prompts.
MAX_ACTION_CHARACTERS = 500

_CJK = re.compile("[\u4e00-\u9fff]")


class Projection(NamedTuple):
    """action: what the environment is told; format_valid: whether the response had the required form.

    Whether the action is admissible is another question, answered by the environment's list.
    """

    action: str
    format_valid: bool


def project(
    response: str, action_format: str = "think_action", fallback_characters: int = FALLBACK_CHARACTERS
) -> Projection:
    """The action in `response`.

    "think_action" (published for ALFWorld and WebShop): the lower-cased text between the first `<action>` and the
    first `</action>`; valid when both `<think>` and `</think>` occur too and no character of U+4E00-9FFF does. With a
    tag missing the last `fallback_characters` (30 in ALFWorld, 20 in WebShop) are played and the response is invalid.
    "action": the same without asking for a think block. "text": the whole response, stripped; valid unless empty.

    Deviations from the published code: an empty action and tags in reverse order are invalid (there they count as
    valid with an empty action), and an action is cut at 500 characters. As there, several actions, nested tags or
    an action inside the think block are read by the rule above and stay valid.

    An unknown `action_format` is a ValueError.
    """
    if action_format not in FORMATS:
        raise ValueError(f"action_format={action_format!r} is not one of {', '.join(FORMATS)}")
    if action_format == "text":
        action = response.strip()
        return Projection(action[:MAX_ACTION_CHARACTERS], bool(action))
    text = response.lower()
    start, end = text.find("<action>"), text.find("</action>")
    if start < 0 or end < 0:
        return Projection(text[-fallback_characters:] if fallback_characters else "", False)
    action = text[start + len("<action>") : end].strip()
    thought = action_format == "action" or ("<think>" in text and "</think>" in text)
    valid = bool(action) and thought and _CJK.search(response) is None
    return Projection(action[:MAX_ACTION_CHARACTERS], valid)
