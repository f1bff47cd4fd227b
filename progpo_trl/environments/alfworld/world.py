"""`World`: the state of one game and the rules by which commands change it.

It reproduces ALFWorld's PDDL domain and text grammar as TextWorld plays them, the quirks included, and is held to
recorded transcripts of the real engine (`progpo verify alfworld`). Quirks worth knowing: only the object held can be
examined; an object may lie in two receptacles, and taking it from one leaves it in the other; the floor lists
objects that were taken from a receptacle of this place and put into another one here; "use" turns on, never off.
"""

from __future__ import annotations

from collections.abc import Callable

from progpo_trl.environments.alfworld.game import Game, Item
from progpo_trl.environments.alfworld.text import NOTHING_HAPPENS, join_names, listing

# What "examine" says of the object held: the first line whose states all hold.
_LOOKS = (
    (("clean", "hot", "sliced"), "hot and clean sliced"),
    (("clean", "cool", "sliced"), "cool and clean sliced"),
    (("clean", "sliced"), "clean sliced"),
    (("hot", "sliced"), "hot sliced"),
    (("cool", "sliced"), "cool sliced"),
    (("clean", "hot"), "hot and clean"),
    (("clean", "cool"), "cool and clean"),
    (("hot",), "hot"),
    (("clean",), "clean"),
    (("cool",), "cold"),
)
_KNIVES = ("knife", "butterknife")


class World:
    """A game being played. `commands()` are what it accepts now, `play(command)` does one; no limits, no reward.

    All attributes but `game` are plain sets and integers, so that a state pickles small; see `Game` for the numbers.
    """

    __slots__ = ("_actions", "game", "held", "here", "inside", "opened", "places", "removed", "states")

    def __init__(self, game: Game):
        self.game = game
        self.here = game.start
        self.held = -1  # number of the item in the hand, -1: none
        self.inside = [set(items) for items in game.contents]
        self.places = list(game.places)
        self.opened = set(game.opened)
        self.states = {state: set(items) for state, items in game.states.items()}
        self.removed: set[tuple[int, int]] = set()  # (item, receptacle) pairs that were ended by taking
        self._actions: dict[str, tuple] | None = None

    def snapshot(self) -> tuple:
        """The state without the game."""
        return self.here, self.held, self.inside, self.places, self.opened, self.states, self.removed

    @classmethod
    def restore(cls, game: Game, snapshot: tuple) -> World:
        """The world a snapshot was taken of; `game` must be the same game."""
        world = cls.__new__(cls)
        world.game, world._actions = game, None
        world.here, world.held, world.inside, world.places, world.opened, world.states, world.removed = snapshot
        return world

    def introduction(self) -> str:
        """The text an episode starts with."""
        game = self.game
        if game.receptacles_at[self.here]:
            view = self._look()
        else:
            names = listing([r.name for r in game.receptacles if r.location >= 0])
            view = f"You are in the middle of a room. Looking quickly around you, you see {names}."
        return f"-= Welcome to TextWorld, ALFRED! =-\n\n{view}\n\nYour task is to: {game.task}"

    def commands(self) -> tuple[str, ...]:
        """The commands accepted now, sorted."""
        return tuple(sorted(self._accepted()))

    def play(self, command: str) -> tuple[str, bool]:
        """Do one command: (the text it gives, whether anything could have changed)."""
        action = self._accepted().get(command.strip())
        if action is None:
            return NOTHING_HAPPENS, False
        rule, *arguments = action
        return rule(self, *arguments), rule in _CHANGING

    def is_won(self) -> bool:
        """Whether the goal holds now."""
        game, goal = self.game, self.game.goal
        items = game.items
        if goal.lamp_type is not None:
            if self.held < 0 or items[self.held].type != goal.object_type:
                return False
            lit = self.states["toggled"]
            return any(
                item in lit and items[item].toggleable and items[item].type == goal.lamp_type
                for receptacle in game.receptacles_at[self.here]
                for item in self.inside[receptacle]
            )
        return any(
            receptacle.type == goal.receptacle_type and sum(map(self._is_wanted, contents)) >= goal.count
            for receptacle, contents in zip(game.receptacles, self.inside, strict=True)
        )

    def _is_wanted(self, number: int) -> bool:
        goal, item = self.game.goal, self.game.items[number]
        if item.type != goal.object_type:
            return False
        if goal.needs is None:
            return True
        able = {"clean": item.cleanable, "hot": item.heatable, "cool": item.coolable}[goal.needs]
        return able and number in self.states[goal.needs]

    def _accepted(self) -> dict[str, tuple]:
        """Command -> (rule, its arguments). Kept until something changes."""
        if self._actions is None:
            self._actions = self._find_actions()
        return self._actions

    def _find_actions(self) -> dict[str, tuple]:
        game, here, held = self.game, self.here, self.held
        items = game.items
        hand: Item | None = items[held] if held >= 0 else None
        at_hand = game.receptacles_at[here]
        actions: dict[str, tuple] = {
            command: (World._go, number) for command, number in game.go_commands if number not in at_hand
        }
        actions["look"] = (World._look,)
        actions["inventory"] = (World._inventory,)
        if game.version.help:
            actions["help"] = (World._help,)
        if hand:
            actions["examine " + hand.name] = (World._examine_held,)
        for number in at_hand:
            receptacle = game.receptacles[number]
            name = receptacle.name
            actions["examine " + name] = (World._examine, number)
            is_open = not receptacle.openable or number in self.opened
            if receptacle.openable:
                if is_open:
                    actions["close " + name] = (World._close, number)
                else:
                    actions["open " + name] = (World._open, number)
            for inside in self.inside[number]:
                item = items[inside]
                if item.toggleable:  # the domain lets lamps in closed receptacles be used, too
                    actions["use " + item.name] = (World._use, inside)
                if is_open and not hand and item.pickupable:
                    actions[f"take {item.name} from {name}"] = (World._take, inside, number)
            if hand:
                if is_open and hand.type in receptacle.accepts:
                    actions[game.version.put_command.format(item=hand.name, receptacle=name)] = (World._put, number)
                if hand.cleanable and receptacle.type in game.version.cleaning_types:
                    actions[f"clean {hand.name} with {name}"] = (World._clean, number)
                if hand.heatable and receptacle.type == "microwave":
                    actions[f"heat {hand.name} with {name}"] = (World._heat, number)
                if hand.coolable and receptacle.type == "fridge":
                    actions[f"cool {hand.name} with {name}"] = (World._cool, number)
        if hand and hand.type in _KNIVES:
            for number in game.sliceable:
                if here in self.places[number]:
                    actions[f"slice {items[number].name} with {hand.name}"] = (World._slice, number)
        return actions

    # The rules, one for each kind of command; each returns its sentence.

    def _go(self, receptacle: int) -> str:
        place = self.game.receptacles[receptacle]
        self.here, self._actions = place.location, None
        at = self.game.locations[self.here] if self.game.version.arrives_at == "location" else place.name
        return f"You arrive at {at}. {self._examine(receptacle)}"

    def _look(self) -> str:
        game = self.game
        at_hand = game.receptacles_at[self.here]
        if not at_hand:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        facing = join_names([game.receptacles[number].name for number in at_hand])
        moved = sorted((item, number) for item, number in self.removed if number in at_hand)
        floor = [game.items[item].name for item, _ in moved if self.here in self.places[item]]
        return f"You are facing the {facing}. Next to it, you see {listing(floor)}."

    def _inventory(self) -> str:
        if self.held < 0:
            return "You are not carrying anything."
        return f"You are carrying: a {self.game.items[self.held].name}."

    def _help(self) -> str:
        return self.game.version.help

    def _examine(self, number: int) -> str:
        receptacle = self.game.receptacles[number]
        if receptacle.openable and number not in self.opened:
            return f"The {receptacle.name} is closed."
        contents = listing([self.game.items[item].name for item in sorted(self.inside[number])])
        if receptacle.openable:
            return f"The {receptacle.name} is open. In it, you see {contents}."
        return f"On the {receptacle.name}, you see {contents}."

    def _examine_held(self) -> str:
        number = self.held
        item = self.game.items[number]
        if item.is_container:
            return f"This is a normal {item.name}. In it, you see {listing(list(item.holds))}."
        holds = {state for state, members in self.states.items() if number in members}
        for needed, words in _LOOKS:
            if holds.issuperset(needed):
                return f"This is a {words} {item.name}."
        if item.toggleable and "toggled" in holds:
            return f"This {item.name} is on."
        if item.sliceable and "sliced" in holds:
            return f"This is a sliced {item.name}."
        return f"There's nothing special about {item.name}."

    def _open(self, number: int) -> str:
        self.opened.add(number)
        self._actions = None
        return f"You open the {self.game.receptacles[number].name}. {self._examine(number)}"

    def _close(self, number: int) -> str:
        self.opened.discard(number)
        self._actions = None
        return f"You close the {self.game.receptacles[number].name}."

    def _take(self, item: int, number: int) -> str:
        self.inside[number].discard(item)
        self.removed.add((item, number))
        self.places[item] = self.places[item] - {self.here}
        self.held, self._actions = item, None
        return f"You pick up the {self.game.items[item].name} from the {self.game.receptacles[number].name}."

    def _put(self, number: int) -> str:
        item = self.held
        self.inside[number].add(item)
        self.removed.discard((item, number))
        self.places[item] = self.places[item] | {self.here}
        self.held, self._actions = -1, None
        names = {"item": self.game.items[item].name, "receptacle": self.game.receptacles[number].name}
        return self.game.version.put_feedback.format(**names)

    def _use(self, item: int) -> str:
        self.states["toggled"].add(item)
        return f"You turn on the {self.game.items[item].name}."

    def _clean(self, number: int) -> str:
        self.states["clean"].add(self.held)
        return self._treated("clean", number)

    def _heat(self, number: int) -> str:
        self.states["hot"].add(self.held)
        self.states["cool"].discard(self.held)
        return self._treated("heat", number)

    def _cool(self, number: int) -> str:
        self.states["cool"].add(self.held)
        self.states["hot"].discard(self.held)
        return self._treated("cool", number)

    def _treated(self, verb: str, number: int) -> str:
        return f"You {verb} the {self.game.items[self.held].name} using the {self.game.receptacles[number].name}."

    def _slice(self, item: int) -> str:
        self.states["sliced"].add(item)
        return f"You sliced the {self.game.items[item].name} with the {self.game.items[self.held].name}."


_CHANGING: frozenset[Callable] = frozenset(
    {World._go, World._open, World._close, World._take, World._put, World._use, World._clean, World._heat, World._cool}
)
