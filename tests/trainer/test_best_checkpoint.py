"""A run that ends with its best checkpoint says so wherever it speaks of its weights."""

import pytest
import resume_run
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow


def test_the_weights_after_the_best_evaluation_are_known_as_such(base, tmp_path):
    """Card, evaluation and summary of a run that ends with its best checkpoint are of that checkpoint."""
    rates = [0.1, 0.9, 0.3]

    class Scripted(resume_run.Trainer):
        def evaluate(self, *args, **kwargs):
            return super().evaluate(*args, **kwargs) | ({"eval_success": rates.pop(0)} if rates else {})

    trainer = resume_run.make_trainer(
        base, str(tmp_path), cls=Scripted, load_best_model_at_end=True, eval_every_generations=1, max_generations=3
    )
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
