"""LoRA adapters, checkpoints and episodes.jsonl: real small runs."""

import json
import math
import resource
from pathlib import Path

import pytest
import torch
import toy
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from progpo_trl import MultiTurnGRPOTrainer, ProGPO, ProxMO


@pytest.fixture(scope="module")
def tokenizer():
    return toy.make_tokenizer()


def probe(model) -> torch.Tensor:
    ids = torch.arange(60, 100)[None]
    with torch.no_grad():
        return model.eval()(ids).logits


@pytest.mark.parametrize("context", ["window", "full"])
def test_lora_adapter_reloads_with_the_same_logits(tmp_path, tokenizer, context):
    from peft import LoraConfig, PeftModel

    base = tmp_path / "base"
    toy.make_model(tokenizer).save_pretrained(base)
    trainer = MultiTurnGRPOTrainer(
        str(base),
        toy.config(
            tmp_path / "run",
            context=context,
            max_generations=2,
            beta=0.01,
            gradient_checkpointing=True,
            disable_dropout=False,
        ),
        environment=toy.tasks(),
        processing_class=tokenizer,
        # lora_dropout: the policy must be sampled without it
        peft_config=LoraConfig(
            r=4, lora_alpha=16, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    before = probe(trainer.model)
    trainer.model.train()
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "kl" in entry]
    assert len(log) == 2
    trained = probe(trainer.model)
    assert not torch.equal(before, trained)
    trainer.save_model(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    loaded = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tmp_path / "adapter"
    )
    torch.testing.assert_close(probe(loaded), trained, atol=1e-6, rtol=1e-6)


def test_full_model_reloads_and_the_card_cites_the_method(tmp_path, tokenizer):
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(tmp_path, save_every_generations=1, logging_steps=1),
        environment=toy.tasks(),
        advantage=ProGPO(ProxMO()),
        processing_class=tokenizer,
    )
    trainer.train()
    # the estimator's own numbers, its base's, and those that need none
    logged = [entry for entry in trainer.state.log_history if "progpo/q_fail" in entry]
    assert len(logged) == trainer.state.global_step
    for name in ("progpo/lambda_eff", "proxmo/modulation_max", "anchors/singletons", "coverage/group_std"):
        assert all(math.isfinite(entry[name]) for entry in logged)
    checkpoint = tmp_path / "checkpoint-1"
    torch.testing.assert_close(
        probe(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)), probe(trainer.model)
    )
    assert AutoTokenizer.from_pretrained(checkpoint)("door")["input_ids"] == tokenizer("door")["input_ids"]
    card = (tmp_path / "README.md").read_text()
    assert "2607.22724" in card
    assert "DeepSeekMath" not in card


def test_checkpoints_lie_on_generation_boundaries(tmp_path, tokenizer):
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(tmp_path, max_generations=4, updates_per_generation=2, save_every_generations=2),
        environment=toy.tasks(),
        processing_class=tokenizer,
    )
    trainer.train()
    assert sorted(p.name for p in tmp_path.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-8"]
    assert trainer.state.global_step == 8


class SaveAt(TrainerCallback):
    """A user's callback that wants a checkpoint at a step of its own."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_save or state.global_step == self.step


@pytest.mark.parametrize(
    ("settings", "saved"),
    [
        # 8 tasks in pairs: 4 generations of 2 updates an epoch
        ({"max_generations": None, "num_train_epochs": 2, "save_strategy": "epoch"}, [8, 16]),
        ({"max_generations": 3, "save_strategy": "steps", "save_steps": 3}, [4, 6]),
        ({"max_generations": 3}, [4]),
        ({"max_generations": None, "max_steps": 5, "save_strategy": "steps", "save_steps": 4}, [4, 6]),
        # three of eight updates, which are one generation and a half
        ({"max_generations": None, "num_train_epochs": 0.36, "save_strategy": "steps", "save_steps": 2}, [2, 4]),
        ({"max_generations": 2, "save_strategy": "best", "eval_every_generations": 1}, [2]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*inside a generation")
def test_checkpoints_lie_on_generation_boundaries_however_they_are_asked_for(tmp_path, tokenizer, settings, saved):
    """Also for a callback that asks for one at step 3: it gets it at step 4, the end of that generation."""
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(tmp_path, updates_per_generation=2, max_turns=1, **settings),
        environment=toy.tasks(),
        processing_class=tokenizer,
        callbacks=None if "epoch" in str(settings) or "best" in str(settings) else [SaveAt(3)],
    )
    trainer.train()
    assert sorted(int(p.name.removeprefix("checkpoint-")) for p in tmp_path.glob("checkpoint-*")) == saved


def test_a_checkpoint_inside_a_generation_is_refused(tmp_path, tokenizer):
    """As another trainer, or this one with other batches, may have made it."""
    settings = {"max_generations": 2, "save_every_generations": 1, "max_turns": 1}
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(tmp_path, **settings),
        environment=toy.tasks(),
        processing_class=tokenizer,
    )
    trainer.train()
    other = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(tmp_path, **settings | {"updates_per_generation": 2}),
        environment=toy.tasks(),
        processing_class=tokenizer,
    )
    with pytest.raises(ValueError, match=r"updates_per_generation \(optimizer steps per generation\): 1, now 2"):
        other.train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-1" / "manifest.json").unlink()
    with pytest.raises(ValueError, match="lies inside a generation"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_resuming_at_the_last_step_takes_no_other(tmp_path, tokenizer):
    settings = {"max_generations": 2, "save_every_generations": 1, "max_turns": 1}

    def trained(**resume):
        trainer = MultiTurnGRPOTrainer(
            toy.make_model(tokenizer),
            toy.config(tmp_path, **settings),
            environment=toy.tasks(),
            processing_class=tokenizer,
        )
        trainer.train(**resume)
        return trainer

    first = trained()
    again = trained(resume_from_checkpoint=True)
    assert again.state.global_step == 2
    assert torch.equal(probe(first.model), probe(again.model))


def test_going_back_sets_later_checkpoints_aside(tmp_path, tokenizer):
    settings = {"max_generations": 3, "save_every_generations": 1, "max_turns": 1}
    for resume in (None, str(tmp_path / "checkpoint-1")):
        trainer = MultiTurnGRPOTrainer(
            toy.make_model(tokenizer),
            toy.config(tmp_path, **settings | ({} if resume is None else {"max_generations": 2})),
            environment=toy.tasks(),
            processing_class=tokenizer,
        )
        trainer.train(resume_from_checkpoint=resume)
    assert sorted(p.name for p in tmp_path.glob("*checkpoint-*")) == [
        "checkpoint-1",
        "checkpoint-2",
        "superseded-checkpoint-2",
        "superseded-checkpoint-3",
    ]


def test_best_checkpoint_by_evaluation_success(tmp_path, tokenizer):
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(
            tmp_path,
            max_generations=2,
            save_every_generations=1,
            eval_every_generations=1,
            metric_for_best_model="eval_success",
            greater_is_better=True,
            load_best_model_at_end=True,
        ),
        environment=toy.tasks(),
        processing_class=tokenizer,
    )
    trainer.train()
    assert trainer.state.best_metric == max(
        e["eval_success"] for e in trainer.state.log_history if "eval_success" in e
    )


class FileLimit(TrainerCallback):
    """A full disk for the second generation: files cannot grow beyond `room` more bytes of episodes.jsonl."""

    def __init__(self, path: Path, room: int):
        self.path, self.room = path, room
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_step_end(self, args, state, control, **kwargs):
        limit = self.path.stat().st_size + self.room if state.global_step == 1 else self.before[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, self.before[1]))


@pytest.mark.parametrize("room", [0, 300, 3000])
def test_a_full_disk_leaves_no_half_line(tmp_path, tokenizer, caplog, room):
    full = FileLimit(tmp_path / "episodes.jsonl", room)
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(tmp_path, max_generations=3),
        environment=toy.tasks(),
        processing_class=tokenizer,
        callbacks=[full],
    )
    try:
        trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, full.before)
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0] * 8 + [2] * 8
    assert caplog.text.count("episodes are not being saved") == 1


def test_a_half_line_keeps_to_itself(tmp_path):
    """Where it could not be taken back."""
    from progpo_trl.reporting.rollout_log import _append

    path = tmp_path / "episodes.jsonl"
    _append(str(path), b'{"step": 0}\n')
    assert path.read_bytes() == b'{"step": 0}\n'
    path.write_bytes(b'{"step": 0}\n{"ste')
    _append(str(path), b'{"step": 2}\n{"step": 2}\n')
    assert path.read_bytes() == b'{"step": 0}\n{"ste\n{"step": 2}\n{"step": 2}\n'
