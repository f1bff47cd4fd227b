"""Advantage estimators: functions from a `StepBatch` to one float32 number per step.

An estimator is any callable `StepBatch -> np.ndarray (n_steps,)`. Those here are small dataclasses with their options
as fields; `ProGPO` wraps any of them, and any function of yours.
"""

from progpo_trl.advantages.base import Estimator, StepEstimator, make_estimator
from progpo_trl.advantages.gigpo import GiGPO
from progpo_trl.advantages.grpo import GRPO
from progpo_trl.advantages.hgpo import HGPO
from progpo_trl.advantages.progpo import ProGPO
from progpo_trl.advantages.progress import Trajectory, coverage, each_episode
from progpo_trl.advantages.proxmo import ProxMO
from progpo_trl.advantages.returns import discounted_rewards, step_returns
from progpo_trl.advantages.trl_grpo import TRLGRPO

ESTIMATORS: dict[str, type] = {"grpo": GRPO, "trl_grpo": TRLGRPO, "gigpo": GiGPO, "hgpo": HGPO, "proxmo": ProxMO}

__all__ = [
    "ESTIMATORS",
    "GRPO",
    "HGPO",
    "TRLGRPO",
    "Estimator",
    "GiGPO",
    "ProGPO",
    "ProxMO",
    "StepEstimator",
    "Trajectory",
    "coverage",
    "discounted_rewards",
    "each_episode",
    "make_estimator",
    "step_returns",
]
