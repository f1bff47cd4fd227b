"""Agents without a model: what a score in the shop is worth.

`python -m progpo_trl.environments.webshop.baselines --data DIR` plays them on every goal of the official files.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from progpo_trl.environments.webshop.generate import LEVELS
from progpo_trl.environments.webshop.goals import Goal
from progpo_trl.environments.webshop.session import BUY, ITEM, NEXT, RESULTS, START, Session
from progpo_trl.environments.webshop.tasks import MODES, GeneratedWebshopTasks, ShopTasks, WebshopTasks

# (session, its goal, this episode's generator) -> the next action
Agent = Callable[[Session, Goal, random.Random], str]


def random_agent(session: Session, goal: Goal, generator: random.Random) -> str:
    """Searches for the instruction; then clicks on any of what can be clicked, each equally likely."""
    return _search(goal) if session.page == START else f"click[{generator.choice(session.clickables())}]"


def first_hit(session: Session, goal: Goal, generator: random.Random) -> str:
    """Searches for the instruction, opens the first result and buys it as it is."""
    if session.page == START:
        return _search(goal)
    if session.page == RESULTS:
        # Without any result the first thing to click is a button; it leads nowhere, as it should.
        return f"click[{_first_result(session)}]"
    return f"click[{BUY}]"


def first_hit_options(session: Session, goal: Goal, generator: random.Random) -> str:
    """As `first_hit`, but before buying chooses, of each option, the longest value that the instruction contains.

    Contains: as a substring in lower case. Of equally long ones the first; an option without such a value is left.
    """
    if session.page == ITEM:
        instruction = goal.instruction.lower()
        for name, values in session.catalogue.product(session.position).options.items():
            named = max((value for value in values if value in instruction), key=len, default="")
            if named and _is_open(session, name, named):
                return f"click[{named}]"
    return first_hit(session, goal, generator)


def oracle(session: Session, goal: Goal, generator: random.Random) -> str:
    """Knows the target: searches for its title, turns pages until it is shown, chooses what is wanted and buys."""
    if session.page == START:
        return f"search[{goal.product.title.translate(_NO_BRACKETS)}]"
    if session.page == RESULTS:
        asin = goal.product.asin.lower()
        return f"click[{asin}]" if asin in session.clickables() else f"click[{NEXT}]"
    # A human goal names values only; one that the page does not offer cannot be chosen.
    offers = session.catalogue.pages(session.position).options
    pairs = (
        option if isinstance(option, tuple) else (offers.get(option, ("",))[-1], option) for option in goal.options
    )
    wanted = dict(pairs)
    for name in goal.product.options:
        if name in wanted and _is_open(session, name, wanted[name]):
            return f"click[{wanted[name]}]"
    return f"click[{BUY}]"


BASELINES: dict[str, Agent] = {
    "random": random_agent,
    "first_hit": first_hit,
    "first_hit_options": first_hit_options,
    "oracle": oracle,
}
_NO_BRACKETS = str.maketrans("[]\n", "   ")


class Evaluation(NamedTuple):
    """Means over episodes: score in [0, 1], success in [0, 1], steps; and how many episodes there were."""

    score: float
    success: float
    steps: float
    episodes: int


def evaluate_baseline(
    agent: Agent, tasks: ShopTasks, goals: Iterable[int] | None = None, *, seed: int = 0, progress: bool = False
) -> Evaluation:
    """Play `agent` once on each of the goals with these indices (default: all of the shop, whatever their split).

    seed: of the agent; each goal has a generator of its own. ValueError without goals.
    """
    indices = range(len(tasks.catalogue.goals)) if goals is None else list(goals)
    if not len(indices):
        raise ValueError("no goals to evaluate on")
    environment = tasks.make()
    rows = np.empty((len(indices), 3))
    shown = tqdm(indices, agent.__name__, unit="goal", disable=None if progress else True, leave=False)
    for row, index in enumerate(shown):
        environment.reset(tasks.ids.id(index))
        goal, generator = tasks.catalogue.goals[index], random.Random(seed * 1_000_003 + index)
        while not environment.done:
            result = environment.step(agent(environment.session, goal, generator))
        rows[row] = environment.score, result.success, environment.steps
    score, success, steps = rows.mean(axis=0).tolist()
    return Evaluation(score, success, steps, len(rows))


def _search(goal: Goal) -> str:
    return f"search[{goal.instruction.strip().translate(_NO_BRACKETS)}]"


def _is_open(session: Session, name: str, value: str) -> bool:
    """Whether a choice is still to be made. In compat mode two options cannot both have a value they share."""
    return name not in session.options and (session.strict or value not in session.options.values())


def _first_result(session: Session) -> str:
    shown = session.catalogue.search(session.query)
    return session.catalogue.row(shown[0]).clickable if shown else session.clickables()[0]


def main(argv: list[str] | None = None) -> int:
    """Print score and success of the baselines; the exit status is 0, or 2 when the data cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m progpo_trl.environments.webshop.baselines",
        description="Score and success of the baseline agents on all goals of a shop.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--data", metavar="DIR", help="the official files (default: $WEBSHOP_DATA)")
    what.add_argument("--generated", action="store_true", help="play in a generated shop instead")
    parser.add_argument("--products", type=int, metavar="N", help="of the generated shop (default: 1000)")
    parser.add_argument("--level", choices=tuple(LEVELS), help="of the generated shop (default: full)")
    parser.add_argument("--human-goals", action="store_true", help="goals that people wrote")
    parser.add_argument("--mode", choices=MODES, default="compat", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the random agent (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.generated and args.human_goals:
        parser.error(
            "--human-goals are of the official files and not of the shop of --generated; leave one of the two out"
        )
    if not args.generated and (args.products, args.level) != (None, None):
        parser.error("--products and --level are of a generated shop; give --generated, or leave them out")
    try:
        if args.generated:
            products = 1_000 if args.products is None else args.products
            tasks: ShopTasks = GeneratedWebshopTasks(products, level=args.level or "full", mode=args.mode)
        else:
            tasks = WebshopTasks(args.data, human_goals=args.human_goals, mode=args.mode)
    except (OSError, ValueError) as error:
        print(f"baselines: {error}", file=sys.stderr)
        return 2
    print(f"{'agent':<18} {'score':>6} {'success':>8} {'steps':>6}  goals")
    for name, agent in BASELINES.items():
        found = evaluate_baseline(agent, tasks, seed=args.seed, progress=True)
        print(
            f"{name:<18} {found.score:>6.3f} {found.success:>8.3f} {found.steps:>6.2f}  {found.episodes}", flush=True
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
