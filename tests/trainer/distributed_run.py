"""A script for two processes: one short training with uneven episodes; rank 0 writes what happened."""

import json
import sys
from pathlib import Path
from typing import ClassVar

import toy

from progpo_trl import HGPO, GiGPO, MultiTurnGRPOTrainer, ProGPO

BASES = {"window": GiGPO(stats="steps"), "full": HGPO(base_group=True, stats="steps")}


class Trainer(MultiTurnGRPOTrainer):
    """Records the batch every process saw in its advantage step."""

    seen: ClassVar[list] = []

    def compute_advantages(self, batch):
        advantages = super().compute_advantages(batch)
        self.seen.append([len(batch), batch.episode_group.tolist(), self.advantage.all_fail(batch)[2]])
        self.seen[-1].append([round(float(a), 6) for a in advantages])
        return advantages


def main(out: str, context: str, world: int) -> None:
    tokenizer = toy.make_tokenizer()
    trainer = Trainer(
        toy.make_model(tokenizer),
        toy.config(Path(out) / "run", context=context, max_generations=2, rows_per_forward=3, logging_steps=1),
        environment=toy.tasks(n_eval=5),
        # Bases with a global statistic of their own: all steps of a group, and sets of steps.
        advantage=ProGPO(BASES[context]),
        processing_class=tokenizer,
    )
    assert trainer.accelerator.num_processes == world, "the launcher did not start a distributed run"
    trainer.train()
    panel = trainer.evaluate_panel(temperature=1.0)
    (Path(out) / f"rank{trainer.accelerator.process_index}.json").write_text(
        json.dumps(
            {
                "world": trainer.accelerator.num_processes,
                "seen": trainer.seen,
                "weights": float(sum(p.double().abs().sum() for p in trainer.model.parameters())),
                "panel": [[e.task_id, [s.response for s in e.steps]] for e in panel],
                "logs": [e for e in trainer.state.log_history if "rollout/success" in e],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
