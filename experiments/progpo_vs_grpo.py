"""ProGPO against GRPO on hard generated games, tiny policy, same budget, tasks and sampling seeds for both.

    python experiments/progpo_vs_grpo.py --seeds 0 1 2 [--jobs 2] [--out runs/progpo-vs-grpo] [-- settings for both]

Every run is `progpo train --config quickstart` with the settings below. Reported per run: wins in the first 30
generations, success and all-fail groups over the first and the last 10, coverage over the same, held-out success
before and after on the same panel; then the paired difference ProGPO - GRPO with its 95 % t interval. The measures
were fixed before the first run. GRPO takes its optimizer step on batches without signal too (Adam's momentum moves
the weights there), so it is not weakened by a skip.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ARMS = {"grpo": ["--progress_fallback", "null"], "progpo": ["--progress_fallback.lambda_aux", "0.3"]}
SETTINGS = {
    "--model_name_or_path": "tiny-hard",
    "--environment.level": "hard",
    "--environment.n_eval": "256",
    "--learning_rate": "6e-4",
    "--lr_scheduler_type": "constant",
    "--max_generations": "80",
    "--eval_tasks": "256",
}
# two-sided 97.5 % quantiles of Student's t for 1..9 degrees of freedom
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MEASURES = (
    "wins in 30",
    "success first 10",
    "success last 10",
    "all-fail first 10",
    "all-fail last 10",
    "coverage first 10",
    "coverage last 10",
    "inadmissible last 10",
    "held-out before",
    "held-out after",
)


def train(arm: str, seed: int, out: Path, extra: list[str]) -> Path:
    """One run in a process of its own with one thread; finished runs are kept."""
    folder = out / f"{arm}-seed{seed}"
    if (folder / "summary.json").exists():
        return folder
    settings = [word for item in SETTINGS.items() for word in item]
    command = [sys.executable, "-m", "progpo_trl.train", "--config", "quickstart", *settings, *ARMS[arm]]
    command += ["--seed", str(seed), "--output_dir", str(folder), "--disable_tqdm", "true", *extra]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return folder


def measure(folder: Path) -> dict[str, float]:
    """The measures of one finished run, from its episodes and summary."""
    summary = json.loads((folder / "summary.json").read_text())
    generations: dict[int, list[dict]] = {}
    with open(folder / "episodes.jsonl", encoding="utf-8") as file:
        for line in file:
            e = json.loads(line)
            generations.setdefault(e["step"], []).append(e)
    ordered = [generations[step] for step in sorted(generations)]
    first = [e for g in ordered[:10] for e in g]
    last = [e for g in ordered[-10:] for e in g]
    return {
        "wins in 30": sum(e["success"] for g in ordered[:30] for e in g),
        "success first 10": np.mean([e["success"] for e in first]),
        "success last 10": np.mean([e["success"] for e in last]),
        "all-fail first 10": np.mean([all_fail(g) for g in ordered[:10]]),
        "all-fail last 10": np.mean([all_fail(g) for g in ordered[-10:]]),
        "coverage first 10": np.mean([coverage(e) for e in first]),
        "coverage last 10": np.mean([coverage(e) for e in last]),
        "inadmissible last 10": np.mean([not s["admissible"] for e in last for s in e["steps"]]),
        "held-out before": summary["success_before"]["rate"],
        "held-out after": summary["success_after"]["rate"],
    }


def all_fail(generation: list[dict]) -> float:
    groups: dict[int, bool] = {}
    for e in generation:
        groups[e["group"]] = groups.get(e["group"], False) or e["success"]
    return 1 - sum(groups.values()) / len(groups)


def coverage(e: dict) -> float:
    seen = {s["observation"] for s in e["steps"]} | {e["final_observation"]}
    return (len(seen) - 1) / max(1, len(e["steps"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="training seeds (default: 0 1 2)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("runs/progpo-vs-grpo"), help="where the runs are kept")
    options, extra = parser.parse_known_args()
    extra = [word for word in extra if word != "--"]
    jobs = [(arm, seed) for seed in options.seeds for arm in ARMS]
    with ThreadPoolExecutor(options.jobs) as pool:
        folders = dict(zip(jobs, pool.map(lambda job: train(*job, options.out, extra), jobs), strict=True))
    results = {job: measure(folder) for job, folder in folders.items()}
    print("| measure | " + " | ".join(f"{arm} {seed}" for arm, seed in jobs) + " | ProGPO - GRPO |")
    print("|---|" + "---|" * (len(jobs) + 1))
    for name in MEASURES:
        row = [f"{results[job][name]:.3f}".rstrip("0").rstrip(".") for job in jobs]
        print(f"| {name} | " + " | ".join(row) + f" | {paired(results, options.seeds, name)} |")
    (options.out / "results.json").write_text(
        json.dumps({f"{arm}-seed{seed}": {k: float(v) for k, v in r.items()} for (arm, seed), r in results.items()})
    )


def paired(results: dict, seeds: list[int], name: str) -> str:
    """Mean paired difference and half its 95 % interval."""
    d = np.array([float(results["progpo", s][name]) - float(results["grpo", s][name]) for s in seeds])
    if len(d) < 2:
        return f"{d.mean():+.3f}"
    half = T_975[min(len(d) - 2, len(T_975) - 1)] * d.std(ddof=1) / math.sqrt(len(d))
    return f"{d.mean():+.3f} ± {half:.3f}"


if __name__ == "__main__":
    main()
