"""The arguments of `progpo play` and what they start."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from progpo_trl.environments import ENVIRONMENTS, TaskSet, load_environment
from progpo_trl.play.player import HISTORY, Player
from progpo_trl.play.record import EpisodeFile
from progpo_trl.reporting.explanation import printable
from progpo_trl.settings_sections import convert_section
from progpo_trl.settings_values import COMMAND_LINE, Setting, SettingsError, one_line, read_argument

PORT = 8765
# The option that names the data of an environment that has any.
_DATA = {"alfworld": "games", "webshop": "data"}
_SPLITS = ("train", "valid_seen", "valid_unseen", "dev", "test")
_MOST_COMPARED = 20_000  # ids; more take too long to compare with a mistyped one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `progpo play` to its parser."""
    parser.description = (
        "Play the episodes of an environment by hand, in the terminal or, with --serve, on a page that only this "
        "machine can open. Shows what the agent gets to see: observation, commands and prompt."
    )
    parser.add_argument("environment", choices=sorted(ENVIRONMENTS), help="the _generated ones need no data")
    where = "the environment's files (default: $WEBSHOP_DATA or $ALFWORLD_DATA)"
    parser.add_argument("--data", metavar="PATH", help=where)
    option = "an option of the environment, as in `environment:` of a recipe; may be repeated"
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help=option)
    parser.add_argument("--split", metavar="SPLIT", help="tasks to choose from (default: what is evaluated)")
    parser.add_argument("--task", metavar="ID", help="the task (default: a random one of the split)")
    seed = "draws the random tasks (default: others each time); an episode's seed (default: 0)"
    parser.add_argument("--seed", type=int, metavar="N", help=seed)
    parser.add_argument("--expert", action="store_true", help="`?` shows what an expert would do next")
    parser.add_argument("--show-prompt", action="store_true", help="show the policy's prompt at every step")
    past = f"past steps in that prompt (default: {HISTORY})"
    parser.add_argument("--history", type=int, metavar="N", help=past)
    template = "its template, as `prompt_template` of a recipe (default: the environment's own)"
    parser.add_argument("--template", metavar="NAME", help=template)
    save = "append the episodes, in the format of episodes.jsonl"
    parser.add_argument("--save", type=Path, metavar="FILE", help=save)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print the ids of the split with their types, and stop")
    what.add_argument("--serve", action="store_true", help="play on a page of 127.0.0.1 instead of in the terminal")
    parser.add_argument("--port", type=int, metavar="P", help=f"of that page; 0 takes a free one (default: {PORT})")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed; returns the exit status."""
    try:
        _check(args)
        tasks = _tasks(args)
        split = _split(tasks, args.split)
        if args.list:
            return _list(tasks, split)
        make = player_maker(tasks, split, args)
        file = None if args.save is None else EpisodeFile(args.save)
        if args.serve:
            return _serve(args, make, tasks, split, file)
        from progpo_trl.play.terminal import Terminal

        terminal = Terminal(make, expert=args.expert, show_prompt=args.show_prompt, file=file)
    except BrokenPipeError:
        raise
    except (SettingsError, ValueError, OSError, ImportError, KeyError) as error:
        message = error.args[0] if isinstance(error, KeyError) and error.args else one_line(error)
        print(f"progpo play: error: {printable(str(message))}", file=sys.stderr)
        return 2
    return terminal.run()


def _check(args: argparse.Namespace) -> None:
    if args.port is not None and not args.serve:
        raise ValueError("--port needs --serve")
    if args.port is not None and not 0 <= args.port <= 65535:
        raise ValueError(f"--port must be from 0 to 65535, got {args.port}")
    if args.list:
        unused = [name for name in ("task", "seed", "history", "template", "save") if getattr(args, name) is not None]
        unused += [name for name in ("expert", "show_prompt") if getattr(args, name)]
        if unused:
            raise ValueError(
                f"--{unused[0].replace('_', '-')} has no use with --list, which plays nothing; leave it out"
            )
    if args.history is not None and args.history < 0:
        raise ValueError(f"--history must not be negative, got {args.history}")


def _tasks(args: argparse.Namespace) -> TaskSet:
    """The task set of the environment's name and options, checked as the section of a recipe is."""
    children = {"name": Setting(args.environment, COMMAND_LINE, args.environment)}
    for word in args.option:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--option {word!r} is not KEY=VALUE")
        if name in ("name", "split", "eval_split"):
            raise ValueError(f"{name!r} is no option of an environment; give the environment first and --split")
        if name in children:
            raise ValueError(f"--option {name} is given twice; leave one out")
        children[name] = read_argument([value])
    if args.data is not None:
        if args.environment not in _DATA:
            raise ValueError(f"{args.environment} needs no data; leave --data out")
        if _DATA[args.environment] in children:
            raise ValueError(f"--data and --option {_DATA[args.environment]} are the same; leave one out")
        children[_DATA[args.environment]] = Setting(args.data, COMMAND_LINE, args.data)
    options = convert_section("environment", Setting({}, COMMAND_LINE, children=children))
    return load_environment(options.pop("name"), **options)


def _split(tasks: TaskSet, asked: str | None) -> str:
    """The split asked for (KeyError where there is none), or the one that is evaluated, or any there is."""
    if asked is not None:
        tasks.task_ids(asked)
        return asked
    there = splits(tasks)
    return tasks.eval_split if tasks.eval_split in there else there[-1]


def splits(tasks: TaskSet) -> list[str]:
    """The usual splits that have tasks."""
    found = []
    for split in _SPLITS:
        try:
            tasks.task_ids(split)
        except KeyError:
            continue
        found.append(split)
    return found


def _list(tasks: TaskSet, split: str) -> int:
    for task_id in tasks.task_ids(split):
        print(printable(f"{task_id}  {tasks.task_type(task_id)}"))
    return 0


def player_maker(tasks: TaskSet, split: str, args: argparse.Namespace) -> Callable[..., Player]:
    """A function that makes an episode: first of the task asked for, then of random ones.

    It takes a task id and a split, both optional; KeyError for ids there are not, with the nearest.
    """
    history = HISTORY if args.history is None else args.history
    rng, asked = random.Random(args.seed), [args.task] if args.task is not None else []

    def make(task_id: str | None = None, split: str = split) -> Player:
        if task_id is None and asked:
            task_id = asked.pop()
        if task_id is None:
            task_id = rng.choice(tasks.task_ids(split))
        try:
            return Player(tasks, task_id, seed=args.seed or 0, history=history, template=args.template)
        except KeyError as error:
            raise KeyError(f"{error.args[0]}{_nearest(tasks, split, task_id)}") from None

    return make


def _nearest(tasks: TaskSet, split: str, task_id: str) -> str:
    ids = tasks.task_ids(split)
    near = get_close_matches(task_id, ids, n=1, cutoff=0.0) if len(ids) <= _MOST_COMPARED else ids[:1]
    return f"; one of {split} is {near[0]!r} (--list shows all)"


def _serve(args, make: Callable[..., Player], tasks: TaskSet, split: str, file: EpisodeFile | None) -> int:
    from progpo_trl.play.site import PlaySite
    from progpo_trl.web.server import LocalServer

    site = PlaySite(make, tasks, splits(tasks), split, expert=args.expert, show_prompt=args.show_prompt, file=file)
    first = site.begin()
    port = PORT if args.port is None else args.port
    try:
        server = LocalServer(site, port)
    except OSError as error:
        raise OSError(f"port {port} cannot be used: {error.strerror or error}; --port 0 takes a free one") from None
    print(f"{tasks.name} on {server.url}{first} (Ctrl-C ends it)", flush=True)
    server.run()
    site.close()
    print("\nStopped.")
    return 0
