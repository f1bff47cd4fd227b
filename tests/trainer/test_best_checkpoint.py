"""A run that ends with its best checkpoint says so wherever it speaks of its weights."""

import logging

import pytest
import resume_run
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow


class Scripted(resume_run.Trainer):
    """Finds the success rates it is given, evaluation by evaluation."""

    rates: tuple[float | None, ...] = ()

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        metrics.pop("eval_success")
        rate, *self.rates = self.rates
        return metrics if rate is None else metrics | {"eval_success": rate}


BEST = {"load_best_model_at_end": True, "eval_every_generations": 1, "save_total_limit": 1}


def test_the_weights_after_the_best_evaluation_are_known_as_such(base, tmp_path):
    """Card, evaluation and summary of a run that ends with its best checkpoint are of that checkpoint."""
    trainer = resume_run.make_trainer(
        base, str(tmp_path), cls=Scripted, load_best_model_at_end=True, eval_every_generations=1, max_generations=3
    )
    trainer.rates = (0.1, 0.9, 0.3, 0.9)
    trainer.train()
    assert (trainer.state.global_step, trainer.weights_step) == (6, 4)
    best = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert all(torch.equal(value, best[name]) for name, value in trainer.model.state_dict().items() if name in best)
    facts, (file,) = trainer._card_facts()
    assert file.name == "evaluation-4.json"
    assert facts.training["weights"] == "after update 4, the best evaluation"
    assert not any("other" in warning for warning in facts.warnings)
    last = (tmp_path / "evaluation-6.json").read_bytes()
    trainer.evaluate()
    assert (tmp_path / "evaluation-6.json").read_bytes() == last, "it was of other weights"


def test_the_best_checkpoint_is_known_again_from_elsewhere(base, tmp_path, monkeypatch):
    """Resumed with another spelling of the same folder, it is neither forgotten nor rotated away."""
    monkeypatch.chdir(tmp_path)
    trainer = resume_run.make_trainer(base, "run", cls=Scripted, max_generations=2, **BEST)
    trainer.rates = (0.9, 0.1)
    trainer.train()
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    trainer = resume_run.make_trainer(base, str(tmp_path / "run"), cls=Scripted, max_generations=4, **BEST)
    trainer.rates = (0.1, 0.3, 0.2)  # from checkpoint-2 on: transformers removed the last one, which was not the best
    trainer.train(resume_from_checkpoint=True)
    assert (trainer.state.global_step, trainer.weights_step) == (8, 2)
    assert (tmp_path / "run" / "checkpoint-2").is_dir()


def test_an_evaluation_without_the_metric_is_no_best(base, tmp_path, caplog):
    trainer = resume_run.make_trainer(base, str(tmp_path), cls=Scripted, max_generations=3, **BEST)
    trainer.rates = (None, 0.5, None)
    with caplog.at_level(logging.WARNING, logger="progpo_trl"):
        trainer.train()
    assert (trainer.state.best_metric, trainer.weights_step) == (0.5, 4)
    assert caplog.text.count("gave no success") == 2


def test_the_best_of_a_task_type_needs_one_in_the_panel(base, tmp_path):
    settings = BEST | {"metric_for_best_model": "success/no_such"}
    with pytest.raises(ValueError, match="the panel has no task type 'no_such'; it has "):
        resume_run.make_trainer(base, str(tmp_path), **settings)
