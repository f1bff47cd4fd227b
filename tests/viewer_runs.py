"""Runs for the tests of `progpo view` and `progpo plots`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from progpo_trl.viewer.sources import open_run

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from viewer_episodes import write_run

__all__ = ["EVIL", "episode", "step", "opened", "write", "write_run"]

EVIL = (
    '<script>window.owned=1</script></script><!--<img src=x onerror="window.owned=1">\'"&amp;\u2028\u2029'
    "\x00\x07\x1b[31m\r\u202eright to left\u202c\u200bhidden\ud800\U000e0041\x85 end"
)


def step(**fields: Any) -> dict[str, Any]:
    """A step as a run writes it, with other values for some fields."""
    return {
        "observation": "You see a desk.",
        "response": "<action>look</action>",
        "action": "look",
        "format_valid": True,
        "admissible": True,
        "reward": 0.0,
        "tokens": 5,
        "truncated": False,
        "advantage": 0.5,
    } | fields


def episode(**fields: Any) -> dict[str, Any]:
    """An episode as a run writes it, with other values for some fields."""
    return {
        "step": 0,
        "task_id": "task-0",
        "task_type": "look",
        "task": "look around",
        "group": 0,
        "index": 0,
        "seed": 0,
        "success": False,
        "stop_reason": "step_limit",
        "error": None,
        "return": 0.0,
        "extra_rewards": {},
        "final_observation": "You see a shelf.",
        "steps": [step(), step(observation="You see a bed.")],
    } | fields


def write(folder: Path, *records: Any, name: str = "episodes.jsonl") -> Path:
    """Write records (or lines as they are, where they are bytes) to a file of a folder; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records]
    (folder / name).write_bytes(b"".join(lines))
    return folder / name


def opened(path: Path, **options: Any):
    """The run at a path with its indexes read."""
    run = open_run(path, **options)
    for source in run.sources:
        source.index.refresh()
    return run
