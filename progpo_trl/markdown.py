"""Text as data in Markdown: whatever a name or a command holds, it is shown, never acted on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# Characters that are markup anywhere; underscores at the edge of a word; what begins a list, a heading or a link.
_SPECIAL = re.compile(
    r"([\\`*\[\]#|<>~&@$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=/)|(?<=\bwww)\.|^[-+=](?=\s|[-+=]))"
)
_NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")


class Markdown(str):
    """Text that is Markdown already and is not escaped again."""

    __slots__ = ()


def printed(value: Any) -> str:
    """One line of printable text; line ends and control characters become spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())


def escaped(value: Any) -> str:
    """`value` as text that no Markdown renderer reads as markup, HTML, a link or the border of a table's cell."""
    if isinstance(value, Markdown):
        return value
    return _NUMBERED.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", printed(value)))


def fenced(text: str, language: str = "") -> Markdown:
    """A code block; the fence is longer than any inside."""
    text = "\n".join(
        "".join(c if c.isprintable() else "\ufffd" for c in line) for line in text.strip("\n").split("\n")
    )
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return Markdown(f"{fence}{language}\n{text}\n{fence}")


def code(value: Any) -> Markdown:
    """Inline code; a border of a table's cell in it is escaped, as GitHub's tables want it."""
    text = printed(value).replace("|", "\\|")
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return Markdown(f"{ticks}{space}{text}{space}{ticks}")


def table(header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Markdown:
    """A table; every cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[cell if i == 1 else escaped(cell) for cell in line] for i, line in enumerate(lines)]
    return Markdown("\n".join("| " + " | ".join(line) + " |" for line in cells))
