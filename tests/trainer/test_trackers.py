"""Weights & Biases and Trackio: real small runs."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toy

from progpo_trl import MultiTurnGRPOTrainer


@pytest.fixture(scope="module")
def tokenizer():
    return toy.make_tokenizer()


def test_wandb_offline(tmp_path, tokenizer, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(
            tmp_path / "run", report_to="wandb", log_completions=True, max_generations=2,
            log_tables_every_generations=2, log_table_episodes=3,
        ),
        environment=toy.tasks(),
        processing_class=tokenizer,
    )  # fmt: skip
    try:
        trainer.train()
        summary, config = dict(wandb.run.summary), dict(wandb.run.config)
        folder = Path(wandb.run.dir)  # of this process's first run, if there was one: wandb reads WANDB_DIR once
    finally:
        wandb.finish()
    assert math.isfinite(summary["train/rollout/success"])
    assert math.isfinite(summary["train/groups/all_fail"])
    assert math.isfinite(summary["train/reward"])
    assert folder.parent.name.startswith("offline-run-")
    assert list(folder.parent.glob("*.wandb"))
    assert config["progpo_trl"]["environment"]["name"] == "corridor"
    assert config["progpo_trl"]["advantage"]["name"] == "GRPO"
    assert "trl" in config["progpo_trl"]["versions"]
    # Two groups of four; the table of trajectories is bounded, and so is what is logged how often.
    assert (summary["tables/groups"]["nrows"], summary["tables/trajectories"]["nrows"]) == (2, 3)
    (file,) = folder.glob("media/table/tables/groups_*.json")
    table = json.loads(file.read_text())
    groups = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    written = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()][:8]
    for group, mine in zip(groups, (written[:4], written[4:]), strict=True):
        used = [s["advantage"] for e in mine for s in e["steps"]]
        assert group["advantage_max"] == pytest.approx(max(used), rel=1e-5), "what is logged is what the loss used"
        assert group["successes"] == sum(e["success"] for e in mine)
        assert group["generation"] == 1
    import pandas as pd

    table = pd.read_parquet(tmp_path / "run" / "completions" / "completions_00001.parquet")
    episodes = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    assert len(table) == 8
    first = [s["advantage"] for s in episodes[0]["steps"]]
    assert table["advantage"][0] == pytest.approx(sum(first) / len(first))


def test_tables_count_the_generations_of_the_whole_run(tmp_path, tokenizer, monkeypatch):
    """Also in a run that went on from a checkpoint, and where a generation is several updates."""
    wandb = pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)

    def tables(generations: int, **resume) -> list[list[tuple[int, int]]]:
        """(generation, update) of every row of every table of groups that a training sends."""
        trainer = MultiTurnGRPOTrainer(
            toy.make_model(tokenizer),
            toy.config(
                tmp_path / "run", report_to="wandb", max_turns=1, max_generations=generations,
                updates_per_generation=2, save_every_generations=1, log_tables_every_generations=2,
            ),
            environment=toy.tasks(),
            processing_class=tokenizer,
        )  # fmt: skip
        try:
            trainer.train(**resume)
            folder = Path(wandb.run.dir)
        finally:
            wandb.finish()
        read = [json.loads(file.read_text()) for file in folder.glob("media/table/tables/groups_*.json")]
        rows = [[dict(zip(table["columns"], row, strict=True)) for row in table["data"]] for table in read]
        return sorted([(row["generation"], row["update"]) for row in table] for table in rows)

    assert tables(2) == [[(1, 0)] * 2]
    assert tables(5, resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2")) == [[(3, 4)] * 2, [(5, 8)] * 2]


def test_a_tracker_that_breaks_is_left_out_and_training_goes_on(tmp_path, tokenizer, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)

    def unreachable(*args, **kwargs):
        raise wandb.errors.CommError("the network is down")

    monkeypatch.setattr(wandb, "init", unreachable)
    trainer = MultiTurnGRPOTrainer(
        toy.make_model(tokenizer),
        toy.config(tmp_path / "run", report_to="wandb", max_generations=2, save_strategy="steps", save_steps=1),
        environment=toy.tasks(),
        processing_class=tokenizer,
    )
    trainer.train()
    assert trainer.state.global_step == 2
    said = [r.getMessage() for r in caplog.records if "WandbCallback failed" in r.getMessage()]
    assert len(said) == 1
    assert "the network is down" in said[0]
    assert "WANDB_MODE=offline" in said[0]


def test_trajectories_in_a_table_are_whole_groups_and_cut(tokenizer):
    from progpo_trl.episodes import Episode, Step, StopReason
    from progpo_trl.reporting.trackers import TEXT, trajectory_rows

    def episode(index, group, success, text="<b>look</b>"):
        ids = np.zeros(1, np.int32)
        step = Step("o", ids, ids, None, text, "look", True, True)
        reason = StopReason.SUCCESS if success else StopReason.STEP_LIMIT
        e = Episode("t", index=index, group=group, steps=[step], success=success, stop_reason=reason)
        e.advantages = np.array([0.5], np.float32)
        return e

    episodes = [episode(i, i // 2, i == 5, "x" * 10_000 if i == 4 else "<b>look</b>") for i in range(8)]
    rows = trajectory_rows(episodes, 5)
    assert [(r["group"], r["episode"]) for r in rows] == [(2, 4), (2, 5), (0, 0), (0, 1), (1, 2)]
    assert len(rows[0]["trajectory"]) < TEXT + 60
    assert rows[0]["trajectory"].endswith("more characters in episodes.jsonl]")
    assert rows[1]["trajectory"] == "[0] o\n> <b>look</b>\n(advantage +0.500)"


TRACKIO_RUN = """
import sys
import toy
from progpo_trl import MultiTurnGRPOTrainer

tokenizer = toy.make_tokenizer()
MultiTurnGRPOTrainer(
    toy.make_model(tokenizer),
    toy.config(sys.argv[1], report_to="trackio"),
    environment=toy.tasks(),
    processing_class=tokenizer,
).train()
"""


@pytest.mark.slow
def test_trackio(tmp_path):
    """In a process of its own: trackio reads its folder from the environment when it is imported."""
    pytest.importorskip("trackio", reason="needs the extra `trackio`")
    here = Path(__file__).parent
    env = os.environ | {
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])]),
    }
    command = [sys.executable, "-c", TRACKIO_RUN, str(tmp_path / "run")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (database,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        logged = connection.execute("SELECT metrics FROM metrics").fetchall()
    assert any("rollout/success" in str(row[0]) for row in logged)
