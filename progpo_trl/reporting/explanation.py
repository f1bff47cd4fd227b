"""The account of a group's advantages as text for a terminal and as a page: see `progpo_trl.explain`."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from progpo_trl.explain import EpisodeAccount, Explanation

_CUT = 44  # characters of an observation in the terminal


def as_text(account: Explanation, step: int | None = None) -> str:
    """The account as lines for a terminal."""
    return "\n".join(_lines(account, step))


def _lines(account: Explanation, step: int | None) -> Iterator[str]:
    where = "" if step is None else f" of step {step}"
    task = account.task.strip().splitlines()[-1] if account.task.strip() else ""
    yield f"group {account.group}{where}: {printable(task)}"
    yield account.estimator
    yield from (f"  {note}" for note in account.notes)
    if account.columns:
        yield "  " + ", ".join(f"{name} {_number(value)}" for name, value in account.columns.items())
    for e in account.episodes:
        yield ""
        yield f"episode {e.index}: {_summary(e)}"
        for s in e.steps:
            mark = "" if s.valid else "  [invalid]"
            recorded = "" if not _differs(s) else f"  (recorded {s.recorded:+.4f})"
            seen, done = _short(s.observation), _short(s.action)
            yield f"  {s.step:3}  {s.advantage:+.4f}{recorded}  {seen!r} -> {done!r}{mark}"
            yield f"         {s.because}"
            if s.peers:
                yield f"         compared with {s.peers}"


def printable(text: str) -> str:
    """The text without what would act on a terminal (control characters) or cannot be encoded."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _summary(e: EpisodeAccount) -> str:
    words = f"{e.outcome}, return {e.episode_return:g}, coverage {e.coverage:.3g}"
    return ", ".join([words, *(f"{name} {_number(value)}" for name, value in e.columns.items())])


def _differs(step: Any) -> bool:
    return step.recorded is not None and abs(step.recorded - step.advantage) > 1e-4


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _CUT else text[: _CUT - 3] + "..."


def _number(value: Any) -> str:
    if isinstance(value, str):
        return value
    if str(getattr(value, "dtype", type(value).__name__)) == "bool":
        return "yes" if value else "no"
    return f"{float(value):.4g}"


_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 84rem; padding: 0 1rem; color: #1d2329; }
code, td.text, .formula { font: 12px/1.4 ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; margin: .3rem 0 1.6rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .55rem; border-bottom: 1px solid #e3e7eb; }
th { font-weight: 600; color: #55606b; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.text { white-space: pre-wrap; max-width: 26rem; overflow-wrap: anywhere; }
.plus { background: #d9f2e0; } .minus { background: #fbe0dd; } .faint { color: #76818c; }
h2 { font-size: 1rem; margin: 1.2rem 0 0; } ul { margin: .3rem 0; }
"""


def as_html(account: Explanation, step: int | None = None) -> str:
    """The account as one self-contained page. Every text of the model or the environment is escaped, nothing runs."""
    title = f"Group {account.group}" + ("" if step is None else f" of step {step}")
    notes = [*account.notes, *(f"{name}: {_number(value)}" for name, value in account.columns.items())]
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_text(account.task)}</p>",
        f'<p class="formula">{_text(account.estimator)}</p>',
    ]
    body.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    for e in account.episodes:
        body.append(f"<h2>Episode {e.index}: {escape(_summary(e))}</h2>")
        body.append(_table(e))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _table(e: EpisodeAccount) -> str:
    names = list(dict.fromkeys(name for s in e.steps for name in s.columns))
    head = ["step", "advantage", "observation", "action", "why", *names]
    rows = ["<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"]
    for s in e.steps:
        sign = "plus" if s.advantage > 0 else "minus" if s.advantage < 0 else "faint"
        recorded = f'<br><span class="faint">recorded {s.recorded:+.4f}</span>' if _differs(s) else ""
        invalid = "" if s.valid else '<br><span class="faint">invalid</span>'
        why = escape(s.because)
        if s.peers:
            why += f'<br><span class="faint">compared with {escape(s.peers)} (episode:step)</span>'
        action = f'<td class="text" title="{_text(s.response)}">{_text(s.action)}{invalid}</td>'
        cells = [
            f'<td class="number">{s.step}</td>',
            f'<td class="number {sign}">{s.advantage:+.4f}{recorded}</td>',
            f'<td class="text">{_text(s.observation)}</td>',
            action,
            f"<td>{why}</td>",
            *(f'<td class="number">{escape(_number(s.columns[n])) if n in s.columns else ""}</td>' for n in names),
        ]
        rows.append("<tr>" + "".join(cells) + "</tr>")
    if e.final_observation is not None:
        end = f'<td class="number faint">end</td><td></td><td class="text">{_text(e.final_observation)}</td>'
        rows.append(f'<tr>{end}<td colspan="{len(head) - 3}"></td></tr>')
    return "<table>" + "\n".join(rows) + "</table>"


def _text(text: str) -> str:
    """Escaped, and without the control characters that HTML does not allow."""
    return escape("".join(c if c >= " " or c in "\n\t" else "\ufffd" for c in text))
