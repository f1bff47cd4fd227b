"""`progpo doctor`: arguments, the checks in their order, what is printed."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from progpo_trl.doctor import data, machine, recipe, software
from progpo_trl.doctor.findings import OK, PROBLEM, WARNING, Check, Finding, examine
from progpo_trl.reporting.explanation import printable
from progpo_trl.settings_values import SettingsError

CHECKS: tuple[Check, ...] = (
    software.check_python,
    software.check_packages,
    software.check_torch,
    recipe.check_recipe,
    recipe.check_launch,
    recipe.check_model,
    data.check_engine,
    data.check_alfworld,
    data.check_webshop,
    software.check_vllm,
    software.check_extras,
    software.check_wandb,
    software.check_hub,
    machine.check_output_dir,
    machine.check_disk,
    machine.check_memory,
)
_STYLE = {OK: "green", WARNING: "yellow", PROBLEM: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `progpo doctor` to its parser."""
    parser.description = (
        "Examine this installation, the environments' data and the machine, alone or against a recipe, without the "
        "network. Exit status: 0, or 1 when there is a problem, 2 when the recipe cannot be read."
    )
    parser.add_argument("--config", metavar="RECIPE", help="what is to be trained, as for progpo train")
    parser.add_argument(
        "--accelerate-config",
        metavar="FILE",
        help="how it is to be launched, as for accelerate launch (default: accelerate's default config)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed; returns the exit status."""
    try:
        case = recipe.read_case(args.config, args.accelerate_config)
    except (SettingsError, OSError) as error:
        print(f"progpo doctor: error: {printable(str(error))}", file=sys.stderr)
        return 2
    found = []
    console = Console(highlight=False, markup=False, emoji=False)
    with _errors_only("progpo_trl"):  # what is logged about the data is a finding here
        for finding in examine(case, CHECKS):
            found.append(finding)
            if not args.json:
                _show(console, finding)
    problems = sum(finding.status == PROBLEM for finding in found)
    if args.json:
        print(json.dumps({"problems": problems, "findings": [asdict(finding) for finding in found]}, indent=1))
    else:
        warnings = sum(finding.status == WARNING for finding in found)
        print(f"\n{_count(problems, 'problem')}, {_count(warnings, 'warning')}")
    return 1 if problems else 0


@contextlib.contextmanager
def _errors_only(name: str) -> Iterator[None]:
    """The logger `name` says errors alone."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _show(console: Console, finding: Finding) -> None:
    line = Text(f"{finding.status:<8}", _STYLE[finding.status])
    line.append(f"{printable(finding.what)}: {printable(finding.text)}", "")
    console.print(line, soft_wrap=True)
    if finding.advice:
        console.print(Text(f"{'':8}-> {printable(finding.advice)}"), soft_wrap=True)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
