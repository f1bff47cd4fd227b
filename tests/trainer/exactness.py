"""The exactness matrix: which configurations are compared, on how many processes, and the table of the differences.

`python tests/trainer/exactness.py [WORLD ...]` runs it by hand (default: 1 2 4 processes) and prints the table.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from frozen import Case, save_base
from reference import reference_gradient

# The largest gradient entry is about 0.1, and float32 rounds at about 1e-8 of it for every one of a few rows.
TOLERANCE = 1e-6
WORLDS = (1, 2, 4)
LOSSES = ("dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")
WITHOUT_CLIPPING = ("sapo", "vespo")

# What must not matter, in turn over the cases below.
PACKING = ({"rows": 5}, {"tokens": 150}, {"rows": 64}, {"rows": 3, "tokens": 400}, {"tokens": 1})
LAYOUTS = ("mixed", "uneven", "even")


def _core() -> list[Case]:
    """Every loss type, level and context, on-policy and off-policy; packing, layout and KL penalty vary along."""
    levels = ("token", "sequence")
    product = itertools.product((1, 2), ("window", "full"), enumerate(LOSSES), levels)
    packing, layouts = itertools.cycle(PACKING), itertools.cycle(LAYOUTS)
    return [
        Case(
            context,
            loss,
            level,
            next(layouts),
            iterations=n,
            beta=0.04 * ((n + number + (context == "full") + (level == "token")) % 2),
            **next(packing),
        )
        for n, context, (number, loss), level in product
    ]


def _special() -> list[Case]:
    turns = itertools.cycle(LOSSES)
    return [
        # Two optimizer steps on one generation: their average is exact.
        *(Case("window", loss, updates=2, rows=5) for loss in LOSSES[:5]),
        # Slices accumulated into one optimizer step.
        *(Case("window", loss, accumulation=2, tokens=200, layout="uneven") for loss in LOSSES[:5]),
        Case("full", "dapo", accumulation=2, rows=3),
        # Every row twice: nothing changes.
        *(Case(context, next(turns), duplicate=2, rows=7) for context in ("window", "full") for _ in range(4)),
        # TRL's options of the loss, where they act: off-policy.
        *(Case(c, "dapo", iterations=2, delta=1.1, tokens=150) for c in ("window", "full")),
        *(Case(c, "grpo", iterations=2, off_policy_mask=0.02, layout="uneven", rows=5) for c in ("window", "full")),
        *(Case(c, "bnpo", iterations=2, beta=0.04, plain_kl=True, rows=5) for c in ("window", "full")),
        # A crashed episode leaves the loss and its normaliser.
        *(Case("window", loss, crash=True, rows=5) for loss in LOSSES[:5]),
    ]


CASES = tuple(dict.fromkeys(_core() + _special()))


def launch(processes: int, script: str, *arguments: str, timeout: float = 600) -> str:
    """Run a script of this folder under torchrun on CPU; returns its output."""
    env = os.environ | {
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--standalone"]
    done = subprocess.run(
        [*torchrun, str(Path(__file__).parent / script), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def gradients(world: int, folder: str, cases=CASES) -> list[dict]:
    """What the trainer gives for each case on `world` processes: one torchrun for all."""
    with tempfile.TemporaryDirectory() as place:
        out, wanted = Path(place) / "out.pt", Path(place) / "cases.json"
        wanted.write_text(json.dumps([dataclasses.asdict(c) for c in cases]))
        launch(world, "frozen.py", str(out), str(wanted), folder)
        return torch.load(out)


class References:
    """Reference gradients; on-policy ones do not depend on the process count and are computed once."""

    def __init__(self, folder: str):
        self.folder, self._known = folder, {}

    def __call__(self, case: Case, weights: dict) -> dict:
        if case.iterations > 1:
            return reference_gradient(case, self.folder, weights)
        same = {"rows": None, "tokens": None, "updates": 1, "accumulation": 1, "duplicate": 1}
        key = dataclasses.replace(case, **same)
        if key not in self._known:
            self._known[key] = reference_gradient(key, self.folder)
        return self._known[key]


def difference(case: Case, got: dict, world: int, references: References) -> float:
    """Largest difference of any gradient entry; fails where a comparison would be empty.

    luspo's loss is a sum over a row's tokens where the others' are means: its gradient is compared per token."""
    assert got["world"] == world
    want = references(case, got["weights"])
    largest = max(g.abs().max().item() for g in want["gradient"].values())
    assert largest > 1e-4, "the reference gradient is empty"
    if case.iterations > 1 and case.loss_type not in WITHOUT_CLIPPING:
        assert got["clip"] > 0, "nothing was clipped"
        assert want["clipped"] > 0, "the reference clipped nothing"
    per = want["tokens_per_row"] if case.loss_type == "luspo" else 1.0
    return max((got["gradient"][n] - g).abs().max().item() for n, g in want["gradient"].items()) / per


def main(worlds: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_base(folder)
        references = References(folder)
        worst: dict[tuple, dict[int, float]] = {}
        for world in worlds:
            for case, got in zip(CASES, gradients(world, folder), strict=True):
                row = (case.loss_type, case.context, "off-policy" if case.iterations > 1 else "on-policy")
                cell = worst.setdefault(row, {})
                cell[world] = max(cell.get(world, 0.0), difference(case, got, world, references))
    print("| loss | context | policy | " + " | ".join(f"{w} process{'es' * (w > 1)}" for w in worlds) + " |")
    print("|---|---|---|" + "---|" * len(worlds))
    for row, cell in sorted(worst.items(), key=lambda item: (LOSSES.index(item[0][0]), item[0])):
        print("| " + " | ".join(row) + " | " + " | ".join(f"{cell[w]:.1e}" for w in worlds) + " |")
    largest = max(max(cell.values()) for cell in worst.values())
    print(f"{len(CASES)} cases on each of {worlds} processes: worst {largest:.1e}, allowed {TOLERANCE:.0e}")
    sys.exit(largest >= TOLERANCE)


if __name__ == "__main__":
    main([int(w) for w in sys.argv[1:]] or list(WORLDS))
