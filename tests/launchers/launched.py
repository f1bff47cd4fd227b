"""What `accelerate launch` starts in these tests: `progpo train`, after which every process writes what it ran in.

    accelerate launch --config_file ... launched.py [settings of progpo train]

Process i leaves `rank<i>.json` in the output directory.
"""

import json
import os
import sys
from pathlib import Path

import progpo_trl.trainer
from progpo_trl import train
from progpo_trl.cli import main


class Recording(progpo_trl.trainer.MultiTurnGRPOTrainer):
    """Counts the passes that each slice of rows takes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.passes: list[int] = []
        plugin = self.accelerator.state.deepspeed_plugin
        if plugin is not None and plugin.zero_stage == 3:
            # By default small tensors stay whole, and everything here is small.
            zero = plugin.deepspeed_config["zero_optimization"]
            zero |= {"stage3_param_persistence_threshold": 0, "stage3_model_persistence_threshold": 0}

    def compute_loss(self, *args, **kwargs):
        self.passes.append(0)
        return super().compute_loss(*args, **kwargs)

    def _compute_loss(self, *args, **kwargs):
        self.passes[-1] += 1
        return super()._compute_loss(*args, **kwargs)


def facts_of(trainer: Recording) -> dict:
    accelerator = trainer.accelerator
    plugin = accelerator.state.deepspeed_plugin
    return {
        "world": accelerator.num_processes,
        "distributed_type": accelerator.distributed_type.value,
        "mixed_precision": accelerator.mixed_precision,
        "passes": trainer.passes,
        "wrapper": type(trainer.model_wrapped).__name__,
        "zero_stage": None if plugin is None else plugin.zero_stage,
        # Between steps ZeRO-3 leaves empty tensors in the place of weights.
        "elements_held": sum(p.numel() for p in trainer.model.parameters()),
    }


def run() -> int:
    train_run = train.run

    def recorded(trainer, script, args, *rest):
        code = train_run(trainer, script, args, *rest)
        path = Path(args.output_dir) / f"rank{os.environ.get('RANK', 0)}.json"
        path.write_text(json.dumps(facts_of(trainer)))
        return code

    progpo_trl.trainer.MultiTurnGRPOTrainer = Recording
    train.run = recorded
    return main(["train", *sys.argv[1:]])


if __name__ == "__main__":
    raise SystemExit(run())
