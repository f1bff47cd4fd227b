"""One-line trainers and their logs, for the trainer tests."""

import json

import toy

from progpo_trl import MultiTurnGRPOTrainer


def make(tmp_path, tokenizer, *, cls=MultiTurnGRPOTrainer, environment=None, model=None, kwargs=None, **config):
    return cls(
        model or toy.make_model(tokenizer),
        toy.config(tmp_path, **config),
        environment=environment or toy.tasks(),
        processing_class=tokenizer,
        **(kwargs or {}),
    )


def records(tmp_path):
    return [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]


def first_log(trainer):
    return next(entry for entry in trainer.state.log_history if "rollout/success" in entry)
