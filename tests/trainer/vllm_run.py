"""A script for one or two processes: very uneven episodes through TRL's vLLM code, in both schedules and modes."""

import json
import os
import sys
from pathlib import Path

import toy
import vllm_on_cpu
from echo_run import Uneven

from progpo_trl import MultiTurnGRPOTrainer
from progpo_trl.environments import EnvironmentTasks

# Tasks are numbers; an episode takes one step more than its task's.
TRAIN = ["0", "7"]
# Of the two processes one has a single episode alive after a turn; the other has 60 turns to go.
UNEVEN = [["0", "0", "0", "1"], ["59", "59", "59", "59"]]

CASES = {
    "lockstep": {"vllm_mode": "server"},
    "streaming": {"vllm_mode": "server", "rollout_schedule": "streaming", "max_concurrent_requests": 3},
    "colocate": {"vllm_mode": "colocate", "vllm_enable_sleep_mode": True},
}


class Recorded(MultiTurnGRPOTrainer):
    """Keeps every training episode it played."""

    def rollout(self, inputs):
        episodes = super().rollout(inputs)
        self.played = [*getattr(self, "played", []), *episodes]
        return episodes


def make(out, url: str = "", cls=MultiTurnGRPOTrainer, tasks=TRAIN, environment=Uneven, **options):
    """A trainer on the toy policy that generates with vLLM."""
    tokenizer = toy.make_tokenizer()
    trainer = cls(
        toy.make_model(tokenizer),
        toy.config(
            out,
            **{
                "use_vllm": True,
                "vllm_server_base_url": url or None,
                "vllm_server_timeout": 0.0,
                "max_generations": 2,
                "max_turns": 61,
            }
            | options,
        ),
        environment=EnvironmentTasks(environment, tasks),
        processing_class=tokenizer,
    )
    calls = trainer.vllm_calls = []
    real = trainer.vllm_generation.generate

    def counted(*, prompts, **kwargs):
        calls.append(len(prompts))
        return real(prompts=prompts, **kwargs)

    trainer.vllm_generation.generate = counted
    return trainer


def record(episodes) -> list:
    return [
        [
            e.index,
            e.task_id,
            e.stop_reason.value,
            [[s.context_ids.tolist(), s.completion_ids.tolist()] for s in e.steps],
        ]
        for e in episodes
    ]


def run(out: Path, case: str, url: str, world: int, **options) -> dict:
    """Play the uneven episodes, then train; what was played and how vLLM was called."""
    trainer = make(out / case, url, Recorded, **CASES[case] | options)
    assert trainer.accelerator.num_processes == world, "the launcher did not start a distributed run"
    mine = range(2) if world == 1 else [trainer.accelerator.process_index]
    uneven = [trainer._new_episode(task, 4 * rank + i, rank) for rank in mine for i, task in enumerate(UNEVEN[rank])]
    trainer.play_episodes(uneven, trainer.sampling, seed=1, step=0)
    trainer.train()
    engine = vllm_on_cpu.EchoEngine.instances[-1] if case == "colocate" else None
    return {
        "world": trainer.accelerator.num_processes,
        "uneven": record(uneven),
        "trained": record(trainer.played),
        "calls": trainer.vllm_calls,
        "limit": trainer.vllm_generation.max_completion_length,
        "engine": engine.calls if engine else [],
    }


def main(out: str, world: int, lockstep_url: str, streaming_url: str) -> None:
    vllm_on_cpu.install(lockstep_url)
    results = {"lockstep": run(Path(out), "lockstep", lockstep_url, world)}
    vllm_on_cpu.install(streaming_url)
    results["streaming"] = run(Path(out), "streaming", streaming_url, world)
    results["colocate"] = run(Path(out), "colocate", "", world, vllm_tensor_parallel_size=world)
    (Path(out) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
