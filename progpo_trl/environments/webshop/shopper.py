"""A careful shopper for the generated level `tiny`, and play in which it is not always careful.

The shopper uses nothing that an agent could not read: the instruction and the page. `noisy_play` makes the traces the
tiny policy is warm-started on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from progpo_trl.environments.base import OpenCommand
from progpo_trl.environments.webshop import assortment
from progpo_trl.environments.webshop.environment import WebshopEnvironment
from progpo_trl.environments.webshop.goals import Goal
from progpo_trl.environments.webshop.session import BUY, RESULTS, START, SUB, Session

_WORDS = (*assortment.TINY_TRAITS, *(noun for nouns in assortment.TINY_KINDS.values() for noun in nouns))


def careful(session: Session, goal: Goal) -> str:
    """Searches for the words of what is wanted, opens the first result that has it in its title at a price that is accepted, or
    the first one; chooses the wanted options and buys."""
    wanted = (*goal.attributes, goal.product.query)
    if session.page == START:
        return f"search[{' '.join([*wanted, *(value for _, value in goal.options)])}]"
    if session.page == RESULTS:
        catalogue = session.catalogue
        for position in catalogue.search(session.query)[:10] if session.number == 1 else ():
            title = catalogue.product(position).title.split()
            if set(wanted) <= set(title) and catalogue.price(position) <= goal.price_upper:
                return f"click[{catalogue.row(position).clickable}]"
        return f"click[{next(c for c in session.clickables() if c not in _BUTTONS)}]"
    if session.page == SUB:
        return "click[< prev]"
    offers = session.catalogue.product(session.position).options
    for name, value in goal.options:
        if value in offers.get(name, ()) and session.options.get(name) != value:
            return f"click[{value}]"
    return f"click[{BUY}]"


_BUTTONS = ("back to search", "< prev", "next >")


class Play(NamedTuple):
    """An episode: the first observation and one after each command; the commands; which were refused; its success."""

    observations: list[str]
    commands: list[str]
    refused: list[bool]
    success: bool


def noisy_play(
    environment: WebshopEnvironment, task_id: str, p_expert: float, rng: random.Random, p_wrong: float = 0.0
) -> Play:
    """One episode in which each command is the careful shopper's with probability `p_expert`, with `p_wrong` one that
    cannot be done on this page, and else any admissible one; searches then are for one to three words of the shop."""
    first = environment.reset(task_id)
    goal = environment.goals.catalogue.goals[environment.goals.goal(task_id)]
    play = Play([first.text], [], [], False)
    admissible = first.admissible
    earlier: dict[str, None] = {}
    while True:
        draw = rng.random()
        if draw < p_expert:
            command = careful(environment.session, goal)
        elif draw < p_expert + p_wrong:
            command = _wrong(admissible, list(earlier), rng, len(environment.goals.catalogue))
        else:
            command = rng.choice(admissible)
            if isinstance(command, OpenCommand):
                command = f"search[{' '.join(rng.sample(_WORDS, rng.randint(1, 3)))}]"
        wrong = p_expert <= draw < p_expert + p_wrong
        earlier |= dict.fromkeys(c for c in admissible if not isinstance(c, OpenCommand))
        result = environment.step(command)
        play.observations.append(result.text)
        play.commands.append(command)
        play.refused.append(wrong)
        admissible = result.admissible
        if result.done:
            return play._replace(success=result.success)


def _wrong(admissible: Sequence[str], earlier: Sequence[str], rng: random.Random, products: int) -> str:
    """What a careless agent clicks: something of an earlier page, or a product that is not on this one."""
    candidates = [command for command in earlier if command not in admissible]
    if candidates and rng.random() < 0.5:
        return rng.choice(candidates)
    while (command := f"click[p{rng.randrange(products)}]") in admissible:
        pass
    return command
