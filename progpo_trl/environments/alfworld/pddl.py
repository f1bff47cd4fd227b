"""Reads the facts and the goal of an ALFWorld PDDL problem.

Not a PDDL parser: ALFWorld writes its problems in one shape (a flat `:init`, one of six goals), and anything of
another shape is refused rather than half understood.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

# Predicate -> number of arguments, as declared by ALFWorld's domain (alfred.pddl); names in lower case.
_ARITY = {
    "atlocation": 2,
    "receptacleatlocation": 2,
    "objectatlocation": 2,
    "openable": 1,
    "opened": 1,
    "inreceptacle": 2,
    "isreceptacleobject": 1,
    "inreceptacleobject": 2,
    "isreceptacleobjectfull": 1,
    "wasinreceptacle": 2,
    "checked": 1,
    "examined": 1,
    "receptacletype": 2,
    "cancontain": 2,
    "objecttype": 2,
    "full": 1,
    "isclean": 1,
    "cleanable": 1,
    "ishot": 1,
    "heatable": 1,
    "iscool": 1,
    "coolable": 1,
    "pickupable": 1,
    "moveable": 1,
    "toggleable": 1,
    "ison": 1,
    "istoggled": 1,
    "sliceable": 1,
    "issliced": 1,
}

_ATOM = re.compile(r"\(\s*([a-z]+)\s+([^()]*)\)")
# Travel costs, e.g. `(= (distance loc1 loc2) 4)`: older problems list them, the text game ignores them.
_COST = re.compile(r"\(\s*=\s*\([^()]*\)\s*[0-9.]+\s*\)")
_COMMENT = re.compile(r";[^\n]*")
_GOAL_LITERAL = re.compile(r"\(\s*([a-z=]+)\s+([^()]*)\)")


@dataclass(frozen=True, slots=True)
class Goal:
    """What must hold for the game to be won; types as in the names shown to the player ("mug", "sinkbasin").

    task_type: one of `TASK_TYPES`; object_type: what is to be moved or looked at; receptacle_type: where it must end,
    None for look_at_obj_in_light; lamp_type: the lamp of look_at_obj_in_light, else None; needs: the state that the
    object must be in, "clean", "hot", "cool" or None; count: how many objects, 1 or 2 (in the same receptacle).
    """

    task_type: str
    object_type: str
    receptacle_type: str | None = None
    lamp_type: str | None = None
    needs: str | None = None
    count: int = 1


def _literals(text: str) -> frozenset[tuple[str, str]]:
    return frozenset(tuple(literal.split(" ", 1)) for literal in text.split(", "))


_PLACED = "objecttype ?o *, receptacletype ?r *, inreceptacle ?o ?r"
# The six goals that ALFWorld generates, as their sets of literals (types replaced by *).
_GOALS = {
    "pick_and_place_simple": (_literals(_PLACED), None),
    "pick_clean_then_place_in_recep": (_literals(_PLACED + ", cleanable ?o, isclean ?o"), "clean"),
    "pick_heat_then_place_in_recep": (_literals(_PLACED + ", heatable ?o, ishot ?o"), "hot"),
    "pick_cool_then_place_in_recep": (_literals(_PLACED + ", coolable ?o, iscool ?o"), "cool"),
    "pick_two_obj_and_place": (
        _literals(
            "objecttype ?o1 *, objecttype ?o2 *, receptacletype ?r *, inreceptacle ?o1 ?r, inreceptacle ?o2 ?r, "
            "= ?o1 ?o2"
        ),
        None,
    ),
    "look_at_obj_in_light": (
        _literals(
            "objecttype ?ot *, toggleable ?ot, istoggled ?ot, receptacleatlocation ?r ?l, atlocation ?a ?l, "
            "inreceptacle ?ot ?r, objecttype ?o *, holds ?a ?o"
        ),
        None,
    ),
}
TASK_TYPES = tuple(_GOALS)


def split_problem(problem: str) -> tuple[str, str]:
    """The `:init` and `:goal` parts of a problem in lower case, without comments. ValueError names what is missing."""
    text = problem.lower()
    if ";" in text:
        text = _COMMENT.sub("", text)
    init, goal = text.find("(:init"), text.find("(:goal")
    if init < 0 or goal < init:
        raise ValueError("pddl_problem has no (:init ...) followed by a (:goal ...)")
    if text.count("(") != text.count(")"):
        raise ValueError("pddl_problem is incomplete: its parentheses do not match")
    return text[init + len("(:init") : goal], text[goal:]


def parse_facts(init: str) -> dict[str, list[tuple[str, ...]]]:
    """Initial facts by predicate, in file order: {"inreceptacle": [("mug_bar_..", "desk_bar_.."), ..], ..}."""
    if "=" in init:
        init = _COST.sub("", init)
    facts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    atoms = _ATOM.findall(init)
    for predicate, arguments in atoms:
        facts[predicate].append(tuple(arguments.split()))
    if len(atoms) != init.count("("):
        raise ValueError("pddl_problem's (:init ...) holds something that is not a fact of ALFWorld's domain")
    for predicate, rows in facts.items():
        arity = _ARITY.get(predicate)
        if arity is None:
            raise ValueError(f"pddl_problem states {predicate!r}, which ALFWorld's domain does not know at the start")
        if any(len(row) != arity for row in rows):
            raise ValueError(f"pddl_problem states {predicate!r} with a wrong number of arguments; it takes {arity}")
    return facts


def type_name(pddl_type: str) -> str:
    """`cabinettype` -> `cabinet`."""
    return pddl_type.removesuffix("type")


def parse_goal(goal: str) -> Goal:
    """The goal of a problem (its lower-case `(:goal ...)` text). ValueError if it is none of the six."""
    literals, types = set(), {}
    for predicate, arguments in _GOAL_LITERAL.findall(goal):
        words = arguments.split()
        if predicate.endswith("type") and len(words) == 2:
            types[words[0]] = type_name(words[1])
            words[1] = "*"
        literals.add((predicate, " ".join(words)))
    for task_type, (expected, needs) in _GOALS.items():
        if literals != expected:
            continue
        if task_type == "look_at_obj_in_light":
            return Goal(task_type, types["?o"], lamp_type=types["?ot"])
        if task_type == "pick_two_obj_and_place":
            if types["?o1"] != types["?o2"]:
                break
            return Goal(task_type, types["?o1"], types["?r"], count=2)
        return Goal(task_type, types["?o"], types["?r"], needs=needs)
    raise ValueError(f"pddl_problem's goal is none of ALFWorld's six task types ({', '.join(TASK_TYPES)})")
