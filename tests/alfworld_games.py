"""A small ALFWorld room of our own, and game files made of it, for tests that need no real data."""

import json
import lzma
from pathlib import Path

from progpo_trl.environments.alfworld import versions

# Type, id suffix, location, openable. The cabinets share a place; the desk's ids sort before the others'.
RECEPTACLES = [
    ("Desk", "Desk_bar_1", "loc_bar_1", False),
    ("Cabinet", "Cabinet_bar_1", "loc_bar_2", True),
    ("Cabinet", "Cabinet_bar_2", "loc_bar_2", True),
    ("Fridge", "Fridge_bar_1", "loc_bar_3", True),
    ("Microwave", "Microwave_bar_1", "loc_bar_4", True),
    ("SinkBasin", "Sink_bar_1_bar_SinkBasin", "loc_bar_5", False),
    ("CounterTop", "CounterTop_bar_1", "loc_bar_6", False),
]
# Type, id, receptacle, what can be done with it.
ITEMS = [
    ("Apple", "Apple_bar_1", "CounterTop_bar_1", "pickupable cleanable heatable coolable sliceable"),
    ("Mug", "Mug_bar_1", "Cabinet_bar_1", "pickupable cleanable heatable coolable"),
    ("Mug", "Mug_bar_2", "CounterTop_bar_1", "pickupable cleanable heatable coolable"),
    ("Bowl", "Bowl_bar_1", "CounterTop_bar_1", "pickupable cleanable isReceptacleObject"),
    ("Fork", "Fork_bar_1", "CounterTop_bar_1", "pickupable cleanable"),
    ("ButterKnife", "ButterKnife_bar_1", "CounterTop_bar_1", "pickupable cleanable"),
    ("DeskLamp", "DeskLamp_bar_1", "Desk_bar_1", "toggleable"),
]
_ONE = "(exists (?r - receptacle) (exists (?o - object) (and {needs} (inReceptacle ?o ?r) {types})))"
_TYPES = "(objectType ?o {o}Type) (receptacleType ?r {r}Type)"
# Task type -> (goal, task sentence, commands that win in the 0.4 wording).
GAMES = {
    "pick_and_place_simple": (
        _ONE.format(needs="", types=_TYPES.format(o="Mug", r="Desk")),
        "put a mug in desk.",
        ["go to countertop 1", "take mug 1 from countertop 1", "go to desk 1", "move mug 1 to desk 1"],
    ),
    "pick_clean_then_place_in_recep": (
        _ONE.format(needs="(cleanable ?o) (isClean ?o)", types=_TYPES.format(o="Fork", r="Cabinet")),
        "put a clean fork in cabinet.",
        [
            *(
                "go to countertop 1",
                "take fork 1 from countertop 1",
                "go to sinkbasin 1",
                "clean fork 1 with sinkbasin 1",
            ),
            *("go to cabinet 2", "open cabinet 1", "move fork 1 to cabinet 1"),
        ],
    ),
    "pick_heat_then_place_in_recep": (
        _ONE.format(needs="(heatable ?o) (isHot ?o)", types=_TYPES.format(o="Apple", r="Fridge")),
        "put a hot apple in fridge.",
        [
            *(
                "go to countertop 1",
                "take apple 1 from countertop 1",
                "go to microwave 1",
                "heat apple 1 with microwave 1",
            ),
            *("go to fridge 1", "open fridge 1", "move apple 1 to fridge 1"),
        ],
    ),
    "pick_cool_then_place_in_recep": (
        _ONE.format(needs="(coolable ?o) (isCool ?o)", types=_TYPES.format(o="Mug", r="Desk")),
        "cool some mug and put it in desk.",
        [
            *("go to countertop 1", "take mug 1 from countertop 1", "go to fridge 1", "cool mug 1 with fridge 1"),
            *("go to desk 1", "move mug 1 to desk 1"),
        ],
    ),
    "pick_two_obj_and_place": (
        "(exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 MugType) (receptacleType ?r DeskType) "
        "(inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 MugType) "
        "(receptacleType ?r DeskType) (inReceptacle ?o2 ?r))))))",
        "put two mug in desk.",
        [
            *("go to countertop 1", "take mug 1 from countertop 1", "go to desk 1", "move mug 1 to desk 1"),
            *(
                "go to cabinet 1",
                "open cabinet 2",
                "take mug 2 from cabinet 2",
                "go to desk 1",
                "move mug 2 to desk 1",
            ),
        ],
    ),
    "look_at_obj_in_light": (
        "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot DeskLampType) "
        "(toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
        "(exists (?o - object ?a - agent) (and (objectType ?o BowlType) (holds ?a ?o)))",
        "examine the bowl with the desklamp.",
        ["go to countertop 1", "take bowl 1 from countertop 1", "go to desk 1", "use desklamp 1"],
    ),
}
# Not ALFWorld's: `known_version` makes the loader take these two for the official 0.4 texts.
DOMAIN = "(define (domain alfred) ; ours\n)"
GRAMMAR = 'grammar :: """ {{ "task": [ {{ "rhs": "Your task is to: {task}" }} ] }} """;'


def problem(task_type: str = "pick_and_place_simple", more_facts: str = "") -> str:
    """The room as a PDDL problem with the goal of a task type; `more_facts` are added to its :init."""
    facts = ["(atLocation agent1 loc_bar_0)", "(inReceptacleObject Spoon_bar_1 Bowl_bar_1)"]
    for kind, id_, location, openable in RECEPTACLES:
        facts += [f"(receptacleType {id_} {kind}Type)", f"(receptacleAtLocation {id_} {location})"]
        facts += [f"(openable {id_})"] if openable else []
        facts += [f"(canContain {kind}Type {item}Type)" for item in ("Apple", "Mug", "Bowl", "Fork", "ButterKnife")]
    places = {id_: location for _, id_, location, _ in RECEPTACLES}
    for kind, id_, receptacle, able in ITEMS:
        facts += [f"(objectType {id_} {kind}Type)", f"(inReceptacle {id_} {receptacle})"]
        facts += [f"(objectAtLocation {id_} {places[receptacle]})", *(f"({verb} {id_})" for verb in able.split())]
    declared = ["agent1 - agent", "Spoon_bar_1 - object", "loc_bar_0 - location", "KnifeType - otype"]
    declared += [f"{id_} - object" for _, id_, _, _ in ITEMS] + [f"{id_} - receptacle" for _, id_, _, _ in RECEPTACLES]
    declared += [f"{location} - location" for location in sorted(set(places.values()))]
    declared += [f"{kind}Type - otype" for kind in sorted({kind for kind, *_ in ITEMS})]
    declared += [f"{kind}Type - rtype" for kind in sorted({kind for kind, *_ in RECEPTACLES})]
    objects = "\n        ".join(declared)
    init = "\n        ".join(facts)
    return f"""(define (problem p)
(:domain alfred)
(:objects
        {objects}
)
(:init
        {init} {more_facts}
)
(:goal (and {GAMES[task_type][0]})))
"""


def shard_line(task_id: str, task_type: str = "pick_and_place_simple", **changes) -> dict:
    """One line of a shard as its object."""
    _, task, walkthrough = GAMES[task_type]
    line = {"path": task_id, "task": task, "walkthrough": walkthrough, "traj": {"task_type": task_type}}
    return {**line, "pddl_problem": problem(task_type), **changes}


def write_shard(path: Path, lines: list[dict]) -> Path:
    """A *.jsonl.xz file."""
    path.write_bytes(lzma.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return path


def game_file(task_type: str = "pick_and_place_simple", **changes) -> dict:
    """The content of a game.tw-pddl file."""
    content = {"pddl_domain": DOMAIN, "grammar": GRAMMAR.format(task=GAMES[task_type][1]), "solvable": True}
    return {**content, "pddl_problem": problem(task_type), "walkthrough": GAMES[task_type][2], **changes}


def write_trial(folder: Path, task_type: str = "pick_and_place_simple", **changes) -> Path:
    """A trial's folder in the official layout."""
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps(game_file(task_type, **changes)))
    (folder / "traj_data.json").write_text(json.dumps({"task_type": task_type}))
    return folder


def known_version(patch) -> None:
    """Make DOMAIN and GRAMMAR count as the official texts of 0.4 while `patch` (a MonkeyPatch) lasts."""
    domain = versions._fingerprint("(define (domain alfred)\n)")
    patch.setitem(versions._DOMAINS, domain, "0.4")
    patch.setitem(
        versions._GRAMMARS,
        versions._fingerprint(GRAMMAR.format(task="").replace('"Your task is to: "', "task")),
        "0.4",
    )


class OneGame:
    """A GameSource of a single game, "game"."""

    def __init__(self, game):
        self._game = game

    def game(self, task_id):
        return {"game": self._game}[task_id]
