"""Plots of one or more runs: learning curves with intervals over seeds, success by task type, advantages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from progpo_trl import atomic
from progpo_trl.reporting.curves import smooth
from progpo_trl.viewer.curves import Curves, Histogram, curves_of, histogram_of
from progpo_trl.viewer.groups import groups_of
from progpo_trl.viewer.sources import NothingToViewError, open_run

# Okabe and Ito's colours, which people with any colour vision tell apart, in an order that also differs in lightness.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8b6f00")
STYLES = ("-", "--", ":", "-.")
PANELS = (
    ("rollout/success", "success in training", True),
    ("groups/all_fail", "groups in which every episode fails", True),
    ("coverage/mean", "observation coverage", True),
    ("rollout/return", "mean return", False),
)
_SEED = 42  # of transformers, where a config.yaml names none
# Settings that do not make two runs different experiments.
_NOT_COMPARED = re.compile(
    r"seed|data_seed|output_dir|run_name|logging_.*|report_to|resume_from_checkpoint|disable_tqdm|save_.*|push_to_hub"
    r"|hub_.*|show_rollout_progress|log_completions"
)


@dataclass(frozen=True)
class Run:
    """One run as the plots see it. settings: those that make it another experiment than others, flat.

    seed: of the training and of its data's order. held_out: "before" and "after" -> the success on held-out games and
    its interval, where summary.json has them. damage: what of its files could not be read, for people.
    """

    name: str
    method: str
    seed: tuple[str, str]
    settings: dict[str, Any]
    curves: Curves
    advantages: Histogram | None
    held_out: dict[str, tuple[float, float, float]]
    damage: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """Runs of the same settings as one line. update: (n,), those that all of its runs have.

    values, low, high: name -> (n,); the mean over runs after smoothing each, and its 95 % t interval over runs, nan
    where there is only one run.
    """

    label: str
    runs: list[Run]
    update: np.ndarray
    values: dict[str, np.ndarray]
    low: dict[str, np.ndarray]
    high: dict[str, np.ndarray]


def read_run(path: str | Path) -> Run:
    """The run at `path`. NothingToViewError where there is no training with episodes, OSError if it is unreadable."""
    folder = open_run(path)
    if folder.training is None:
        raise NothingToViewError(f"{path}: holds no episodes of a training")
    index = folder.training.index
    index.refresh()
    if not index.rows:
        raise NothingToViewError("; ".join([f"{path}: its episodes.jsonl holds no episodes", *folder.training.damage]))
    groups = groups_of(index, folder.gate)
    settings = {k: v for k, v in _flat(folder.config).items() if not _NOT_COMPARED.fullmatch(k)}
    settings = settings or {"run": folder.name}  # without its settings a run is like no other
    curves, advantages = curves_of(index, groups), histogram_of(index, groups)
    seed = (str(folder.config.get("seed", _SEED)), str(folder.config.get("data_seed")))
    held_out, damage = {}, folder.damage
    for when, (rate, low, high) in folder.held_out.items():
        if 0 <= low <= rate <= high <= 1:
            held_out[when] = (rate, low, high)
        else:
            damage.append(
                f"summary.json: success_{when} is left out: a rate of {rate:g} and an interval from {low:g} to "
                f"{high:g} cannot be"
            )
    return Run(folder.name, folder.method, seed, settings, curves, advantages, held_out, damage)


def lines_of(runs: Sequence[Run]) -> list[Line]:
    """The runs pooled over seeds: those that agree in all settings but the seed and where and how they log.

    ValueError where one seed is there twice: a copy would make an interval over seeds that says nothing.
    """
    pools: list[list[Run]] = []
    for run in runs:
        alike = (pool for pool in pools if pool[0].settings == run.settings and set(run.settings) != {"run"})
        pool = next(alike, None)
        twin = next((other for other in pool or [] if other.seed == run.seed), None)
        if twin is not None:
            raise ValueError(
                f"{twin.name} and {run.name} are runs of one seed ({run.seed[0]}) and the same settings: it counts "
                "once, leave one out"
            )
        if pool is None:
            pools.append([run])
        else:
            pool.append(run)
    return [_line(label, pool) for label, pool in zip(_labels(pools), pools, strict=True)]


def _line(label: str, pool: list[Run]) -> Line:
    common = pool[0].curves.update
    for run in pool[1:]:
        common = np.intersect1d(common, run.curves.update)
    values, low, high = {}, {}, {}
    names = [name for name, _, _ in PANELS] + sorted({f"type/{t}" for run in pool for t in run.curves.success_by_type})
    for name in names:
        table = np.array([_column(run.curves, name)[np.isin(run.curves.update, common)] for run in pool])
        values[name], low[name], high[name] = mean_and_interval(table)
    return Line(label, pool, common, values, low, high)


def _column(curves: Curves, name: str) -> np.ndarray:
    missing = np.full(len(curves.update), np.nan)
    of_type = name.startswith("type/")
    found = (curves.success_by_type if of_type else curves.values).get(name.removeprefix("type/"), missing)
    return smooth(np.where(np.isfinite(found), found, np.nan))


def mean_and_interval(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over runs and its 95 % t interval, each (n,), of a table (runs, n); nan in the table is left out.

    The interval is nan where fewer than two runs have a value.
    """
    from scipy.stats import t

    known = np.isfinite(table)
    n = known.sum(axis=0)
    total = np.where(known, table, 0.0).sum(axis=0)
    mean = np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0)
    squares = np.where(known, (table - mean) ** 2, 0.0).sum(axis=0)
    sd = np.sqrt(np.divide(squares, n - 1, out=np.full(len(n), np.nan), where=n > 1))
    half = t.ppf(0.975, np.maximum(n - 1, 1)) * sd / np.sqrt(np.maximum(n, 1))
    return mean, mean - half, mean + half


def _labels(pools: Sequence[Sequence[Run]]) -> list[str]:
    """A name for each pool: its method, and where that is not enough, the settings in which the pools differ."""
    labels = []
    for pool in pools:
        first = pool[0]
        alike = [other[0] for other in pools if other[0].method == first.method and other is not pool]
        differing = sorted(
            key
            for key in {key for run in (first, *alike) for key in run.settings}
            if any(run.settings.get(key) != first.settings.get(key) for run in alike)
        )
        named = ", ".join(f"{key} {first.settings.get(key, '(default)')}" for key in differing[:3])
        name = first.settings["run"] if set(first.settings) == {"run"} else first.method
        seeds = f"{len(pool)} runs" if len(pool) > 1 else "1 run"
        labels.append(f"{name}{f' ({named})' if named and name == first.method else ''}, {seeds}")
    return labels


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            out |= _flat(value, f"{prefix}{name}.")
        else:
            out[f"{prefix}{name}"] = str(value)
    # {} and null differ: a section that is there, with its defaults, from none.
    return out | {f"{prefix}{name}": "on" for name, value in settings.items() if isinstance(value, Mapping)}


# ---- pictures ------------------------------------------------------------------------------------------------------


def draw(runs: Sequence[Run], out: Path) -> list[Path]:
    """Write the plots of `runs` as PNG files to the folder `out`; returns them."""
    lines = lines_of(runs)
    out.mkdir(parents=True, exist_ok=True)
    figures = {
        "learning_curves.png": _learning_curves(lines),
        "success_by_task_type.png": _by_task_type(lines),
        "all_fail.png": _all_fail(lines),
        "advantages.png": _advantages(lines),
    }
    written = []
    for name, figure in figures.items():
        if figure is not None:
            with atomic.replacing(out / name) as partial:
                figure.savefig(partial, dpi=120, format="png")
            written.append(out / name)
    return written


def _figure(rows: int, columns: int, width: float = 5.2, height: float = 3.4):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).ravel()


def _text(text: str) -> str:
    """Text as it is: matplotlib takes what stands between dollar signs for mathematics."""
    shown = text if len(text) <= 90 else text[:87] + "..."
    return "".join(c if c.isprintable() else "\ufffd" for c in shown).replace("$", r"\$")


def _learning_curves(lines: Sequence[Line]):
    figure, axes = _figure(2, 2)
    for ax, (name, title, share) in zip(axes, PANELS, strict=True):
        for i, line in enumerate(lines):
            _plot(ax, line, name, i)
            if name == "rollout/success":
                _held_out(ax, line, i)
        _finish(ax, title, share)
    _legend(figure, axes[0], lines)
    return figure


def _held_out(ax, line: Line, i: int) -> None:
    """The success on held-out games before and after training: the mean over runs, or the one run's own interval."""
    for when, x, aside in (("before", line.update[0], 1), ("after", line.update[-1], -1)):
        known = [run.held_out[when] for run in line.runs if when in run.held_out]
        if not known:
            continue
        rate, low, high = known[0]
        if len(known) > 1:
            rate, low, high = (float(v[0]) for v in mean_and_interval(np.array([[r] for r, _, _ in known])))
        # Lines that end at the same update stand beside each other.
        place = x + aside * i * 0.012 * max(1, line.update[-1] - line.update[0])
        ax.errorbar([place], [rate], [[rate - low], [high - rate]], fmt="o", color=_colour(i), capsize=4, zorder=5)


def _all_fail(lines: Sequence[Line]):
    figure, axes = _figure(1, 1, 7, 4)
    for i, line in enumerate(lines):
        for run in line.runs if len(line.runs) > 1 else []:
            axes[0].plot(
                run.curves.update, _column(run.curves, "groups/all_fail"), color=_colour(i), alpha=0.3, linewidth=0.8
            )
        _plot(axes[0], line, "groups/all_fail", i)
    _finish(axes[0], "groups in which every episode fails", True)
    _legend(figure, axes[0], lines)
    return figure


def _by_task_type(lines: Sequence[Line]):
    types = sorted({name for line in lines for name in line.values if name.startswith("type/")})
    if not types:
        return None
    columns = min(3, len(types))
    figure, axes = _figure(-(-len(types) // columns), columns, 4.4, 3)
    for ax, name in zip(axes, types, strict=False):
        for i, line in enumerate(lines):
            if name in line.values:
                _plot(ax, line, name, i)
        _finish(ax, name.removeprefix("type/"), True)
    for ax in axes[len(types) :]:
        ax.set_axis_off()
    _legend(figure, axes[0], lines)
    return figure


def _advantages(lines: Sequence[Line]):
    shown = [(line.label, line.runs[0]) for line in lines if line.runs[0].advantages is not None]
    if not shown:
        return None
    figure, axes = _figure(len(shown), 1, 7, 3.2)
    for ax, (label, run) in zip(axes, shown, strict=True):
        histogram = run.advantages
        for i, (name, shares) in enumerate(histogram.shares.items()):
            ax.stairs(
                shares,
                histogram.edges,
                color=_colour(i),
                linestyle=_style(i),
                linewidth=1.6,
                label=f"{name} ({histogram.counts[name]:,} steps)",
            )
        ax.set(xlabel="advantage of a step", ylabel="share of steps")
        ax.set_title(_text(f"{label.rpartition(',')[0]}: {run.name}"), fontsize="medium")
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small")
    return figure


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _style(i: int) -> str:
    """Lines that share a colour differ in style: 32 in all are told apart."""
    return STYLES[(i + i // len(COLOURS)) % len(STYLES)]


def _plot(ax, line: Line, name: str, i: int) -> None:
    style = {"color": _colour(i), "linestyle": _style(i)}
    values = line.values[name]
    marker = "o" if len(line.update) == 1 else None
    ax.plot(line.update, values, linewidth=1.8, marker=marker, label=_text(line.label), **style)
    if np.isfinite(line.low[name]).any():
        ax.fill_between(line.update, line.low[name], line.high[name], color=_colour(i), alpha=0.18, linewidth=0)


def _finish(ax, title: str, share: bool) -> None:
    from matplotlib.ticker import PercentFormatter

    ax.set_title(_text(title), fontsize="medium")
    ax.set_xlabel("update")
    ax.grid(alpha=0.3)
    if share:
        ax.set_ylim(-0.02, 1.02)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, 0))


def _legend(figure, ax, lines: Sequence[Line]) -> None:
    pooled = any(len(line.runs) > 1 for line in lines)
    title = "moving mean of 5 generations" + ("; mean over runs and its 95 % t interval" if pooled else "")
    if any(run.held_out for line in lines for run in line.runs):
        title += "; points: held-out games"
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(3, len(labels)), fontsize="small", title=title
    )
