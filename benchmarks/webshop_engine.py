"""How fast and how large our WebShop is: steps, builds, searches, memory, from 1,000 products up.

    python benchmarks/webshop_engine.py [--data DIR] [--sizes 1000,10000,100000] [--check]

Without --data everything is measured in generated shops. With a folder of the official files the small shop is the
real one, played with the recorded actions of traces_seed0.json.gz where the folder holds them.

Times are CPU times, so that another job on the machine disturbs them little. Memory is measured in processes of their
own, from a bare interpreter on, so that it counts all imports. Each target is one the project states for itself; with
--check the exit status is 1 when one is missed. The last column extrapolates the line through the two largest sizes to
the full set of the original, which has 1.18 million products.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from progpo_trl.environments.webshop.baselines import random_agent
from progpo_trl.environments.webshop.catalogue import Catalogue
from progpo_trl.environments.webshop.environment import WebshopEnvironment
from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.files import find_files
from progpo_trl.environments.webshop.splits import GoalIds
from progpo_trl.environments.webshop.store import build_store, generated_source, open_store
from progpo_trl.environments.webshop.tasks import (
    GeneratedWebshopTasks,
    ShopTasks,
    WebshopTasks,
    generate_catalogue,
    load_catalogue,
)

FULL = 1_180_000
# name -> (limit, whether at least that much is wanted)
TARGETS = {
    "steps": (30_000, True),
    "build": (2, False),
    "growth": (80, False),
    "episode": (1024, False),
    "index": (180, False),
    "search": (20, False),
    "mapped": (600, False),
}
# Target sizes: those of "index", "search" and "mapped" are stated for this many products.
LARGE = 100_000
Episode = tuple[str, list[str]]  # task id, actions


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """(CPU seconds, result) of one call."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def recorded_episodes(tasks: ShopTasks, folder: Path | None) -> list[Episode]:
    """The actions of the recorded traces in `folder`, or, without them, of 200 random episodes in the shop."""
    traces = folder / "traces_seed0.json.gz" if folder else None
    if traces and traces.is_file():
        with gzip.open(traces, "rt", encoding="utf-8") as file:
            return [(tasks.ids.id(trace["goal"]), [step[0] for step in trace["steps"]]) for trace in json.load(file)]
    rng, episodes = random.Random(0), []
    environment = tasks.make()
    for goal in rng.choices(range(len(tasks.catalogue.goals)), k=200):
        task_id, actions = tasks.ids.id(goal), []
        environment.reset(task_id)
        while not environment.done:
            actions.append(random_agent(environment.session, tasks.catalogue.goals[goal], rng))
            environment.step(actions[-1])
        episodes.append((task_id, actions))
    return episodes


def play(environment: WebshopEnvironment, episodes: list[Episode]) -> int:
    """Play all episodes, resets included; returns how many steps that took."""
    for task_id, actions in episodes:
        environment.reset(task_id)
        for action in actions:
            environment.step(action)
    return sum(len(actions) for _, actions in episodes)


def steps_per_second(tasks: ShopTasks, unused: Catalogue, episodes: list[Episode]) -> tuple[float, float]:
    """(best of five rounds, the round before them in which nothing was searched or shown yet).

    unused: the same shop as that of `tasks`, made anew.
    """
    environment = WebshopEnvironment(GoalIds(unused, tasks.ids.prefix), max_steps=tasks.max_steps)
    rates = []
    for _ in range(6):
        spent, steps = timed(lambda: play(environment, episodes))
        rates.append(steps / spent)
    return max(rates[1:]), rates[0]


def episode_bytes(tasks: ShopTasks, episodes: list[Episode], count: int = 2000) -> float:
    """Bytes of one more episode in mid-game, beside the shop that all share."""

    def begun() -> list[WebshopEnvironment]:
        live = []
        for number in range(count):
            task_id, actions = episodes[number % len(episodes)]
            environment = tasks.make()
            environment.reset(task_id)
            for action in actions[: len(actions) // 2]:
                environment.step(action)
            live.append(environment)
        return live

    begun()  # everything that is made once
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    live = begun()
    gc.collect()
    size = (tracemalloc.get_traced_memory()[0] - before) / len(live)
    tracemalloc.stop()
    return size


# Runs in a process of its own. argv: what to open, as JSON; prints by how many MB it grew, in all and without what is
# mapped from files, which all processes share and which the system takes back when it needs the memory.
_MEMORY = """
import json, random, sys
def resident():
    total, shared = open("/proc/self/statm").read().split()[1:3]
    return [int(total) * {page} / 1e6, (int(total) - int(shared)) * {page} / 1e6]
before = resident()
what = json.loads(sys.argv[1])
from progpo_trl.environments.webshop.tasks import GeneratedWebshopTasks, WebshopTasks
from progpo_trl.environments.webshop.baselines import BASELINES, evaluate_baseline
make = WebshopTasks if "data" in what else GeneratedWebshopTasks
tasks = make(**what)
goals = random.Random(0).sample(range(len(tasks.catalogue.goals)), min({episodes}, len(tasks.catalogue.goals)))
for agent in ("random", "first_hit_options"):
    evaluate_baseline(BASELINES[agent], tasks, goals)
print(*(after - start for after, start in zip(resident(), before)))
"""


def growth(what: dict[str, object], episodes: int) -> tuple[float, float]:
    """MB by which a process grows that imports the environment, opens a shop and plays episodes of two agents.

    In all, and without what is mapped from files.
    """
    code = _MEMORY.format(page=os.sysconf("SC_PAGE_SIZE"), episodes=episodes)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(what)], env=environment, stdout=subprocess.PIPE, check=True
    )
    total, private = map(float, done.stdout.split())
    return total, private


def measure_large(products: int, folder: Path, searches: int) -> dict[str, float]:
    """Build a store of a generated shop, search in it, measure a process that uses it."""
    path = folder / str(products)
    spent, _ = timed(lambda: build_store(generated_source(products), path, progress=sys.stderr.isatty()))
    shop = open_store(path, generated_source(products))
    rng = random.Random(0)
    times = []
    for number, index in enumerate(rng.choices(range(len(shop.goals)), k=searches)):
        # The number makes each query a new one, so that none is answered from those kept.
        query = f"{shop.goals[index].instruction.lower()} {number}"
        times.append(timed(lambda query=query: shop.search(query))[0])
    mapped, private = growth({"products": products, "store": str(path)}, 2000)
    return {
        "index": spent,
        "search": statistics.median(times) * 1e3,
        "p95": sorted(times)[int(0.95 * (len(times) - 1))] * 1e3,
        "mapped": mapped,
        "private": private,
        "disk": sum(file.stat().st_size for file in path.iterdir()) / 1e6,
        "goals": len(shop.goals),
    }


def extrapolate(sizes: list[int], values: list[float]) -> float | None:
    """The value at `FULL` of the line through the last two points; None with one point."""
    if len(sizes) < 2:
        return None
    (x0, x1), (y0, y1) = sizes[-2:], values[-2:]
    return y1 + (y1 - y0) / (x1 - x0) * (FULL - x1)


class Report:
    """Prints rows as they come and remembers whether a target was missed."""

    def __init__(self):
        self.missed = False

    def verdict(self, target: str | None, value: float) -> str:
        if target is None:
            return ""
        limit, at_least = TARGETS[target]
        met = value >= limit if at_least else value <= limit
        self.missed |= not met
        return f"{'>=' if at_least else '<='} {limit:,}: {'met' if met else 'MISSED'}"

    def row(self, name: str, value: float, unit: str, target: str | None = None) -> None:
        print(f"{name:44}{number(value):>10} {unit:12}{self.verdict(target, value)}".rstrip(), flush=True)

    def curve(self, name: str, unit: str, sizes: list[int], values: list[float], target: str | None = None) -> None:
        cells = "".join(f"{number(value):>10}" for value in values)
        further = extrapolate(sizes, values)
        cells += f"{'' if further is None else '~' + number(further):>12}"
        stated = target if LARGE in sizes else None
        verdict = self.verdict(stated, values[sizes.index(LARGE)]) if stated else ""
        label = f"{name}, {unit}" if unit else name
        print(f"{label:32}{cells}  {verdict}".rstrip(), flush=True)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def parse_sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"not numbers separated by commas: {text!r}") from None
    if sizes[0] < 10:
        raise argparse.ArgumentTypeError("a shop has at least 10 products here")
    return sizes


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="the official files (default: a generated shop)")
    parser.add_argument(
        "--products", type=int, default=1000, metavar="N", help="of the small generated shop (default: %(default)s)"
    )
    parser.add_argument(
        "--sizes", type=parse_sizes, default=[1_000, 10_000, 100_000], metavar="N,N,..",
        help="products of the stores to build (default: 1000,10000,100000)",
    )  # fmt: skip
    parser.add_argument("--searches", type=int, default=400, metavar="N", help="in each store (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with status 1 when a target is missed")
    arguments = parser.parse_args(argv)
    if arguments.products < 10 or arguments.searches < 1:
        parser.error("--products must be at least 10 and --searches at least 1")
    report = Report()
    try:
        if arguments.data:
            files = find_files(arguments.data)
            what: dict[str, object] = {"data": str(arguments.data)}
            build, tasks = (lambda: load_catalogue(files)), WebshopTasks(arguments.data)
        else:
            what = {"products": arguments.products}
            build = lambda: generate_catalogue(arguments.products)  # noqa: E731
            tasks = GeneratedWebshopTasks(arguments.products)
    except ShopFileError as error:
        print(error, file=sys.stderr)
        return 2
    kind = f"real, {arguments.data}" if arguments.data else "generated"
    print(f"CPU times, Python {sys.version.split()[0]}\n")
    print(f"In memory: {len(tasks.catalogue)} products ({kind}), {len(tasks.catalogue.goals)} goals")
    episodes = recorded_episodes(tasks, arguments.data)
    builds = [timed(build) for _ in range(3)]
    best, first = steps_per_second(tasks, builds[0][1], episodes)
    report.row("steps per CPU-second, resets included", best, "steps/s", "steps")
    report.row("the same where nothing was searched before", first, "steps/s")
    report.row("build, read or generated", statistics.median(spent for spent, _ in builds), "s", "build")
    report.row("growth of a process, imports included", growth(what, 500)[0], "MB", "growth")
    report.row("one more episode", episode_bytes(tasks, episodes), "bytes", "episode")

    sizes = arguments.sizes
    print(f"\nStores of generated products\n{'':32}" + "".join(f"{size:>10,}" for size in sizes) + f"{FULL:>12,}")
    with tempfile.TemporaryDirectory() as folder:
        found = [measure_large(size, Path(folder), arguments.searches) for size in sizes]
    for key, name, unit, target in (
        ("goals", "goals", "", None),
        ("index", "build of the store", "s", "index"),
        ("search", "search, median", "ms", "search"),
        ("p95", "search, 95th percentile", "ms", None),
        ("mapped", "growth of a process", "MB", "mapped"),
        ("private", "of it not shared", "MB", None),
        ("disk", "on disk", "MB", None),
    ):
        report.curve(name, unit, sizes, [values[key] for values in found], target)
    return 1 if arguments.check and report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
