"""HTML from the templates of this package, self-contained; scripts run only where a page brings its own.

Every value is escaped, and characters that HTML does not allow are replaced: pages show what environments, models and
people wrote.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
_REPLACED = dict.fromkeys([*range(0x09), 0x0B, 0x0C, *range(0x0D, 0x20), *range(0x7F, 0xA0)], "\ufffd")
_REPLACED |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")  # halves of characters, which cannot be encoded


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


def _clean(value: Any) -> Any:
    return value.translate(_REPLACED) if isinstance(value, str) else value
