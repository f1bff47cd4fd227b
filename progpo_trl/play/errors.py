"""Errors of an environment's files that may come in the middle of an episode."""

from progpo_trl.environments.alfworld.errors import GameFileError
from progpo_trl.environments.webshop.errors import ShopFileError

# A game is read when its episode starts, a product of a store when it is looked at.
DATA_ERRORS = (GameFileError, ShopFileError)
