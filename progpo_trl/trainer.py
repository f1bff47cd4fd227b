"""MultiTurnGRPOTrainer: TRL's GRPOTrainer with episodes for rollouts and one advantage a step.

Two methods are made to be overridden: `rollout()` and `compute_advantages()`. The loss is TRL's own.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from trl.models import unwrap_model_for_generation

from progpo_trl.advantages import Estimator, make_estimator
from progpo_trl.config import MultiTurnGRPOConfig
from progpo_trl.contexts import FullContext, PromptTemplate, WindowContext, make_context, model_window
from progpo_trl.environments.base import TaskSet
from progpo_trl.episodes import Episode, StepBatch, StopReason
from progpo_trl.evaluation.training import write_training_evaluation
from progpo_trl.exact_loss import ExactLossTrainer
from progpo_trl.faults import exclude_lonely, stop_when_too_many_are_lost
from progpo_trl.generation import CachedGeneration, Sampling, episode_stream
from progpo_trl.generation_trl import play_with_trl, vllm_window, weights_in_vllm
from progpo_trl.losses import per_token
from progpo_trl.metrics import episode_metrics
from progpo_trl.publishing.trainer_hub import Publishing
from progpo_trl.reporting.rollout_log import RolloutLog
from progpo_trl.resumable import Resumable
from progpo_trl.rewards import add_rewards, checked_rewards, environment_return
from progpo_trl.rollout import RolloutClock, play
from progpo_trl.rows import Row, episode_rows, padded_count, padding_row, rollout_output, shares
from progpo_trl.tasks import (
    as_ids,
    check_best_task_type,
    check_enough_tasks,
    evaluation_ids,
    spread,
    task_ids,
    task_set,
)

logger = logging.getLogger(__name__)

# TRL warns at every construction that rollout_func is experimental; here it is an internal detail.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

_REFUSED = {
    "tools": "write an environment (progpo_trl.Environment) whose step() runs the tool the action names",
    "rollout_func": "override rollout(), which returns episodes",
    "environment_factory": "pass environment=, a progpo_trl.Environment class or a TaskSet",
    "reward_processing_classes": "reward models are not supported; pass functions of whole episodes as reward_funcs",
}


class MultiTurnGRPOTrainer(Resumable, Publishing, ExactLossTrainer):
    """Train an agent on text environments.

    model: a model, or its path or Hub id. args: MultiTurnGRPOConfig.
    environment: a `TaskSet`, or an `Environment` class (or any callable that makes one); with the latter
    `train_dataset` names the tasks. train_dataset, eval_dataset: task ids (a sequence, or a Dataset with a column
    `task_id`); default: the splits "train" and, where there is one, the evaluation split of the environment.
    advantage: an estimator (any callable StepBatch -> (n_steps,) array), its YAML form (a dict), or None for GRPO.
    reward_funcs: functions `f(episodes=..., **kwargs) -> list of floats or None`, one per episode, added to the
    environment's return (weighted by `reward_weights`, whose first entry, if one more is given, is the
    environment's).
    """

    _tag_names: ClassVar[list[str]] = ["trl", "grpo", "multi-turn", "progpo_trl"]
    _name = "multi-turn GRPO"

    def __init__(
        self,
        model,
        args: MultiTurnGRPOConfig | None = None,
        environment: TaskSet | Callable[[], Any] | None = None,
        advantage: Estimator | Mapping[str, Any] | None = None,
        train_dataset: Dataset | Sequence[str] | None = None,
        eval_dataset: Dataset | Sequence[str] | None = None,
        reward_funcs: Callable | list[Callable] | None = None,
        processing_class=None,
        callbacks=None,
        peft_config=None,
        quantization_config=None,
        optimizers=(None, None),
        **unsupported: Any,
    ):
        for name, value in unsupported.items():
            if name not in _REFUSED:
                raise TypeError(f"MultiTurnGRPOTrainer has no argument {name!r}")
            if value is not None:
                raise ValueError(f"{name}= is not used by MultiTurnGRPOTrainer: {_REFUSED[name]}")
        if environment is None:
            raise ValueError(
                "environment= is required: a TaskSet, or an Environment class together with train_dataset=task ids"
            )
        args = args or MultiTurnGRPOConfig(output_dir="runs/multi-turn-grpo")
        if args.disable_dropout and getattr(peft_config, "lora_dropout", 0.0):
            raise ValueError(
                f"disable_dropout turns lora_dropout={peft_config.lora_dropout:g} off too: set lora_dropout to 0, or "
                "disable_dropout to false (the policy that is trained is then not the one that played)"
            )
        # Datasets may be generators; they are read more than once below.
        train_dataset, eval_dataset = as_ids(train_dataset), as_ids(eval_dataset)
        self.tasks = task_set(environment, train_dataset, eval_dataset)
        self.advantage = advantage if callable(advantage) else make_estimator(advantage)
        train_ids = task_ids(train_dataset, self.tasks, "train")
        self.eval_task_ids = spread(evaluation_ids(eval_dataset, self.tasks), args.eval_tasks)
        check_best_task_type(args.metric_for_best_model, self.eval_task_ids, self.tasks)
        check_enough_tasks(train_ids, args.generation_batch_size // args.num_generations)
        self._rows: list[Row] | None = None
        self._real_rows = 0
        funcs = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
        funcs = [f for f in funcs if f is not None]
        if args.reward_weights is not None and len(args.reward_weights) == len(funcs):
            args.reward_weights = [1.0, *args.reward_weights]
        super().__init__(
            model=model,
            reward_funcs=[environment_return, *checked_rewards(funcs)],
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [""] * len(train_ids), "task_id": list(train_ids)}),
            # The evaluation is a panel of its own (see evaluate()); TRL only wants to know that there is one.
            eval_dataset=Dataset.from_dict({"prompt": [""], "task_id": [""]}) if self.eval_task_ids else None,
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
            quantization_config=quantization_config,
            peft_config=peft_config,
            rollout_func=lambda prompts, trainer: rollout_output(trainer._rows),
        )
        if any(c.is_prompt_learning for c in getattr(self.model, "peft_config", {}).values()):
            raise ValueError(
                "prompt-learning adapters (prompt and prefix tuning) cannot be decoded turn by turn here; use LoRA"
            )
        if self.aux_loss_enabled:
            raise ValueError(
                "the load-balancing loss of a Mixture-of-Experts model is a mean over one micro-batch and would be "
                "rescaled with the rows; set router_aux_loss_coef: 0.0"
            )
        self.max_turns = args.max_turns or self.tasks.max_steps
        self.context = self._make_context()
        self.sampling = Sampling(self.temperature, self.top_p, self.top_k, self.min_p)
        self.rollout_log = RolloutLog(self)

    def _make_context(self) -> WindowContext | FullContext:
        template = PromptTemplate(self.args.prompt_template or self.tasks.prompt_template)
        template.check(self.args.context)
        window = min(model_window(self.model.config), vllm_window(self))
        return make_context(
            self.args, self._tokenizer, template, window=window, template_kwargs=self.chat_template_kwargs
        )

    # ------------------------------------------------------------------------------------------------- rollout

    def rollout(self, inputs: list[dict[str, Any]]) -> list[Episode]:
        """Play one episode per input row (`task_id`), in order. Override it to plug an agent loop of your own.

        The returned episodes need steps with the ids that were sampled from and the ids that were sampled; index and
        group are set by the caller.
        """
        start = self.accelerator.process_index * len(inputs)
        indices = range(start, start + len(inputs))
        pairs = zip(inputs, indices, strict=True)
        episodes = [self._new_episode(row["task_id"], i, i // self.num_generations) for row, i in pairs]
        self.play_episodes(episodes, self.sampling, seed=self.args.seed, step=self.state.global_step, progress="train")
        return episodes

    def _new_episode(self, task_id: str, index: int, group: int) -> Episode:
        return Episode(task_id, self.tasks.task_type(task_id), index=index, group=group, seed=self.args.seed)

    def play_episodes(
        self, episodes: list[Episode], sampling: Sampling, *, seed: int | str, step: int, progress: str | None = None
    ) -> None:
        """Play `episodes` of this process to their end, in place; all processes call it together.

        seed, step: with each episode's task and index, what its sampling is seeded by. Episodes that the environment
        broke off are played again, `environment_retries` times at most. progress: "train" or "eval" shows a bar.
        """
        clock = self.rollout_log.clock
        with self.rollout_log.progress(len(episodes), progress) as on_done, weights_in_vllm(self):
            pending = episodes
            for attempt in range(1 + self.args.environment_retries):
                with self._until_stopped():
                    self._play(pending, sampling, seed, step, attempt, clock, on_done)
                pending = [e for e in episodes if e.stop_reason is StopReason.ENVIRONMENT_ERROR]
                if attempt == self.args.environment_retries or not self._any(bool(pending)):
                    break
                for e in pending:
                    e.steps.clear()
                    e.success, e.stop_reason, e.final_observation, e.error = False, None, None, None

    def _play(self, episodes, sampling: Sampling, seed, step: int, attempt: int, clock: RolloutClock, on_done):
        options = {
            "tasks": self.tasks,
            "context": self.context,
            "decode": functools.partial(self._tokenizer.batch_decode, skip_special_tokens=True),
            "max_turns": self.max_turns,
            "step_limit": min(self.max_turns, self.tasks.max_steps),
            "action_format": self.tasks.action_format,
            "clock": clock,
            "on_done": on_done,
        }
        if not self._own_generation():
            play_with_trl(self, episodes, sampling, (seed, step, attempt), **options)
            return
        size = self.args.episodes_per_forward or max(1, len(episodes))
        with self._generating(sampling) as generation, self._abandonable():
            for first in range(0, len(episodes), size):
                chunk = episodes[first : first + size]
                streams = {id(e): episode_stream(seed, step, e.task_id, e.index, attempt) for e in chunk}
                generation.reset()
                play(chunk, generate=functools.partial(self._own_turn, generation, streams), **options)

    def _own_turn(self, generation: CachedGeneration, streams: dict, live: list[Episode], ids: list[np.ndarray]):
        keys = [id(e) for e in live]
        with self.accelerator.autocast():
            return generation.turn(keys, ids, self.args.max_completion_length, [streams[k] for k in keys])

    def _own_generation(self) -> bool:
        """Whether our cached decoding can serve this run; TRL's generation does otherwise."""
        args = self.args
        sharded = self._dist.is_fsdp or (self._dist.is_zero3 and not args.ds3_gather_for_generation)
        special = self.repetition_penalty != 1.0 or args.generation_kwargs or args.cache_implementation
        return not (self.use_vllm or self.use_transformers_continuous_batching or sharded or special)

    @contextlib.contextmanager
    def _generating(self, sampling: Sampling):
        """The unwrapped policy in eval mode (no dropout while sampling), inside a decoding session."""
        with unwrap_model_for_generation(
            self.model_wrapped,
            self.accelerator,
            gather_deepspeed3_params=self.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
        ) as model:
            training = model.training
            model.eval()
            try:
                yield CachedGeneration(
                    model,
                    eos_token_ids=self.eos_token_ids,
                    pad_token_id=self._tokenizer.pad_token_id,
                    sampling=sampling,
                )
            finally:
                model.train(training)

    def _any(self, flag: bool) -> bool:
        """True when `flag` is true on any process."""
        if self.accelerator.num_processes == 1:
            return flag
        mine = torch.tensor(float(flag), device=self.accelerator.device)
        return bool(self.accelerator.reduce(mine, "sum").item() > 0)

    # ---------------------------------------------------------------------------------------------- advantages

    def compute_advantages(self, batch: StepBatch) -> np.ndarray:
        """(n_steps,) advantages of the steps of ALL processes' episodes. Override it for a method of your own.

        Every process calls it with the same batch and must return the same numbers.
        """
        return self.advantage(batch)

    def _advantages_of(self, episodes: list[Episode]) -> tuple[StepBatch, np.ndarray]:
        batch = StepBatch.from_episodes(
            episodes,
            invalid_action_penalty=self.args.invalid_action_penalty,
            invalid_action=self.args.invalid_action,
        )
        advantages = np.asarray(self.compute_advantages(batch), np.float32)
        if advantages.shape != (len(batch),):
            raise ValueError(
                f"compute_advantages returned shape {advantages.shape} for {len(batch)} steps; it must return one "
                "number per step of the batch"
            )
        if not np.isfinite(advantages).all():
            first = int(np.flatnonzero(~np.isfinite(advantages))[0])
            e = episodes[int(batch.episode[first])]
            raise ValueError(
                f"the advantage of step {int(batch.step[first])} of episode {e.index} ({e.task_id}) is "
                f"{advantages[first]}; advantages must be finite"
            )
        ends = np.searchsorted(batch.episode, np.arange(len(episodes)), side="right")
        for e, end in zip(episodes, ends, strict=True):
            size = 0 if e.dropped else len(e.steps)
            e.advantages = advantages[end - size : end]
        return batch, advantages

    # --------------------------------------------------------------------------------------- episodes -> tensors

    def _generate_and_score_completions(self, inputs):
        """TRL's hook: play, score, weigh, and hand TRL the rows to pad, score and buffer."""
        episodes = self.rollout(inputs)
        if len(episodes) != len(inputs):
            raise ValueError(f"rollout() returned {len(episodes)} episodes for {len(inputs)} inputs")
        start = self.accelerator.process_index * len(inputs)
        for i, e in enumerate(episodes):
            e.index, e.group = start + i, (start + i) // self.num_generations
        rewards = self._score(inputs, episodes)
        stop_when_too_many_are_lost(everyone := self._gather_episodes(episodes), self.args.max_dropped_fraction)
        exclude_lonely(everyone)
        with self.rollout_log.clock.phase("advantages"):
            batch, advantages = self._advantages_of(everyone)
        mine = {e.index: e.advantages for e in everyone}
        with self.rollout_log.clock.phase("rows"):
            rows = self._make_rows([(e, mine[e.index]) for e in episodes])
        self._rows = rows
        tokenizer, self.processing_class = self.processing_class, _Undecoded()
        try:
            # TRL pads the rows, counts their tokens, scores them with the old and the reference policy, and corrects
            # for vLLM's sampling; its rewards and advantages are placeholders that are replaced below.
            out = super()._generate_and_score_completions([{"prompt": ""} for _ in rows])
        finally:
            self._rows, self.processing_class = None, tokenizer
        with self.rollout_log.clock.phase("rows"):
            ids = out["completion_ids"]
            out["advantages"] = per_token([row.advantages for row in rows], ids.size(1)).to(ids.device)
            out["num_rows_in_batch"] = torch.tensor(float(self._real_rows), device=ids.device)
        with self.rollout_log.clock.phase("metrics"):
            self.rollout_log.training_batch(everyone, batch, advantages, rewards, self._real_rows)
        return out

    def _score(self, inputs, episodes: list[Episode]) -> torch.Tensor:
        """Rewards of all processes' episodes, (n_episodes, n_functions); extra ones are added to the episodes."""
        prompts = [e.task or e.task_id for e in episodes]
        completions = [[{"role": "assistant", "content": s.response} for s in e.steps] for e in episodes]
        ids = [np.concatenate([s.completion_ids for s in e.steps]).tolist() if e.steps else [] for e in episodes]
        rows = [{**row, "episodes": e} for row, e in zip(inputs, episodes, strict=True)]
        rewards = super()._calculate_rewards(rows, prompts, completions, ids)
        weights = self.reward_weights.to(rewards.device)
        start = self.accelerator.process_index * len(episodes)
        for e, values in zip(episodes, (rewards * weights)[start : start + len(episodes)].tolist(), strict=True):
            add_rewards(e, self.reward_func_names, values, float(weights[0]))
        return rewards

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        if self._rows is None:
            return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        total = len(self._rows) * self.accelerator.num_processes
        return torch.zeros(total, len(self.reward_funcs), device=self.accelerator.device)

    def _gather_episodes(self, episodes: list[Episode]) -> list[Episode]:
        """All processes' episodes, by index; those of other processes come without token ids."""
        if self.accelerator.num_processes == 1:
            return episodes
        return sorted(gather_object([e.without_tokens() for e in episodes]), key=lambda e: (e.group, e.index))

    def _make_rows(self, weighed: list[tuple[Episode, np.ndarray]]) -> list[Row]:
        """Rows of this process: as many as every other process has, padding rows included."""
        rows = [row for e, advantages in weighed if len(advantages) for row in episode_rows(e, advantages)]
        world, me = self.accelerator.num_processes, self.accelerator.process_index
        count = torch.tensor([len(rows)], device=self.accelerator.device)
        counts = self.accelerator.gather(count).tolist() if world > 1 else [len(rows)]
        plan = shares(counts)
        if any(kept < n for (kept, _), n in zip(plan, counts, strict=True)):
            # Processes with long episodes hold more rows than others, who would only wait for them.
            kept, taken = plan[me]
            rows = rows[:kept] + gather_object(rows[kept:])[taken]
            counts = [min(kept, n) + (taken.stop - taken.start) for (kept, taken), n in zip(plan, counts, strict=True)]
        total = padded_count(counts, slices=self.args.steps_per_generation, group=self.num_generations)
        self._real_rows = sum(counts)
        return rows + [padding_row(self.eos_token_ids[0]) for _ in range(total - len(rows))]

    def _sampled_mask(self, width: int) -> torch.Tensor:
        return per_token([row.mask for row in self._rows], width)

    # ---------------------------------------------------------------------------------------------- evaluation

    def evaluate_panel(
        self, task_ids: Sequence[str] | None = None, *, temperature: float | None = None, seed: int | None = None
    ) -> list[Episode]:
        """Play every task of the panel exactly once, on all processes together; every process gets all episodes.

        Uses no training randomness: with and without it, the next training batch is the same (own backend).
        """
        ids = list(self.eval_task_ids if task_ids is None else task_ids)
        if not ids:
            raise ValueError("there is no evaluation panel: pass eval_dataset, or an environment with another split")
        temperature = self.args.eval_temperature if temperature is None else temperature
        sampling = replace(self.sampling, temperature=temperature)
        world, me = self.accelerator.num_processes, self.accelerator.process_index
        mine = [self._new_episode(task_id, 0, i) for i, task_id in enumerate(ids) if i % world == me]
        seed = self.args.eval_seed if seed is None else seed
        for e in mine:
            e.seed = seed  # the environment's too: the panel does not depend on the seed of the training
        self.play_episodes(mine, sampling, seed=f"evaluation {seed}", step=0, progress="eval")
        everyone = self._gather_episodes(mine)
        lost = stop_when_too_many_are_lost(everyone, self.args.max_dropped_fraction)
        if lost and self.accelerator.is_main_process:
            names = ", ".join(e.task_id for e in lost)
            logger.warning("%d of %d tasks of the panel could not be scored: %s", len(lost), len(everyone), names)
        return everyone

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Play the panel once, log `eval_success`, `eval_success/<task type>`, `eval_steps` and so on, and write
        `evaluation-<step>.json` as `progpo evaluate` does."""
        episodes = self.evaluate_panel(as_ids(eval_dataset))
        if self.accelerator.is_main_process:
            write_training_evaluation(self, episodes)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in episode_metrics(episodes).items()}
        training = self.model.training
        # TRL's log() flushes the metrics of the mode it reads off the model.
        self.model.eval()
        try:
            self.log(dict(metrics))
        finally:
            self.model.train(training)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class _Undecoded:
    """In the tokenizer's place while TRL prepares rows: it decodes them for rewards and logs, which are ours here."""

    @staticmethod
    def batch_decode(ids, **_: Any) -> list[str]:
        return [""] * len(ids)
