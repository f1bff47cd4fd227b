"""What the page is told at first: everything but the texts of the steps, as one JSON document.

Columns instead of objects, and codes instead of texts, so that 10,000 episodes are a few hundred kilobytes.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from progpo_trl.reporting.curves import smooth
from progpo_trl.viewer.curves import curves_of, histogram_of
from progpo_trl.viewer.groups import GATES, Group, groups_of
from progpo_trl.viewer.records import json_number
from progpo_trl.viewer.sources import RunFolder, Source

_MOST_TYPES = 8  # lines of one chart
# What a trainer logs beside the episodes: (metric, its name for people)
_LOGGED = (("entropy", "entropy"), ("kl", "KL to the reference"), ("grad_norm", "gradient norm"))


def document(
    run: RunFolder, kept: Sequence[Sequence[int]] | None = None, notices: Iterable[str] = ()
) -> dict[str, Any]:
    """The document of a run whose indexes are up to date.

    kept: for each source the episodes (rows of its index, ascending) that the page gets; by default all. The curves
    are always of all. notices: to show beside those of the run.
    """
    groups = [groups_of(source.index, run.gate) for source in run.sources]
    rows = kept if kept is not None else [range(len(source.index.rows)) for source in run.sources]
    return {
        "name": run.name,
        "facts": _facts(run),
        "notices": [*notices, *run.damage],
        "gate": {"text": _gate(run), "fallback": run.fallback is not None, "known": bool(run.config)},
        "sources": [_source(*each) for each in zip(run.sources, groups, rows, strict=True)],
        "charts": [
            chart
            for source, of in zip(run.sources, groups, strict=True)
            if source.kind == "training"
            for chart in _charts(run, source, of)
        ],
    }


def as_json(value: Any) -> str:
    """JSON in ASCII that can also stand inside an HTML element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _facts(run: RunFolder) -> list[list[str]]:
    found = [["method", run.method]]
    for label, key in (("model", "model_name_or_path"), ("seed", "seed"), ("learning rate", "learning_rate")):
        if run.config.get(key) is not None:
            found.append([label, str(run.config[key])])
    environment = run.config.get("environment")
    if isinstance(environment, dict):
        found.append(["environment", ", ".join(f"{k} {v}" if k != "name" else str(v) for k, v in environment.items())])
    for when, (rate, low, high) in run.held_out.items():
        found.append([f"held-out games {when}", f"{rate:.1%} [{low:.1%}, {high:.1%}]"])
    return found


def _gate(run: RunFolder) -> str:
    gate = run.gate
    if gate.kind not in GATES:
        return f"its gate is {gate.kind}: progpo explain says where it is open"
    if gate.kind == "success":
        return "open where no episode succeeds"
    return f"open where every |return| is below {gate.tau_R:g}"


def _source(source: Source, groups: list[Group], rows: Sequence[int]) -> dict[str, Any]:
    index = source.index
    place = {row: i for i, row in enumerate(rows)}
    chosen = [index.rows[row] for row in rows]
    shown = [(group, [place[i] for i in group.rows if i in place]) for group in groups]
    shown = [(group, members) for group, members in shown if members]
    sections = sorted({group.section for group in groups})
    return {
        "name": source.name,
        "kind": source.kind,
        "explain": f"progpo explain {shlex.quote(str(index.path))}" if source.kind == "training" else None,
        "texts": index.has_texts,
        "total": len(index.rows),
        "tasks": index.task_ids.texts,
        "instructions": [text[-400:] for text in index.instructions],
        "types": index.task_types.texts,
        "stops": index.stops.texts,
        "sections": sections,
        "section_names": index.parts.texts if index.evaluation else None,
        "rows": {
            "id": list(rows),
            "index": [row.index for row in chosen],
            "seed": [row.seed for row in chosen],
            "task": [row.task for row in chosen],
            "type": [row.task_type for row in chosen],
            "stop": [row.stop for row in chosen],
            "success": [int(row.success) for row in chosen],
            "dropped": [int(row.dropped) for row in chosen],
            "return": [_short(row.episode_return) for row in chosen],
            "coverage": [_short(row.coverage) for row in chosen],
            "steps": [row.steps for row in chosen],
            "bad_format": [row.bad_format for row in chosen],
            "inadmissible": [row.inadmissible for row in chosen],
        },
        "groups": {
            "section": [group.section for group, _ in shown],
            "group": [group.group for group, _ in shown],
            "rows": [members for _, members in shown],
            "kept": [len(group.kept) for group, _ in shown],
            "gate": [None if group.gate is None else int(group.gate) for group, _ in shown],
            "all_fail": [int(group.all_fail) for group, _ in shown],
            "all_success": [int(group.all_success) for group, _ in shown],
        },
    }


def _short(value: float) -> float | str:
    return json_number(float(f"{value:.6g}"))


# ---- charts --------------------------------------------------------------------------------------------------------


def _charts(run: RunFolder, source: Source, groups: list[Group]) -> list[dict[str, Any]]:
    curves = curves_of(source.index, groups)
    if not len(curves.update):
        return []
    values, x = curves.values, curves.update
    points = []
    for when, (rate, low, high) in run.held_out.items():
        at = int(x[0] if when == "before" else x[-1])
        points.append({"name": f"held-out games {when} training", "x": at, "y": rate, "low": low, "high": high})
    evaluated = [(e["step"], e["eval_success"]) for e in run.log if _numbers(e, "step", "eval_success")]
    points += [{"name": "evaluation", "x": step, "y": rate, "low": None, "high": None} for step, rate in evaluated]
    found = [
        _lines(
            "Success, all-fail groups, coverage",
            x,
            {
                "success": values["rollout/success"],
                "all-fail groups": values["groups/all_fail"],
                "observation coverage": values["coverage/mean"],
            },
            share=True,
            points=points,
        )
    ]
    if len(curves.success_by_type) > 1:
        shown = dict(list(curves.success_by_type.items())[:_MOST_TYPES])
        more = len(curves.success_by_type) - len(shown)
        title = "Success by task type" + (f" (the first {len(shown)}, {more} more)" if more else "")
        found.append(_lines(title, x, shown, share=True, raw=False))
    wrong = {"bad format": values["rollout/format_invalid"], "inadmissible": values["rollout/inadmissible"]}
    found.append(_lines("Invalid actions, share of steps", x, wrong, share=True, zoom=True))
    found.append(_lines("Return", x, {"mean return": values["rollout/return"]}))
    found.append(_lines("Steps an episode", x, {"mean steps": values["rollout/steps"]}))
    for key, label in _LOGGED:
        logged = [(e["step"], e[key]) for e in run.log if _numbers(e, "step", key)]
        if logged:
            steps, numbers = np.array(logged, float).T
            found.append(_lines(f"Logged: {label}", steps, {label: numbers}))
    histogram = histogram_of(source.index, groups)
    if histogram is not None:
        note = f"; {histogram.left_out} that are not finite are left out" if histogram.left_out else ""
        found.append(
            {
                "kind": "histogram",
                "title": f"Advantages of steps{note}",
                "x": [_short(edge) for edge in histogram.edges.tolist()],
                "series": [
                    {"name": name, "y": [_short(v) for v in shares.tolist()]}
                    for name, shares in histogram.shares.items()
                ],
            }
        )
    return found


def _numbers(entry: dict[str, Any], *names: str) -> bool:
    return all(type(entry.get(name)) in (int, float) and math.isfinite(entry[name]) for name in names)


def _lines(
    title: str,
    x: np.ndarray,
    series: dict[str, np.ndarray],
    *,
    share: bool = False,
    zoom: bool = False,
    raw: bool = True,
    points: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """share: values in [0, 1], as percent; zoom: not always up to 100 %; raw: also the values before smoothing."""
    return {
        "kind": "lines",
        "title": title,
        "share": share,
        "zoom": zoom,
        "x": [_short(float(value)) for value in x],
        "series": [
            {
                "name": name,
                "y": [_short(v) for v in smooth(np.where(np.isfinite(y), y, np.nan)).tolist()],
                "raw": [_short(v) for v in y.tolist()] if raw else None,
            }
            for name, y in series.items()
        ],
        "points": list(points),
    }
