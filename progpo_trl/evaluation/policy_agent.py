"""The trained policy (or any causal language model) as an agent: batches of episodes, our own cached decoding."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from progpo_trl.contexts import FullContext, PromptTemplate, WindowContext, make_context, model_window
from progpo_trl.environments.base import TaskSet
from progpo_trl.evaluation.agents import Agent, Game, OnDone
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.generation import CachedGeneration, Sampling, TurnOutput, episode_stream
from progpo_trl.rollout import play

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig


@dataclass(frozen=True)
class PlaySettings:
    """How a policy is asked: the fields of `MultiTurnGRPOConfig` that reach its prompts and its sampling."""

    context: str = "window"
    history: int = 2
    prompt_template: str | None = None
    system_prompt: str | None = None
    max_completion_length: int = 512
    max_context_length: int | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None

    @classmethod
    def from_config(cls, config: MultiTurnGRPOConfig) -> PlaySettings:
        """Those of a training. Raises EvaluationError where it samples in a way that evaluation cannot."""
        if config.repetition_penalty != 1.0 or config.generation_kwargs:
            raise EvaluationError(
                "repetition_penalty and generation_kwargs change how tokens are sampled, and evaluation samples "
                "without them: unset them"
            )
        return cls(**{name: getattr(config, name) for name in cls.__dataclass_fields__})


class PolicyAgent(Agent):
    """A causal language model and its tokenizer.

    model, tokenizer: of transformers (or peft), on their device; who: JSON that names the model (`policy_files`);
    batch_size: episodes decoded together (memory only); autocast: torch dtype of mixed precision, or None.
    An episode's randomness comes from (sampling seed, task) alone: neither the batch nor the process matters.
    """

    name = "policy"
    samples = True

    def __init__(
        self,
        model,
        tokenizer,
        settings: PlaySettings | None = None,
        *,
        who: Mapping[str, Any] | None = None,
        batch_size: int = 64,
        autocast: torch.dtype | None = None,
    ):
        if batch_size < 1:
            raise EvaluationError(f"the batch size must be at least 1, got {batch_size}")
        self.model, self.tokenizer, self.settings = model.eval(), tokenizer, settings or PlaySettings()
        self.batch_size, self.autocast = batch_size, autocast
        self._who = dict(who or {"model": str(getattr(model.config, "_name_or_path", "")) or None})
        self.on_tokens: Callable[[np.ndarray], None] | None = None  # as of `CachedGeneration`
        self._device = next(model.parameters()).device
        self._contexts: dict[str, WindowContext | FullContext] = {}
        self._prompt: dict[str, Any] = {}

    def facts(self) -> dict[str, Any]:
        """As `Agent.facts`; the prompt's hash is there once a task set was prepared for."""
        settings = asdict(self.settings)
        return {"kind": "policy", **self._who, "settings": {**settings, **self._prompt}}

    def machine(self) -> dict[str, Any]:
        """As `Agent.machine`."""
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else None
        return {
            "device": self._device.type,
            **({"gpu": name} if name else {}),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "autocast": None if self.autocast is None else str(self.autocast).removeprefix("torch."),
            "batch_size": self.batch_size,
        }

    def deterministic(self, temperature: float | None) -> bool:
        """As `Agent.deterministic`: greedy decoding draws nothing."""
        return not temperature

    def prepare(self, tasks: TaskSet) -> None:
        """As `Agent.prepare`: reads the prompt template."""
        self._context(tasks)

    def play(self, games: Sequence[Game], tasks: TaskSet, on_done: OnDone, *, max_turns: int) -> None:
        """As `Agent.play`, in lock-step batches."""
        context = self._context(tasks)
        for temperature in dict.fromkeys(game.temperature for game in games):
            same = [game for game in games if game.temperature == temperature]
            generation = self._generation(float(temperature or 0.0))
            for first in range(0, len(same), self.batch_size):
                batch = same[first : first + self.batch_size]
                self._play_batch(generation, context, batch, tasks, on_done, max_turns)

    def _play_batch(self, generation, context, games: list[Game], tasks: TaskSet, on_done: OnDone, max_turns: int):
        episodes = [game.episode() for game in games]
        game_of = {id(e): game for e, game in zip(episodes, games, strict=True)}
        # The stream that the trainer's own evaluation gives the episode.
        streams = {
            key: episode_stream(f"evaluation {game.seed}", 0, game.task_id, 0, game.attempt)
            for key, game in game_of.items()
        }

        def generate(live, prompts):
            keys = [id(e) for e in live]
            with self._precision():
                return generation.turn(
                    keys, prompts, self.settings.max_completion_length, [streams[key] for key in keys]
                )

        generation.reset()
        play(
            episodes,
            tasks,
            context,
            generate,
            functools.partial(self.tokenizer.batch_decode, skip_special_tokens=True),
            max_turns=max_turns,
            step_limit=min(max_turns, tasks.max_steps),
            action_format=tasks.action_format,
            on_done=lambda episode: on_done(game_of[id(episode)], episode, None),
        )

    def decode(self, temperature: float, prompts, max_new_tokens: int, streams) -> list[TurnOutput]:
        """One response to each prompt (int ids), whatever they belong to; streams: as `CachedGeneration.turn`."""
        with self._precision():
            return self._generation(temperature).turn(range(len(prompts)), prompts, max_new_tokens, streams)

    def _precision(self):
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self.autocast)

    def _generation(self, temperature: float) -> CachedGeneration:
        settings = self.settings
        return CachedGeneration(
            self.model,
            eos_token_ids=self._end_tokens(),
            pad_token_id=self._pad_token(),
            sampling=Sampling(temperature, settings.top_p, settings.top_k, settings.min_p),
            on_tokens=self.on_tokens,
        )

    def _end_tokens(self) -> list[int]:
        """The tokens that end a response: those of the model's generation settings and the tokenizer's own."""
        ends = getattr(self.model, "generation_config", None) and self.model.generation_config.eos_token_id
        ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        own = self.tokenizer.eos_token_id
        ends = ends if own is None or own in ends else [own, *ends]
        if not ends:
            raise EvaluationError("neither the model nor its tokenizer names a token that ends a response")
        return ends

    def _pad_token(self) -> int:
        pad = self.tokenizer.pad_token_id
        return self._end_tokens()[0] if pad is None else pad

    def _context(self, tasks: TaskSet) -> WindowContext | FullContext:
        settings = self.settings
        name = str(settings.prompt_template or tasks.prompt_template)
        if name not in self._contexts:
            try:
                template = PromptTemplate(name)
                template.check(settings.context)
                self._contexts[name] = self._make_context(template)
            except ValueError as error:
                raise EvaluationError(str(error)) from error
            digest = hashlib.sha256(template.path.read_bytes()).hexdigest()
            self._prompt = {"prompt_template": name, "prompt_sha256": digest}
        return self._contexts[name]

    def _make_context(self, template: PromptTemplate) -> WindowContext | FullContext:
        kwargs = dict(self.settings.chat_template_kwargs or {})
        window = model_window(self.model.config)
        try:
            return make_context(self.settings, self.tokenizer, template, window=window, template_kwargs=kwargs)
        except ValueError as error:
            raise EvaluationError(str(error)) from error
