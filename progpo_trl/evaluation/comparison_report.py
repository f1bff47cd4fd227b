"""A comparison as a Markdown table and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from progpo_trl.evaluation.results import percent, sampling_name
from progpo_trl.markdown import escaped


def as_markdown(comparison: Mapping[str, Any]) -> str:
    """The tables of a comparison, one block per split and temperature."""
    of_part = _agents if comparison["kind"] == "agents" else _runs
    lines = [f"**Warning**: {escaped(warning)}\n" for warning in comparison["warnings"]]
    lines += [line for part in comparison["parts"] for line in of_part(part)]
    return "\n".join(lines).strip() + "\n"


def _title(part: Mapping[str, Any], games: int) -> str:
    return f"### {escaped(part['split'])}, {sampling_name(part['temperature'])}: {games} games"


def _agents(part: Mapping[str, Any]) -> Iterator[str]:
    several = len(part["pairs"]) > 1
    scored = any("score" in agent for agent in part["agents"])
    yield _title(part, max(agent["games"] for agent in part["agents"]))
    yield ""
    head = ["agent", "success", "difference to the first", "p" + (" (Holm)" if several else "")]
    head += ["score", "difference of scores"] if scored else []
    yield _row([*head, "only first / only second"])
    yield _row(["---"] * (len(head) + 1))
    pairs: list[Mapping[str, Any] | None] = [None, *part["pairs"]]
    for agent, pair in zip(part["agents"], pairs, strict=True):
        cells = [escaped(agent["name"]), _rate(agent["success"])]
        cells += ["", ""] if pair is None else [_points(pair["difference"]), _p(pair, several)]
        if scored:
            cells.append(_mean(agent.get("score")))
            cells.append("" if pair is None or "score_difference" not in pair else _mean(pair["score_difference"]))
        seeds = [] if pair is None else pair["by_seed"]
        yield _row([*cells, "; ".join(f"{s['only_first']} / {s['only_second']}" for s in seeds)])
    yield ""
    for pair in part["pairs"]:
        if pair["left_out"]:
            yield f"{pair['left_out']} game(s) that one of the two could not be scored on are left out of the pairs."
            yield ""
    yield from _types(part)


def _types(part: Mapping[str, Any]) -> Iterator[str]:
    kinds = list(dict.fromkeys(kind for pair in part["pairs"] for kind in pair["by_task_type"]))
    if len(kinds) < 2:
        return
    yield _row(["difference to the first", *(escaped(pair["second"]) for pair in part["pairs"])])
    yield _row(["---"] * (1 + len(part["pairs"])))
    for kind in kinds:
        found = [pair["by_task_type"].get(kind) for pair in part["pairs"]]
        games = max(one["games"] for one in found if one)
        yield _row(
            [f"{escaped(kind)} ({games})", *("-" if one is None else _points(one["difference"]) for one in found)]
        )
    yield ""


def _runs(part: Mapping[str, Any]) -> Iterator[str]:
    groups = part["groups"]
    scored = any("score" in group for group in groups.values())
    yield _title(part, max(run["games"] for group in groups.values() for run in group["runs"]))
    yield ""
    yield _row(["group", "run", "training seed", "success", *(["score"] if scored else [])])
    yield _row(["---"] * (5 if scored else 4))
    for name, group in groups.items():
        for run in group["runs"]:
            seed = "-" if run["training_seed"] is None else escaped(run["training_seed"])
            cells = [escaped(name), escaped(run["name"]), seed, _rate(run["success"])]
            yield _row([*cells, *([_mean(run.get("score"))] if scored else [])])
        n = len(group["runs"])
        mean = group["success"]
        cells = [
            escaped(name),
            f"mean over {n} training run{'s' * (n > 1)}",
            "",
            _rate({"rate": mean["mean"], **mean}),
        ]
        yield _row(
            [f"**{cell}**" if cell else "" for cell in (*cells, *([_mean(group.get("score"))] if scored else []))]
        )
    yield ""
    for pair in part["pairs"]:
        names = f"{escaped(pair['second'])} minus {escaped(pair['first'])}"
        score = f"; score {_mean(pair['score_difference'])}" if "score_difference" in pair else ""
        yield f"{names}, 95 % interval over training runs: {_points(pair['difference'])} points{score}"
        yield ""


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rate(rate: Mapping[str, Any]) -> str:
    if rate["low"] is None:
        return percent(rate["rate"])
    return f"{percent(rate['rate'])} [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"


def _points(mean: Mapping[str, Any]) -> str:
    """A difference of shares, in points of percent."""
    ends = "" if mean["low"] is None else f" [{100 * mean['low']:+.1f}, {100 * mean['high']:+.1f}]"
    return f"{100 * mean['mean']:+.1f}{ends}"


def _mean(mean: Mapping[str, Any] | None) -> str:
    if mean is None or mean["mean"] is None:
        return "-"
    ends = "" if mean["low"] is None else f" [{mean['low']:.3f}, {mean['high']:.3f}]"
    return f"{mean['mean']:.3f}{ends}"


def _p(pair: Mapping[str, Any], several: bool) -> str:
    shown = f"{pair['p']:.2g}" if pair["p"] >= 1e-4 else "< 0.0001"
    return f"{shown} ({pair['p_holm']:.2g})" if several else shown


def draw(comparison: Mapping[str, Any], path: Path) -> None:
    """A picture: success of each agent (or run and group) with its interval, and the differences to the first."""
    from matplotlib.figure import Figure

    parts = comparison["parts"]
    rows = [_bars(comparison["kind"], part) for part in parts]
    heights = [1.0 + 0.34 * len(bars) for bars in rows]
    figure = Figure(figsize=(11, sum(heights) + 0.4), layout="constrained")
    axes = figure.subplots(len(parts), 2, squeeze=False, height_ratios=heights, width_ratios=(3, 2))
    for (left, right), part, bars in zip(axes, parts, rows, strict=True):
        for y, (_, value, bold) in enumerate(bars):
            _point(left, value["rate"], value["low"], value["high"], y, "black" if bold else "tab:blue")
        left.set(xlim=(-5, 105), xlabel="success, %", title=f"{part['split']}, {sampling_name(part['temperature'])}")
        left.set_yticks(range(len(bars)), [label for label, _, _ in bars])
        pairs = part["pairs"]
        # Agents stand in the row of their success; groups have none of their own.
        agents = comparison["kind"] == "agents"
        places = range(1, len(bars)) if agents else range(len(pairs))
        for y, pair in zip(places, pairs, strict=True):
            gap = pair["difference"]
            _point(right, gap["mean"], gap["low"], gap["high"], y, "tab:green" if gap["mean"] >= 0 else "tab:red")
        right.axvline(0, color="grey", linewidth=1)
        right.set_yticks(places, ["" if agents else _plain(pair["second"]) for pair in pairs])
        right.set(xlabel="difference, points", title=f"minus {_plain(pairs[0]['first'])}" if pairs else "")
        right.set_visible(bool(pairs))
        for axis, n in ((left, len(bars)), (right, len(bars) if agents else len(pairs))):
            axis.set_ylim(max(n, 1) - 0.5, -0.5)
            axis.grid(axis="x", alpha=0.3)
    means = "95 % intervals: of runs over games, of means over training runs"
    title = "95 % intervals over games" if comparison["kind"] == "agents" else means
    figure.suptitle(title + ("; some tried each game several times" if comparison["warnings"] else ""))
    figure.savefig(path, dpi=120, format="png")


def _bars(kind: str, part: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], bool]]:
    """(label, rate, whether it is a mean over runs) of what the left side shows, from the top."""
    if kind == "agents":
        return [(_plain(agent["name"]), agent["success"], False) for agent in part["agents"]]
    bars: list[tuple[str, Mapping[str, Any], bool]] = []
    for name, group in part["groups"].items():
        bars += [(_plain(run["name"]), run["success"], False) for run in group["runs"]]
        mean = group["success"]
        bars.append((_plain(f"{name}: mean of {len(group['runs'])}"), {"rate": mean["mean"], **mean}, True))
    return bars


def _point(axis, value: float, low: float | None, high: float | None, y: int, colour: str) -> None:
    ends = None if low is None else [[100 * (value - low)], [100 * (high - value)]]
    axis.errorbar([100 * value], [y], xerr=ends, fmt="o", color=colour, capsize=4)
    axis.annotate(
        f"{100 * value:.1f}", (100 * value, y), xytext=(0, 6), textcoords="offset points", ha="center", size=8
    )


def _plain(text: str) -> str:
    """A name as matplotlib shows it: `$` would begin a formula."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text).replace("$", r"\$")
