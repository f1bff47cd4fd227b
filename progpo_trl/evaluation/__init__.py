"""Evaluation: fixed panels, agents, results with intervals, comparisons. See docs/evaluation.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from progpo_trl.evaluation.agents import Agent, Game, Player, PlayerAgent, Reply
    from progpo_trl.evaluation.api import ApiModel, ApiSettings
    from progpo_trl.evaluation.baselines import BaselineAgent, baseline
    from progpo_trl.evaluation.call_log import CallLog
    from progpo_trl.evaluation.chat import ChatModel
    from progpo_trl.evaluation.errors import EvaluationError
    from progpo_trl.evaluation.local_chat import LocalChatModel
    from progpo_trl.evaluation.panel import Panel, panel_of
    from progpo_trl.evaluation.policy_agent import PlaySettings, PolicyAgent
    from progpo_trl.evaluation.policy_files import load_policy
    from progpo_trl.evaluation.prompted import PromptAgent, PromptSettings
    from progpo_trl.evaluation.react import ReactAgent
    from progpo_trl.evaluation.reflexion import ReflexionAgent
    from progpo_trl.evaluation.results import read_evaluation, table
    from progpo_trl.evaluation.run import evaluate

# name -> module; loaded when first used, since the policy needs torch
_NAMES = {
    "Agent": "agents",
    "ApiModel": "api",
    "ApiSettings": "api",
    "BaselineAgent": "baselines",
    "CallLog": "call_log",
    "ChatModel": "chat",
    "EvaluationError": "errors",
    "Game": "agents",
    "LocalChatModel": "local_chat",
    "Panel": "panel",
    "PlaySettings": "policy_agent",
    "Player": "agents",
    "PlayerAgent": "agents",
    "PolicyAgent": "policy_agent",
    "PromptAgent": "prompted",
    "PromptSettings": "prompted",
    "ReactAgent": "react",
    "ReflexionAgent": "reflexion",
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
    "ApiModel",
    "ApiSettings",
    "BaselineAgent",
    "CallLog",
    "ChatModel",
    "EvaluationError",
    "Game",
    "LocalChatModel",
    "Panel",
    "PlaySettings",
    "Player",
    "PlayerAgent",
    "PolicyAgent",
    "PromptAgent",
    "PromptSettings",
    "ReactAgent",
    "ReflexionAgent",
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
