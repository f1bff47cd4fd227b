"""A shopper for the generated level `tiny` that is as careful as it is told to be.

It uses nothing that an agent could not read: the instruction and the page. `noisy_play` makes the traces the tiny
policy is warm-started on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from progpo_trl.environments.base import OpenCommand
from progpo_trl.environments.webshop import assortment
from progpo_trl.environments.webshop.environment import WebshopEnvironment
from progpo_trl.environments.webshop.goals import Goal
from progpo_trl.environments.webshop.pages import RESULTS_PER_PAGE
from progpo_trl.environments.webshop.session import BACK, BUY, NEXT, PREVIOUS, RESULTS, START, SUB, Session

_WORDS = (*assortment.TINY_TRAITS, *(noun for nouns in assortment.TINY_KINDS.values() for noun in nouns))
_BUTTONS = (BACK, PREVIOUS, NEXT)


def shopper(session: Session, goal: Goal, rng: random.Random, care: float = 1.0) -> str:
    """The next action; each of the choices below is made with probability `care`, in [0, 1].

    Searches for the words of what is wanted (each with that probability, but at least for one); opens the first
    result that has the wanted words in its title at a price that is accepted, or the first one (else any result);
    chooses the wanted options (else goes on without) and buys.
    """
    wanted = (*goal.attributes, goal.product.query)
    if session.page == START:
        words = [*wanted, *(value for _, value in goal.options)]
        kept = [word for word in words if rng.random() < care]
        return f"search[{' '.join(kept or [rng.choice(words)])}]"
    if session.page == RESULTS:
        results = [clickable for clickable in session.clickables() if clickable not in _BUTTONS]
        if rng.random() >= care:
            return f"click[{rng.choice(results)}]"
        catalogue = session.catalogue
        for position in catalogue.search(session.query)[:RESULTS_PER_PAGE] if session.number == 1 else ():
            title = catalogue.product(position).title.split()
            if set(wanted) <= set(title) and catalogue.price(position) <= goal.price_upper:
                return f"click[{catalogue.row(position).clickable}]"
        return f"click[{results[0]}]"
    if session.page == SUB:
        return f"click[{PREVIOUS}]"
    offers = session.catalogue.product(session.position).options
    for name, value in goal.options:
        if value in offers.get(name, ()) and session.options.get(name) != value and rng.random() < care:
            return f"click[{value}]"
    return f"click[{BUY}]"


class Play(NamedTuple):
    """An episode: the first observation and one after each command; the commands; which were refused; its success."""

    observations: list[str]
    commands: list[str]
    refused: list[bool]
    success: bool


def noisy_play(
    environment: WebshopEnvironment,
    task_id: str,
    care: float,
    rng: random.Random,
    p_random: float = 0.0,
    p_wrong: float = 0.0,
) -> Play:
    """One episode of the shopper, in which a command is with probability `p_random` any admissible one (searches are
    then for one to three words of the shop), and with `p_wrong` one that cannot be done on this page."""
    first = environment.reset(task_id)
    goal = environment.goals.catalogue.goals[environment.goals.goal(task_id)]
    play = Play([first.text], [], [], False)
    admissible = first.admissible
    earlier: dict[str, None] = {}
    while True:
        draw = rng.random()
        wrong = draw < p_wrong
        if wrong:
            command = _wrong(admissible, list(earlier), rng, len(environment.goals.catalogue))
        elif draw < p_wrong + p_random:
            command = rng.choice(admissible)
            if isinstance(command, OpenCommand):
                command = f"search[{' '.join(rng.sample(_WORDS, rng.randint(1, 3)))}]"
        else:
            command = shopper(environment.session, goal, rng, care)
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
