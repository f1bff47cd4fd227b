"""Draws a game and writes it as a PDDL problem of ALFWorld's own domain.

`draw` decides what a game is (room, contents, goal), `to_pddl` writes it down. Both are pure functions of their
arguments and of the random generator handed in: the same seed gives the same text on every machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from progpo_trl.environments.alfworld import rooms

# A room that cannot host a goal is drawn again; dials that are nearly impossible end here with an error.
MAX_DRAWS = 500

_SENTENCES = {
    "pick_and_place_simple": "put a {o} in {r}.",
    "look_at_obj_in_light": "look at {o} under the {r}.",
    "pick_clean_then_place_in_recep": "put a clean {o} in {r}.",
    "pick_heat_then_place_in_recep": "put a hot {o} in {r}.",
    "pick_cool_then_place_in_recep": "put a cool {o} in {r}.",
    "pick_two_obj_and_place": "put two {o} in {r}.",
}
_TREATED = {
    "pick_clean_then_place_in_recep": "(cleanable ?o) (isClean ?o) ",
    "pick_heat_then_place_in_recep": "(heatable ?o) (isHot ?o) ",
    "pick_cool_then_place_in_recep": "(coolable ?o) (isCool ?o) ",
}
_PROPERTIES = (
    ("cleanable", rooms.CLEANABLE),
    ("heatable", rooms.HEATABLE),
    ("coolable", rooms.COOLABLE),
    ("sliceable", rooms.SLICEABLE),
    ("isReceptacleObject", rooms.CONTAINERS),
)


@dataclass(frozen=True)
class Dials:
    """How hard a game is.

    n_receptacles: receptacles in the room; n_objects: objects lying around, the goal's included; closed_share: share
    of the receptacles that are closed at the start (0..1); hidden_share: chance that a goal object starts in a closed
    one (0..1); task_types: ALFWorld's names, drawn from uniformly; one_of_a_kind: no kind of receptacle or object
    twice (except the two objects of a "two" task), so that every name ends in 1.
    """

    n_receptacles: int
    n_objects: int
    closed_share: float
    hidden_share: float
    task_types: tuple[str, ...]
    one_of_a_kind: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.n_receptacles <= 40:
            raise ValueError(f"n_receptacles must be between 2 and 40, not {self.n_receptacles}")
        if not 1 <= self.n_objects <= 80:
            raise ValueError(f"n_objects must be between 1 and 80, not {self.n_objects}")
        for name in ("closed_share", "hidden_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        unknown = [t for t in self.task_types if t not in rooms.TASK_TYPES]
        if unknown or not self.task_types:
            raise ValueError(f"unknown task types {unknown}; there are {', '.join(rooms.TASK_TYPES)}")
        if "pick_two_obj_and_place" in self.task_types and self.n_objects < 2:
            raise ValueError("pick_two_obj_and_place needs n_objects >= 2")
        if self.hidden_share > 0 and self.n_closed == 0:
            raise ValueError(
                f"hidden_share {self.hidden_share} needs closed receptacles: closed_share {self.closed_share} of "
                f"{self.n_receptacles} receptacles is none"
            )
        if self.hidden_share < 1 and self.n_closed == self.n_receptacles:
            raise ValueError("hidden_share below 1 needs at least one open receptacle: lower closed_share")
        for task_type in self.task_types:
            if not self.rooms_for(task_type):
                raise ValueError(
                    f"no room has {self.n_closed} closed and {self.n_receptacles - self.n_closed} open receptacles "
                    f"{'of different kinds ' if self.one_of_a_kind else ''}and {self.n_objects} objects for "
                    f"{task_type}: change n_receptacles, n_objects or closed_share"
                    + (", or set one_of_a_kind to false" if self.one_of_a_kind else "")
                )

    @property
    def n_closed(self) -> int:
        """How many receptacles are closed."""
        return int(self.closed_share * self.n_receptacles + 0.5)

    def stock(self, room: str) -> tuple[list[str], list[str]]:
        """The closable and the open receptacles a game in `room` may use, a kind as often as it may occur."""
        kinds = [k for k, most in rooms.RECEPTACLES[room] for _ in range(1 if self.one_of_a_kind else most)]
        return [k for k in kinds if k in rooms.CLOSABLE], [k for k in kinds if k not in rooms.CLOSABLE]

    def rooms_for(self, task_type: str) -> list[str]:
        """Rooms large enough for these dials that have what `task_type` needs."""
        appliance = rooms.APPLIANCE.get(task_type)
        found = []
        for room in rooms.RECEPTACLES:
            closable, open_ = self.stock(room)
            n_open = self.n_receptacles - self.n_closed
            kinds = len(rooms.OBJECTS[room]) + (task_type == "pick_two_obj_and_place")
            if (
                len(closable) >= self.n_closed
                and len(open_) >= n_open
                and (not self.one_of_a_kind or kinds >= self.n_objects)
                and (appliance is None or appliance in (closable if self.n_closed else []) + (open_ if n_open else []))
                and (task_type != "look_at_obj_in_light" or (room in rooms.LAMPS and n_open > 0))
                and rooms.target_kinds(task_type, room)
            ):
                found.append(room)
        return found


@dataclass(frozen=True)
class Drawn:
    """A game before it is written down.

    receptacles: kinds; contents: one (object kind, index of its receptacle) each, the lamp of a "look" task last;
    target, destination: kinds the goal names (the destination of a "look" task is its lamp).
    """

    room: str
    task_type: str
    receptacles: tuple[str, ...]
    contents: tuple[tuple[str, int], ...]
    target: str
    destination: str

    @property
    def layout(self) -> str:
        """Which things stand where, in a normal form: neither order nor coordinates nor the goal matter."""
        inside: list[list[str]] = [[] for _ in self.receptacles]
        for kind, place in self.contents:
            inside[place].append(kind)
        filled = zip(self.receptacles, inside, strict=True)
        return ";".join([self.room, *sorted(f"{kind}:{','.join(sorted(things))}" for kind, things in filled)])

    @property
    def sentence(self) -> str:
        """The task as the agent reads it."""
        return _SENTENCES[self.task_type].format(o=self.target.lower(), r=self.destination.lower())


def draw(dials: Dials, rng: random.Random) -> Drawn:
    """One game. Raises ValueError when these dials leave no room for a goal."""
    task_type = rng.choice(dials.task_types)
    for _ in range(MAX_DRAWS):
        drawn = _try(dials, task_type, rng.choice(dials.rooms_for(task_type)), rng)
        if drawn is not None:
            return drawn
    raise ValueError(f"no {task_type} game found in {MAX_DRAWS} draws with {dials}: loosen the dials")


def _try(dials: Dials, task_type: str, room: str, rng: random.Random) -> Drawn | None:
    receptacles = _pick_receptacles(dials, task_type, room, rng)
    hidden = rng.random() < dials.hidden_share
    look, two = task_type == "look_at_obj_in_light", task_type == "pick_two_obj_and_place"
    lamp = None
    if look:
        hosts = [i for i, kind in enumerate(receptacles) if kind in rooms.LAMPS[room][1]]
        if not hosts:
            return None
        lamp = (rooms.LAMPS[room][0], rng.choice(hosts))
    targets = list(rooms.target_kinds(task_type, room))
    rng.shuffle(targets)
    for target in targets:
        homes = [i for i, kind in enumerate(receptacles) if target in rooms.ACCEPTS[kind]]
        sources = [i for i in homes if (receptacles[i] in rooms.CLOSABLE) == hidden]
        destinations = sorted({receptacles[i] for i in homes})
        rng.shuffle(destinations)
        for destination in [lamp[0]] if lamp else destinations:
            away = [i for i in sources if receptacles[i] != destination]
            if not away:
                continue
            contents = [(target, rng.choice(away)) for _ in range(1 + two)]
            contents += _distractors(dials, room, receptacles, target, destination, dials.n_objects - 1 - two, rng)
            if len(contents) < dials.n_objects:
                return None
            rng.shuffle(contents)
            contents += [lamp] if lamp else []
            return Drawn(room, task_type, tuple(receptacles), tuple(contents), target, destination)
    return None


def _pick_receptacles(dials: Dials, task_type: str, room: str, rng: random.Random) -> list[str]:
    chosen: list[str] = []
    for stock, n in zip(dials.stock(room), (dials.n_closed, dials.n_receptacles - dials.n_closed), strict=True):
        first = [k for k in stock if k == rooms.APPLIANCE.get(task_type)][:n]
        rest = list(stock)
        for kind in first[:1]:
            rest.remove(kind)
        chosen += first[:1] + rng.sample(rest, n - len(first[:1]))
    rng.shuffle(chosen)
    return chosen


def _distractors(
    dials: Dials, room: str, receptacles: list[str], target: str, destination: str, n: int, rng: random.Random
) -> list[tuple[str, int]]:
    """`n` more objects, or fewer when the room cannot hold so many. None of them helps with the goal."""
    found: list[tuple[str, int]] = []
    kinds = [k for k in rooms.OBJECTS[room] if not (dials.one_of_a_kind and k == target)]
    while len(found) < n and kinds:
        kind = rng.choice(kinds)
        homes = [
            i for i, r in enumerate(receptacles)
            if kind in rooms.ACCEPTS[r] and not (kind == target and r == destination)
        ]  # fmt: skip
        if homes:
            found.append((kind, rng.choice(homes)))
        if dials.one_of_a_kind or not homes:
            kinds.remove(kind)
    return found


def _coordinate(x: float) -> str:
    return ("_minus_" if x < 0 else "_plus_") + f"{abs(x):05.2f}".replace(".", "_dot_")


def to_pddl(drawn: Drawn, name: str, rng: random.Random) -> str:
    """The problem text. `rng` gives things their coordinates, which decide nothing but the order of numbered names."""
    used: list[str] = []

    def identifier(kind: str) -> str:
        # ALFRED calls a basin by the thing it belongs to: Sink|x|y|z|SinkBasin.
        prefix, suffix = (kind[: -len("Basin")], f"_bar_{kind}") if kind.endswith("Basin") else (kind, "")
        while True:
            place = "".join(f"_bar_{_coordinate(round(rng.uniform(-9, 9), 2))}" for _ in range(3))
            if place not in used:
                used.append(place)
                return prefix + place + suffix

    receptacles = [(kind, identifier(kind)) for kind in drawn.receptacles]
    objects = [(kind, identifier(kind), place) for kind, place in drawn.contents]
    locations = [f"loc_bar_{i + 1}_bar_{rng.randint(0, 30)}_bar_{rng.randint(0, 3)}_bar_60" for i in range(len(used))]
    start = "loc_bar_0_bar_0_bar_0_bar_30"
    lamp = drawn.destination if drawn.task_type == "look_at_obj_in_light" else None

    # The domain names these types itself, so every problem has to declare them.
    object_types = sorted({kind for kind, _, _ in objects} | {drawn.target, "Knife", "ButterKnife"})
    receptacle_types = sorted(set(drawn.receptacles) | {"SinkBasin", "Microwave", "Fridge"})
    lines = [f"(define (problem {name})", "(:domain alfred)", "(:objects", "agent1 - agent"]
    lines += [f"{kind}Type - otype" for kind in object_types]
    lines += [f"{kind}Type - rtype" for kind in receptacle_types]
    lines += [f"{i} - object" for _, i, _ in objects]
    lines += [f"{i} - receptacle" for _, i in receptacles]
    lines += [f"{i} - location" for i in [start, *locations[: len(receptacles)]]]
    lines += [")", "(:init", f"(atLocation agent1 {start})"]
    for (kind, i), location in zip(receptacles, locations, strict=False):
        lines += [f"(receptacleType {i} {kind}Type)", f"(receptacleAtLocation {i} {location})"]
        lines += [f"(openable {i})"] if kind in rooms.CLOSABLE else []
    for kind, i, place in objects:
        lines += [f"(objectType {i} {kind}Type)", f"(inReceptacle {i} {receptacles[place][1]})"]
        lines += [f"(objectAtLocation {i} {locations[place]})"]
        lines += [f"({'toggleable' if kind == lamp else 'pickupable'} {i})"]
        lines += [f"({predicate} {i})" for predicate, kinds in _PROPERTIES if kind in kinds]
    for r in receptacle_types:
        lines += [f"(canContain {r}Type {o}Type)" for o in object_types if o in rooms.ACCEPTS[r]]
    return "\n".join([*lines, ")", f"(:goal (and {_goal(drawn, lamp)})))", ""])


def _goal(drawn: Drawn, lamp: str | None) -> str:
    target, destination = drawn.target, drawn.destination
    if lamp:
        return (
            "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
            f"(objectType ?ot {lamp}Type) (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) "
            "(atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {target}Type) (holds ?a ?o)))"
        )
    if drawn.task_type == "pick_two_obj_and_place":
        return (
            "(exists (?r - receptacle) (exists (?o1 - object) (and "
            f"(objectType ?o1 {target}Type) (receptacleType ?r {destination}Type) (inReceptacle ?o1 ?r) "
            f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 {target}Type) "
            f"(receptacleType ?r {destination}Type) (inReceptacle ?o2 ?r))))))"
        )
    return (
        f"(exists (?r - receptacle) (exists (?o - object) (and {_TREATED.get(drawn.task_type, '')}"
        f"(inReceptacle ?o ?r) (objectType ?o {target}Type) (receptacleType ?r {destination}Type))))"
    )
