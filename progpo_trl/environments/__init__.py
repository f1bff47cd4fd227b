"""Text environments: the contract in `base`, ALFWorld in `alfworld`."""

from progpo_trl.environments.base import Environment, EnvironmentTasks, Observation, StepResult, TaskSet

__all__ = ["Environment", "EnvironmentTasks", "Observation", "StepResult", "TaskSet"]
