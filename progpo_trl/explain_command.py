"""`progpo explain RUN_DIR --group G`: print the account of a group and write it as an HTML page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Literal

from progpo_trl import atomic
from progpo_trl.advantages import Estimator, make_estimator
from progpo_trl.episodes import INVALID_ACTION_PENALTY
from progpo_trl.explain import ExplainError, explain
from progpo_trl.explain_read import episodes_file, read
from progpo_trl.reporting.explanation import as_html, as_text, printable
from progpo_trl.settings_sections import convert_section
from progpo_trl.settings_values import Setting, SettingsError, convert, one_line, read_argument, read_file

# Above this a difference to the recorded advantage is no rounding.
_TOLERANCE = 1e-4
_Kind = Literal["format", "admissible", "either"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `progpo explain` to its parser."""
    parser.description = (
        "Say why each step of one group of episodes got its advantage: print a table and write an HTML page. The "
        "estimator is the run's own, read from config.yaml beside the episodes; --advantage and --progress_fallback "
        "show what another one would have given."
    )
    parser.add_argument("episodes", metavar="RUN_DIR", type=Path, help="a run, or its episodes.jsonl")
    parser.add_argument("--group", type=int, required=True, metavar="G", help="number of the group, as in the file")
    parser.add_argument("--step", type=int, metavar="S", help="trainer step of the generation (default: the last)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (default: the run's config.yaml)")
    parser.add_argument("--advantage", metavar="YAML", help="for example '{name: gigpo, stats: steps}'")
    parser.add_argument("--progress_fallback", metavar="YAML", help="for example '{}', or null for none")
    parser.add_argument("--html", type=Path, metavar="FILE", help="the page (default: in the run's folder)")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed; returns the exit status."""
    try:
        path = episodes_file(args.episodes)
        settings = _settings(args, path)
        estimator = _estimator(settings)
        penalty = settings.get("invalid_action_penalty", Setting(INVALID_ACTION_PENALTY, ""))
        kind = settings.get("invalid_action", Setting("format", "", "format"))
        generation = read(path, args.step)
        step = generation.step
        account = explain(
            generation.episodes,
            estimator,
            args.group,
            invalid_action_penalty=convert("invalid_action_penalty", penalty, float),
            invalid_action=convert("invalid_action", kind, _Kind),
        )
        page = args.html or path.with_name(f"explain-step{step}-group{args.group}.html")
        _write(page, as_html(account, step))
    except (ExplainError, SettingsError, ValueError) as error:
        print(f"progpo explain: error: {printable(one_line(error))}", file=sys.stderr)
        return 2
    print(as_text(account, step))
    if account.largest_difference > _TOLERANCE:
        cut = "an episode is missing here (the file's last line is cut off), or " if generation.cut else ""
        print(
            f"\nThe run recorded other advantages (up to {account.largest_difference:.3g} apart): {cut}"
            "it used another estimator, other settings, or a compute_advantages() of its own."
        )
    print(f"\n{page}")
    return 0


def _write(page: Path, text: str) -> None:
    try:
        special = page.exists() and not page.is_file()  # /dev/stdout is a link to no path that there is
        # A link to a page stays one.
        atomic.write_text(page if special else os.path.realpath(page), text, errors="replace")
    except OSError as error:
        raise ExplainError(
            f"{page}: the page cannot be written: {error.strerror}; name another file with --html FILE"
        ) from None


def _settings(args: argparse.Namespace, episodes: Path) -> dict[str, Setting]:
    beside = episodes.with_name("config.yaml")
    path = args.config or (beside if beside.is_file() else None)
    settings = {} if path is None else read_file(path)
    for name in ("advantage", "progress_fallback"):
        if getattr(args, name) is not None:
            settings[name] = read_argument([getattr(args, name)])
    return settings


def _estimator(settings: dict[str, Setting]) -> Estimator:
    sections = {
        name: convert_section(name, settings[name]) for name in ("advantage", "progress_fallback") if name in settings
    }
    return make_estimator(sections.get("advantage"), sections.get("progress_fallback"))
