"""A small world for evaluations without a model, and players of it."""

from typing import ClassVar

from progpo_trl.environments import Environment, EnvironmentTasks, Observation, StepResult
from progpo_trl.evaluation import Player, PlayerAgent, Reply


class Doors(Environment):
    """The door with the number of the task has to be opened; `look` gives half a point. A task fails to begin as often
    as `failures` says."""

    max_steps = 4
    failures: ClassVar[dict[str, int]] = {}

    def reset(self, task_id, seed=0):
        self.number, self.t, self.task_id = int(task_id.rpartition("-")[2]), 0, task_id
        if Doors.failures.get(task_id, 0) > 0:
            Doors.failures[task_id] -= 1
            raise OSError("the door is stuck")
        return Observation(f"Door {self.number}.", ("open", "look"), "open it")

    def step(self, action):
        self.t += 1
        won = action == f"open {self.number}"
        score = 1.0 if won else 0.5 * (action == "look")
        return StepResult(
            f"Door {self.number}.", ("open", "look"), float(won), won or self.t == 4, won, {"score": score}
        )


def doors(n=6, **more):
    splits = {"train": ["0"], "eval": [f"door-{i:02d}" for i in range(n)], **more}
    tasks = EnvironmentTasks(Doors, splits)
    tasks.eval_split = "eval"
    return tasks


class Scripted(PlayerAgent):
    """Opens the door at the turn that `when` says for (task number, seed); looks before. Notes what it was asked."""

    name = "scripted"

    def __init__(self, when=lambda number, seed: number % 3, *, stop_after=None, concurrency=1):
        self.when, self.stop_after, self.concurrency = when, stop_after, concurrency
        self.played = []

    def player(self, game, tasks):
        if self.stop_after is not None and len(self.played) == self.stop_after:
            raise KeyboardInterrupt
        self.played.append(game.key)
        return _Player(game, self.when)

    def facts(self):
        return {"kind": "scripted"}


class _Player(Player):
    def __init__(self, game, when):
        self.number, self.turns = int(game.task_id.rpartition("-")[2]), 0
        self.when = when(self.number, game.seed)

    def respond(self, view):
        assert len(view.steps) == self.turns
        self.turns += 1
        return Reply("look" if self.turns <= self.when else f"open {self.number}", tokens=2)

    def notes(self):
        return {"turns": self.turns}
