"""Evaluations on a card: found, checked against what is published, and turned into rows and `model-index` results."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.results import interval, percent, read_evaluation, sampling_name
from progpo_trl.markdown import Markdown, escaped, fenced, table
from progpo_trl.publishing.errors import PublishError
from progpo_trl.publishing.facts import environment_title
from progpo_trl.publishing.repeat import repeat_command
from progpo_trl.secret_values import without_secret_words
from progpo_trl.settings import without_secrets
from progpo_trl.settings_values import one_line

# Below so many games an interval at 95 % is wider than about 20 points, as wide as the differences between methods.
SMALL_PANEL = 100
Content = Mapping[str, Any]


def find_evaluations(run: Path, step: int | None = None) -> list[Path]:
    """The evaluation files in the folder of a run: those of `progpo evaluate`, else the training's own, of update
    `step` or else the newest."""
    found, trained = sorted(run.glob("evaluation*/evaluation.json")), of_training(run)
    if found or not trained:
        return found
    return [trained[step if step in trained else max(trained)]]


def of_training(run: Path) -> dict[int, Path]:
    """evaluation-<step>.json in the folder of a run, by step."""
    numbered = ((path.stem.removeprefix("evaluation-"), path) for path in run.glob("evaluation-*.json"))
    return {int(number): path for number, path in numbered if number.isdecimal()}


def read(path: str | Path) -> dict[str, Any]:
    """The content of an evaluation of a trained policy. PublishError for anything else."""
    try:
        content = read_evaluation(path)
    except EvaluationError as error:
        raise PublishError(f"--evaluation {error}") from None
    if content["agent"].get("kind") != "policy":
        who = content["agent"].get("kind") or content["agent"].get("name")
        raise PublishError(f"--evaluation {path}: is not of a trained policy but of {who!r}")
    if not content["results"]:
        raise PublishError(f"--evaluation {path}: holds no results")
    try:
        _check_kinds(content)
        check_numbers(content)
        section(content), eval_results([content]), repeat_command(content, "folder", {}), panel_names(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise PublishError(f"--evaluation {path}: is damaged: {one_line(ValueError(said))}; make it again") from None
    return content


_TEXT, _NUMBER = (str, "text"), (int, "a whole number")
_MAPPING, _LIST = (dict, "names with values"), (list, "a list of words")


def _check_kinds(content: Content) -> None:
    """Raises TypeError, which names the field, where a card would say what no evaluation can mean."""
    agent, environment = content["agent"], content["environment"]
    fields = [("command", content, _LIST), ("versions", content, _MAPPING), ("machine", content, _MAPPING)]
    fields += [("settings", agent, _MAPPING), ("training_seed", agent, _NUMBER), ("name", environment, _TEXT)]
    fields += [("step", agent, _NUMBER)] if during_training(content) else []
    for panel in content["panels"]:
        fields += [(name, panel, _TEXT) for name in ("split", "panel_sha256", "data_sha256")]
    fields += [("split", part, _TEXT) for part in content["results"]]
    for name, of, (kind, what) in fields:
        value = of.get(name)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise TypeError(f"{name} must be {what}, not {value!r:.60}")


def check_numbers(content: Content) -> None:
    """Raises KeyError, TypeError or ValueError, which say what is wrong, unless all rates and other numbers that a
    card states can be what they are called. None is no value, as of games that were all lost."""
    for panel in content["panels"]:
        _check_counts(panel, "games")
    for part in content["results"]:
        _check_counts(part, "games", "lost")
        _check_number(part["temperature"], "temperature", low=0)
        for seed in part["seeds"]:
            if type(seed) is not int:
                raise TypeError(f"a sampling seed must be a whole number, not {seed!r:.60}")
        types = part["by_task_type"].values()
        for of in types:
            _check_counts(of, "games")
        for success in (part["success"], *(of["success"] for of in (*types, *part["by_seed"]))):
            _check_counts(success, "n")
            for name in ("rate", "low", "high"):
                _check_number(success[name], f"the {name} of a success", low=0, high=1)
        for mean in filter(None, (part.get("score"), part["steps"])):
            for name in ("mean", "low", "high"):
                _check_number(mean[name], f"the {name} of a score or of steps")
        for name in ("format_invalid", "inadmissible", "repeated", "loops", "step_limit"):
            _check_number(part.get(name), name, low=0, high=1)
    try:
        json.dumps(content, allow_nan=False)
    except ValueError as error:
        raise ValueError("a number in it is not finite, which JSON has no word for") from error


def _check_counts(of: Content, *names: str) -> None:
    for name in names:
        if type(of[name]) is not int or of[name] < 0:
            raise TypeError(f"{name} must be a whole number of at least 0, not {of[name]!r:.60}")


def _check_number(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> None:
    if value is None:
        return
    if type(value) not in (int, float):
        raise TypeError(f"{name} must be a number, not {value!r:.60}")
    if not (math.isfinite(value) and low <= value <= high):
        ends = f"from {low:g} to {high:g}" if math.isfinite(high) else "finite" if low < 0 else f"at least {low:g}"
        raise ValueError(f"{name} must be {ends}, not {value!r:.60}")


def public(content: Content) -> dict[str, Any]:
    """The content as it may be shown: without secrets in its command and its environment's options."""
    shown = dict(content) | {"environment": without_secrets(content["environment"])}
    return shown | ({"command": without_secret_words(content["command"])} if content.get("command") else {})


def during_training(content: Content) -> bool:
    """Whether the trainer evaluated by the way, at an update that the published weights need not be of."""
    return "step" in content["agent"]


def panel_names(content: Content) -> str:
    """The splits that were played."""
    return ", ".join(panel["split"] for panel in content["panels"])


def section(content: Content) -> Markdown:
    """The part of the card about one evaluation."""
    environment = environment_title(content["environment"]).name
    parts = [_results(content)]
    for part in content["results"]:
        parts.append(Markdown(f"{escaped(_part_name(part))}: {_how_played(part)}"))
    facts = [f"{environment}, at most {content['conditions']['max_turns']} actions a game."]
    for panel in content["panels"]:
        data = panel.get("data_sha256")
        facts.append(
            f"{panel['split']}: {panel['games']} games, panel {panel['panel_sha256'][:12]}, "
            + (f"data {data[:12]} (SHA-256)." if data else "data not hashed.")
        )
    seed = content["agent"].get("training_seed")
    facts.append("Training seed: " + ("not recorded." if seed is None else f"{seed}."))
    facts.append("Measured on: " + _machine(content) + ".")
    if content.get("versions"):
        facts.append("With " + ", ".join(f"{n} {v}" for n, v in content["versions"].items()) + ".")
    parts.append(Markdown("\n".join(f"- {escaped(fact)}" for fact in facts)))
    if content.get("command"):
        parts += [Markdown("The command:"), fenced(shlex.join(map(str, content["command"])), "bash")]
    return Markdown("\n\n".join(parts))


def _results(content: Content) -> Markdown:
    rows = []
    for part in content["results"]:
        name, types = _part_name(part), part["by_task_type"]
        rows.append([name, Markdown("**all**"), part["games"], *_rate(part["success"])])
        if len(types) > 1:
            rows += [[name, kind, of["games"], *_rate(of["success"])] for kind, of in types.items()]
        if len(part["seeds"]) > 1:
            rows += [
                [name, f"sampling seed {s['seed']}", s["success"]["n"], *_rate(s["success"])] for s in part["by_seed"]
            ]
        if part.get("score"):
            rows.append([name, "score", part["games"], _number(part["score"]["mean"]), _ends(part["score"])])
    return table(["split, sampling", "tasks", "games", "success", "95 % interval"], rows)


def _part_name(part: Content) -> str:
    return f"{part['split']}, {sampling_name(part['temperature'])}"


def _rate(success: Content) -> tuple[str, str]:
    return percent(success["rate"]), f"{percent(success['low'])} to {percent(success['high'])}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _ends(score: Content) -> str:
    return "-" if score["low"] is None else f"{score['low']:.3f} to {score['high']:.3f}"


def _how_played(part: Content) -> str:
    seeds = ", ".join(map(str, part["seeds"]))
    shares = {"format-invalid": "format_invalid", "inadmissible": "inadmissible", "repeated": "repeated"}
    of_steps = ", ".join(f"{label} {percent(part[name])}" for label, name in shares.items() if name in part)
    played = f"sampling seed{'s' * (len(part['seeds']) > 1)} {seeds}; {interval(part['steps'], 1)} actions a game"
    ends = ", ".join(
        f"{label} {percent(part[name])}" for label, name in {"looping": "loops", "cut": "step_limit"}.items()
    )
    return escaped(f"{played}; of actions {of_steps}; of games {ends}.")


def _machine(content: Content) -> str:
    machine = content.get("machine") or {}
    said = [f"{name} {value}" for name, value in machine.items() if value is not None]
    return ", ".join(said) or "not recorded"


def eval_results(contents: list[Content]) -> list:
    """huggingface_hub's EvalResult of every success rate (in [0, 1]) and score, for `model-index`."""
    from huggingface_hub import EvalResult

    out = []
    for content in contents:
        title = environment_title(content["environment"]).name
        hashes = {panel["split"]: panel.get("data_sha256") for panel in content["panels"]}
        for part in content["results"]:
            how = sampling_name(part["temperature"])
            values = [("success_rate", f"success rate, {how}", part["success"], "rate")]
            if len(part["by_task_type"]) > 1:
                values += [
                    ("success_rate", f"success rate, {how}, {kind}", of["success"], "rate")
                    for kind, of in part["by_task_type"].items()
                ]
            if part.get("score"):
                values.append(("score", f"score, {how}", part["score"], "mean"))
            for metric, name, value, key in values:
                if value[key] is None:
                    continue
                arguments = {"temperature": part["temperature"], "sampling_seeds": list(part["seeds"])}
                arguments |= {"games": value["n"], "low": value["low"], "high": value["high"]}
                out.append(
                    EvalResult(
                        task_type="reinforcement-learning",
                        task_name="multi-turn text environment",
                        dataset_type=str(content["environment"].get("name", "custom")),
                        dataset_name=title,
                        dataset_split=part["split"],
                        dataset_revision=hashes.get(part["split"]),
                        metric_type=metric,
                        metric_name=name,
                        metric_value=round(value[key], 4),
                        metric_args={k: v for k, v in arguments.items() if v is not None},
                    )
                )
    return out


def to_json(content: Content) -> str:
    """As `progpo evaluate` writes it."""
    return json.dumps(content, indent=1) + "\n"
