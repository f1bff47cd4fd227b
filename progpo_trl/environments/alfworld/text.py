"""What the two releases of ALFWorld's text game say differently.

Release 0.2.2 (the games of the first download, used by most papers before 2025) and the 0.4 releases share nearly
all their sentences; what differs stands here, the rest in `world.py`. A policy trained on one form scores close to
zero on the other, so a game's version is read from its file (`versions.py`), never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

NOTHING_HAPPENS = "Nothing happens."

# The 0.4 games' own list of commands, as the `help` command prints it.
_HELP_0_4 = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


@dataclass(frozen=True, slots=True)
class TextVersion:
    """One release's wording.

    name: "0.2.2" or "0.4"; put_command, put_feedback: templates with `{item}` and `{receptacle}`; arrives_at: what
    "You arrive at" names, "location" or "receptacle"; help: answer to the `help` command, empty when there is none;
    cleaning_types: types of receptacle that objects can be cleaned with.
    """

    name: str
    put_command: str
    put_feedback: str
    arrives_at: str
    help: str
    cleaning_types: frozenset[str]


VERSIONS = {
    "0.2.2": TextVersion(
        name="0.2.2",
        put_command="put {item} in/on {receptacle}",
        put_feedback="You put the {item} in/on the {receptacle}.",
        arrives_at="location",
        help="",
        cleaning_types=frozenset({"sink", "sinkbasin"}),
    ),
    "0.4": TextVersion(
        name="0.4",
        put_command="move {item} to {receptacle}",
        put_feedback="You move the {item} to the {receptacle}.",
        arrives_at="receptacle",
        help=_HELP_0_4,
        cleaning_types=frozenset({"sinkbasin"}),
    ),
}


def listing(names: list[str]) -> str:
    """The game's way to list things: "nothing", "a mug 1", "a mug 2, and a mug 1", "a cup 1, a mug 2, and a mug 1"."""
    if not names:
        return "nothing"
    return join_names(["a " + name for name in names])


def join_names(names: list[str]) -> str:
    """Names joined by commas, the last one by ", and "."""
    if len(names) == 1:
        return names[0]
    return ", ".join(names[:-1]) + ", and " + names[-1]
