"""summary.json of a run: the panel before and after on the same games, what was run, and where everything is."""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from progpo_trl import atomic
from progpo_trl.checkpoint_files import generation_updates
from progpo_trl.episodes import Episode
from progpo_trl.metrics import episode_metrics, wilson
from progpo_trl.secret_values import without_secret_words
from progpo_trl.settings import versions, without_secrets


class RunSummary:
    """Collects what a run did; owned by `progpo_trl.train.run`."""

    def __init__(self, trainer, script, argv: Sequence[str], checkpoint: str | None = None):
        self.trainer, self.script, self.argv, self.checkpoint = trainer, script, list(argv), checkpoint
        self.facts: dict[str, Any] = {}
        # Counted once and by the process that tells it: a million products take seconds.
        self.data = trainer.tasks.data_summary() if trainer.accelerator.is_main_process else {}
        self._tell_trainer()

    def announce(self) -> None:
        """Say how many tasks there are and what was left out of the data."""
        trainer = self.trainer
        line = f"{len(trainer.train_dataset)} training tasks, {len(trainer.eval_task_ids)} in the evaluation panel"
        skipped = self.data.get("skipped") or {}
        if skipped:
            line += "; left out: " + ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
        trainer.accelerator.print(line)

    def evaluate_before(self) -> None:
        """`evaluate("before")`, or what it found when the run that is resumed began. All processes take part."""
        asked = {name: value for name, value in self.script.asked.items() if name != "resume_from_checkpoint"}
        asked = _as_kept(asked)
        # The main process reads for all, or some would evaluate and wait for the others.
        (known,) = broadcast_object_list([_known_before(self.checkpoint)])
        if _as_kept(known.get("asked")) == asked:
            self.facts |= known["facts"]
            self.trainer.accelerator.print("before training: evaluated when the run began")
        else:
            self.evaluate("before")
        self.trainer.carry["before"] = {"asked": asked, "facts": dict(self.facts)}
        self._tell_trainer()

    def evaluate(self, when: str) -> None:
        """Play the panel at eval_temperature and greedily; `when` is "before" or "after". All processes take part."""
        args = self.trainer.args
        for name, temperature in (("success", args.eval_temperature), ("greedy", 0.0)):
            episodes = self.trainer.evaluate_panel(temperature=temperature)
            self.facts[f"{name}_{when}"] = asdict(_success(episodes))
            self.facts[f"{name}_{when}_by_task_type"] = by_task_type(episodes)
            self.facts[f"{name}_{when}_metrics"] = episode_metrics(episodes)
            rate = _success(episodes)
            self.trainer.accelerator.print(
                f"{when} training, {_sampling(temperature)}: success {rate.rate:.1%} "
                f"[{rate.low:.1%}, {rate.high:.1%}] on {rate.n} held-out games"
            )
        self._tell_trainer()

    def trained(self) -> None:
        """Record the cost of training, its part before a resumed checkpoint included; called when it is over."""
        state, args = self.trainer.state, self.trainer.args
        wall_seconds, cpu_seconds = self.trainer.training_seconds
        generations = -(-state.global_step // generation_updates(args))
        self.facts |= {
            "train_seconds": round(wall_seconds, 2),
            "train_cpu_seconds": round(cpu_seconds, 2),
            "updates": state.global_step,
            "weights_step": self.trainer.weights_step,
            "generations": generations,
            "episodes": generations * args.generation_batch_size,
        }
        self._tell_trainer()

    def _known(self) -> dict[str, Any]:
        """What is known so far, and what the run was asked for, without secrets."""
        args = self.trainer.args
        return {
            **self.facts,
            "environment": without_secrets(self.script.environment),
            "data": self.data,
            "advantage": self.script.advantage,
            "progress_fallback": self.script.progress_fallback,
            "model": self.script.asked.get("model_name_or_path"),
            "seed": args.seed,
            "panel": {
                "tasks": len(self.trainer.eval_task_ids),
                "temperature": args.eval_temperature,
                "sampling_seed": args.eval_seed,
            },
        }

    def _tell_trainer(self) -> None:
        """The model card says it, too."""
        self.trainer.run_facts = self._known()

    def write(self, output: Path) -> None:
        """Write summary.json and learning_curve.png, and tell the reader where to look. Main process only."""
        summary = {
            **self._known(),
            "command": ["progpo", "train", *without_secret_words(self.argv)],
            "versions": versions(),
            "machine": {
                "cpus": os.cpu_count(),
                "processor": platform.machine(),
                "system": platform.system(),
                "gpus": _gpus(),
                # What the launcher really started, not what it was asked for.
                "processes": self.trainer.accelerator.num_processes,
                "distributed": self.trainer.accelerator.distributed_type.value,
                "mixed_precision": self.trainer.accelerator.mixed_precision,
            },
        }
        atomic.write_text(output / "summary.json", json.dumps(summary, indent=2, default=str) + "\n")
        self.trainer.create_model_card()  # with what was measured since the model was saved
        self._plot(output / "learning_curve.png")
        self._tell(output)

    def _plot(self, path: Path) -> None:
        from progpo_trl.reporting.curves import learning_curve

        learning_curve(self.trainer.state.log_history, path, self.facts, title=self._title())

    def _title(self) -> str:
        method = str(self.script.advantage.get("name", "grpo")).upper()
        if self.script.progress_fallback is not None:
            method = f"{method} + ProGPO"
        return f"{method}, seed {self.trainer.args.seed}"

    def _tell(self, output: Path) -> None:
        lines = ["", f"Trained {self.facts['episodes']} episodes in {self.facts['train_seconds']:.0f} s."]
        before, after = self.facts.get("success_before"), self.facts.get("success_after")
        if before and after:
            lines.append(
                f"Success on {after['n']} held-out games: {before['rate']:.1%} -> {after['rate']:.1%} "
                f"(greedy {self.facts['greedy_before']['rate']:.1%} -> {self.facts['greedy_after']['rate']:.1%})"
            )
        kind = "adapter" if (output / "adapter_config.json").exists() else "model"
        lines += [
            "",
            f"  {output / 'summary.json'}",
            f"  {output / 'learning_curve.png'}",
        ]
        if self.trainer.args.save_episodes:
            lines.append(f"  {output / 'episodes.jsonl'}   every training episode, step by step")
        lines += [
            f"  {output}   the {kind}, loadable with transformers{' and peft' if kind == 'adapter' else ''}",
            "",
            f"Next: another seed with `{another_seed(output, self.trainer.args.seed)}`; "
            f"`{shlex.join(['progpo', 'view', str(output)])}` shows this run; `progpo recipes` lists methods, models.",
        ]
        print("\n".join(lines))


def another_seed(output: Path, seed: int) -> str:
    """What to add to the command of a run in `output` to repeat it with the next seed, beside it: in the same folder
    the new run would push this one aside."""
    folder = output.resolve()
    beside = folder.parent if output.name in ("", "..") else output.parent
    stem = re.sub(rf"[-_.]?seed[-_]?{seed}$", "", folder.name)
    places = ((n, beside / f"{stem}-seed{n}") for n in itertools.count(seed + 1))
    number, place = next((n, place) for n, place in places if not os.path.lexists(place))
    return shlex.join(["--seed", str(number), "--output_dir", str(place)])


def by_task_type(episodes: Sequence[Episode]) -> dict[str, dict[str, float]]:
    """Success with its interval for every task type."""
    groups: dict[str, list[Episode]] = defaultdict(list)
    for e in episodes:
        groups[e.task_type].append(e)
    return {name: asdict(_success(members)) for name, members in sorted(groups.items())}


def _success(episodes: Sequence[Episode]):
    kept = [e for e in episodes if not e.dropped]
    return wilson(sum(e.success for e in kept), len(kept))


def _as_kept(asked: Any) -> Any:
    """Settings as a checkpoint keeps them: JSON, without secrets."""
    return json.loads(json.dumps(without_secrets(asked), default=str))


def _gpus() -> list[str]:
    """Names of the GPUs that this process sees."""
    import torch

    return (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )


def _sampling(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def _known_before(checkpoint: str | None) -> dict[str, Any]:
    """What the checkpoint carries of the evaluation before training."""
    from progpo_trl.run_state import run_state

    return {} if checkpoint is None else run_state(checkpoint).get("carry", {}).get("before", {})
