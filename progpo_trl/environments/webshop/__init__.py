"""WebShop in text: our own engine, exact on the recorded behaviour of the original, shared by all episodes."""

from progpo_trl.environments.webshop.catalogue import Catalogue, build_catalogue
from progpo_trl.environments.webshop.environment import WebshopEnvironment
from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.goals import Goal, Goals
from progpo_trl.environments.webshop.products import Product
from progpo_trl.environments.webshop.reward import Reward, score_purchase
from progpo_trl.environments.webshop.session import Session
from progpo_trl.environments.webshop.tasks import GeneratedWebshopTasks, WebshopTasks

__all__ = [
    "Catalogue",
    "GeneratedWebshopTasks",
    "Goal",
    "Goals",
    "Product",
    "Reward",
    "Session",
    "ShopFileError",
    "WebshopEnvironment",
    "WebshopTasks",
    "build_catalogue",
    "score_purchase",
]
