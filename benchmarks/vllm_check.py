"""Does vLLM sample from the policy that is trained, and how fast? For a machine with a GPU and vLLM.

    python benchmarks/vllm_check.py --model Qwen/Qwen2.5-1.5B-Instruct                       # colocated engine
    python benchmarks/vllm_check.py --model Qwen/Qwen2.5-1.5B-Instruct --server http://node:8000
    python benchmarks/vllm_check.py --stand-in                                               # CPU, no vLLM

Plays generated ALFWorld games with one process and reports, for each schedule, the sampled tokens a second, and over
all of its tokens |vLLM's log-probability - the trainer's|: mean, 99th percentile, maximum. With a server it compares
lock-step and streaming; a colocated engine has lock-step only. Then the weights are changed by noise and the
comparison is made again: an engine that missed the transfer would differ as much as the line "if stale" says.
--stand-in runs every line of this script with the tiny
policy and the test suite's server: its throughput means nothing. Anything after `--` is a setting of `progpo train`,
for example `-- --vllm_gpu_memory_utilization 0.5`. docs/generation.md says how to start a server.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
# Of a weight matrix's standard deviation: far above rounding, far below what makes a model babble.
NOISE = 0.05


def options(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="Qwen/Qwen2.5-1.5B-Instruct", help="a path or Hub id (default: %(default)s)"
    )
    parser.add_argument("--server", help="URL of a vLLM server that serves the model; default: a colocated engine")
    parser.add_argument("--stand-in", action="store_true", help="the tiny policy and a stand-in server, on CPU")
    parser.add_argument("--episodes", type=int, default=64, help="episodes per schedule (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=20, help="turns of an episode at most (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a response at most (default: %(default)s)")
    parser.add_argument("--context", default="window", choices=["window", "full"], help="default: %(default)s")
    parser.add_argument("--out", default="vllm_check.json", help="where the numbers go (default: %(default)s)")
    parser.add_argument("settings", nargs="*", help="settings of progpo train, after --")
    return parser.parse_args(argv)


@contextlib.contextmanager
def stand_in():
    """The URL of the test suite's server, which samples from the tiny policy."""
    sys.path.insert(0, str(ROOT / "tests" / "trainer"))
    import vllm_on_cpu
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from vllm_stand_in import PolicyAnswers, StandIn

    from progpo_trl.tiny_policy import checkpoint_path

    folder = checkpoint_path()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    policy = PolicyAnswers(model, [tokenizer.eos_token_id], tokenizer.pad_token_id)
    with StandIn(policy=policy, max_model_len=model.config.max_position_embeddings) as server:
        vllm_on_cpu.install(server.url)
        yield server.url


def build(asked: argparse.Namespace, url: str | None, output: str):
    """A trainer on generated games that generates with vLLM."""
    from progpo_trl.settings import parse
    from progpo_trl.train import build_trainer

    cpu = not torch.cuda.is_available()
    settings = {
        "output_dir": output,
        "model_name_or_path": "tiny" if asked.stand_in else asked.model,
        "use_vllm": True,
        "vllm_mode": "server" if url else "colocate",
        "vllm_server_base_url": url,
        "max_turns": asked.turns,
        "max_completion_length": asked.tokens,
        "context": asked.context,
        "use_cpu": cpu,
        "bf16": not cpu,
        "evaluate_around_training": False,
        "show_rollout_progress": False,
    }
    given = [word for name, value in settings.items() for word in (f"--{name}", json.dumps(value).strip('"'))]
    return build_trainer(*parse(["--config", "quickstart", *given, *asked.settings]))


def play(trainer, schedule: str, count: int, step: int):
    """`count` episodes by `schedule`, and the wall seconds that took (without the transfer of weights)."""
    trainer.args.rollout_schedule = schedule
    ids = trainer.train_dataset["task_id"]
    group = trainer.num_generations
    episodes = [trainer._new_episode(ids[i // group % len(ids)], i, i // group) for i in range(count)]
    trainer.rollout_log.clock.wall.clear()
    started = time.perf_counter()
    trainer.play_episodes(episodes, trainer.sampling, seed=trainer.args.seed, step=step)
    seconds = time.perf_counter() - started
    return episodes, seconds - trainer.rollout_log.clock.wall["weight_sync"]


@torch.no_grad()
def differences(trainer, episodes) -> np.ndarray:
    """|log-probability vLLM sampled with - the trainer's| of every sampled token, one row at a time."""
    from progpo_trl.losses import score_sampled_tokens
    from progpo_trl.rows import episode_rows

    device, found = trainer.accelerator.device, []
    for episode in episodes:
        for row in episode_rows(episode, np.zeros(len(episode.steps), np.float32)):
            ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.completion_ids])).long()[None].to(device)
            mask = torch.from_numpy(row.mask)[None].to(device)
            with trainer.accelerator.autocast():
                scored, _ = score_sampled_tokens(trainer.model, ids, torch.ones_like(ids), mask, mask.size(1))
            gap = np.abs(scored[0].float().cpu().numpy() - row.logprobs)[row.mask == 1]
            found.append(gap[np.isfinite(gap)])
    return np.concatenate(found)


def check(trainer, schedule: str, count: int, step: int) -> dict:
    """The numbers of one schedule."""
    episodes, seconds = play(trainer, schedule, count, step)
    return numbers(trainer, episodes, seconds)


def numbers(trainer, episodes, seconds: float) -> dict:
    """What is reported of `episodes` that took `seconds` to play."""
    lengths = np.array([len(s.completion_ids) for e in episodes for s in e.steps])
    prompts = np.array([len(s.context_ids) for e in episodes for s in e.steps])
    gaps = differences(trainer, episodes)
    return {
        "episodes": len(episodes),
        "turns": len(lengths),
        "sampled_tokens": int(lengths.sum()),
        "mean_prompt_tokens": float(prompts.mean()),
        "seconds": seconds,
        "sampled_tokens_per_second": float(lengths.sum() / seconds),
        "turns_per_second": float(len(lengths) / seconds),
        "logprob_difference_mean": float(gaps.mean()),
        "logprob_difference_p99": float(np.quantile(gaps, 0.99)),
        "logprob_difference_max": float(gaps.max()),
    }


@torch.no_grad()
def changed_weights(trainer, schedule: str, count: int) -> dict:
    """The numbers after a change of all weights, which must reach vLLM, and the difference there would be if not."""
    before, _ = play(trainer, schedule, count, step=2)
    torch.manual_seed(0)
    for parameter in trainer.model.parameters():
        if parameter.numel() > 1:
            parameter.add_(NOISE * parameter.std() * torch.randn_like(parameter))
    stale = float(differences(trainer, before).mean())
    return check(trainer, schedule, count, step=3) | {"if_stale": stale}


def memory() -> dict:
    """Peak memory in GiB: of this process, and on its GPU all that is in use (a colocated engine included)."""
    scale = 1024 if sys.platform == "darwin" else 1
    out = {"process_peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / scale / 2**30}
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        out["gpu_torch_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        out["gpu_in_use_gib"] = (total - free) / 2**30
    return out


def report(result: dict) -> None:
    names = {
        "sampled_tokens": "tokens",
        "turns": "turns",
        "sampled_tokens_per_second": "tokens/s",
        "turns_per_second": "turns/s",
        "logprob_difference_mean": "|dlogp| mean",
        "logprob_difference_p99": "p99",
        "logprob_difference_max": "max",
    }
    print(f"{result['model']}, {result['backend']}, {result['device']}, {result['dtype']}")
    print(f"{'':10s}" + "".join(f"{title:>14s}" for title in names.values()))
    rows = result["schedules"] | {"changed": result["changed_weights"]}
    for title, row in rows.items():
        print(f"{title:10s}" + "".join(f"{row[name]:14.4g}" for name in names))
    print(f"if stale, |dlogp| mean of the line above: {rows['changed']['if_stale']:.4g}")
    print("peak memory: " + ", ".join(f"{name} {value:.2f}" for name, value in result["memory"].items()))
    print(f"written to {result['out']}")


def main(argv=None) -> int:
    asked = options(argv)
    if not asked.stand_in and importlib.util.find_spec("vllm") is None:
        print(
            "vllm_check: needs vllm (pip install 'progpo_trl[vllm]'); --stand-in runs without",
            file=sys.stderr,
        )
        return 2
    from progpo_trl.settings import versions

    with contextlib.ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryDirectory())
        url = stack.enter_context(stand_in()) if asked.stand_in else asked.server
        trainer = build(asked, url, output)
        schedules = ("lockstep", "streaming") if url else ("lockstep",)
        run = functools.partial(check, trainer)
        for schedule in schedules:  # first calls compile and capture graphs
            play(trainer, schedule, min(8, asked.episodes), step=0)
        result = {
            "model": "tiny" if asked.stand_in else asked.model,
            "backend": "stand-in server" if asked.stand_in else f"vLLM server {url}" if url else "vLLM colocated",
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
            "dtype": str(trainer.model.dtype).removeprefix("torch."),
            "schedules": {schedule: run(schedule, asked.episodes, 1) for schedule in schedules},
            "changed_weights": changed_weights(trainer, schedules[-1], min(8, asked.episodes)),
            "memory": memory(),
            "settings": {name: value for name, value in vars(asked).items() if name != "out"},
            "versions": versions(),
            "out": asked.out,
        }
    partial = Path(asked.out + ".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, asked.out)
    report(result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
