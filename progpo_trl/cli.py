"""The `progpo` command. Sub-commands import what they need when they run, so that `progpo --help` is instant."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code: 0 done, 1 the command found a fault, 2 it was asked wrongly."""
    # TRL 1.16 sets and reads fields that newer transformers renamed; nobody who runs a command can act on that.
    warnings.filterwarnings("ignore", r".*gradient_checkpointing` is deprecated", FutureWarning)
    _print_whatever_comes()
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            if sys.stdout is not None:
                # Here and not as Python exits, where a closed pipe or a full disk could no longer be caught.
                sys.stdout.flush()
    except OSError:
        fault = _fault_of_stdout()
        if fault is None:
            raise
        if isinstance(fault, BrokenPipeError):
            return 128 + signal.SIGPIPE
        print(f"progpo: error: standard output cannot be written: {fault.strerror}", file=sys.stderr)
        return 1


def _print_whatever_comes() -> None:
    """Help, paths and texts of environments hold letters that a terminal may not have, and paths bytes that are no
    letters at all: these are written as escapes, such as \\xe9, and end no command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fault_of_stdout() -> OSError | None:
    """What keeps standard output from being written: its reader is gone (`progpo train --help | head`), its disk is
    full. If so, nothing is written on."""
    if sys.stdout is None:
        return None
    try:
        print(flush=True)
    except OSError as error:
        # Python flushes once more as it exits; what is left in the buffer must have somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _run(argv: list[str]) -> int:
    for name, (run, _) in _OWN_ARGUMENTS.items():
        if argv[:1] == [name]:
            return run(argv[1:])
    arguments = _parser(argv[:1]).parse_args(argv)
    return arguments.run(arguments)


def _parser(chosen: list[str]) -> argparse.ArgumentParser:
    from progpo_trl import __version__

    parser = argparse.ArgumentParser(
        prog="progpo", description="Train multi-turn LLM agents: environments, credit assignment, recipes."
    )
    parser.add_argument("--version", action="version", version=f"progpo_trl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (_, text) in _OWN_ARGUMENTS.items():
        commands.add_parser(name, help=text, add_help=False)
    for name, (module, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if chosen == [name]:
            _fill(command, importlib.import_module(module))
    webshop = commands.add_parser("webshop", help="prepare WebShop data: build the index of a large catalogue")
    if chosen == ["webshop"]:
        from progpo_trl.environments.webshop import store

        steps = webshop.add_subparsers(dest="what", required=True, metavar="WHAT")
        about = "build the memory-mapped store of a large catalogue"
        index = steps.add_parser("index", help=about, description=f"{about.capitalize()}; `store:` of the task sets.")
        _fill(index, store)
    listing = commands.add_parser("recipes", help="list the recipes that ship with the package")
    listing.set_defaults(run=_recipes)
    return parser


def _fill(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)


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


def _run_agent(argv: list[str]) -> int:
    from progpo_trl.run_agent import main as run_agent

    return run_agent(argv)


def _recipes(arguments: argparse.Namespace) -> int:
    from progpo_trl.settings import RECIPES, recipes, summary

    print(f"Recipes in {RECIPES}; run one with: progpo train --config NAME\n")
    names = recipes()
    for name in names:
        print(f"  {name:<{max(map(len, names))}}  {summary(name)}".rstrip())
    return 0


# These own all of their arguments, dotted names and --help included: what runs them, and a line of help.
_OWN_ARGUMENTS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (_train, "train an agent: progpo train --config RECIPE [--name value ...]"),
    "evaluate": (
        _evaluate,
        "say how good an agent is: progpo evaluate RUN_DIR, or --model PATH_OR_ID --environment NAME",
    ),
    "run": (_run_agent, "let a published agent play in the terminal: progpo run REPO_OR_DIR"),
}

# The module with their `add_arguments(parser)` and `run(arguments)`, imported for the chosen one only; a line of help.
_COMMANDS = {
    "compare": ("progpo_trl.compare", "compare evaluations game by game, or methods run by run"),
    "verify": (
        "progpo_trl.verify",
        "check environments, data and estimators against recordings of the reference software",
    ),
    "play": ("progpo_trl.play.command", "play an environment's episodes by hand, in the terminal or on a page"),
    "explain": ("progpo_trl.explain_command", "say why each step of a group of episodes got its advantage"),
    "publish": ("progpo_trl.publishing.command", "upload a trained agent with its card, evaluations and recipe"),
    "doctor": ("progpo_trl.doctor.command", "say what keeps a training from running here, and what to do"),
    "view": ("progpo_trl.viewer.command", "show a run: curves, rollouts side by side, every step; or export a page"),
    "plots": (
        "progpo_trl.reporting.plots_command",
        "draw learning curves of runs with intervals over seeds, and more",
    ),
}


if __name__ == "__main__":
    raise SystemExit(main())
