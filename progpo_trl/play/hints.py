"""What an expert would do next in an episode, wherever its player has led it."""

from __future__ import annotations

import copy
import random
import re
from itertools import pairwise

from progpo_trl.environments.webshop.baselines import oracle
from progpo_trl.environments.webshop.environment import WebshopEnvironment
from progpo_trl.environments.webshop.goals import Goal
from progpo_trl.environments.webshop.pages import RESULTS_PER_PAGE
from progpo_trl.environments.webshop.session import BACK, ITEM, PREVIOUS, RESULTS, START, SUB, Session
from progpo_trl.play.player import Player

_TAKE = re.compile(r"take (\w+ \d+) from (\w+ \d+)")


def hint(player: Player) -> str | None:
    """The expert's next action, or None when it has none or the episode is over.

    ALFWorld: the expert that sees what an agent sees and searches the room (`SearchingExpert`). WebShop: the one that
    knows the target (`oracle`), which also finds its way back from wrong pages and choices.
    """
    if player.done:
        return None
    if isinstance(player.environment, WebshopEnvironment):
        session = player.environment.session
        return shop_hint(session, session.catalogue.goals[session.goal])
    return search_hint(player)


def search_hint(player: Player) -> str | None:
    """The next command of a SearchingExpert that has watched the episode; None for a task it cannot read."""
    from progpo_trl.environments.alfworld.expert import SearchingExpert

    if not all(turn.admissible for turn in player.turns):
        return None
    try:
        expert = SearchingExpert(player.turns[0].observation, random.Random(0))
    except ValueError:
        return None
    for (before, after), step in zip(pairwise(player.turns), player.episode.steps, strict=True):
        # Asked at every turn, as if it played: it begins a second round of the room on its own.
        expert.act(before.admissible)
        expert.observe(step.action, after.observation)
    return _put_back(player, expert.task.target) or expert.act(player.turn.admissible)


def _put_back(player: Player, wanted: str) -> str | None:
    """How to get rid of something of another kind than `wanted` that the player picked up, which the expert, who
    never would, may carry from place to place; None when nothing else is held."""
    held = None
    for step, after in zip(player.episode.steps, player.turns[1:], strict=True):
        if after.observation.startswith("You pick up the "):
            held = _TAKE.fullmatch(step.action)
        elif step.action.startswith(("move ", "put ")) and after.observation != "Nothing happens.":
            held = None
    if held is None or held[1].split()[0] == wanted:
        return None
    commands, place = player.turn.admissible, held[2]
    here = [command for command in commands if command.startswith((f"move {held[1]} ", f"put {held[1]} "))]
    back = [command for command in (f"open {place}", f"go to {place}") if command in commands]
    return next(iter(here + back), None)


def shop_hint(session: Session, goal: Goal) -> str | None:
    """What the oracle does, with a way back from where it would never go."""
    if session.page == SUB:
        return f"click[{PREVIOUS}]"
    if session.page == ITEM and session.position != goal.position:
        return f"click[{BACK}]"
    if session.page == RESULTS:
        found = session.catalogue.search(session.query)
        if goal.position not in found:
            start = copy.copy(session)
            start.page = START
            asked = oracle(start, goal, random.Random(0))
            return None if asked.lower() == f"search[{session.query}]" else f"click[{BACK}]"
        if found.index(goal.position) // RESULTS_PER_PAGE + 1 < session.number:
            return f"click[{PREVIOUS}]"
    # The oracle takes every choice for one of its own; those that nobody asked for are still open.
    wanted = {option if isinstance(option, str) else option[1] for option in goal.options}
    corrected = copy.copy(session)
    corrected.options = {name: value for name, value in session.options.items() if value in wanted}
    return oracle(corrected, goal, random.Random(0))
