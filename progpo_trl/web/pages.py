"""HTML from the templates of this package, self-contained; scripts run only where a page brings its own.

Every value is escaped, and characters that are not seen, or change how others are seen, are shown by their numbers:
pages show what environments, models and people wrote. What a form must send back exactly is never such a value.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
# Controls, directions, zero widths, tags, half characters; viewer/static/text.js has the same for the viewer's page.
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f\ud800-\udfff]+"
)
_MOST_MARKS = 8  # of one run of hidden characters


def render(template: str, **values: Any) -> str:
    """The page of a template, for example "play.html". Values it does not know or lacks raise jinja2's errors."""
    return _environment().get_template(template).render(**values)


@cache
def style() -> str:
    """The style sheet that all pages hold, in light and dark as the reader's system has it."""
    return (TEMPLATES / "style.css").read_text(encoding="utf-8")


@cache
def content_security_policy(styles: tuple[str, ...] = (), scripts: tuple[str, ...] = (), fetch: bool = False) -> str:
    """The policy of pages from `base.html`: their own style and forms, nothing else; no script runs.

    styles, scripts: further elements of the page, by their exact content; fetch: its scripts may ask this server.
    """
    parts = ["default-src 'none'", f"style-src {' '.join(map(_hash, (style(), *styles)))}", "img-src data:"]
    if scripts:
        parts.append(f"script-src {' '.join(map(_hash, scripts))}")
    if fetch:
        parts.append("connect-src 'self'")
    return "; ".join([*parts, "form-action 'self'", "base-uri 'none'"])


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = Markup(style())
    return environment


def visible(text: str) -> str:
    """The text with its hidden characters as numbers, such as "⟨U+202E⟩" for one that turns what follows around.

    Line breaks and tabs stay. Of many in a row the first eight are shown and the others counted.
    """
    return _HIDDEN.sub(_marks, text)


def _marks(run: re.Match[str]) -> str:
    codes = [f"⟨U+{ord(character):04X}⟩" for character in run[0]]
    more = len(codes) - _MOST_MARKS
    return "".join(codes[:_MOST_MARKS]) + (f"⟨and {more} more⟩" if more > 0 else "")


def _clean(value: Any) -> Any:
    # Markup is our own, and what is in it went through here.
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
