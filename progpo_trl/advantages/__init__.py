"""Advantage estimators: functions from a `StepBatch` to one float32 number per step.

An estimator is any callable `StepBatch -> np.ndarray (n_steps,)`. Those here are small dataclasses with their options
as fields; `ProGPO` wraps any of them, and any function of yours.
"""

from progpo_trl.advantages.base import Estimator, make_estimator
from progpo_trl.advantages.grpo import GRPO
from progpo_trl.advantages.progpo import ProGPO, coverage

ESTIMATORS: dict[str, type] = {"grpo": GRPO}

__all__ = ["ESTIMATORS", "GRPO", "Estimator", "ProGPO", "coverage", "make_estimator"]
