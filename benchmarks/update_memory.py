"""Measured peak memory of the trainer's update on a CPU, over the prediction of benchmarks/update_peak.py.

    python benchmarks/update_memory.py                   the shapes below, each in a process of its own
    python benchmarks/update_memory.py --shape 0         one of them
    python benchmarks/update_memory.py --limit 1.0       leave out shapes predicted above so many GB

Policies of the Qwen2.5 architecture with its real vocabulary of 151,936 and a small hidden size train through
MultiTurnGRPOTrainer on rows of random tokens. Measured is what the kernel says the process held at most during
`training_step` (forward, TRL's loss, backward), less what it held before: weights, the batch and the libraries.
Exit code 1 when a ratio lies outside 0.77 to 1.3.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from update_peak import GB, QWEN, Dims, update_peak

VOCABULARY = QWEN["1.5B"].vocabulary
BAND = (0.77, 1.3)


@dataclass(frozen=True)
class Shape:
    """A batch and a policy. uneven: rows have lengths from a half to the whole, so that there is padding."""

    rows: int
    prompt: int
    response: int
    hidden: int
    layers: int
    tied: bool = True
    checkpointing: bool = False
    uneven: bool = True

    @property
    def dims(self) -> Dims:
        return Dims(self.hidden, self.layers, 4 * self.hidden, 4, 2, VOCABULARY, self.tied)

    def lengths(self) -> list[tuple[int, int]]:
        """(prompt, response) of every row; the first is the longest."""
        if not self.uneven:
            return [(self.prompt, self.response)] * self.rows
        shares = [1 - 0.5 * i / max(1, self.rows - 1) for i in range(self.rows)]
        return [(int(self.prompt * s), int(self.response * s)) for s in shares]

    def predicted(self) -> dict[str, float]:
        return update_peak(
            self.dims,
            self.rows,
            self.prompt + self.response,
            sum(r for _, r in self.lengths()),
            checkpointing=self.checkpointing,
        )


SHAPES = (
    Shape(4, 2048, 512, hidden=256, layers=4, uneven=False),
    Shape(4, 2048, 512, hidden=256, layers=4),
    Shape(4, 2048, 512, hidden=256, layers=8, checkpointing=True),
    Shape(2, 1024, 256, hidden=512, layers=6),
    Shape(8, 600, 24, hidden=128, layers=8),
    Shape(2, 512, 1024, hidden=256, layers=2, tied=False),
    Shape(8, 600, 4, hidden=256, layers=4, checkpointing=True),
    Shape(2, 64, 8, hidden=256, layers=2),
    Shape(2, 256, 64, hidden=64, layers=2),
)


def measure(shape: Shape) -> float:
    """Bytes at the peak of one training_step, less those before it. For a fresh process."""
    import numpy as np
    import torch
    from gpu_models import make_model
    from transformers import AutoTokenizer

    from progpo_trl import Environment, Episode, MultiTurnGRPOConfig, MultiTurnGRPOTrainer, StopReason
    from progpo_trl.episodes import Step
    from progpo_trl.tiny_policy import checkpoint_path

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    grown: list[float] = []

    class Frozen(MultiTurnGRPOTrainer):
        """Plays nothing: its episodes are one step of random tokens each, of the lengths asked for."""

        def rollout(self, inputs):
            episodes = []
            for row, (prompt, response) in zip(inputs, shape.lengths(), strict=True):
                ids = rng.integers(0, VOCABULARY, prompt + response).astype(np.int32)
                step = Step("seen", ids[:prompt], ids[prompt:], None, "said", "done", True, True)
                episodes.append(Episode(row["task_id"], steps=[step], stop_reason=StopReason.STEP_LIMIT))
            return episodes

        def compute_advantages(self, batch):
            return rng.normal(size=len(batch)).astype(np.float32)

        def training_step(self, *args, **kwargs):
            inputs = self._prepare_inputs(args[1])
            before = restart_peak()
            # The batch is ready: the update is all that is left.
            self._prepare_inputs, prepare = (lambda _: inputs), self._prepare_inputs
            try:
                return super().training_step(*args, **kwargs)
            finally:
                self._prepare_inputs = prepare
                grown.append(peak() - before)

    dims = shape.dims
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path())
    with tempfile.TemporaryDirectory() as output:
        trainer = Frozen(
            make_model(dims, tokenizer, torch.device("cpu")),
            MultiTurnGRPOConfig(
                output_dir=output,
                groups_per_generation=1,
                num_generations=shape.rows,
                max_generations=1,
                max_completion_length=shape.response,
                gradient_checkpointing=shape.checkpointing,
                use_cpu=True,
                bf16=False,
                optim="sgd",
                report_to="none",
                save_strategy="no",
                save_episodes=False,
                disable_tqdm=True,
                show_rollout_progress=False,
            ),
            environment=Environment,
            train_dataset=["a task"],
            processing_class=tokenizer,
        )
        trainer.train()
    return grown[0]


def restart_peak() -> float:
    """Let the kernel's peak of this process start from now; what it holds now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}: this measurement needs Linux")


def measured_apart(*indices: int) -> list[float]:
    """`measure` of each shape in a fresh process whose allocator gives memory back at once, so that figures repeat."""
    environment = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": "262144",
        "MALLOC_TRIM_THRESHOLD_": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, __file__, "--measure", *map(str, indices)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the measurement of shapes {indices} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, action="append", help="number of a shape to measure (default: all)")
    parser.add_argument("--limit", type=float, default=float("inf"), help="skip shapes predicted above so many GB")
    parser.add_argument("--measure", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure is not None:
        print(json.dumps([measure(SHAPES[index]) for index in options.measure]))
        return 0
    print("rows prompt response hidden layers tied ckpt uneven  predicted GB  measured GB  ratio  peak at")
    outside = 0
    for index in options.shape or range(len(SHAPES)):
        shape = SHAPES[index]
        moments = shape.predicted()
        predicted = moments.pop("peak")
        if predicted > options.limit * GB:
            print(f"shape {index} left out: {predicted / GB:.2f} GB")
            continue
        (got,) = measured_apart(index)
        ratio = got / predicted
        outside += not BAND[0] <= ratio <= BAND[1]
        values = " ".join(f"{v!s:>6}" for v in asdict(shape).values())
        print(f"{values} {predicted / GB:13.3f} {got / GB:12.3f} {ratio:6.2f}  {max(moments, key=moments.get)}")
    print(f"band {BAND[0]} to {BAND[1]}: {'MISSED by ' + str(outside) if outside else 'met'}")
    return int(outside > 0)


if __name__ == "__main__":
    raise SystemExit(main())
