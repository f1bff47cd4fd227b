"""Train multi-turn LLM agents with TRL: rollouts in text environments, step-level credit assignment, exact losses.

Importing this package is cheap: torch and TRL are loaded only when a name that needs them is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_LAZY = {
    "MultiTurnGRPOTrainer": "progpo_trl.trainer",
    "MultiTurnGRPOConfig": "progpo_trl.config",
    "GRPO": "progpo_trl.advantages",
    "TRLGRPO": "progpo_trl.advantages",
    "GiGPO": "progpo_trl.advantages",
    "HGPO": "progpo_trl.advantages",
    "ProxMO": "progpo_trl.advantages",
    "ProGPO": "progpo_trl.advantages",
    "Episode": "progpo_trl.episodes",
    "Step": "progpo_trl.episodes",
    "StepBatch": "progpo_trl.episodes",
    "StopReason": "progpo_trl.episodes",
    "Environment": "progpo_trl.environments",
    "Observation": "progpo_trl.environments",
    "StepResult": "progpo_trl.environments",
    "TaskSet": "progpo_trl.environments",
    "load_environment": "progpo_trl.environments",
}

__all__ = ["__version__", *_LAZY]

if TYPE_CHECKING:
    from progpo_trl.advantages import GRPO, HGPO, TRLGRPO, GiGPO, ProGPO, ProxMO
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.environments import Environment, Observation, StepResult, TaskSet, load_environment
    from progpo_trl.episodes import Episode, Step, StepBatch, StopReason
    from progpo_trl.trainer import MultiTurnGRPOTrainer


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'progpo_trl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
