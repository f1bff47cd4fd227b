"""Turns through TRL's own generation: the protocol on several processes, and the options that lead there."""

import json

import pytest
import toy
from echo_run import main
from exactness import launch

from progpo_trl import MultiTurnGRPOTrainer


def test_every_answer_belongs_to_its_prompt(tmp_path):
    main(str(tmp_path), 1)
    assert json.loads((tmp_path / "rank0.json").read_text())["wrong"] == []


@pytest.mark.distributed
@pytest.mark.slow
def test_two_processes_with_uneven_episodes_call_together(tmp_path):
    launch(2, "echo_run.py", str(tmp_path), "2")
    ranks = [json.loads((tmp_path / f"rank{i}.json").read_text()) for i in range(2)]
    assert ranks[0]["lengths"] != ranks[1]["lengths"], "the episodes are even: the test shows nothing"
    assert ranks[0]["calls"] == ranks[1]["calls"]
    assert [r["wrong"] for r in ranks] == [[], []]


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.2},
        {"generation_kwargs": {"no_repeat_ngram_size": 3}},
        {"cache_implementation": "static"},
    ],
    ids=str,
)
def test_options_of_generate_go_through_trl(tmp_path, options):
    tokenizer = toy.make_tokenizer()
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer), toy.config(tmp_path, **options), environment=toy.tasks(), processing_class=tokenizer
    )
    assert not trainer._own_generation()
    before = trainer.generation_config.to_dict()
    trainer.train()
    greedy = [trainer.evaluate_panel(temperature=0.0) for _ in range(2)]
    assert [s.response for e in greedy[0] for s in e.steps] == [s.response for e in greedy[1] for s in e.steps]
    assert trainer.generation_config.to_dict() == before


def test_signature_of_the_trl_method_we_call():
    """TRL changed it between minor versions; a change must fail here, not in a GPU run."""
    import inspect

    from trl import GRPOTrainer

    parameters = list(inspect.signature(GRPOTrainer._generate_single_turn).parameters)
    assert parameters[:5] == ["self", "prompt_ids", "images", "multimodal_fields", "num_generations"]
    scoring = list(inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters)
    assert scoring[:7] == [
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
    ]
