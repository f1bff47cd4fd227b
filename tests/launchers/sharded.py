"""Frozen episodes on a policy that torch's `fully_shard` (FSDP2) has cut in shards; started by `accelerate launch`.

    accelerate launch --config_file fsdp2.yaml sharded.py OUT BASE_MODEL

accelerate forms no FSDP without a GPU, so the sharding is done here, as accelerate does it: every decoder layer, then
the whole. Every process writes OUT/rank<i>.pt.
"""

import sys
from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
import toy
from frozen import EPISODES, GROUP, Case, FrozenTrainer, policy


class CountingTrainer(FrozenTrainer):
    passes = 0

    def _compute_loss(self, *args, **kwargs):
        self.passes += 1
        return super()._compute_loss(*args, **kwargs)


def shard(model: torch.nn.Module, world: int) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (world,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main(out: str, base: str) -> None:
    FrozenTrainer.case = Case(rows=3)
    args = toy.config(
        Path(out) / "run",
        num_generations=GROUP,
        groups_per_generation=EPISODES // GROUP,
        rows_per_forward=3,
        max_completion_length=256,
        save_episodes=False,
    )
    trainer = CountingTrainer(
        policy(base, 0.0), args, environment=toy.tasks(EPISODES), processing_class=toy.make_tokenizer()
    )
    accelerator = trainer.accelerator
    world = accelerator.num_processes
    rows = trainer._generate_and_score_completions([{"task_id": "0"}] * (EPISODES // world))
    model = shard(trainer.model, world).train()
    # What transformers' training loop and accelerate set where they have formed FSDP.
    trainer.model_wrapped, trainer.is_fsdp_enabled, trainer.current_gradient_accumulation_steps = model, True, 1
    accelerator.backward(trainer.compute_loss(model, rows))
    parameters = dict(model.named_parameters())
    torch.save(
        {
            "world": world,
            "distributed_type": accelerator.distributed_type.value,
            "is_fsdp2": accelerator.is_fsdp2,
            "sharded": all(isinstance(p, DTensor) and isinstance(p.grad, DTensor) for p in parameters.values()),
            "share_held": sum(p.to_local().numel() for p in parameters.values())
            / sum(p.numel() for p in parameters.values()),
            "passes": trainer.passes,
            "gradient": {name: p.grad.full_tensor() for name, p in parameters.items()},
        },
        Path(out) / f"rank{accelerator.process_index}.pt",
    )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
