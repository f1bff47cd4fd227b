"""The `progpo` command. Sub-commands import what they need when they run, so that `progpo --help` is instant."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code: 0 done, 1 the command found a fault, 2 it was asked wrongly."""
    # TRL 1.16 sets and reads fields that newer transformers renamed; nobody who runs a command can act on that.
    warnings.filterwarnings("ignore", r".*gradient_checkpointing` is deprecated", FutureWarning)
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            # Here and not as Python exits, where a closed pipe could no longer be caught.
            sys.stdout.flush()
    except BrokenPipeError:
        if not _stdout_is_closed():
            raise
        return 128 + signal.SIGPIPE


def _stdout_is_closed() -> bool:
    """Whether the reader of standard output is gone (`progpo train --help | head`); if so, nothing is written on."""
    try:
        print(flush=True)
    except BrokenPipeError:
        # Python flushes once more as it exits; what is left in the buffer must have somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _run(argv: list[str]) -> int:
    # `train` owns all of its arguments: dotted names and --help included.
    if argv[:1] == ["train"]:
        return _train(argv[1:])
    if argv[:1] == ["evaluate"]:
        return _evaluate(argv[1:])
    if argv[:1] == ["run"]:
        from progpo_trl.run_agent import main as run_agent

        return run_agent(argv[1:])
    arguments = _parser(argv[:1]).parse_args(argv)
    return arguments.run(arguments)


def _parser(chosen: list[str]) -> argparse.ArgumentParser:
    from progpo_trl import __version__

    parser = argparse.ArgumentParser(
        prog="progpo", description="Train multi-turn LLM agents: environments, credit assignment, recipes."
    )
    parser.add_argument("--version", action="version", version=f"progpo_trl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.add_parser(
        "train",
        help="train an agent: progpo train --config RECIPE [--name value ...]",
        add_help=False,
    )
    commands.add_parser(
        "evaluate",
        help="say how good an agent is: progpo evaluate RUN_DIR, or --model PATH_OR_ID --environment NAME",
        add_help=False,
    )
    commands.add_parser(
        "run", help="let a published agent play in the terminal: progpo run REPO_OR_DIR", add_help=False
    )
    comparing = commands.add_parser("compare", help="compare evaluations game by game, or methods run by run")
    if chosen == ["compare"]:
        from progpo_trl import compare as compare_command

        compare_command.add_arguments(comparing)
        comparing.set_defaults(run=compare_command.run)
    verify = commands.add_parser(
        "verify", help="check environments, data and estimators against recordings of the reference software"
    )
    if chosen == ["verify"]:
        from progpo_trl import verify as verify_command

        verify_command.add_arguments(verify)
        verify.set_defaults(run=verify_command.run)
    webshop = commands.add_parser("webshop", help="prepare WebShop data: build the index of a large catalogue")
    if chosen == ["webshop"]:
        from progpo_trl.environments.webshop import store

        steps = webshop.add_subparsers(dest="what", required=True, metavar="WHAT")
        about = "build the memory-mapped store of a large catalogue"
        index = steps.add_parser("index", help=about, description=f"{about.capitalize()}; `store:` of the task sets.")
        store.add_arguments(index)
        index.set_defaults(run=store.run)
    play = commands.add_parser("play", help="play an environment's episodes by hand, in the terminal or on a page")
    if chosen == ["play"]:
        from progpo_trl.play import command as play_command

        play_command.add_arguments(play)
        play.set_defaults(run=play_command.run)
    explain = commands.add_parser("explain", help="say why each step of a group of episodes got its advantage")
    if chosen == ["explain"]:
        from progpo_trl import explain_command

        explain_command.add_arguments(explain)
        explain.set_defaults(run=explain_command.run)
    publish = commands.add_parser("publish", help="upload a trained agent with its card, evaluations and recipe")
    if chosen == ["publish"]:
        from progpo_trl.publishing import command as publish_command

        publish_command.add_arguments(publish)
        publish.set_defaults(run=publish_command.run)
    doctor = commands.add_parser("doctor", help="say what keeps a training from running here, and what to do")
    if chosen == ["doctor"]:
        from progpo_trl.doctor import command as doctor_command

        doctor_command.add_arguments(doctor)
        doctor.set_defaults(run=doctor_command.run)
    view = commands.add_parser("view", help="show a run: curves, rollouts side by side, every step; or export a page")
    if chosen == ["view"]:
        from progpo_trl.viewer import command as view_command

        view_command.add_arguments(view)
        view.set_defaults(run=view_command.run)
    plots = commands.add_parser("plots", help="draw learning curves of runs with intervals over seeds, and more")
    if chosen == ["plots"]:
        from progpo_trl.reporting import plots_command

        plots_command.add_arguments(plots)
        plots.set_defaults(run=plots_command.run)
    listing = commands.add_parser("recipes", help="list the recipes that ship with the package")
    listing.set_defaults(run=_recipes)
    return parser


def _train(argv: list[str]) -> int:
    from progpo_trl.settings_values import SettingsError
    from progpo_trl.train import main as train

    try:
        return train(argv)
    except SettingsError as error:
        print(f"progpo train: error: {error}", file=sys.stderr)
        return 2


def _evaluate(argv: list[str]) -> int:
    from progpo_trl.evaluate import main as evaluate
    from progpo_trl.evaluation.errors import EvaluationError
    from progpo_trl.settings_values import SettingsError

    try:
        return evaluate(argv)
    except (SettingsError, EvaluationError) as error:
        print(f"progpo evaluate: error: {error}", file=sys.stderr)
        return 2


def _recipes(arguments: argparse.Namespace) -> int:
    from progpo_trl.settings import RECIPES, recipes, summary

    print(f"Recipes in {RECIPES}; run one with: progpo train --config NAME\n")
    names = recipes()
    for name in names:
        print(f"  {name:<{max(map(len, names))}}  {summary(name)}".rstrip())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
