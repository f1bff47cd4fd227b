"""A script for one or two processes: TRL's generation replaced by an echo that checks the protocol of its callers."""

import json
import sys
from pathlib import Path

import toy
from accelerate.utils import gather_object

from progpo_trl import MultiTurnGRPOTrainer
from progpo_trl.environments import EnvironmentTasks, StepResult


class Uneven(toy.Corridor):
    """An episode takes one step more than the number of its task."""

    def reset(self, task_id, seed=0):
        self.length = 1 + int(task_id)
        return super().reset(task_id, seed)

    def step(self, action):
        self.t += 1
        return StepResult(f"Step {self.t}.", reward=float(self.t), done=self.t == self.length)


class EchoTrainer(MultiTurnGRPOTrainer):
    """Goes through TRLGeneration; the "backend" answers every prompt with its own last ids, as a server would.

    Like TRL's vLLM client it collects all processes' prompts and deals the answers out by the local count, which goes
    wrong in silence when processes call with different counts.
    """

    def _own_generation(self):
        return False

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations):
        assert num_generations == 1
        self.calls = [*getattr(self, "calls", []), len(prompt_ids)]
        everyone = gather_object(prompt_ids)
        start = self.accelerator.process_index * len(prompt_ids)
        mine = everyone[start : start + len(prompt_ids)]
        return [ids[-7:-2] for ids in mine], [[-0.5] * 5 for _ in mine]

    def rollout(self, inputs):
        self.played = super().rollout(inputs)
        return self.played


def main(out: str, world: int) -> None:
    tokenizer = toy.make_tokenizer()
    trainer = EchoTrainer(
        toy.make_model(tokenizer),
        toy.config(Path(out) / "run", max_generations=2),
        environment=EnvironmentTasks(Uneven, ["0", "3"]),
        processing_class=tokenizer,
    )
    assert trainer.accelerator.num_processes == world, "the launcher did not start a distributed run"
    trainer.train()
    wrong = [
        (e.task_id, i)
        for e in trainer.played
        for i, s in enumerate(e.steps)
        if s.completion_ids.tolist() != s.context_ids[-7:-2].tolist()
    ]
    lengths = [len(e.steps) for e in trainer.played]
    result = {"wrong": wrong, "calls": trainer.calls, "lengths": lengths}
    (Path(out) / f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
