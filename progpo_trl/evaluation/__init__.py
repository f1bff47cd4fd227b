"""Evaluation: fixed panels, agents, results with intervals, comparisons. See docs/evaluation.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from progpo_trl.evaluation.agents import Agent, Game, Player, PlayerAgent, Reply
    from progpo_trl.evaluation.baselines import BaselineAgent, baseline
    from progpo_trl.evaluation.errors import EvaluationError
    from progpo_trl.evaluation.panel import Panel, panel_of
    from progpo_trl.evaluation.policy_agent import PlaySettings, PolicyAgent
    from progpo_trl.evaluation.policy_files import load_policy
    from progpo_trl.evaluation.results import read_evaluation, table
    from progpo_trl.evaluation.run import evaluate

# name -> module; loaded when first used, since the policy needs torch
_NAMES = {
    "Agent": "agents",
    "BaselineAgent": "baselines",
    "EvaluationError": "errors",
    "Game": "agents",
    "Panel": "panel",
    "PlaySettings": "policy_agent",
    "Player": "agents",
    "PlayerAgent": "agents",
    "PolicyAgent": "policy_agent",
    "Reply": "agents",
    "baseline": "baselines",
    "evaluate": "run",
    "load_policy": "policy_files",
    "panel_of": "panel",
    "read_evaluation": "results",
    "table": "results",
}

__all__ = [
    "Agent",
    "BaselineAgent",
    "EvaluationError",
    "Game",
    "Panel",
    "PlaySettings",
    "Player",
    "PlayerAgent",
    "PolicyAgent",
    "Reply",
    "baseline",
    "evaluate",
    "load_policy",
    "panel_of",
    "read_evaluation",
    "table",
]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
