"""The arguments of `progpo view` and what they start."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

PORT = 8766
MOST_EPISODES = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `progpo view` to its parser."""
    parser.description = (
        "Show what happened in a run: learning curves, the rollouts of a group side by side, every step's text and "
        "advantage. On a page that only this machine can open, or with --export as one HTML file that works offline."
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="a run's output_dir, or an episodes.jsonl")
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="P", help="0 takes a free one (default: %(default)s)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address and open no browser")
    more = "an evaluation that is not in or beside RUN_DIR; may be repeated"
    parser.add_argument("--evaluation", type=Path, action="append", default=[], metavar="PATH", help=more)
    parser.add_argument("--export", type=Path, metavar="FILE", help="write one HTML file instead")
    most = "of the export, for each episodes file: the newest whole groups (default: %(default)s)"
    parser.add_argument("--max-episodes", type=int, default=MOST_EPISODES, metavar="N", help=most)
    last = "of the export: the last G generations of the training only"
    parser.add_argument("--last-generations", type=int, metavar="G", help=last)


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed; returns the exit status."""
    from progpo_trl.reporting.explanation import printable
    from progpo_trl.settings_values import said_of
    from progpo_trl.viewer.sources import open_run

    try:
        _check(args)
        folder = open_run(args.run_dir, args.evaluation)
        _read(folder)
        return _export(folder, args) if args.export else _serve(folder, args)
    except (ValueError, OSError) as error:
        print(f"progpo view: error: {printable(said_of(args.export or args.run_dir, error))}", file=sys.stderr)
        return 2


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port: expected 0 to 65535, got {args.port}")
    if args.max_episodes < 1:
        raise ValueError(f"--max-episodes: expected at least 1, got {args.max_episodes}")
    if args.last_generations is not None and args.last_generations < 1:
        raise ValueError(f"--last-generations: expected at least 1, got {args.last_generations}")
    if args.export and args.export.is_dir():
        raise ValueError(f"--export: {args.export} is a folder; name a file")


def _read(folder) -> None:
    """Index all files, with a bar over their bytes in a terminal."""
    from tqdm.auto import tqdm

    sizes = sum(source.index.path.stat().st_size for source in folder.sources)
    with tqdm(total=sizes, desc="reading episodes", unit="B", unit_scale=True, leave=False, disable=None) as bar:
        for source in folder.sources:
            source.index.refresh(bar.update)


def _export(folder, args: argparse.Namespace) -> int:
    from tqdm.auto import tqdm

    from progpo_trl.viewer.export import export

    total = sum(min(len(source.index.rows), args.max_episodes) for source in folder.sources)
    with tqdm(total=total, desc="packing episodes", unit="ep", leave=False, disable=None) as bar:
        left_out = export(
            folder,
            args.export,
            max_episodes=args.max_episodes,
            last_generations=args.last_generations,
            on_episode=lambda: bar.update(min(1, bar.total - bar.n)),
        )
    _tell(folder)
    print("\n".join([*left_out, f"{args.export} ({args.export.stat().st_size / 1e6:.1f} MB)"]))
    return 0


def _tell(folder) -> None:
    """Say in the terminal, too, what could not be read."""
    from progpo_trl.reporting.explanation import printable

    for line in folder.damage:
        print(f"progpo view: {printable(line)}", file=sys.stderr)


def _serve(folder, args: argparse.Namespace) -> int:
    from progpo_trl.viewer.site import ViewSite
    from progpo_trl.web.server import LocalServer

    try:
        server = LocalServer(ViewSite(folder), args.port)
    except OSError as error:
        raise OSError(
            f"port {args.port} cannot be used: {error.strerror or error}; --port 0 takes a free one"
        ) from None
    _tell(folder)
    print(f"{folder.name} on {server.url} (Ctrl-C ends it)", flush=True)
    if not args.no_browser and _has_screen():
        import webbrowser

        webbrowser.open(server.url)
    server.run()
    print("\nStopped.")
    return 0


def _has_screen() -> bool:
    """Whether a browser can be opened: not in a login shell on another machine, where a text browser might start."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
