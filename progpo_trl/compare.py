"""`progpo compare A.json B.json`: are two agents different? `--group NAME RUN RUN ..`: are two methods?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from progpo_trl import atomic
from progpo_trl.evaluation.compare import Entry, compare, compare_groups
from progpo_trl.evaluation.comparison_report import as_markdown, draw
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.results import read_evaluation, write_json
from progpo_trl.evaluation.run import check_folder
from progpo_trl.reporting.explanation import printable
from progpo_trl.settings_values import said_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `progpo compare` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Compare evaluations of the same panel, data and step limit, paired by game, each against the first; others\n"
        "are refused. With --group, compare methods by their training runs instead, each run counted once."
    )
    parser.epilog = (
        "  progpo compare runs/a/evaluation runs/b/evaluation --out comparison\n"
        "  progpo compare --group grpo runs/grpo-seed* --group progpo runs/progpo-seed*\n"
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="evaluation.json, or the folder or run that holds it")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of the evaluations, in their order")
    parser.add_argument(
        "--group", nargs="+", action="append", metavar=("NAME", "FILE"), help="training runs of one method; repeatable"
    )
    parser.add_argument("--split", action="append", metavar="NAME", help="compare this split only; may be repeated")
    parser.add_argument(
        "--temperature",
        action="append",
        type=float,
        metavar="T",
        help="compare this temperature only; may be repeated",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write comparison.md, .json and .png there")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed; the exit status."""
    try:
        if args.out is not None:
            check_folder(args.out)
        comparison = _compare(args)
        text = as_markdown(comparison)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            atomic.write_text(args.out / "comparison.md", text, errors="replace")
            write_json(args.out / "comparison.json", comparison)
            with atomic.replacing(args.out / "comparison.png") as partial:
                draw(comparison, partial)
    except (EvaluationError, OSError) as error:
        print(f"progpo compare: error: {printable(said_of(args.out or '', error))}", file=sys.stderr)
        return 2
    print(text)
    return 0


def _compare(args: argparse.Namespace) -> dict:
    options = {"splits": args.split, "temperatures": args.temperature}
    if args.group:
        if args.files or args.names:
            raise EvaluationError("give evaluations either one by one or in groups (--group NAME FILE FILE ..)")
        groups: dict[str, list[Entry]] = {}
        for name, *files in args.group:
            if name in groups:
                raise EvaluationError(f"there are two groups called {name!r}")
            groups[name] = entries_of(files)
        return compare_groups(groups, **options)
    if args.names and len(args.names) != len(args.files):
        raise EvaluationError(f"{len(args.files)} evaluations and {len(args.names)} names")
    return compare(entries_of(args.files, args.names), **options)


def entries_of(files: Sequence[str], names: Sequence[str] | None = None) -> list[Entry]:
    """The evaluations in `files` with their names (default: where they lie, as short as is unique)."""
    contents = [read_evaluation(file) for file in files]
    names = list(names or _short_names(files))
    if len(set(names)) < len(names):
        raise EvaluationError(f"two evaluations have the same name: {', '.join(names)}; give --names")
    return list(zip(names, contents, strict=True))


def _short_names(files: Sequence[str]) -> list[str]:
    """The paths without what all of them have: the file's name, `evaluation` folders and the first folders."""
    paths = []
    for file in files:
        parts = list(Path(file).parts)
        while len(parts) > 1 and parts[-1] in ("evaluation.json", "evaluation"):
            parts.pop()
        paths.append(parts)
    while paths and all(len(p) > 1 for p in paths) and len({p[0] for p in paths}) == 1:
        paths = [p[1:] for p in paths]
    return ["/".join(p) for p in paths]
