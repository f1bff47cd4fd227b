"""A small world, a small random Qwen2.5-architecture policy and its tokenizer. Nothing is downloaded."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from progpo_trl.config import MultiTurnGRPOConfig
from progpo_trl.environments import Environment, EnvironmentTasks, Observation, StepResult


class Corridor(Environment):
    """A random text policy's world: an action pays by how often it holds the letter of the door, and three times
    opens it; lengths vary with actions."""

    max_steps = 5

    def reset(self, task_id, seed=0):
        self.door, self.t = "aeiot"[int(task_id) % 5], 0
        return Observation(f"You stand before door {task_id}.", ("open door", "look"), f"open door {task_id}")

    def step(self, action):
        self.t += 1
        hits = action.count(self.door)
        won = hits >= 3
        closed = sum(map(ord, action)) % 5 == 0 and self.t >= 2
        return StepResult(
            f"Step {self.t}: nothing happens.", ("open door", "look"), 2.0 * hits, won or closed, won, {"t": self.t}
        )


def tasks(n=8, n_eval=6, **options):
    ids = {"train": [str(i) for i in range(n)], "eval": [str(100 + i) for i in range(n_eval)]}
    return EnvironmentTasks(Corridor, ids, **options)


@functools.cache
def _backend() -> str:
    texts = [p.read_text() for p in sorted(Path(trl.__file__).parent.glob("trainer/*config.py"))[:4]]
    texts += ["<think> open the door </think><action>open door</action> nothing happens."] * 30
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer.to_str()


def make_tokenizer(template: str = "qwen2_5.jinja") -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_backend()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / template).read_text()
    return tokenizer


def make_model(tokenizer, seed: int = 0, window: int = 4096, **overrides) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": window,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "initializer_range": 0.1,
        }
        | overrides
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def config(output_dir, **overrides) -> MultiTurnGRPOConfig:
    """A quiet CPU configuration of one update on 2 groups of 4."""
    return MultiTurnGRPOConfig(
        **{
            "output_dir": str(output_dir),
            "num_generations": 4,
            "groups_per_generation": 2,
            "max_generations": 1,
            "max_completion_length": 12,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": "none",
            "save_strategy": "no",
            "logging_steps": 1,
            "disable_tqdm": True,
            "show_rollout_progress": False,
            "learning_rate": 1e-3,
        }
        | overrides
    )
