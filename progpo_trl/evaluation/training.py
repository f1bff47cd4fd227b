"""evaluation-<step>.json of a training: the panel a trainer has just played, in the format of `progpo evaluate`."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from progpo_trl.episodes import Episode
from progpo_trl.evaluation.agents import Game
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.panel import panel_of_ids
from progpo_trl.evaluation.policy_agent import PlaySettings
from progpo_trl.evaluation.results import FORMAT, game_record, summaries, write_json
from progpo_trl.evaluation.run import conditions_of

logger = logging.getLogger(__name__)


def write_training_evaluation(trainer, episodes: Sequence[Episode]) -> Path | None:
    """Write what `trainer.evaluate()` played into its output folder, and the episodes beside it (`save_episodes`).

    Main process only. The path of the file; None when it could not be written: logging never stops a training.
    """
    args, step = trainer.args, trainer.weights_step
    played = {e.task_id: e for e in episodes}
    panel = panel_of_ids(trainer.tasks, played)
    lines = []
    for place, task_id in enumerate(panel.task_ids):
        e = played[task_id]
        game = Game(panel.split, e.task_id, e.task_type, place, float(args.eval_temperature), args.eval_seed)
        lines.append({"step": step, **e.to_json(), "game": game_record(game, e)})
    records = [line["game"] for line in lines]
    content = {
        "format": FORMAT,
        "complete": True,
        "agent": {
            "kind": "policy",
            "model": trainer.model.config._name_or_path or None,
            "run": args.output_dir,
            "training_seed": args.seed,
            "step": step,
            "settings": _settings(trainer),
        },
        "environment": {"name": trainer.tasks.name},
        "conditions": conditions_of(trainer.tasks, min(trainer.max_turns, trainer.tasks.max_steps)),
        "panels": [panel.facts()],
        "results": summaries(records),
        "games": records,
        "machine": {
            "device": trainer.accelerator.device.type,
            "dtype": str(trainer.model.dtype).removeprefix("torch."),
            "mixed_precision": trainer.accelerator.mixed_precision,
            "processes": trainer.accelerator.num_processes,
        },
    }
    path = Path(args.output_dir, f"evaluation-{step}.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
        if args.save_episodes:
            with open(path.with_suffix(".episodes.jsonl"), "w", encoding="utf-8", errors="replace") as file:
                file.writelines(json.dumps(line, default=str) + "\n" for line in lines)
    except OSError as error:
        logger.warning("the evaluation of step %d was not saved: %s", step, error)
        return None
    return path


def _settings(trainer) -> dict[str, Any] | None:
    """How the policy was asked; None where it sampled in a way that `progpo evaluate` has not."""
    try:
        return asdict(PlaySettings.from_config(trainer.args))
    except EvaluationError:
        return None
