"""A loss, gradient or weight that is no finite number stops the training before anything of it is saved."""

import math
import re

import not_finite_run
import pytest
import resume_run
import torch
import toy
from not_finite_run import spoil_gradient, spoil_loss
from resume_run import finish
from running import make
from transformers import AutoModelForCausalLM

from progpo_trl.faults import TrainingStopped


@pytest.fixture(scope="module")
def tokenizer():
    return toy.make_tokenizer()


def stopped(trainer) -> str:
    with pytest.raises(TrainingStopped) as caught:
        trainer.train()
    return str(caught.value)


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
@pytest.mark.parametrize("spoil", [spoil_gradient, spoil_loss])
def test_the_weights_stay_as_they_were(tmp_path, tokenizer, spoil, max_grad_norm):
    options = {"max_generations": 4, "max_turns": 1, "save_every_generations": 1, "max_grad_norm": max_grad_norm}
    trainer = make(tmp_path, tokenizer, **options)
    spoil(trainer, 3)
    message = stopped(trainer)
    what = "gradient norm" if spoil is spoil_gradient else "loss"
    assert message.startswith(f"the {what} of step 3 is nan; training stops here and saves nothing more.")
    assert "lower learning_rate" in message
    assert f"The last good checkpoint is {tmp_path / 'checkpoint-1'}; " in message
    assert message.endswith(f"{tmp_path / 'checkpoint-2'} holds the weights that gave this number")
    assert trainer.state.global_step == 2
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2", dtype=torch.float32).state_dict()
    now = trainer.model.state_dict()
    assert all(torch.equal(weights, now[name]) for name, weights in saved.items())


def test_a_model_that_is_spoilt_from_the_start(tmp_path, tokenizer):
    model = toy.make_model(tokenizer)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = math.nan
    message = stopped(make(tmp_path, tokenizer, model=model, max_turns=1, rows_per_forward=3))
    assert "the loss of step 1 is nan" in message
    assert "if it is the first step, look at the model's own weights" in message
    assert message.endswith("There is no checkpoint from before")
    assert not list(tmp_path.glob("checkpoint-*"))


def test_the_last_step_is_looked_at_too(tmp_path, tokenizer):
    """Its loss and gradient are finite, and no other loss sees what it made of the weights."""
    trainer = make(tmp_path, tokenizer, max_turns=1, learning_rate=1e39, save_every_generations=1)
    message = stopped(trainer)
    assert re.match("the sum of the weights after step 1 is -?(nan|inf)", message)
    assert message.endswith(f"from before; {tmp_path / 'checkpoint-1'} holds the weights that gave this number")


def test_steps_that_float16_leaves_out_go_on(tmp_path, tokenizer, monkeypatch):
    """Its loss scaling finds the largest scale by trying; the optimizer skips what overflows."""
    trainer = make(tmp_path, tokenizer)
    overflow = torch.tensor(math.inf)
    with pytest.raises(TrainingStopped, match="the gradient norm of step 1 is inf"):
        trainer._get_grad_norm(trainer.model, overflow)
    monkeypatch.setattr(type(trainer.accelerator), "mixed_precision", "fp16")
    assert trainer._get_grad_norm(trainer.model, overflow) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("what", ["gradient", "loss"])
def test_all_processes_stop_together(tmp_path, what):
    """Also where one alone has the number; the other would wait for it for ever."""
    base = resume_run.base_model(tmp_path / "base")
    with resume_run.server() as start:
        processes = start(not_finite_run.train_on_two, base, str(tmp_path), what, log=tmp_path / "log", ranks=2)
        codes = finish(processes, timeout=120)
    for log in ("log", "log.1"):
        assert "of step 2 is nan" in (tmp_path / log).read_text(), log
    assert codes == [3, 3]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-1"]
