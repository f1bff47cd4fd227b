"""Evaluations during training: their files, what they leave untouched, and the best checkpoint by success."""

import json

import numpy as np
import pytest
import torch
import toy
from running import make, records
from transformers import AutoModelForCausalLM

from progpo_trl.evaluation import read_evaluation
from progpo_trl.tasks import spread


@pytest.fixture(scope="module")
def tokenizer():
    return toy.make_tokenizer()


def test_evaluations_are_written_and_leave_training_as_it_is(tmp_path, tokenizer):
    def trained(name, every):
        trainer = make(tmp_path / name, tokenizer, max_generations=3, eval_every_generations=every, temperature=0.9)
        trainer.train()
        state = torch.get_rng_state(), np.random.get_state()[1].tolist()
        weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        played = [[(s["response"], s["advantage"]) for s in e["steps"]] for e in records(tmp_path / name)]
        return played, weights, state, trainer

    off, on = trained("off", None), trained("on", 1)
    assert off[0] == on[0]
    assert torch.equal(off[1], on[1])
    assert torch.equal(off[2][0], on[2][0])
    assert off[2][1] == on[2][1]
    assert not list((tmp_path / "off").glob("evaluation-*"))
    logged = [entry for entry in on[3].state.log_history if "eval_success" in entry]
    for step, entry in zip((1, 2, 3), logged, strict=True):
        content = read_evaluation(tmp_path / "on" / f"evaluation-{step}.json")
        assert content["agent"]["step"] == step
        assert [g["task_id"] for g in content["games"]] == [str(100 + i) for i in range(6)]
        (part,) = content["results"]
        assert part["success"]["rate"] == pytest.approx(entry["eval_success"])
        assert part["steps"]["mean"] == pytest.approx(entry["eval_steps"])
        assert part["inadmissible"] == pytest.approx(entry["eval_inadmissible"])
        lines = (tmp_path / "on" / f"evaluation-{step}.episodes.jsonl").read_text().splitlines()
        assert [json.loads(line)["game"] for line in lines] == content["games"]


def test_the_panel_does_not_depend_on_the_training_seed(tmp_path, tokenizer):
    class Seeded(toy.Corridor):
        def reset(self, task_id, seed=0):
            self.door = "aeiot"[seed % 5]
            first = super().reset(task_id, seed)
            return type(first)(f"{first.text} Seed {seed}.", first.admissible, first.task)

    def panel(seed):
        environment = toy.EnvironmentTasks(Seeded, {"train": [str(i) for i in range(8)], "eval": ["100", "101"]})
        return make(tmp_path / str(seed), tokenizer, environment=environment, seed=seed).evaluate_panel()

    first, second = ([[s.observation for s in e.steps] for e in panel(seed)] for seed in (0, 1))
    assert first == second


def test_the_best_checkpoint_by_success_is_loaded(tmp_path, tokenizer):
    """The policy's success goes up and down; the weights that are kept are those of its best evaluation."""
    trainer = make(
        tmp_path, tokenizer, environment=toy.tasks(n_eval=24), max_generations=6, learning_rate=3e-3,
        save_every_generations=1, eval_every_generations=1, metric_for_best_model="eval_success",
        greater_is_better=True, load_best_model_at_end=True, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer.train()
    rates = [
        read_evaluation(tmp_path / f"evaluation-{step}.json")["results"][0]["success"]["rate"] for step in range(1, 7)
    ]
    assert len(set(rates)) > 1
    best = 1 + int(np.argmax(rates))
    assert trainer.state.best_metric == max(rates)
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{best}")
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / f"checkpoint-{best}", dtype=torch.float32)
    for got, want in zip(trainer.model.parameters(), kept.parameters(), strict=True):
        assert torch.equal(got, want)


def test_a_full_disk_does_not_stop_a_training(tmp_path, tokenizer, caplog):
    trainer = make(tmp_path / "run", tokenizer)
    (tmp_path / "run" / "evaluation-0.json").mkdir(parents=True)
    assert "eval_success" in trainer.evaluate()
    assert "the evaluation of step 0 was not saved" in caplog.text


def test_a_shorter_panel_is_that_of_the_command(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, environment=toy.tasks(n_eval=10), eval_tasks=4)
    trainer.evaluate()
    content = read_evaluation(tmp_path / "evaluation-0.json")
    assert [g["task_id"] for g in content["games"]] == spread([str(100 + i) for i in range(10)], 4)
    assert content["panels"][0]["split"] == "eval"
