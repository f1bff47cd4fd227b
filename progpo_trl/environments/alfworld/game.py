"""`Game`: one ALFWorld game, parsed once, never changed, shared by all its episodes.

Objects and receptacles are known by their number: their place in the order of their PDDL ids, which is also the
order in which the game lists them. A state is then a few small sets of integers (see `world.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from sys import intern

from progpo_trl.environments.alfworld.errors import GameFileError
from progpo_trl.environments.alfworld.pddl import (
    TASK_TYPES,
    Goal,
    parse_facts,
    parse_goal,
    split_problem,
    type_name,
)
from progpo_trl.environments.alfworld.text import VERSIONS, TextVersion

__all__ = ["TASK_TYPES", "Game", "Goal", "Item", "Receptacle"]

# Names of states as the engine uses them -> predicates of the problem.
_STATES = {"clean": "isclean", "hot": "ishot", "cool": "iscool", "sliced": "issliced", "toggled": "istoggled"}


@dataclass(frozen=True, slots=True)
class Receptacle:
    """Something objects can be in or on.

    id: as in the PDDL problem; name: as shown to the player ("cabinet 4"); type: "cabinet"; location: number of the
    place it stands at (receptacles may share one), -1 if nowhere; openable: starts closed unless the game's `opened`
    has it; accepts: types of object it can take.
    """

    id: str
    name: str
    type: str
    location: int
    openable: bool
    accepts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Item:
    """An object. id, name and type as in `Receptacle`; then what can be done with it, and what it holds.

    is_container: a bowl or pot: examined, it lists `holds`, the names of the objects in it (which never change).
    """

    id: str
    name: str
    type: str
    pickupable: bool
    cleanable: bool
    heatable: bool
    coolable: bool
    toggleable: bool
    sliceable: bool
    is_container: bool
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """A parsed game.

    source: where it came from, for messages; version: its wording; task: the instruction, e.g. "put a mug in desk.";
    goal: what wins it; receptacles, items: by number; locations: names of the places ("loc 6"), by number;
    start: number of the place where the agent starts; contents: for each receptacle the numbers of the items in it
    (an item may lie in two); opened: numbers of receptacles open at the start; places: for each item the numbers of
    the places it is at; states: "clean", "hot", "cool", "sliced", "toggled" -> numbers of items that start so;
    receptacles_at: for each place the numbers of the receptacles there.
    """

    source: str
    version: TextVersion
    task: str
    goal: Goal
    receptacles: tuple[Receptacle, ...]
    items: tuple[Item, ...]
    locations: tuple[str, ...]
    start: int
    contents: tuple[frozenset[int], ...]
    opened: frozenset[int]
    places: tuple[frozenset[int], ...]
    states: dict[str, frozenset[int]]
    receptacles_at: tuple[tuple[int, ...], ...]
    go_commands: tuple[tuple[str, int], ...]  # ("go to desk 1", receptacle number), receptacles that stand somewhere
    sliceable: tuple[int, ...]

    @property
    def task_type(self) -> str:
        """One of `TASK_TYPES`, from the goal."""
        return self.goal.task_type

    @classmethod
    def from_problem(cls, problem: str, task: str, version: str = "0.4", *, source: str = "<problem>") -> Game:
        """Parse a PDDL problem of ALFWorld's domain.

        problem: the text of `pddl_problem`: one agent with one `atLocation`, a `receptacleAtLocation` for every
        receptacle, types named `<Name>Type`, one of the six official goals with the official variable names;
        ids of objects, receptacles and locations as ALFWorld writes them, `Mug_bar_<anything>`, since the names
        shown are made from them (a basin's id contains "basin": `Sink_bar_.._bar_SinkBasin` is "sinkbasin 1").
        task: the instruction without "Your task is to: ". version: "0.2.2" or "0.4". source: named in errors.

        Raises GameFileError, also for a problem the engine has no rule for (e.g. an object held at the start).
        """
        if version not in VERSIONS:
            raise ValueError(f"unknown text version {version!r}; there are {sorted(VERSIONS)}")
        try:
            init, goal = split_problem(problem)
            return _build(parse_facts(init), parse_goal(goal), task, VERSIONS[version], source)
        except ValueError as error:
            raise GameFileError(source, str(error)) from None


def shown_names(ids: list[str]) -> dict[str, str]:
    """Names shown to the player for sorted PDDL ids: type and a number that counts DOWN in id order.

    `desk_bar_1`, `desk_bar_2` -> "desk 2", "desk 1", as ALFWorld's own Demangler does.
    """
    kinds = {}
    for id_ in ids:
        kind, bar, _ = id_.partition("_bar_")
        if bar:
            kinds[id_] = kind + "basin" if "basin" in id_ else kind
    left = Counter(kinds.values())
    names = {}
    for id_ in ids:
        kind = kinds.get(id_)
        if kind is None:
            names[id_] = id_ + " "  # the original writes "name number" with an empty number here
        else:
            names[id_] = intern(f"{kind} {left[kind]}")
            left[kind] -= 1
    return names


def _build(facts: dict[str, list[tuple[str, ...]]], goal: Goal, task: str, version: TextVersion, source: str) -> Game:
    """Turn facts into a Game. ValueError says which facts do not fit together."""
    names = shown_names(sorted({id_ for key, rows in facts.items() if key != "cancontain" for r in rows for id_ in r}))

    def unary(predicate: str) -> set[str]:
        return {row[0] for row in facts.get(predicate, ())}

    place_of = _function(facts, "receptacleatlocation")
    receptacle_type = {id_: intern(type_name(t)) for id_, t in _function(facts, "receptacletype").items()}
    item_type = {id_: intern(type_name(t)) for id_, t in _function(facts, "objecttype").items()}
    agents = facts.get("atlocation", [])
    if len(agents) != 1:
        raise ValueError(f"pddl_problem places {len(agents)} agents; exactly one is expected")

    location_ids = sorted({*place_of.values(), agents[0][1], *(row[1] for row in facts.get("objectatlocation", ()))})
    location = {id_: number for number, id_ in enumerate(location_ids)}
    receptacle_ids = sorted({*place_of, *receptacle_type, *(row[1] for row in facts.get("inreceptacle", ()))})
    receptacle = {id_: number for number, id_ in enumerate(receptacle_ids)}
    item_ids = sorted({*item_type, *unary("pickupable"), *(row[0] for row in facts.get("inreceptacle", ()))})
    item = {id_: number for number, id_ in enumerate(item_ids)}

    accepts: dict[str, set[str]] = {}
    present = set(item_type.values())
    for holder, held in facts.get("cancontain", ()):
        held = intern(type_name(held))
        if held in present:  # the table lists every pair of types, whatever the room
            accepts.setdefault(type_name(holder), set()).add(held)
    accepted = {kind: _shared(frozenset(types)) for kind, types in accepts.items()}
    openable = unary("openable")
    receptacles = tuple(
        Receptacle(
            id_,
            names[id_],
            receptacle_type.get(id_, ""),
            location[place_of[id_]] if id_ in place_of else -1,
            id_ in openable,
            accepted.get(receptacle_type.get(id_, ""), frozenset()),
        )
        for id_ in receptacle_ids
    )

    inner: dict[str, list[str]] = {}
    for inside, outside in sorted(facts.get("inreceptacleobject", ())):
        inner.setdefault(outside, []).append(names[inside])
    kinds = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isreceptacleobject")
    flags = [unary(kind) for kind in kinds]
    items = tuple(
        Item(id_, names[id_], item_type.get(id_, ""), *(id_ in flag for flag in flags), tuple(inner.get(id_, ())))
        for id_ in item_ids
    )

    contents = [set() for _ in receptacle_ids]
    for inside, holder in facts.get("inreceptacle", ()):
        contents[receptacle[holder]].add(item[inside])
    places = [set() for _ in item_ids]
    for id_, place in facts.get("objectatlocation", ()):
        if id_ in item:
            places[item[id_]].add(location[place])
    receptacles_at = [[] for _ in location_ids]
    for number, entry in enumerate(receptacles):
        if entry.location >= 0:
            receptacles_at[entry.location].append(number)

    return Game(
        source=source,
        version=version,
        task=task,
        goal=goal,
        receptacles=receptacles,
        items=items,
        locations=tuple(names[id_] for id_ in location_ids),
        start=location[agents[0][1]],
        contents=tuple(map(frozenset, contents)),
        opened=frozenset(receptacle[id_] for id_ in unary("opened") if id_ in receptacle),
        places=tuple(_shared(frozenset(at)) for at in places),
        states={state: frozenset(item[id_] for id_ in unary(fact) if id_ in item) for state, fact in _STATES.items()},
        receptacles_at=tuple(map(tuple, receptacles_at)),
        go_commands=tuple(("go to " + r.name, n) for n, r in enumerate(receptacles) if r.location >= 0),
        sliceable=tuple(number for number, entry in enumerate(items) if entry.sliceable),
    )


@lru_cache(maxsize=4096)
def _shared(members: frozenset) -> frozenset:
    """An equal set seen before: the same few sets recur in thousands of games, and memory is what a game costs."""
    return members


def _function(facts: dict[str, list[tuple[str, ...]]], predicate: str) -> dict[str, str]:
    """A two-place predicate that must give each first argument one value."""
    rows = set(facts.get(predicate, ()))
    mapping = dict(rows)
    if len(mapping) != len(rows):
        raise ValueError(f"pddl_problem gives something two values of {predicate!r}")
    return mapping
