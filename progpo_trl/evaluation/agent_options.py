"""Options of `progpo evaluate` for prompted agents, and the agents that its options ask for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from progpo_trl.evaluation.errors import EvaluationError

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.evaluation.chat import ChatModel
    from progpo_trl.evaluation.policy_agent import PolicyAgent
    from progpo_trl.evaluation.prompted import PromptedAgent, PromptSettings
    from progpo_trl.model_arguments import ModelArguments

BATCH = 64  # episodes decoded together
STYLES = ("prompt", "react", "reflexion")

# Options of the styles and of the endpoint; None: not given.
_STYLE = {
    "shots": (int, "N", "react, reflexion: examples in the prompt (default: 2)"),
    "examples": (str, "FILE", "react, reflexion: YAML or JSON file of your own examples"),
    "agent_template": (str, "FILE", "react, reflexion: Jinja file in the place of prompts/agents/react.jinja"),
    "agent_history": (int, "N", "react, reflexion: past turns in the prompt (default: all)"),
    "trials": (int, "N", "reflexion: trials of each game at most (default: 3)"),
    "reflections": (int, "N", "reflexion: how many reflections, the last ones, stay in the prompt (default: 3)"),
}
_API = {
    "base_url": (str, "URL", "the endpoint, up to and with /v1 (default: $OPENAI_BASE_URL, or OpenAI's)"),
    "api_key_env": (
        str,
        "NAME",
        "environment variable that holds the key (default: OPENAI_API_KEY, which goes out over https alone)",
    ),
    "api_extra": (str, "JSON", "joins every request; null takes a field out: '{\"seed\": null}'"),
    "concurrency": (int, "N", "requests under way at once (default: 8)"),
    "requests_per_minute": (float, "N", "rate limit (default: none)"),
    "tokens_per_minute": (float, "N", "rate limit, of tokens in and out (default: none)"),
    "request_timeout": (float, "SECONDS", "for a whole answer (default: 120)"),
    "request_retries": (int, "N", "tries after a failed request (default: 8)"),
    "price_in": (float, "PRICE", "of a million prompt tokens, for the cost"),
    "price_out": (float, "PRICE", "of a million answered tokens, for the cost"),
    "max_cost": (float, "PRICE", "stop before this is exceeded; go on with --resume and a higher one"),
    "max_requests": (int, "N", "stop after so many requests, failed ones too; go on with --resume"),
}
NAMES = ("api_model", *_STYLE, *_API)

# Settings of a training, by what has a use for them; those in none of these mean something to every agent.
_LOADING = (
    *("model_name_or_path", "model_revision", "trust_remote_code", "attn_implementation", "model_init_kwargs"),
    *("load_in_8bit", "load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"),
    *("bf16", "fp16"),
)
_SAMPLING = ("top_k", "min_p", "repetition_penalty", "generation_kwargs", "chat_template_kwargs")
_WINDOW = ("context", "history", "prompt_template")
_ASKING = ("system_prompt", "max_completion_length", "top_p")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of prompted agents."""
    group = parser.add_argument_group(
        "prompted agents",
        "--agent prompt, react or reflexion, with --api-model (an endpoint) or --model (weights). See docs/agents.md.",
    )
    group.add_argument(
        "--api-model", "--api_model", metavar="NAME", help="a model behind an OpenAI-compatible endpoint"
    )
    for name, (kind, metavar, text) in (_STYLE | _API).items():
        dashed = "--" + name.replace("_", "-")
        names = dict.fromkeys((dashed, f"--{name}"))
        group.add_argument(*names, dest=name, type=kind, metavar=metavar, help=text.replace("%", "%%"))


def check(options: argparse.Namespace) -> None:
    """Refuse options that the chosen agent has no use for, before anything is loaded."""
    agent, api = options.agent, options.api_model is not None
    if agent not in STYLES:
        given = [name for name in NAMES if getattr(options, name) is not None]
        if given:
            hint = "; say --agent prompt, react or reflexion" if agent == "policy" else ""
            raise EvaluationError(f"--agent {agent} has no use for --{given[0].replace('_', '-')}{hint}")
        return
    useless = [] if api else [name for name in _API if getattr(options, name) is not None]
    useless += [name for name in _STYLE if agent == "prompt" and getattr(options, name) is not None]
    useless += [n for n in ("trials", "reflections") if agent == "react" and getattr(options, n) is not None]
    if useless:
        need = "" if api or useless[0] in _STYLE else " without --api-model"
        raise EvaluationError(f"--agent {agent} has no use for --{useless[0].replace('_', '-')}{need}")
    if api and (options.model or options.adapter or options.run):
        raise EvaluationError("--api-model names the model: leave out --model, --adapter and RUN_DIR")


def check_settings(options: argparse.Namespace, given: Collection[str]) -> None:
    """Refuse settings on the command line that the chosen agent has no use for.

    given: their names. Settings of a file are taken as far as they concern the agent: it was written for another one.
    """
    agent, api = options.agent, options.api_model is not None
    useless: dict[str, str] = {}
    if agent not in ("policy", *STYLES):
        useless = dict.fromkeys((*_LOADING, *_SAMPLING, *_WINDOW, *_ASKING, "max_context_length"), "")
    elif api:
        loading = dict.fromkeys((*_LOADING, "max_context_length"), "; the endpoint's server decides that")
        useless = loading | {
            name: f"; if the endpoint knows it, give it with --api-extra '{{\"{name}\": ...}}'" for name in _SAMPLING
        }
    if agent in ("react", "reflexion"):
        useless |= {
            "context": "; its prompt is a chat of all past turns",
            "history": "; it is --agent-history",
            "prompt_template": "; it is --agent-template",
        }
    weights = not api and agent in ("policy", *STYLES)
    options_given = [] if weights else [n for n in ("batch_size", "dtype") if getattr(options, n) is not None]
    for name in (*options_given, *given):
        if name in (*options_given, *useless):
            shown = "batch-size" if name == "batch_size" else name
            hint = "; it is --concurrency" if api and name == "batch_size" else useless.get(name, "")
            raise EvaluationError(f"--agent {agent}{' --api-model' if api else ''} has no use for --{shown}{hint}")


def check_context(options: argparse.Namespace, given: Collection[str], context: str) -> None:
    """Refuse a --history that the context (of the command line or the file) does not look at."""
    if "history" in given and context == "full" and options.agent in ("policy", "prompt"):
        raise EvaluationError("--history has no use in full context, which is all past turns; say --context window")


def policy(
    options: argparse.Namespace,
    model: str | None,
    config: MultiTurnGRPOConfig,
    model_args: ModelArguments,
    run: Path | None,
) -> PolicyAgent:
    """The policy that the options ask for, loaded as a training with these settings loads it; run: its folder."""
    import torch
    from accelerate import PartialState
    from trl import get_quantization_config

    from progpo_trl.evaluation.policy_agent import PlaySettings
    from progpo_trl.evaluation.policy_files import load_policy

    device = PartialState(cpu=config.use_cpu).device
    extra = {"revision": model_args.model_revision, "attn_implementation": model_args.attn_implementation}
    # False and not None, at which transformers would ask on the terminal.
    extra |= {"trust_remote_code": config.trust_remote_code}
    loading = dict(config.model_init_kwargs or {})
    if ours := sorted({"model", "adapter", "settings", "device", "batch_size", "autocast", "facts"} & set(loading)):
        raise EvaluationError(f"model_init_kwargs: the model takes no {ours[0]!r}")
    dtype = loading.pop("dtype", None) or loading.pop("torch_dtype", None) or model_args.dtype or "float32"
    extra |= {"quantization_config": get_quantization_config(model_args), **loading}
    precision = torch.bfloat16 if config.bf16 else torch.float16 if config.fp16 else None
    return load_policy(
        None if options.adapter and not options.model else model,
        options.adapter,
        settings=PlaySettings.from_config(config),
        dtype=options.dtype or str(dtype),
        device=str(device),
        batch_size=BATCH if options.batch_size is None else options.batch_size,
        autocast=precision if device.type == "cuda" and not options.dtype else None,
        facts={} if run is None else {"run": str(run), "training_seed": config.seed},
        **{name: value for name, value in extra.items() if value is not None},
    )


def prompt_settings(options: argparse.Namespace, config: MultiTurnGRPOConfig) -> PromptSettings:
    """How a prompted agent is asked: the settings of a training, as far as they concern it."""
    from progpo_trl.evaluation.prompted import PromptSettings

    prompt = options.agent == "prompt"
    return PromptSettings(
        max_tokens=config.max_completion_length,
        context=config.context,
        history=config.history if prompt else options.agent_history,
        prompt_template=config.prompt_template if prompt else None,
        system_prompt=config.system_prompt,
    )


def api_model(options: argparse.Namespace, out: Path, config: MultiTurnGRPOConfig) -> ChatModel:
    """The endpoint's model that the options ask for; its paid answers are kept in `out`. config: of a training."""
    from progpo_trl.evaluation.api import ApiModel, ApiSettings
    from progpo_trl.evaluation.call_log import CALLS, CallLog

    names = {"api_key_env": "key_variable", "request_timeout": "timeout", "request_retries": "retries"}
    given = {names.get(n, n): getattr(options, n) for n in _API if getattr(options, n) is not None}
    if "api_extra" in given:
        given["extra"] = _extra(given.pop("api_extra"))
    return ApiModel(ApiSettings(options.api_model, top_p=config.top_p, **given), CallLog(out / CALLS))


def _extra(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise EvaluationError(f"--api-extra is no JSON: {error}") from None
    if not isinstance(value, dict) or {"model", "messages", "stream", "n"} & set(value):
        raise EvaluationError("--api-extra must be a JSON object, without model, messages, stream and n")
    return value


def prompted_agent(options: argparse.Namespace, chat: ChatModel, config: MultiTurnGRPOConfig) -> PromptedAgent:
    """The agent that the options ask for, on a chat model; config: the settings of a training."""
    settings = prompt_settings(options, config)
    if options.agent == "prompt":
        from progpo_trl.evaluation.prompted import PromptAgent

        return PromptAgent(chat, settings)
    from progpo_trl.evaluation.react import ReactAgent
    from progpo_trl.evaluation.reflexion import ReflexionAgent

    names = {"shots": "shots", "examples": "examples", "agent_template": "template"}
    if options.agent == "reflexion":
        names |= {"trials": "trials", "reflections": "memory"}
    given = {names[n]: getattr(options, n) for n in names if getattr(options, n) is not None}
    return (ReflexionAgent if options.agent == "reflexion" else ReactAgent)(chat, settings, **given)
