"""What MultiTurnGRPOConfig refuses: settings that would train on something else than they say."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from progpo_trl.checkpoint_files import generation_updates
from progpo_trl.metrics import EVALUATION_METRICS

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig

# Loss types whose gradient is proven equal to an independent reference for uneven rows, by
# tests/trainer/test_gradients.py.
PROVEN_LOSSES = ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")

# What the trainer sends with every request to vLLM itself; TRL lets generation_kwargs override it.
_SENT_WITH_REQUESTS = frozenset(
    "best_of echo logprobs max_tokens min_p model n prompt repetition_penalty seed stream temperature top_k "
    "top_p".split()
)
# What `generate` is told by settings of their own.
_SAID_TO_GENERATE = frozenset(
    "do_sample max_length max_new_tokens min_p repetition_penalty temperature top_k top_p".split()
)


def refuse_unproven(config: MultiTurnGRPOConfig) -> None:
    """Raise ValueError at the first setting that is not proven or has no effect; each error names the alternative."""
    own = _SENT_WITH_REQUESTS if config.use_vllm else _SAID_TO_GENERATE
    reserved = sorted(own & set(config.generation_kwargs or ()))
    refusals = [
        (
            config.loss_type not in PROVEN_LOSSES,
            f"loss_type={config.loss_type!r} is not proven exact for rows of uneven number and length; "
            f"use one of {', '.join(PROVEN_LOSSES)} ('dapo' is the papers' token mean)",
        ),
        (
            config.loss_type == "cispo" and (config.epsilon_high is None or config.epsilon_high < 1),
            "for loss_type='cispo' epsilon_high is the bound of the ratio itself, not of its distance from 1; at "
            f"{config.epsilon_high or config.epsilon} every token would be cut: set epsilon_high, for example to 5.0",
        ),
        (
            config.scale_rewards != "group",
            "scale_rewards has no effect on a replaced advantage step; use `advantage: {name: grpo, norm: mean}` for "
            "advantages without the standard deviation",
        ),
        (
            config.multi_objective_aggregation != "sum_then_normalize",
            "multi_objective_aggregation has no effect here: reward functions add to the return; use reward_weights, "
            "or override compute_advantages()",
        ),
        (
            config.entropy_coef != 0.0 or config.use_adaptive_entropy,
            "TRL's entropy bonus is a mean over one micro-batch, so it would depend on rows_per_forward; "
            "leave entropy_coef=0 and use_adaptive_entropy=False, and raise epsilon_high to keep entropy up",
        ),
        (
            config.top_entropy_quantile < 1.0,
            "top_entropy_quantile takes its threshold per micro-batch, so it would depend on rows_per_forward; "
            "leave it at 1.0",
        ),
        (
            config.mask_truncated_completions,
            "mask_truncated_completions judges a row by its last token, which is the environment's in multi-turn "
            "rows; leave it False: an episode cut by a limit counts as a failure",
        ),
        (
            config.num_generations_eval is not None,
            "num_generations_eval is not used: the evaluation plays every task of the panel once per sampling seed; "
            "remove it",
        ),
        (
            config.max_tool_calling_iterations is not None,
            "max_tool_calling_iterations belongs to TRL's tool loop; use max_turns",
        ),
        (
            config.sync_ref_model,
            "sync_ref_model moves the reference model during training, and checkpoints do not hold it: a resumed run "
            "would go on from another one; leave it off",
        ),
        (
            config.ignore_data_skip,
            "ignore_data_skip would play the first tasks again after resuming; leave it off",
        ),
        (
            config.neftune_noise_alpha is not None,
            "neftune_noise_alpha adds noise to the policy that is trained, which is then not the one that played; "
            "remove it",
        ),
        (
            config.delta is not None and config.delta <= 1,
            f"delta={config.delta} bounds the ratio itself, which is 1 on-policy: set it above 1 + epsilon_high",
        ),
        (
            config.use_vllm and config.vllm_enable_sleep_mode and config.vllm_mode == "server",
            "vllm_enable_sleep_mode has no effect on a vLLM server, which keeps its GPUs to itself; remove it",
        ),
        (
            config.rollout_schedule == "streaming" and not (config.use_vllm and config.vllm_mode == "server"),
            "rollout_schedule: streaming sends each episode's turns to a vLLM server by themselves; set "
            "use_vllm: true and vllm_mode: server, or leave rollout_schedule: lockstep",
        ),
        (
            bool(reserved),
            f"generation_kwargs: {', '.join(reserved)} would override what every response is sampled with (one "
            "seed for all gives the episodes of a group the same responses; a limit or temperature would not be the "
            "one trained with); use seed, max_completion_length, temperature and eval_temperature, top_p, top_k, "
            "min_p, repetition_penalty",
        ),
    ]
    for refused, message in refusals:
        if refused:
            raise ValueError(message)


def check_best(config: MultiTurnGRPOConfig) -> None:
    """Without an evaluation before a checkpoint nobody knows whether it is the best."""
    if config.save_strategy == SaveStrategy.BEST and config.eval_strategy == IntervalStrategy.NO:
        raise ValueError("save_strategy: best needs evaluations: set eval_every_generations")
    if config.metric_for_best_model is not None:  # transformers looks it up in every evaluation, wanted or not
        _check_metric(config.metric_for_best_model.removeprefix("eval_"))
    if not config.load_best_model_at_end or config.save_strategy == SaveStrategy.BEST:
        return
    fitting = config.save_strategy == config.eval_strategy != IntervalStrategy.NO
    if fitting and config.save_strategy == SaveStrategy.STEPS:
        # transformers raises the best value at every evaluation, but remembers a checkpoint of that very step only.
        fitting = config.save_steps == config.eval_steps
    if not fitting:
        updates = generation_updates(config)
        raise ValueError(
            "load_best_model_at_end needs a checkpoint after every evaluation: checkpoints are saved "
            f"{_how_often(config.save_strategy, config.save_steps, updates)}, evaluations take place "
            f"{_how_often(config.eval_strategy, config.eval_steps, updates)}; set save_every_generations to "
            "eval_every_generations, or save_strategy: best"
        )


def _check_metric(name: str) -> None:
    """An evaluation that lacks the metric would end the run after its first generation."""
    if name in EVALUATION_METRICS or name.startswith(("success/", "info/")):
        return
    near = get_close_matches(name, EVALUATION_METRICS, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"metric_for_best_model: an evaluation gives no {name!r}; did you mean {near!r}? There are "
        f"{', '.join(EVALUATION_METRICS)}, success/<task type> and info/<key>"
    )


def _how_often(strategy: IntervalStrategy | SaveStrategy, steps: float, updates: int) -> str:
    if strategy == "steps":
        return f"every {steps // updates:g} generation(s)"
    return "never" if strategy == "no" else f"every {strategy.value}"
