"""`progpo publish`: arguments, what is printed, exit codes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from progpo_trl.publishing.errors import PublishError
from progpo_trl.reporting.explanation import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `progpo publish` to its parser."""
    parser.description = (
        "Publish a trained agent on the Hugging Face Hub: adapter or model, tokenizer, card, evaluations and recipe, "
        "without anything of this machine. Exit status: 0 done, 2 it could not be (one line says why)."
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a run of progpo train, or a checkpoint in it")
    parser.add_argument("--repo", metavar="USER/NAME", help="the repository on the Hub; made where it is not there")
    parser.add_argument("--private", action="store_true", help="make it a private one")
    parser.add_argument("--dry-run", action="store_true", help="write the folder that would be uploaded, and stop")
    out = (
        "the folder that is written and uploaded (default: RUN_DIR/publish; of a checkpoint beside it, "
        "publish-checkpoint-N)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)
    files = "results of progpo evaluate (default: those in RUN_DIR/evaluation*)"
    parser.add_argument("--evaluation", nargs="+", type=Path, metavar="FILE", help=files)
    base = "the base model's id on the Hub, where the run began from a local folder"
    parser.add_argument("--base-model", metavar="ID", help=base)
    parser.add_argument("--license", metavar="ID", help="of the published weights, such as apache-2.0 (default: none)")
    parser.add_argument("--license-name", metavar="ID", help="with --license other: how it is called")
    parser.add_argument("--license-link", metavar="URL", help="with --license other: where its text is")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the recipe, if RUN_DIR holds no config.yaml")
    parser.add_argument("--message", metavar="TEXT", help="of the commit")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed; returns the exit status."""
    try:
        return _publish(args)
    except PublishError as error:
        print(f"progpo publish: error: {printable(str(error))}", file=sys.stderr)
        return 2


def _publish(args: argparse.Namespace) -> int:
    from progpo_trl.publishing.folder import check_repo_id, default_out, prepare
    from progpo_trl.publishing.license import license_metadata

    if args.repo is None and not args.dry_run:
        raise PublishError("--repo USER/NAME says where to upload to; --dry-run only writes the folder")
    if args.repo is not None:
        check_repo_id(args.repo, "--repo")
    licence = license_metadata(args.license, args.license_name, args.license_link)
    try:
        prepared = prepare(
            args.run_dir,
            args.out or default_out(args.run_dir),
            repo=args.repo,
            evaluation_files=args.evaluation,
            base_model=args.base_model,
            license=licence,
            config=args.config,
        )
    except OSError as error:
        raise PublishError(f"{error.filename or args.out or args.run_dir}: {error.strerror or error}") from error
    width = max(map(len, prepared.files))
    for name, size in prepared.files.items():
        print(f"  {name:<{width}}  {_size(size):>9}")
    print(f"  {'in all':<{width}}  {_size(sum(prepared.files.values())):>9}")
    for warning in prepared.warnings:
        print(f"warning (on the card, too): {printable(warning)}", file=sys.stderr)
    if "evaluation.json" not in prepared.files:
        print(f"measure it first: progpo evaluate {args.run_dir}", file=sys.stderr)
    if args.dry_run:
        print(f"\nNothing was uploaded; the folder is {prepared.folder}")
        return 0
    from progpo_trl.publishing.hub import upload

    address = upload(prepared.folder, args.repo, private=args.private, message=args.message)
    print(f"\nPublished: {address}\nPlay with it: progpo run {args.repo}")
    return 0


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
