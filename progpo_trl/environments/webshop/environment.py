"""`WebshopEnvironment`: shopping episodes behind the two-method contract."""

from __future__ import annotations

from typing import Protocol

from progpo_trl.environments.base import Environment, Observation, OpenCommand, StepResult
from progpo_trl.environments.webshop.catalogue import Catalogue
from progpo_trl.environments.webshop.reward import Reward
from progpo_trl.environments.webshop.session import END, Session

MAX_STEPS = 15
# What can be searched for: the brackets are the action's own, as `parse_action` reads them.
SEARCH_COMMAND = OpenCommand("search[<your query>]", r"search\[[^\[\n]+\]")


class GoalIds(Protocol):
    """Finds goals by task id. Pickle it small: episodes carry it."""

    catalogue: Catalogue

    def goal(self, task_id: str) -> int:
        """Index of the goal in the catalogue. KeyError for an unknown id."""
        ...


class WebshopEnvironment(Environment):
    """One episode at a time in a shop: search, look, choose, buy.

    The text is the original's text-mode observation to the letter (so chosen options are not shown). An episode ends
    with "Buy Now" or after `max_steps` steps. `seed` changes nothing: a goal is all there is to an episode.
    success: a score of exactly 1.0. reward: `success_reward` for success, else 0; with `partial` the score itself, in
    [0, 1], whatever `success_reward` is. The last step's info holds "score" (0.0 when nothing was bought), "bought"
    (1.0 or 0.0) and, after a purchase, the parts of the score, so that means over episodes are means of those.

    admissible: `search[<your query>]` (an `OpenCommand`: any query is accepted) on the page with a search bar, and a
    `click[...]` for all that can be clicked. A search elsewhere works, as in the original, but is not listed, and so
    counts as inadmissible; so does "click[search]", which the original lists though it does nothing. Steps that
    cannot be done change nothing, and steps after the end repeat the last page with reward 0.
    """

    __slots__ = ("done", "goals", "max_steps", "partial", "session", "steps", "strict", "success_reward", "task_id")

    def __init__(
        self,
        goals: GoalIds,
        *,
        max_steps: int = MAX_STEPS,
        success_reward: float = 10.0,
        partial: bool = False,
        strict: bool = False,
    ):
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        self.goals = goals
        self.max_steps, self.success_reward, self.partial, self.strict = max_steps, success_reward, partial, strict
        self.task_id = ""
        self.steps = 0
        self.done = False
        self.session: Session | None = None

    @property
    def score(self) -> float:
        """The score of what was bought so far, in [0, 1]; 0.0 before a purchase."""
        reward = self.session.reward if self.session else None
        return reward.score if reward else 0.0

    def reset(self, task_id: str, seed: int = 0) -> Observation:
        """Start with the goal `task_id`. KeyError for an unknown id."""
        catalogue, goal = self.goals.catalogue, self.goals.goal(task_id)
        self.session = Session(catalogue, goal, strict=self.strict)
        self.task_id, self.steps, self.done = task_id, 0, False
        instruction = catalogue.goals[goal].instruction.strip()
        return Observation(self.session.observation(), self._admissible(), instruction)

    def step(self, action: str) -> StepResult:
        """Play `search[query]` or `click[what]`."""
        if self.session is None:
            raise RuntimeError("step() before reset()")
        reward, info = 0.0, {}
        if not self.done:
            self.steps += 1
            bought = self.session.step(action)
            self.done = bought is not None or self.steps >= self.max_steps
            if self.done:
                reward, info = self._reward(), _info(bought)
        text, admissible = self.session.observation(), self._admissible()
        return StepResult(text, admissible, reward, self.done, self.done and self.score == 1.0, info)

    def _reward(self) -> float:
        if self.partial:
            return self.score
        return self.success_reward if self.score == 1.0 else 0.0

    def _admissible(self) -> tuple[str, ...]:
        if self.session.has_search_bar:
            return (SEARCH_COMMAND,)
        return tuple(f"click[{what}]" for what in self.session.clickables()) if self.session.page != END else ()


def _info(bought: Reward | None) -> dict[str, float]:
    if bought is None:
        return {"score": 0.0, "bought": 0.0}
    return {"score": bought.score, "bought": 1.0, **bought.parts()}
