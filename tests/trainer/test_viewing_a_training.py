"""What the viewer and the plots read from a real training is what the training logged."""

import json
import sys
from pathlib import Path

import pytest
import toy

sys.path.insert(0, str(Path(__file__).parents[1]))

from viewer_runs import opened

from progpo_trl import MultiTurnGRPOTrainer, ProGPO
from progpo_trl.viewer.curves import curves_of
from progpo_trl.viewer.document import document
from progpo_trl.viewer.groups import groups_of


def test_curves_are_the_logged_metrics(tmp_path):
    tokenizer = toy.make_tokenizer()
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(tmp_path, max_generations=3, updates_per_generation=2, save_every_generations=3),
        environment=toy.tasks(),
        advantage=ProGPO(),
        processing_class=tokenizer,
    )
    trainer.train()
    run = opened(tmp_path)
    index = run.training.index
    curves = curves_of(index, groups_of(index, run.gate))
    # TRL logs a generation's metrics with the first of its updates.
    logged = {}
    for entry in trainer.state.log_history:
        if "rollout/success" in entry:
            logged.setdefault((entry["step"] - 1) // 2, entry)
    assert curves.update.tolist() == [0, 2, 4]
    for name, values in curves.values.items():
        assert values.tolist() == pytest.approx([logged[g][name] for g in range(3)]), name
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    used = [s["advantage"] for line in lines for s in json.loads(line)["steps"]]
    assert index.advantages.tolist() == pytest.approx(used)
    titles = [chart["title"] for chart in document(run)["charts"]]
    assert "Logged: entropy" in titles  # from the checkpoint's trainer_state.json
