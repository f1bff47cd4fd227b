"""The learning curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from progpo_trl import atomic


def learning_curve(log_history: Sequence[Mapping[str, Any]], path: Path, facts: Mapping[str, Any], title: str) -> None:
    """Training success, all-fail groups and coverage over updates, and the held-out panel before and after.

    log_history: the trainer's; facts: may hold `success_before` and `success_after` (rate, low, high, n).
    """
    from matplotlib.figure import Figure

    logs = [entry for entry in log_history if "rollout/success" in entry]
    steps = np.array([entry["step"] for entry in logs], float)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for key, label, colour in (
        ("rollout/success", "success in training (sampled)", "tab:green"),
        ("groups/all_fail", "groups in which every episode fails", "tab:red"),
        ("coverage/mean", "observation coverage", "tab:blue"),
    ):
        values = np.array([np.nan if entry.get(key) is None else entry[key] for entry in logs], float)
        if len(values) == 0:
            continue
        axes.plot(steps, values, color=colour, alpha=0.25, linewidth=1)
        axes.plot(steps, smooth(values), color=colour, label=label, linewidth=2)
    last = float(steps[-1]) if len(steps) else 1.0
    for key, x in (("success_before", 0.0), ("success_after", last)):
        rate = facts.get(key)
        if rate is None:
            continue
        errors = [[rate["rate"] - rate["low"]], [rate["high"] - rate["rate"]]]
        label = f"{rate['n']} held-out games, 95 % interval" if key == "success_before" else None
        axes.errorbar([x], [rate["rate"]], yerr=errors, fmt="o", color="black", capsize=4, label=label, zorder=5)
        # beside its point, on the side where the axes are
        side = {"xytext": (8, 8), "ha": "left"} if x == 0 else {"xytext": (-8, 8), "ha": "right"}
        axes.annotate(f"{rate['rate']:.0%}", (x, rate["rate"]), textcoords="offset points", weight="bold", **side)
    axes.set(xlabel="update", ylabel="share", ylim=(-0.02, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    with atomic.replacing(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def smooth(values: np.ndarray, width: int = 5) -> np.ndarray:
    """Centred moving average that shrinks at the ends; NaN is left out."""
    out = np.full(len(values), np.nan)
    for i in range(len(values)):
        window = values[max(0, i - width // 2) : i + width // 2 + 1]
        if np.isfinite(window).any():
            out[i] = np.nanmean(window)
    return out
