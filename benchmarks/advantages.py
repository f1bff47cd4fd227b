"""Measures the advantage estimators, with plain Python loops over the same formulas beside them.

    python benchmarks/advantages.py [--check]

25,600 steps (64 groups x 8 episodes x 50 steps) of made-up text of ALFWorld's kind; CPU time, so that another job on
the machine disturbs it little; every call gets new string objects. Growth is the time at 102,400 steps over that at
25,600, median of nine. Peak memory is that of a process of its own. With --check the exit status is 1 when a limit
is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import advantage_loops as loops
import numpy as np
from advantage_batches import alfworld_like, all_distinct, fresh, shop_like

from progpo_trl.advantages import GRPO, HGPO, TRLGRPO, GiGPO, ProGPO, ProxMO, step_returns
from progpo_trl.episodes import StepBatch

GROUPS, GROWTH = 64, 4.8


@dataclass(frozen=True)
class Item:
    """work: what is timed; loop: the same in plain Python; loop_groups: how many groups the loop is timed on, its
    time then scaled up (every formula treats groups one by one); limit: milliseconds; memory: MB.
    """

    name: str
    work: Callable[[StepBatch], object]
    loop: Callable[[StepBatch], object]
    limit: float
    loop_groups: int = GROUPS
    memory: float | None = None


def _zero(batch: StepBatch) -> np.ndarray:
    return np.zeros(len(batch), np.float32)


def _soft(batch: StepBatch) -> np.ndarray:
    return ProxMO().step_term(batch, step_returns(batch, 0.95))


ITEMS = [
    Item("GRPO", GRPO(), loops.grpo, 15),
    Item("returns + GiGPO", GiGPO(), loops.gigpo, 60),
    Item("HGPO, H = 4", HGPO(history_length=4), loops.hgpo, 120),
    Item("ProGPO's own part", ProGPO(_zero), loops.progpo, 20),
    Item("ProxMO soft aggregation", _soft, loops.soft_aggregation, 400, loop_groups=1, memory=500),
    Item("similarity grouping", GiGPO(similarity=0.95).anchors, loops.similar_anchors, 3000, loop_groups=1),
]

# What has to fit into 1 GB and 10 seconds (similarity grouping: 60) on long texts and on one huge group.
EVERY = {
    "grpo": GRPO(),
    "trl_grpo": TRLGRPO(),
    "gigpo": GiGPO(),
    "gigpo similarity": GiGPO(similarity=0.95),
    "hgpo H=4": HGPO(history_length=4),
    "proxmo": ProxMO(),
    "proxmo released": ProxMO.released_code(),
    "proxmo all terms": ProxMO(max_features=None),
    "proxmo same step": ProxMO(psa_candidates="same_step"),
    "progpo": ProGPO(),
    "progpo edit_distance": ProGPO(progress="edit_distance"),
    "progpo + hgpo, step": ProGPO(HGPO(), level="step"),
}
BATCHES = {
    "512 steps of 2-4 KB": lambda: shop_like(4, 8, 16),
    "5,000 distinct, one group": lambda: all_distinct(5000, pages=False),
    "5,000 distinct of 2-4 KB, one group": lambda: all_distinct(5000, pages=True),
}
SECONDS, SECONDS_SIMILARITY, MEGABYTES = 10.0, 60.0, 1024.0


def cpu_seconds(work: Callable[[StepBatch], object], batch: StepBatch, repeats: int) -> list[float]:
    """CPU seconds of `repeats` calls on new copies of `batch`."""
    times = []
    for _ in range(repeats):
        copy = fresh(batch)
        gc.collect()
        start = time.process_time()
        work(copy)
        times.append(time.process_time() - start)
    return times


def growth(work: Callable[[StepBatch], object], small: StepBatch, large: StepBatch, repeats: int) -> float:
    """Median over pairs of time on `large` over time on `small`, measured in turn."""
    ratios = []
    for _ in range(repeats):
        before = cpu_seconds(work, small, 1)[0]
        ratios.append(cpu_seconds(work, large, 1)[0] / max(before, 1e-9))
    return statistics.median(ratios)


def measure_alone(batch: str, name: str) -> tuple[float, float]:
    """(CPU seconds, peak MB) of one item in a process of its own."""
    command = [sys.executable, __file__, "--alone", batch, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(json.loads(done.stdout))


def alone(batch: str, name: str) -> None:
    """The other end of `measure_alone`: prints JSON; the memory is the process's, packages and texts too."""
    made = alfworld_like(GROUPS) if batch == "speed" else BATCHES[batch]()
    work = next(i.work for i in ITEMS if i.name == name) if batch == "speed" else EVERY[name]
    seconds = cpu_seconds(work, made, 1)[0]
    print(json.dumps([seconds, peak_megabytes()]))


def peak_megabytes() -> float:
    """Largest resident size of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage starts from the size of the parent process
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 1024
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


class Verdicts:
    """Prints whether limits are met and remembers whether one was not."""

    def __init__(self):
        self.missed = False

    def __call__(self, value: float, limit: float | None) -> str:
        if limit is None:
            return ""
        self.missed |= value > limit
        return f"<= {limit:g}" if value <= limit else f"> {limit:g} MISSED"


def speed(groups: int, repeats: int, verdict: Verdicts) -> None:
    """The table of speeds."""
    small, large = alfworld_like(groups), alfworld_like(4 * groups, seed=1)
    distinct = statistics.fmean(len(set(small.observation[small.group == g])) for g in range(groups))
    print(f"{len(small):,} steps, {distinct:.0f} distinct observations a group; CPU time, median of {repeats}\n")
    print(f"{'':26}{'ms':>9}  {'limit':13}{'loops, ms':>11}{'faster':>9}{'growth':>9}  {'limit':13}{'MB':>6}  limit")
    for item in ITEMS:
        item.work(fresh(small))  # imports
        milliseconds = 1e3 * statistics.median(cpu_seconds(item.work, small, repeats))
        part = min(item.loop_groups, groups)
        rows = np.flatnonzero(small.group < part)
        start = time.process_time()
        item.loop(fresh(small.select(rows)))
        looped = 1e3 * (time.process_time() - start) * groups / part
        ratio = growth(item.work, small, large, repeats)
        memory = measure_alone("speed", item.name)[1] if item.memory else None
        scaled = "~" if part < groups else " "
        print(
            f"{item.name:26}{milliseconds:9.1f}  {verdict(milliseconds, item.limit):13}{scaled}{looped:10,.0f}"
            f"{looped / milliseconds:8.0f}x{ratio:9.2f}  {verdict(ratio, GROWTH):13}"
            + (f"{memory:6.0f}  {verdict(memory, item.memory)}" if memory else "")
        )
    print("\n~ timed on one group and scaled up to all; growth: time at four times the steps")


def sizes(verdict: Verdicts) -> None:
    """The table of long texts and huge groups."""
    for batch in BATCHES:
        print(f"\n{batch + '; own process':44}{'CPU s':>9}  {'limit':15}{'peak MB':>9}  limit")
        for name in EVERY:
            seconds, memory = measure_alone(batch, name)
            limit = SECONDS_SIMILARITY if "similarity" in name else SECONDS
            met = verdict(memory, MEGABYTES)
            print(f"  {name:42}{seconds:9.2f}  {verdict(seconds, limit):15}{memory:9.0f}  {met}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when a limit is missed")
    parser.add_argument("--groups", type=int, default=GROUPS, metavar="N", help="limits are for %(default)s")
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="calls timed (default: %(default)s)")
    parser.add_argument("--only", choices=("speed", "sizes"), help="one of the two tables")
    parser.add_argument("--alone", nargs=2, metavar=("BATCH", "NAME"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.alone:
        alone(*arguments.alone)
        return 0
    if arguments.groups < 1 or arguments.repeats < 1:
        parser.error("--groups and --repeats must be at least 1")
    verdict = Verdicts()
    if arguments.only != "sizes":
        speed(arguments.groups, arguments.repeats, verdict)
    if arguments.only != "speed":
        sizes(verdict)
    print("\na limit is missed" if verdict.missed else "\nall limits are met")
    return 1 if arguments.check and verdict.missed else 0


if __name__ == "__main__":
    sys.exit(main())
