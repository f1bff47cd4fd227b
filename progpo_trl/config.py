"""MultiTurnGRPOConfig: TRL's GRPOConfig plus what a multi-turn run needs. One field, one help text."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import dataclass, field

from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available
from trl import GRPOConfig

from progpo_trl.checkpoint_files import generation_updates
from progpo_trl.config_refusals import check_best, refuse_unproven
from progpo_trl.episodes import INVALID_ACTION_PENALTY
from progpo_trl.metrics import LESS_IS_BETTER
from progpo_trl.settings_ranges import LARGEST, check_ranges
from progpo_trl.settings_unused import refuse_unused


@dataclass
class MultiTurnGRPOConfig(GRPOConfig):
    """Arguments of `MultiTurnGRPOTrainer`.

    TRL's `max_completion_length` is the token limit of ONE response (turn); `num_generations` the episodes per task.
    Batch arithmetic: set `groups_per_generation`, `updates_per_generation` and `max_generations`, and TRL's
    `per_device_train_batch_size`, `steps_per_generation`, `gradient_accumulation_steps` and `max_steps` follow; or
    leave them unset and give TRL's own four.
    """

    # Defaults that differ from TRL's: the published settings of GiGPO, ProGPO and ProxMO (spec, section 10).
    num_generations: int | None = field(default=8, metadata={"help": "Episodes played per task (group size K)."})
    max_completion_length: int | None = field(
        default=512, metadata={"help": "Token limit of one response of the policy (one turn)."}
    )

    vllm_importance_sampling_mode: str = field(
        default="token_truncate",
        metadata={
            "help": "As in TRL. Default differs: 'sequence_mask' sums log-ratios over a row, and long multi-turn rows "
            "would tend to be masked whole; 'token_truncate' bounds each token's ratio by itself."
        },
    )

    use_bias_correction_kl: bool = field(
        default=False,
        metadata={
            "help": "As in TRL, weighs the KL term by the importance ratio (DeepSeek-V3.2). Default differs: the "
            "published setting is the plain low-variance estimate ('low_var_kl')."
        },
    )
    disable_dropout: bool = field(
        default=True,
        metadata={
            "help": "Turn all dropout off, LoRA's too. Default differs: episodes are played without dropout, and with "
            "it the policy that is trained is another one, whose ratios are clipped from the first update on."
        },
    )

    # Rollout
    context: str = field(
        default="window",
        metadata={
            "help": "How history reaches the policy: 'window' rebuilds one user message every turn from the last "
            "`history` steps (as published); 'full' keeps the whole conversation and the KV cache.",
            "choices": ["window", "full"],
        },
    )
    history: int = field(default=2, metadata={"help": "Past steps shown in the prompt when context is 'window'."})
    prompt_template: str | None = field(
        default=None,
        metadata={
            "help": "Prompt template: a name in progpo_trl/prompts or a path to a Jinja file. Default: the "
            "environment's own."
        },
    )
    system_prompt: str | None = field(
        default=None, metadata={"help": "System message put before the first user message (published: none)."}
    )
    max_turns: int | None = field(
        default=None, metadata={"help": "Actions per episode at most. Default: the environment's limit."}
    )
    max_context_length: int | None = field(
        default=None,
        metadata={
            "help": "Token limit of a prompt. In 'window' context history is shortened until it fits; where the "
            "template allows it (webshop), a long observation is cut after that. An episode whose prompt cannot fit "
            "ends with stop reason 'context_limit'. Default: the model's window."
        },
    )
    episodes_per_forward: int | None = field(
        default=None,
        metadata={"help": "Episodes decoded together on one device (bounds the KV cache). Default: all of them."},
    )
    rollout_schedule: str = field(
        default="lockstep",
        metadata={
            "help": "'lockstep' samples one turn of all live episodes at a time, on every backend. 'streaming', for a "
            "vLLM server: every process sends its own requests, one per turn of an episode, and no episode waits for "
            "the slowest of its turn.",
            "choices": ["lockstep", "streaming"],
        },
    )
    max_concurrent_requests: int = field(
        default=64, metadata={"help": "Requests of one process under way at once when rollouts stream."}
    )
    vllm_request_timeout: float = field(
        default=600.0,
        metadata={"help": "Seconds to wait for the answer to one request when rollouts stream."},
    )
    vllm_request_retries: int = field(
        default=5,
        metadata={
            "help": "How often a request that failed (server error, lost connection, timeout) is sent again when "
            "rollouts stream, before the run stops."
        },
    )
    environment_retries: int = field(
        default=1, metadata={"help": "How often an episode whose environment raised an error is played again."}
    )
    max_dropped_fraction: float = field(
        default=0.25,
        metadata={
            "help": "Share of episodes of one generation that may be lost to environment errors before the run stops."
        },
    )

    # Advantage
    invalid_action_penalty: float = field(
        default=INVALID_ACTION_PENALTY,
        metadata={"help": "Subtracted from the score of a step whose action is invalid (as published)."},
    )
    invalid_action: str = field(
        default="format",
        metadata={
            "help": "What makes an action invalid for the penalty: 'format' (tags missing, as published), "
            "'admissible' (not in the environment's list), or 'either'.",
            "choices": ["format", "admissible", "either"],
        },
    )

    # Batches
    groups_per_generation: int | None = field(
        default=None, metadata={"help": "Tasks per generation over all processes (published: 16)."}
    )
    updates_per_generation: int | None = field(
        default=None,
        metadata={"help": "Optimizer steps taken on the rows of one generation. Needs `groups_per_generation`."},
    )
    max_generations: int | None = field(
        default=None, metadata={"help": "Generations (published: iterations) of the run; sets `max_steps`."}
    )
    save_every_generations: int | None = field(
        default=None, metadata={"help": "Save a checkpoint every so many generations; sets `save_steps`."}
    )
    eval_every_generations: int | None = field(
        default=None, metadata={"help": "Evaluate on the panel every so many generations; sets `eval_steps`."}
    )
    rows_per_forward: int | None = field(
        default=None,
        metadata={
            "help": "Training rows per forward/backward pass at most (memory; the result does not depend on it). "
            "Default: `per_device_train_batch_size`, or no limit beside `max_tokens_per_forward`."
        },
    )
    max_tokens_per_forward: int | None = field(
        default=None,
        metadata={
            "help": "Tokens per forward/backward pass at most, padding included (memory; the result does not depend "
            "on it). Rows are sorted and packed by length; a longer row gets a pass of its own."
        },
    )

    # Evaluation panel
    eval_tasks: int | None = field(
        default=None,
        metadata={"help": "Tasks of the evaluation split to play, evenly spread over its sorted ids. Default: all."},
    )
    eval_temperature: float = field(
        default=0.4, metadata={"help": "Sampling temperature of the evaluation (published: 0.4); 0 is greedy."}
    )
    eval_seed: int = field(default=0, metadata={"help": "Sampling seed of the evaluation; training never uses it."})

    # Logging
    save_episodes: bool = field(
        default=True, metadata={"help": "Append every training episode to `output_dir/episodes.jsonl`."}
    )
    log_tables_every_generations: int | None = field(
        default=10,
        metadata={
            "help": "Log a table of trajectories and one of groups to W&B and Trackio every so many generations, "
            "beginning with the first. null: never."
        },
    )
    log_table_episodes: int = field(
        default=16, metadata={"help": "Episodes in a table of trajectories, whole groups first (texts are cut)."}
    )
    show_rollout_progress: bool = field(
        default=True, metadata={"help": "Show a progress bar over episodes while they are played."}
    )

    def __post_init__(self):
        check_ranges(self)
        refuse_unused(self)
        _resolve_batches(self)
        wants_best = self.load_best_model_at_end or self.save_strategy == SaveStrategy.BEST
        if wants_best and self.metric_for_best_model is None:
            self.metric_for_best_model = "success"  # TRL's evaluation loss says nothing here, and there is none
        _resolve_best_is_greater(self)
        # transformers compares save_steps with eval_steps at once; they are what they will be only further down.
        best, self.load_best_model_at_end = self.load_best_model_at_end, False
        _resolve_precision(self)
        super().__post_init__()
        self.load_best_model_at_end = best
        _resolve_generations(self)
        check_best(self)
        if self.ddp_find_unused_parameters is None:
            # Every parameter takes part in every forward here; transformers' default would search for idle ones.
            self.ddp_find_unused_parameters = False
        refuse_unproven(self)


def _resolve_best_is_greater(config: MultiTurnGRPOConfig) -> None:
    """transformers takes the greatest value of anything but a loss for the best; of some metrics less is better."""
    name = (config.metric_for_best_model or "").removeprefix("eval_")
    if not name or config.greater_is_better is not None:
        return
    if name.startswith("info/"):
        raise ValueError(f"metric_for_best_model {name!r} is the environment's: set greater_is_better: true or false")
    config.greater_is_better = name not in LESS_IS_BETTER


def _resolve_batches(config: MultiTurnGRPOConfig) -> None:
    """Derive TRL's batch fields from groups and updates per generation.

    TRL plays `per_device_train_batch_size * steps_per_generation` episodes on each process, splits their rows in
    `steps_per_generation` slices of equal size and takes one optimizer step every `gradient_accumulation_steps`
    slices. Memory is bounded by `rows_per_forward`, so accumulation has no use here: one slice is one update.
    """
    if config.groups_per_generation is None:
        if config.updates_per_generation is not None:
            raise ValueError("updates_per_generation needs groups_per_generation (tasks per generation) beside it")
        return
    fields = type(config).__dataclass_fields__
    # TRL's own defaults for these fields count as unset; anything else would contradict what is derived here.
    own = (
        "per_device_train_batch_size",
        "steps_per_generation",
        "generation_batch_size",
        "gradient_accumulation_steps",
    )
    given = [f"{name}={getattr(config, name)}" for name in own if getattr(config, name) != fields[name].default]
    if given:
        raise ValueError(
            f"groups_per_generation and updates_per_generation replace TRL's batch fields: remove {', '.join(given)}"
        )
    updates = config.updates_per_generation or 1
    episodes = config.groups_per_generation * config.num_generations
    per_update = _world_size() * updates
    if episodes > LARGEST:
        raise ValueError(
            f"groups_per_generation x num_generations ({config.groups_per_generation} x {config.num_generations}) "
            f"must be at most {LARGEST} episodes per generation"
        )
    if episodes % per_update:
        each, rest = divmod(episodes, _world_size())
        if rest:
            raise ValueError(
                f"{episodes} episodes per generation ({config.groups_per_generation} groups x "
                f"{config.num_generations}) cannot be shared evenly by {_world_size()} processes"
            )
        small = [u for u in range(1, math.isqrt(each) + 1) if each % u == 0]
        nearest = min([*small, *(each // u for u in reversed(small))], key=lambda u: abs(u - updates))
        raise ValueError(
            f"{episodes} episodes per generation ({config.groups_per_generation} groups x {config.num_generations}) "
            f"do not divide among {_world_size()} process(es) x updates_per_generation={updates}; "
            f"the nearest that does is updates_per_generation={nearest}"
        )
    config.per_device_train_batch_size = episodes // per_update
    config.steps_per_generation = updates
    config.gradient_accumulation_steps = 1


def _resolve_precision(config: MultiTurnGRPOConfig) -> None:
    """`bf16: false` means float32 also where an accelerate config says `mixed_precision: bf16`.

    The launcher hands its setting over in the environment, and transformers lets it win over a `bf16: false`: the
    passes would run in bfloat16 all the same, and DeepSpeed would stop over the contradiction. bfloat16 where no GPU
    computes in it is refused here: transformers' own message names half of what a CPU needs.
    """
    bf16 = not config.fp16 if config.bf16 is None else config.bf16
    if bf16 and not config.use_cpu and not (is_torch_bf16_gpu_available() or is_torch_xla_available()):
        raise ValueError(
            "bf16: torch finds no GPU here that computes in it. `progpo doctor --config RECIPE` says what a recipe "
            "needs; for a CPU there are recipes with the tiny policy (`progpo recipes`), and a small model of another "
            "runs with --use_cpu true --bf16 false"
        )
    if config.bf16 is False and not config.fp16 and "ACCELERATE_MIXED_PRECISION" in os.environ:
        os.environ["ACCELERATE_MIXED_PRECISION"] = "no"


def _world_size() -> int:
    # TrainingArguments knows the world size only after its __post_init__, which needs the batch fields set here.
    return int(os.environ.get("WORLD_SIZE", 1))


def _resolve_generations(config: MultiTurnGRPOConfig) -> None:
    """Turn counts of generations into optimizer steps, and keep checkpoints on generation boundaries.

    A checkpoint inside a generation cannot be resumed exactly: the rest of its rows would be lost and the phase of
    generation would shift for the rest of the run.
    """
    slices = config.steps_per_generation * config.num_iterations
    if slices % config.gradient_accumulation_steps:
        raise ValueError(
            f"steps_per_generation * num_iterations ({slices}) must be a multiple of gradient_accumulation_steps "
            f"({config.gradient_accumulation_steps}), or an optimizer step would mix two generations"
        )
    updates = generation_updates(config)
    if config.max_generations is not None:
        if config.max_steps > 0 and config.max_steps != config.max_generations * updates:
            raise ValueError("give max_generations or max_steps, not both")
        config.max_steps = config.max_generations * updates
    elif config.max_steps > 0 and config.max_steps % updates:
        rounded = math.ceil(config.max_steps / updates) * updates
        warnings.warn(
            f"max_steps={config.max_steps} lies inside a generation ({updates} optimizer steps): training ends at "
            f"step {rounded} instead",
            stacklevel=4,
        )
        config.max_steps = rounded
    if config.save_every_generations is not None:
        if config.save_strategy in (SaveStrategy.BEST, SaveStrategy.EPOCH):
            raise ValueError(f"give save_every_generations or save_strategy: {config.save_strategy.value}, not both")
        config.save_strategy = IntervalStrategy.STEPS
        config.save_steps = config.save_every_generations * updates
    elif config.save_strategy == IntervalStrategy.STEPS:
        config.save_steps = _on_boundary(config, "save", updates, "checkpoints are saved")
    if config.eval_every_generations is not None:
        config.eval_strategy = IntervalStrategy.STEPS
        config.do_eval = True
        config.eval_steps = config.eval_every_generations * updates
    elif config.eval_strategy == IntervalStrategy.STEPS:
        config.eval_steps = _on_boundary(config, "eval", updates, "the panel is evaluated")


def _on_boundary(config: MultiTurnGRPOConfig, kind: str, updates: int, what: str) -> int:
    """`save_steps` or `eval_steps` as a multiple of the optimizer steps of one generation."""
    name = f"{kind}_steps"
    given = steps = getattr(config, name)
    if steps <= 0:
        raise ValueError(f"{name} must be above 0, got {steps:g}; {kind}_strategy: no turns it off")
    if steps < 1:
        # transformers takes it for a share of max_steps, which the number of epochs decides only as training begins.
        if config.max_steps <= 0:
            raise ValueError(
                f"{name}={steps:g} is a share of max_steps, which is not set: set max_generations too, or "
                f"{kind}_every_generations instead"
            )
        steps = math.ceil(steps * config.max_steps)
    rounded = math.ceil(steps / updates) * updates
    if rounded != steps:
        warnings.warn(
            f"{name}={given:g} lies inside a generation ({updates} optimizer steps): {what} every {rounded} steps "
            "instead",
            stacklevel=5,
        )
    return rounded
