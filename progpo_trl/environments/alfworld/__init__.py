"""ALFWorld's text game: our own engine, exact to the word, for the official games and for generated ones."""

from progpo_trl.environments.alfworld.environment import AlfworldEnvironment
from progpo_trl.environments.alfworld.errors import GameFileError
from progpo_trl.environments.alfworld.game import TASK_TYPES, Game
from progpo_trl.environments.alfworld.generate import GeneratedAlfworldTasks
from progpo_trl.environments.alfworld.library import GameLibrary
from progpo_trl.environments.alfworld.tasks import AlfworldTasks

__all__ = [
    "TASK_TYPES",
    "AlfworldEnvironment",
    "AlfworldTasks",
    "Game",
    "GameFileError",
    "GameLibrary",
    "GeneratedAlfworldTasks",
]
