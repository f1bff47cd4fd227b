"""Experts for ALFWorld games: one that knows the game, and one that has to search like an agent.

`walkthrough` reads a parsed game and writes down commands that win it, without looking around. `SearchingExpert` sees
only what an agent sees (observations and admissible commands); mixed with random moves (`noisy_play`) it makes the
traces the tiny policy is warm-started on.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from progpo_trl.environments.alfworld import rooms
from progpo_trl.environments.alfworld.game import Game
from progpo_trl.environments.alfworld.world import World
from progpo_trl.environments.base import Environment

_NAME = r"[a-z]+ \d+"
_INSIDE = re.compile(rf"(?:On the ({_NAME})|The ({_NAME}) is open\. In it), you see (.*)\.")
_MOVED = re.compile(rf"You (?:move|put) the ({_NAME}) (?:to|in/on) the ({_NAME})\.")
_TASKS = (
    (re.compile(r"(?:put|find) two (\w+) (?:and put them )?(?:in|on|in/on) (\w+)\."), "two"),
    (re.compile(r"(?:look at|examine the|examine) (\w+) (?:under|with) the (\w+)\."), "look"),
    (re.compile(r"put (?:a|some) (clean|hot|cool) (\w+) (?:in|on|in/on) (\w+)\."), ""),
    (re.compile(r"(clean|heat|cool) some (\w+) and put it (?:in|on|in/on) (\w+)\."), ""),
    (re.compile(r"put (?:a|some) (\w+) (?:in|on|in/on) (\w+)\."), "place"),
)
_APPLIANCE = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}


@dataclass(frozen=True)
class Task:
    """What a task sentence asks for. kind: place, look, clean, heat, cool or two; target, place: kinds in the text's
    spelling (the place of "look" is the lamp)."""

    kind: str
    target: str
    place: str


def read_task(text: str) -> Task:
    """The task in an observation or sentence of either ALFWorld wording. Raises ValueError for any other."""
    sentence = text.split("Your task is to:")[-1].strip()
    for pattern, kind in _TASKS:
        found = pattern.fullmatch(sentence)
        if found:
            *how, target, place = found.groups()
            return Task(kind or {"hot": "heat"}.get(how[0], how[0]), target, place)
    raise ValueError(f"not an ALFWorld task sentence: {sentence[:100]!r}")


def _kind(name: str) -> str:
    return name.split()[0]


class SearchingExpert:
    """Searches the room as it is listed, from a place drawn from `rng` on, and does the task with what it has seen.

    Give it the first observation, then alternate `act(admissible)` and `observe(command, observation)`; commands it
    did not choose may be mixed in. It wins every game whose sentence names all there is to do.
    """

    def __init__(self, observation: str, rng: random.Random):
        self.task = read_task(observation)
        room = observation.split("Your task is to:")[0].rsplit("you see", 1)[-1]
        listed = re.findall(_NAME, room)
        start = rng.randrange(len(listed)) if listed else 0
        self._receptacles = tuple(listed[start:] + listed[:start])
        self._unsearched = list(self._receptacles)
        self._seen: dict[str, str] = {}
        self._done: list[str] = []
        self._held: str | None = None

    def observe(self, command: str, observation: str) -> None:
        """Remember what `command` led to."""
        inside = _INSIDE.search(observation)
        if inside:
            place = inside[1] or inside[2]
            self._seen = {o: r for o, r in self._seen.items() if r != place}
            self._seen |= dict.fromkeys(re.findall(_NAME, inside[3]), place)
            if place in self._unsearched:
                self._unsearched.remove(place)
        elif observation.startswith("You pick up the "):
            self._held = " ".join(command.split()[1:3])
            self._seen.pop(self._held, None)
        elif moved := _MOVED.match(observation):
            self._held = None
            self._seen[moved[1]] = moved[2]
        elif observation.startswith(f"You {self.task.kind} the ") and self._held:
            self._done.append(self._held)

    def act(self, admissible: Sequence[str]) -> str:
        """The next command, one of `admissible`."""
        if self._held is None:
            return self._find(admissible)
        if _kind(self._held) != self.task.target:
            return self._first(admissible, "move ", "put ") or self._go(self._receptacles, admissible)
        if self.task.kind == "look":
            return self._use_lamp(admissible)
        if self.task.kind in _APPLIANCE and self._held not in self._done:
            appliance = [r for r in self._receptacles if _kind(r) == _APPLIANCE[self.task.kind]]
            return self._first(admissible, f"{self.task.kind} {self._held} ") or self._go(appliance, admissible)
        for command in admissible:
            if command.startswith((f"move {self._held} ", f"put {self._held} ")):
                if _kind(" ".join(command.split()[-2:])) == self.task.place:
                    return command
        places = [r for r in self._receptacles if _kind(r) == self.task.place]
        return self._first(admissible, f"open {self.task.place} ") or self._go(places[:1] or places, admissible)

    def _find(self, admissible: Sequence[str]) -> str:
        wanted = self.task.target
        for command in admissible:
            if command.startswith(f"take {wanted} ") and self._useful(*re.findall(_NAME, command)[:2]):
                return command
        known = [r for o, r in self._seen.items() if _kind(o) == wanted and self._useful(o, r)]
        return self._first(admissible, *(f"open {r}" for r in known)) or (
            self._go(known, admissible) if known else self._search(admissible)
        )

    def _useful(self, name: str, place: str) -> bool:
        if self.task.kind == "look":
            return True
        return _kind(place) != self.task.place or (self.task.kind in _APPLIANCE and name not in self._done)

    def _use_lamp(self, admissible: Sequence[str]) -> str:
        known = [r for o, r in self._seen.items() if _kind(o) == self.task.place]
        return self._first(admissible, f"use {self.task.place} ") or (
            self._go(known, admissible) if known else self._search(admissible)
        )

    def _search(self, admissible: Sequence[str]) -> str:
        if not self._unsearched:
            self._unsearched = list(self._receptacles)
        opened = self._first(admissible, *(f"open {r}" for r in self._unsearched))
        return opened or self._go(self._unsearched, admissible)

    def _go(self, places: Sequence[str], admissible: Sequence[str]) -> str:
        for place in places:
            if f"go to {place}" in admissible:
                return f"go to {place}"
        return self._first(admissible, "open ", "go to ") or admissible[0]

    @staticmethod
    def _first(admissible: Sequence[str], *prefixes: str) -> str | None:
        for prefix in prefixes:
            for command in admissible:
                if command == prefix or (prefix.endswith(" ") and command.startswith(prefix)):
                    return command
        return None


def noisy_play(
    environment: Environment,
    task_id: str,
    p_expert: float,
    max_steps: int,
    rng: random.Random,
    p_wrong: float = 0.0,
) -> tuple[list[str], list[str], bool]:
    """One episode in which each command is the expert's with probability `p_expert`, with `p_wrong` one that the game
    does not accept now ("Nothing happens."), and else any admissible one but help.

    Returns (observations, commands, success): the first observation, then one after each command.
    """
    first = environment.reset(task_id)
    expert = SearchingExpert(first.text, rng)
    observations, commands, admissible = [first.text], [], first.admissible or ()
    earlier: list[str] = []
    success = False
    for _ in range(max_steps):
        draw = rng.random()
        if draw < p_expert:
            command = expert.act(admissible)
        elif draw < p_expert + p_wrong:
            command = _wrong(admissible, earlier, rng)
        else:
            command = rng.choice([c for c in admissible if c != "help"])
        earlier += [c for c in admissible if c not in earlier]
        result = environment.step(command)
        expert.observe(command, result.text)
        observations.append(result.text)
        commands.append(command)
        admissible, success = result.admissible or (), result.success
        if result.done:
            break
    return observations, commands, success


def _wrong(admissible: Sequence[str], earlier: Sequence[str], rng: random.Random) -> str:
    """What a careless player types: something that was possible before, or a place that is not in this room."""
    candidates = [c for c in earlier if c not in admissible]
    if not candidates or rng.random() < 0.5:
        candidates = [c for c in (f"go to {kind.lower()} 1" for kind in rooms.ACCEPTS) if c not in admissible]
    return rng.choice(candidates)


def walkthrough(game: Game) -> list[str]:
    """Commands that win `game`, in its own wording. Raises ValueError when the expert finds none.

    It knows where everything is, tries one way after the other in a world of its own and returns the first that wins.
    """
    for plan in _plans(game):
        commands = _carry_out(game, plan)
        if commands:
            return commands
    raise ValueError(f"the expert cannot win {game.source}: {game.task}")


def _plans(game: Game) -> Iterator[list[tuple[str, ...]]]:
    """Ways to reach the goal, as steps ("take", item, place), ("put", item, place), ("treat", verb, item, place) and
    ("use", lamp, place), names throughout."""
    goal = game.goal
    where = {item: game.receptacles[r] for r, inside in enumerate(game.contents) for item in sorted(inside)}
    reachable = {i: r for i, r in where.items() if r.location >= 0}
    targets = [i for i in sorted(reachable) if game.items[i].type == goal.object_type and game.items[i].pickupable]
    names = [item.name for item in game.items]
    if goal.lamp_type:
        lamps = [i for i in sorted(reachable) if game.items[i].type == goal.lamp_type and game.items[i].toggleable]
        for target, lamp in itertools.product(targets, lamps):
            yield [
                ("take", names[target], reachable[target].name),
                ("use", names[lamp], reachable[lamp].name),
            ]
        return
    verb = {"clean": "clean", "hot": "heat", "cool": "cool"}.get(goal.needs or "")
    appliances = [r for r in game.receptacles if verb and r.type == _APPLIANCE[verb] and r.location >= 0]
    for place in [r for r in game.receptacles if r.type == goal.receptacle_type and r.location >= 0]:
        already = [i for i in targets if reachable[i] is place] if goal.count > 1 else []
        others = [i for i in targets if i not in already]
        for chosen in itertools.combinations(others, max(1, goal.count - len(already))):
            for appliance in appliances or [None]:
                plan: list[tuple[str, ...]] = []
                for i in chosen:
                    plan.append(("take", names[i], reachable[i].name))
                    if appliance:
                        plan.append(("treat", verb, names[i], appliance.name))
                    plan.append(("put", names[i], place.name))
                yield plan


def _carry_out(game: Game, plan: list[tuple[str, ...]]) -> list[str] | None:
    """The commands of `plan`, or None when it gets stuck or does not win."""
    world, played = World(game), []
    openable = [r.name for r in game.receptacles if r.openable]
    for kind, *names in plan:
        place = names[-1]
        wanted = [f"go to {place}"]
        if kind in ("take", "put") and place in openable:
            wanted.append(f"open {place}")
        optional = len(wanted)  # no need to go where one is, or to open what is open
        if kind == "take":
            wanted.append(f"take {names[0]} from {place}")
        elif kind == "treat":
            wanted.append(f"{names[0]} {names[1]} with {place}")
        elif kind == "use":
            wanted.append(f"use {names[0]}")
        else:
            wanted.append(game.version.put_command.format(item=names[0], receptacle=place))
        for number, command in enumerate(wanted):
            if command in world.commands():
                world.play(command)
                played.append(command)
            elif number >= optional:
                return None
    return played if world.is_won() else None
