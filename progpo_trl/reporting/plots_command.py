"""The arguments of `progpo plots` and what they start."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `progpo plots` to its parser."""
    parser.description = (
        "Draw learning curves, success by task type, all-fail groups and advantages of runs as PNG files. Runs that "
        "differ in nothing but their seed become one line with a 95 % interval; others are lines side by side."
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN_DIR", type=Path, help="output_dir of a run, or an episodes.jsonl"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the pictures")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed; returns the exit status."""
    from tqdm.auto import tqdm

    from progpo_trl.reporting.explanation import printable
    from progpo_trl.reporting.plots import draw, lines_of, read_run
    from progpo_trl.settings_values import one_line, said_of

    try:
        place = args.out
        if args.out.exists() and not args.out.is_dir():
            raise ValueError(f"--out: {args.out} is a file; name a folder")
        paths = list({path.resolve(): path for path in args.runs}.values())
        runs = []
        for path in tqdm(paths, desc="reading runs", unit="run", leave=False, disable=None):
            place = path  # of which an error tells that names none
            runs.append(read_run(path))
        place = args.out
        for run in runs:
            for damage in run.damage:
                print(f"progpo plots: {printable(run.name)}: {printable(damage)}", file=sys.stderr)
        for line in lines_of(runs):
            last = max(int(run.curves.update[-1]) for run in line.runs)
            if len(line.update) == 0:
                raise ValueError(f"{line.label}: these runs have no update in common")
            cut = f"; cut at update {line.update[-1]}, where the shortest ends" if line.update[-1] < last else ""
            print(printable(f"{line.label}: {', '.join(run.name for run in line.runs)}{cut}"))
        written = draw(runs, args.out)
    except (ValueError, OSError) as error:
        said = said_of(place, error) if isinstance(error, OSError) else one_line(error)
        print(f"progpo plots: error: {printable(said)}", file=sys.stderr)
        return 2
    print("\n".join(map(str, written)))
    return 0
