"""Players without a model: random, expert and oracle. What a number of an agent is to be held against.

The expert is no upper bound: it sees no more than an agent, searches from a place drawn at random on, and loses games
in which the steps run out before it has found all. An agent that has learned where things tend to be can beat it. The
oracle knows the game; it loses only where its way, which need not be the shortest, is longer than the steps allowed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from progpo_trl.contexts import TurnView
from progpo_trl.environments.base import OpenCommand, TaskSet
from progpo_trl.evaluation.agents import Game, Player, PlayerAgent
from progpo_trl.evaluation.errors import EvaluationError

NAMES = ("random", "expert", "oracle")

# (game, task set, this episode's generator) -> a function from what is seen to the next action
Rule = Callable[[Game, TaskSet, random.Random], Callable[[TurnView], str]]


class BaselineAgent(PlayerAgent):
    """A rule that plays. about: what it does, kept with the results; seeded: whether it draws anything at random."""

    def __init__(self, name: str, rule: Rule, about: str, *, seeded: bool = True):
        self.name, self.about = name, about
        self._rule, self._seeded = rule, seeded

    def player(self, game: Game, tasks: TaskSet) -> Player:
        """As `PlayerAgent.player`; its randomness comes from the sampling seed and the game's id."""
        rng = random.Random(f"{self.name}/{game.seed}/{game.task_id}")
        return _RulePlayer(self._rule(game, tasks, rng), tasks.action_format)

    def facts(self) -> dict[str, Any]:
        """As `Agent.facts`."""
        return {"kind": "baseline", "name": self.name, "about": self.about}

    def deterministic(self, temperature: float | None) -> bool:
        """As `Agent.deterministic`."""
        return not self._seeded


class _RulePlayer(Player):
    def __init__(self, act: Callable[[TurnView], str], action_format: str):
        self._act, self._format = act, action_format

    def respond(self, view: TurnView) -> str:
        action = self._act(view)
        if self._format == "text":
            return action
        return f"<think></think><action>{action}</action>"


def baseline(name: str, tasks: TaskSet) -> BaselineAgent:
    """The baseline `name` (one of `NAMES`) for these tasks. Raises ValueError when the environment has none.

    "expert" is no upper bound in limited steps; see the module's docstring.
    """
    from progpo_trl.environments.alfworld import AlfworldTasks, GeneratedAlfworldTasks
    from progpo_trl.environments.webshop.tasks import ShopTasks

    if name not in NAMES:
        raise ValueError(f"no baseline {name!r}; there are {', '.join(NAMES)}")
    if isinstance(tasks, ShopTasks):
        return _shop_baseline(name)
    if name == "random":
        return BaselineAgent(name, _random, "any admissible command, each equally likely")
    if isinstance(tasks, (AlfworldTasks, GeneratedAlfworldTasks)):
        if name == "expert":
            return BaselineAgent(name, _searching_expert, "searches the room, seeing what agents see")
        return BaselineAgent(name, _walkthrough, "knows the game and plays commands that win it", seeded=False)
    raise ValueError(f"environment {tasks.name!r} has no {name}; there is random")


def _random(game: Game, tasks: TaskSet, rng: random.Random) -> Callable[[TurnView], str]:
    def act(view: TurnView) -> str:
        closed = [c for c in view.admissible or () if not isinstance(c, OpenCommand)]
        if not closed:
            raise EvaluationError(f"environment {tasks.name!r} lists no commands to draw from: it has no random agent")
        return rng.choice(closed)

    return act


def _searching_expert(game: Game, tasks: TaskSet, rng: random.Random) -> Callable[[TurnView], str]:
    from progpo_trl.environments.alfworld.expert import SearchingExpert

    experts: list[SearchingExpert] = []

    def act(view: TurnView) -> str:
        if view.steps:
            experts[0].observe(view.steps[-1].action, view.observation)
        else:
            experts.append(SearchingExpert(view.observation, rng))
        return experts[0].act(view.admissible)

    return act


def _walkthrough(game: Game, tasks: TaskSet, rng: random.Random) -> Callable[[TurnView], str]:
    from progpo_trl.environments.alfworld.expert import walkthrough

    source = getattr(tasks, "library", None) or tasks.games
    try:
        commands = walkthrough(source.game(game.task_id))
    except ValueError as error:
        raise EvaluationError(f"--agent oracle cannot play {game.task_id}: {error}") from None
    # A longer episode than the walkthrough cannot be: its last command wins.
    return lambda view: commands[len(view.steps)]


def _shop_baseline(name: str) -> BaselineAgent:
    from progpo_trl.environments.webshop.baselines import BASELINES

    rule = {"random": "random", "expert": "first_hit_options", "oracle": "oracle"}[name]
    about = {
        "random": "searches for the instruction, then clicks on anything, each equally likely",
        "expert": "buys the first hit for the instruction with the options that the instruction names",
        "oracle": "knows the target, finds it by its title and buys it as wanted",
    }[name]

    def rule_of(game: Game, tasks: Any, rng: random.Random) -> Callable[[TurnView], str]:
        # These rules look at the shop's session: they have one of their own, which is played along.
        environment = tasks.make()
        environment.reset(game.task_id, game.seed)
        goal = tasks.catalogue.goals[tasks.ids.goal(game.task_id)]

        def act(view: TurnView) -> str:
            if view.steps:
                environment.step(view.steps[-1].action)
            return BASELINES[rule](environment.session, goal, rng)

        return act

    return BaselineAgent(name, rule_of, about, seeded=name == "random")
