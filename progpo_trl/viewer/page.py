"""The viewer's page: one HTML file whose style and script are inside it, allowed by their hashes and nothing else."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from markupsafe import Markup

from progpo_trl.web.pages import content_security_policy, render

_STATIC = Path(__file__).parent / "static"
# In this order, as one script.
_SCRIPTS = ("text.js", "data.js", "charts.js", "list.js", "step.js", "group.js", "main.js")
_DATA = "<!--data-->"


@cache
def script() -> str:
    """The page's one script."""
    parts = [(_STATIC / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    return '\n"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


@cache
def sheet() -> str:
    """The style sheet beside that of all pages."""
    return "\n" + (_STATIC / "viewer.css").read_text(encoding="utf-8")


@cache
def policy(fetch: bool) -> str:
    """Its Content-Security-Policy; `fetch` where its texts come from the server."""
    return content_security_policy((sheet(),), (script(),), fetch)


def page(name: str, exported: bool) -> tuple[str, str]:
    """The page of a run before and after the place where an exported one holds its data.

    exported: it stands alone, and its policy stands in it.
    """
    html = render(
        "viewer.html",
        name=name,
        policy=policy(False) if exported else None,
        sheet=Markup(sheet()),
        script=Markup(script()),
        data=Markup(_DATA),
    )
    before, _, after = html.rpartition(_DATA)
    return before, after
