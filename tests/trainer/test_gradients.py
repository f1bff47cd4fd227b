"""The trainer's gradient against an independent float64 reference, for every normaliser, chunking and process count.

The largest gradient entry is about 0.1, float32 rounding about 1e-7.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from frozen import Case, largest_difference, reference_gradient, save_base, trainer_gradient

TOLERANCE = 1e-6
LOSSES = ("dapo", "grpo", "bnpo", "dr_grpo")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    save_base(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def references(base):
    known = {}

    def reference(case: Case):
        key = dataclasses.replace(case, rows_per_forward=64, updates=1, accumulation=1, duplicate=1)
        if key not in known:
            known[key] = reference_gradient(key, base)
        return known[key]["gradient"]

    return reference


def check(got, want):
    assert max(g.abs().max().item() for g in want.values()) > 1e-4, "the reference gradient is empty"
    assert largest_difference(got, want) < TOLERANCE


CASES = [
    *(Case(c, loss, rows_per_forward=n) for c, loss, n in itertools.product(("window", "full"), LOSSES, (1, 5, 64))),
    *(Case("window", loss, rows_per_forward=5, beta=0.04) for loss in LOSSES),
    Case("full", "dapo", rows_per_forward=3, beta=0.04),
    *(Case(c, loss, level="sequence", rows_per_forward=5) for c in ("window", "full") for loss in ("grpo", "dapo")),
    # Two optimizer steps on one generation: their average is exact.
    *(Case("window", loss, updates=2, rows_per_forward=5) for loss in LOSSES),
    # Slices accumulated into one optimizer step.
    *(Case("window", loss, accumulation=4, rows_per_forward=3) for loss in LOSSES),
    Case("full", "dapo", accumulation=2, rows_per_forward=3),
    # Every row twice: nothing changes.
    *(Case(c, loss, duplicate=2) for c in ("window", "full") for loss in LOSSES),
    # A crashed episode leaves the loss and its normaliser.
    *(Case("window", loss, crash=True, rows_per_forward=5) for loss in LOSSES),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case, base, references):
    check(trainer_gradient(case, base)["gradient"], references(case))


@pytest.mark.parametrize("context", ["window", "full"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss", LOSSES)
def test_clipped_gradient_off_policy(loss, level, context, base):
    """The second pass over a generation: ratios away from 1, some of them clipped."""
    case = Case(context, loss, level=level, iterations=2, rows_per_forward=5, beta=0.04 * (context == "window"))
    got = trainer_gradient(case, base)
    want = reference_gradient(case, base, got["weights"])
    assert got["clip"] > 0
    assert want["clipped"] > 0
    check(got["gradient"], want["gradient"])


DISTRIBUTED = [
    *(Case("window", loss, rows_per_forward=n) for loss in LOSSES for n in (3, 64)),
    *(Case("full", loss, rows_per_forward=3) for loss in LOSSES),
    *(Case("window", loss, rows_per_forward=4, beta=0.04) for loss in LOSSES),
    Case("full", "dapo", rows_per_forward=4, beta=0.04),
    *(Case("window", loss, level="sequence", rows_per_forward=4) for loss in LOSSES),
    *(Case("window", loss, rows_per_forward=4, iterations=2) for loss in LOSSES),
    Case("full", "grpo", level="sequence", rows_per_forward=4, iterations=2),
    Case("window", "dapo", rows_per_forward=4, updates=2),
    Case("window", "grpo", rows_per_forward=4, accumulation=2),
    Case("window", "dapo", rows_per_forward=4, crash=True),
]


@pytest.mark.distributed
@pytest.mark.slow
def test_gradient_on_two_processes(base, references, tmp_path):
    (tmp_path / "cases.json").write_text(json.dumps([dataclasses.asdict(c) for c in DISTRIBUTED]))
    launch(2, "frozen.py", str(tmp_path / "out.pt"), str(tmp_path / "cases.json"), base)
    for case, got in zip(DISTRIBUTED, torch.load(tmp_path / "out.pt"), strict=True):
        off_policy = case.iterations > 1
        want = reference_gradient(case, base, got["weights"])["gradient"] if off_policy else references(case)
        difference = largest_difference(got["gradient"], want)
        assert difference < TOLERANCE, f"{case}: {difference}"


def launch(processes: int, script: str, *arguments: str) -> str:
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
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
