"""Measures our ALFWorld engine, and the real one beside it where it is installed.

    python benchmarks/alfworld_engine.py --games PATH

Times are CPU times, so that another job on the machine disturbs them little. Each target is one the project states
for itself; the exit status is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import pickle
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from progpo_trl.environments.alfworld import AlfworldTasks, Game, GameFileError
from progpo_trl.environments.base import Environment

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "alfworld" / "games"
# name -> (limit, unit); "at least" targets are named so.
TARGETS = {"step": (25, "us"), "parse": (3, "ms"), "batch": (0.5, "s"), "episode": (64, "KB"), "ratio": (1000, "x")}


def timed(work: Callable[[], object]) -> tuple[int, object]:
    """(CPU nanoseconds, result) of one call."""
    start = time.process_time_ns()
    result = work()
    return time.process_time_ns() - start, result


def play(environment: Environment, task_id: str, steps: int, rng: random.Random, times: list[int]) -> None:
    """One episode of random admissible commands; appends the nanoseconds of each step that was really played."""
    admissible = environment.reset(task_id).admissible
    for _ in range(steps):
        action = rng.choice(admissible)
        spent, result = timed(lambda action=action: environment.step(action))
        times.append(spent)
        if result.done:
            break
        admissible = result.admissible


def choose(tasks: AlfworldTasks, count: int, seed: int) -> list[str]:
    """`count` games, drawn from all splits."""
    ids = [task_id for split in tasks.library.splits.values() for task_id in split]
    return random.Random(seed).choices(ids, k=count)


def median(times: list[int], unit: float) -> float:
    return statistics.median(times) / unit


def percentile_95(times: list[int], unit: float) -> float:
    return sorted(times)[int(0.95 * (len(times) - 1))] / unit


def measure_ours(tasks: AlfworldTasks, task_ids: list[str], seed: int) -> dict[str, tuple[float, float]]:
    """name -> (median, 95th percentile)."""
    library, rng = tasks.library, random.Random(seed)
    parsing = []
    for task_id in task_ids:
        raw = library.raw(task_id)
        spent, _ = timed(lambda raw=raw: Game.from_problem(raw.problem, raw.task, raw.version))
        parsing.append(spent)
        library.game(task_id)
    environment = tasks.make()
    steps: list[int] = []
    resets = [timed(lambda task_id=task_id: environment.reset(task_id))[0] for task_id in task_ids]
    for task_id in task_ids:
        play(environment, task_id, tasks.max_steps, rng, steps)
    return {
        "parse": (median(parsing, 1e6), percentile_95(parsing, 1e6)),
        "reset": (median(resets, 1e3), percentile_95(resets, 1e3)),
        "step": (median(steps, 1e3), percentile_95(steps, 1e3)),
    }


def measure_batch(tasks: AlfworldTasks, task_ids: list[str], seed: int) -> float:
    """CPU seconds for all games at once, turn by turn as a rollout plays them: resets and `max_steps` steps each.

    Episodes that end early start again, so that every game really takes all its steps.
    """
    rng = random.Random(seed)

    def everything() -> int:
        environments = [(tasks.make(), task_id) for task_id in task_ids]
        admissible = [environment.reset(task_id).admissible for environment, task_id in environments]
        for turn in range(tasks.max_steps):
            for slot, (environment, task_id) in enumerate(environments):
                result = environment.step(rng.choice(admissible[slot]))
                admissible[slot] = result.admissible
                if result.done and turn < tasks.max_steps - 1:
                    admissible[slot] = environment.reset(task_id).admissible
        return len(environments)

    return min(timed(everything)[0] for _ in range(3)) / 1e9


def measure_episodes(tasks: AlfworldTasks, task_ids: list[str], seed: int) -> dict[str, float]:
    """KB of one more episode in mid-game: pickled, and in memory beside the game, which is shared."""
    rng = random.Random(seed)

    def episodes() -> list[Environment]:
        played = []
        for task_id in task_ids:
            environment = tasks.make()
            play(environment, task_id, 25, rng, [])
            played.append(environment)
        return played

    episodes()  # everything that is made once
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    live = episodes()
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    pickled = max(len(pickle.dumps(environment)) for environment in live)
    return {"pickled": pickled / 1024, "memory": memory / len(live) / 1024}


def measure_real(games: Path, task_ids: list[str], steps: int, seed: int) -> dict[str, tuple[float, float]]:
    """The real engine's load with first reset, reset, and step, in milliseconds: name -> (median, 95th percentile)."""
    environment = AlfworldTasks(games, engine="textworld").make()
    rng = random.Random(seed)
    loads, resets, times = [], [], []
    for task_id in task_ids:
        loads.append(timed(lambda task_id=task_id: environment.reset(task_id))[0])
        resets.append(timed(lambda task_id=task_id: environment.reset(task_id))[0])
        play(environment, task_id, steps, rng, times)
    named = {"load and reset": loads, "reset": resets, "step": times}
    return {name: (median(values, 1e6), percentile_95(values, 1e6)) for name, values in named.items()}


class Table:
    """Prints rows as they come and remembers whether a target was missed."""

    def __init__(self):
        self.missed = False
        print(f"{'':34}{'median':>10}{'p95':>10}  {'unit':6}target")

    def row(self, name: str, values: tuple[float, ...], unit: str, target: str | None = None) -> None:
        verdict = ""
        if target is not None:
            limit, _ = TARGETS[target]
            met = values[0] >= limit if target == "ratio" else values[0] <= limit
            self.missed |= not met
            verdict = f"{'>=' if target == 'ratio' else '<='} {limit:g}: {'met' if met else 'MISSED'}"
        cells = "".join(f"{value:10.3g}" if value < 1000 else f"{value:10,.0f}" for value in values)
        print(f"{name:34}{cells:20}  {unit:6}{verdict}".rstrip())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--games",
        type=Path,
        default=SHARED,
        metavar="PATH",
        help="the games: $ALFWORLD_DATA, its json_2.1.1, a folder of *.jsonl.xz shards, or one shard "
        "(default: ../shared/data/alfworld/games beside the repository)",
    )
    parser.add_argument("--count", type=int, default=128, metavar="N", help="games to play (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which games and commands (default: 0)")
    parser.add_argument(
        "--real-games",
        type=int,
        default=6,
        metavar="N",
        help="games to play in the real engine, where it is installed; 0 leaves it out (default: %(default)s)",
    )
    parser.add_argument(
        "--real-steps", type=int, default=25, metavar="N", help="steps in each of those (default: %(default)s)"
    )
    arguments = parser.parse_args(argv)
    if arguments.count < 1 or arguments.real_games < 0 or arguments.real_steps < 1:
        parser.error("--count and --real-steps must be at least 1, --real-games at least 0")
    try:
        tasks = AlfworldTasks(arguments.games)
    except GameFileError as error:
        print(f"{error}\nGive the path of the games with --games PATH.", file=sys.stderr)
        return 2

    task_ids = choose(tasks, arguments.count, arguments.seed)
    print(f"{len(task_ids)} games of {tasks.library.path}, CPU time, Python {sys.version.split()[0]}\n")
    table = Table()
    ours = measure_ours(tasks, task_ids, arguments.seed)
    table.row("ours: parse a game", ours["parse"], "ms", "parse")
    table.row("ours: reset", ours["reset"], "us")
    table.row("ours: step", ours["step"], "us", "step")
    batch = measure_batch(tasks, task_ids, arguments.seed)
    table.row(f"ours: {len(task_ids)} games x {tasks.max_steps} steps", (batch,), "s", "batch")
    sizes = measure_episodes(tasks, task_ids, arguments.seed)
    table.row("ours: one more episode, in memory", (sizes["memory"],), "KB", "episode")
    table.row("ours: an episode, pickled", (sizes["pickled"],), "KB", "episode")
    if not arguments.real_games:
        print("\nThe real engine was left out (--real-games 0).")
    elif importlib.util.find_spec("alfworld") is None:
        print('\nThe real engine is not installed (pip install "progpo_trl[alfworld]"): no comparison.')
    else:
        chosen = task_ids[: arguments.real_games]
        real = measure_real(arguments.games, chosen, arguments.real_steps, arguments.seed)
        for name, values in real.items():
            table.row(f"real: {name}", values, "ms")
        table.row("real step / our step", (real["step"][0] * 1e3 / ours["step"][0],), "x", "ratio")
    return 1 if table.missed else 0


if __name__ == "__main__":
    sys.exit(main())
