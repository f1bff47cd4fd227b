"""Evaluate an agent: `progpo evaluate RUN_DIR`, or with a launcher `accelerate launch -m progpo_trl.evaluate RUN_DIR`.

What is played (environment, context, prompt, lengths) comes from settings as those of a training: a run's own
config.yaml, `--config`, and overrides on the command line.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from progpo_trl.evaluation import agent_options, recipe_trust
from progpo_trl.evaluation.baselines import NAMES as BASELINES
from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.secret_values import without_secret_words
from progpo_trl.settings import ScriptArguments, parse, without_secrets
from progpo_trl.settings_values import SettingsError, one_line, said_of

if TYPE_CHECKING:
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.environments import TaskSet
    from progpo_trl.evaluation.agents import Agent
    from progpo_trl.model_arguments import ModelArguments

# Settings of a training that decide how a policy is loaded and asked; the others are left out of its file.
SETTINGS = (
    "environment",
    *("context", "history", "prompt_template", "system_prompt", "chat_template_kwargs"),
    *("max_turns", "max_context_length", "max_completion_length"),
    *("top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs"),
    *("environment_retries", "max_dropped_fraction"),
    *("model_name_or_path", "model_revision", "trust_remote_code", "attn_implementation", "model_init_kwargs"),
    *("dtype", "load_in_8bit", "load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant"),
    "bnb_4bit_quant_storage",
    *("bf16", "fp16", "use_cpu", "seed"),
)
_OURS = (
    *("model", "adapter", "config", "split", "temperatures", "seeds", "tasks", "batch_size", "agent", "out", "resume"),
    *agent_options.NAMES,
)
_HINTS = {"temperature": "--temperatures", "seed": "--seeds", "eval_tasks": "--tasks", "output_dir": "--out"}


@dataclass
class Job:
    """One evaluation, read from the command line."""

    options: argparse.Namespace
    model: str | None
    script: ScriptArguments
    config: MultiTurnGRPOConfig
    model_args: ModelArguments
    run: Path | None
    out: Path
    note: str | None  # what of the recipe is not taken, and why


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code. SettingsError and EvaluationError are mistakes of the caller."""
    argv = list(sys.argv[1:] if argv is None else argv)
    ours, theirs = _split_words(argv)
    options = parser().parse_args(ours)
    agent_options.check(options)
    runs = options.run or [None]
    if options.out is not None and not options.out.strip():
        raise EvaluationError("--out is empty; name a folder (. is this one)")
    if len(runs) > 1 and (options.model or options.out):
        raise EvaluationError(
            "several runs are evaluated each with its own model, into its own folder: no --model, --out"
        )
    folders = []
    for run in runs:
        job = read_job(options, theirs, run)
        if len(runs) > 1:
            _print(f"{run}")
        code = run_job(job, argv)
        if code:
            return code
        folders.append(job.out)
    if len(runs) > 1 and _is_main():
        from progpo_trl.compare import entries_of
        from progpo_trl.evaluation.compare import compare_groups
        from progpo_trl.evaluation.comparison_report import as_markdown

        entries = entries_of([str(folder) for folder in folders])
        _print("\n" + as_markdown(compare_groups({"runs": entries})))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command's own options; settings of the training are read by `settings.parse`."""
    text = argparse.ArgumentParser(
        prog="progpo evaluate",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Play every game of a fixed panel once per sampling seed and say how good the agent is.",
        epilog=(
            "Settings that decide what is played are those of a training, by the same names, and override the file:\n"
            "  --environment.games DIR, --environment.level easy, --context full, --prompt_template FILE,\n"
            "  --max_completion_length N, --max_turns N, --system_prompt TEXT, --attn_implementation sdpa, ...\n"
            "`--environment NAME` is short for `--environment.name NAME`; `progpo train --help` explains each.\n"
            "--trust_remote_code lets a model run code of its own repository; only it and a file given with --config\n"
            "turn that on, never the config.yaml that lies with a model; nor does that one choose kernels.\n\n"
            "  progpo evaluate runs/quickstart\n"
            "  progpo evaluate --model Qwen/Qwen2.5-1.5B-Instruct --environment alfworld \\\n"
            "      --split valid_seen --split valid_unseen --seeds 0 1 2\n"
            "  progpo evaluate --agent expert --environment alfworld_generated\n"
            "  progpo evaluate --agent react --api-model gpt-4o --environment alfworld --price-in 2.5 --price-out 10\n"
        ),
    )
    text.add_argument(
        "run", nargs="*", metavar="RUN_DIR", help="a run: its model and its config.yaml; several: one after the other"
    )
    text.add_argument("--model", metavar="PATH_OR_ID", help="folder or Hub id of a model, an adapter or a checkpoint")
    text.add_argument("--adapter", metavar="PATH_OR_ID", help="LoRA adapter to put on the model")
    text.add_argument(
        "--config", metavar="FILE", help="recipe or config.yaml (default: the run's that holds the model)"
    )
    text.add_argument(
        "--split", action="append", metavar="NAME", help="may be given several times (default: environment.eval_split)"
    )
    text.add_argument(
        "--temperatures", nargs="+", type=float, metavar="T", default=[0.4, 0.0], help="0 is greedy (default: 0.4 0)"
    )
    text.add_argument(
        "--seeds", nargs="+", type=int, metavar="N", default=[0], help="sampling seeds (default: 0); greedy: the first"
    )
    text.add_argument("--tasks", type=int, metavar="N", help="games per split, spread over the panel (default: all)")
    text.add_argument(
        "--batch-size", "--batch_size", type=int, metavar="N", help="episodes decoded together (default: 64)"
    )
    text.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help="of the weights, without mixed precision (default: as the settings train; on a CPU float32)",
    )
    text.add_argument(
        "--agent",
        choices=["policy", *agent_options.STYLES, *BASELINES],
        default="policy",
        help="who plays (default: policy)",
    )
    text.add_argument("--out", metavar="DIR", help="default: RUN_DIR/evaluation, or evaluations/NAME")
    agent_options.add_arguments(text)
    text.add_argument("--resume", action="store_true", help="keep the games that are finished in --out")
    return text


def _split_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words for this command's parser, and those that are settings."""
    ours: list[str] = []
    theirs: list[str] = []
    current = ours
    for word in argv:
        name = word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""
        if name in _HINTS:
            raise SettingsError(f"command line: progpo evaluate has no --{name}; it is {_HINTS[name]}")
        if name == "environment":
            word = word.replace("--environment", "--environment.name", 1)
        if name or word == "-h":
            current = ours if name in (*_OURS, "dtype", "help") or word == "-h" else theirs
        current.append(word)
    return ours, theirs


def read_job(
    options: argparse.Namespace,
    settings: Sequence[str],
    run: str | None,
    *,
    trusted: bool | None = None,
    prog="progpo evaluate",
) -> Job:
    """What is to be evaluated; raises SettingsError or EvaluationError.

    trusted: whether the settings file may choose code to be run (default: when --config names it). One that came with
    a model may not (`recipe_trust`): whoever published it would decide that their code is run here.
    """
    model = options.model or run
    if run is not None and not Path(run).is_dir():
        raise EvaluationError(f"{run}: there is no such folder")
    home = _run_folder(run or model)
    config = options.config or (None if home is None else str(home / "config.yaml"))
    if run is not None and config is None:
        raise EvaluationError(f"{run}: is no run of progpo train (no config.yaml); give --model and --environment")
    words = [] if config is None else ["--config", config]
    trusted = options.config is not None if trusted is None else trusted
    words += [] if trusted else ["--trust_remote_code", "false"]  # what the command line says comes after it
    words += settings
    words += ["--model_name_or_path", model] if model else []
    if (options.agent in BASELINES or options.api_model) and config is None:
        words += ["--model_name_or_path", "none"]  # the settings ask for one; nothing loads it
    if not _has_gpu():
        words += ["--use_cpu", "true", "--bf16", "false", "--fp16", "false"]
    if options.dtype:
        words += ["--dtype", options.dtype]
    given = recipe_trust.names(settings)
    agent_options.check_settings(options, [name.partition(".")[0] for name in given])
    script, training, model_args = parse(words, prog, only=SETTINGS, own=_OURS)
    agent_options.check_context(options, given, training.context)
    note = None if trusted else recipe_trust.take_out(training, model_args, given, str(config))
    if model is None and options.agent not in BASELINES and not options.api_model and options.adapter is None:
        model = model_args.model_name_or_path
    out = (
        Path(options.out)
        if options.out
        else (home / "evaluation" if home and run else Path("evaluations", _name(options, model, script)))
    )
    of_run = home if options.config is None and not (run and options.model) else None
    return Job(options, model, script, training, model_args, of_run, out, note)


def _run_folder(model: str | None) -> Path | None:
    """The run that a folder is, or is a checkpoint of."""
    if model is None or not Path(model).is_dir():
        return None
    folder = Path(model)
    places = [folder, folder.resolve().parent] if folder.resolve().name.startswith("checkpoint-") else [folder]
    return next((place for place in places if (place / "config.yaml").is_file()), None)


def _name(options: argparse.Namespace, model: str | None, script: ScriptArguments) -> str:
    who = options.adapter or model or options.api_model or ""
    who = {"policy": who or "policy"}.get(options.agent, f"{options.agent}-{who}".strip("-"))
    return re.sub(r"[^\w.-]+", "-", f"{who}-{script.environment['name']}").strip("-.")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def run_job(job: Job, argv: Sequence[str]) -> int:
    """Load, play, write, tell; the exit code."""
    from progpo_trl.evaluation.locks import only_one_in
    from progpo_trl.evaluation.processes import Processes
    from progpo_trl.evaluation.results import EVALUATION, table
    from progpo_trl.evaluation.run import already_there, check_folder, check_plays, evaluate, panel_exists

    options = job.options
    # What can be found out before a large model is loaded is found out before.
    check_plays(options.temperatures, options.seeds, options.tasks)
    check_folder(job.out)
    if options.batch_size is not None and options.batch_size < 1:
        raise EvaluationError(f"--batch-size must be at least 1, got {options.batch_size}")
    processes = Processes(job.config.use_cpu)  # the group and its devices, before a model takes one
    if job.note:
        _print(f"progpo evaluate: {job.note}", sys.stderr)
    tasks = load_tasks(job.script)
    splits = options.split or [job.script.environment["eval_split"] or tasks.eval_split]
    for split in splits:
        panel_exists(tasks, split)

    def may_write() -> None:
        if not options.resume and (job.out / EVALUATION).exists():
            raise already_there(job.out)
        if options.resume and job.out.is_dir():
            with only_one_in(job.out):  # held for good once the agent is there
                pass

    processes.from_main(may_write)
    agent = load_agent(job, tasks)
    try:
        content = evaluate(
            agent,
            tasks,
            splits=splits,
            temperatures=options.temperatures,
            seeds=options.seeds,
            n_tasks=options.tasks,
            max_turns=job.config.max_turns,
            out=job.out,
            resume=options.resume,
            environment=without_secrets(job.script.environment),
            environment_retries=job.config.environment_retries,
            max_dropped_fraction=job.config.max_dropped_fraction,
            command=["progpo", "evaluate", *without_secret_words(argv)],
        )
    except KeyboardInterrupt:
        _print(f"\nprogpo evaluate: interrupted; finished games are in {job.out}: go on with --resume", sys.stderr)
        return 128 + signal.SIGINT
    except (RuntimeError, OSError) as error:
        named = isinstance(error, OSError) and error.filename
        raise EvaluationError(said_of(job.out, error) if named else one_line(error)) from error
    if "totals" in content:
        from progpo_trl.evaluation.prompted import totals_lines

        _print("\n".join(totals_lines(content["totals"])) + "\n")
    _print(f"{table(content)}\n\n  {job.out}/evaluation.json\n  {job.out}/episodes.jsonl   every game, step by step")
    return 0


def load_tasks(script: ScriptArguments) -> TaskSet:
    """The task set of the settings' environment."""
    from progpo_trl.environments import load_environment

    options: dict[str, Any] = {k: v for k, v in script.environment.items() if k not in ("name", "split", "eval_split")}
    try:
        return load_environment(script.environment["name"], **options)
    except (ValueError, OSError, ImportError, KeyError) as error:
        raise SettingsError(f"environment: {one_line(error)}") from error


def load_agent(job: Job, tasks: TaskSet) -> Agent:
    """The agent that the options ask for."""
    options = job.options
    if options.agent in agent_options.STYLES and options.api_model:
        return agent_options.prompted_agent(options, agent_options.api_model(options, job.out, job.config), job.config)
    if options.agent in BASELINES:
        from progpo_trl.evaluation.baselines import baseline

        if options.model or options.adapter:
            raise EvaluationError(f"--agent {options.agent} plays without a model: leave out --model and --adapter")
        try:
            return baseline(options.agent, tasks)
        except ValueError as error:
            raise EvaluationError(str(error)) from error
    policy = agent_options.policy(options, job.model, job.config, job.model_args, job.run)
    if options.agent in ("policy", "prompt"):
        return policy  # zero-shot prompting of weights is what a policy does, in batches
    from progpo_trl.evaluation.local_chat import LocalChatModel

    return agent_options.prompted_agent(options, LocalChatModel(policy), job.config)


def _is_main() -> bool:
    from progpo_trl.evaluation.processes import Processes

    return Processes().rank == 0


def _print(text: str, file=None) -> None:
    if _is_main():
        print(text, file=file or sys.stdout)


if __name__ == "__main__":
    from progpo_trl.cli import main as command

    # One place decides about errors, exit codes and closed pipes.
    raise SystemExit(command(["evaluate", *sys.argv[1:]]))
