"""`progpo play`: a person plays the agent's episodes, in the terminal or on a local page."""

from progpo_trl.play.player import Player

__all__ = ["Player"]
