"""Where the CPU time of a training run goes: generation, loss, backward, optimizer, and everything around them.

    python benchmarks/training_breakdown.py [--config quickstart] [--generations 10] [-- settings for progpo train]

Times are CPU seconds of this process (all threads), so that other work on the machine counts little. "Around" is what
is ours or the framework's bookkeeping: environment, prompts, decoding, advantages, rows, padding and scoring of rows,
metrics, episodes.jsonl, the training loop. The first generation warms up and is left out.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections import defaultdict

import torch

from progpo_trl.settings import parse, versions
from progpo_trl.train import build_trainer

OURS = ("environment", "prompts", "decoding", "advantages", "rows", "metrics")


class Stopwatch:
    """CPU seconds spent inside wrapped calls, without those of wrapped calls inside them."""

    def __init__(self):
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[list] = []

    def wrap(self, owner, name: str, label: str) -> None:
        original = getattr(owner, name)

        def timed(*args, **kwargs):
            self._open.append([time.process_time(), 0.0])
            try:
                return original(*args, **kwargs)
            finally:
                started, inner = self._open.pop()
                spent = time.process_time() - started
                self.seconds[label] += spent - inner
                if self._open:
                    self._open[-1][1] += spent

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="quickstart", help="recipe to measure (default: quickstart)")
    parser.add_argument("--generations", type=int, default=10, help="generations after the warm-up (default: 10)")
    options, settings = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as output:
        argv = ["--config", options.config, "--output_dir", output, "--max_generations", str(options.generations + 1)]
        script, args, model_args = parse([*argv, *(s for s in settings if s != "--")])
        trainer = build_trainer(script, args, model_args)
        watch, clock = Stopwatch(), trainer.rollout_log.clock
        watch.wrap(trainer, "_compute_loss", "TRL's loss (forward)")
        watch.wrap(trainer.accelerator, "backward", "backward")
        marks: list[tuple[float, dict, dict]] = []
        rollout = trainer.rollout

        def marked(inputs):
            marks.append((time.process_time(), dict(clock.cpu), dict(watch.seconds)))
            if len(marks) == 1:
                # The optimizer exists only once training has begun.
                watch.wrap(trainer.optimizer, "step", "optimizer")
            return rollout(inputs)

        trainer.rollout = marked
        trainer.train()
        marks.append((time.process_time(), dict(clock.cpu), dict(watch.seconds)))
        report(marks, options)


def report(marks, options) -> None:
    """Print the table from the second generation on."""
    (start, clock_0, watch_0), (end, clock_1, watch_1) = marks[1], marks[-1]
    total = end - start
    inside = {name: watch_1[name] - watch_0.get(name, 0.0) for name in watch_1}
    inside["generation"] = clock_1["generation"] - clock_0["generation"]
    ours = {name: clock_1.get(name, 0.0) - clock_0.get(name, 0.0) for name in OURS}
    ours["padding, scoring, training loop"] = total - sum(inside.values()) - sum(ours.values())
    print(f"{options.config}, {options.generations} generations, {torch.get_num_threads()} torch threads, ", end="")
    print(f"{platform.machine()}, torch {versions()['torch']}, transformers {versions()['transformers']}")
    print(f"{'phase':34s} {'CPU s':>8s} {'share':>7s}")
    for name, seconds in sorted(inside.items(), key=lambda item: -item[1]):
        print(f"{name:34s} {seconds:8.2f} {seconds / total:7.1%}")
    for name, seconds in sorted(ours.items(), key=lambda item: -item[1]):
        print(f"  {name:32s} {seconds:8.2f} {seconds / total:7.1%}")
    print(f"{'all of it':34s} {total:8.2f}")
    print(f"outside generation, loss, backward and optimizer: {sum(ours.values()) / total:.1%}")


if __name__ == "__main__":
    main()
