"""Evaluations on a card: found, checked against what is published, and turned into rows and `model-index` results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.results import interval, percent, read_evaluation, sampling_name
from progpo_trl.publishing.errors import PublishError
from progpo_trl.publishing.facts import environment_title
from progpo_trl.publishing.markdown import Markdown, escaped, fenced, table

# Below so many games an interval at 95 % is wider than about 20 points, as wide as the differences between methods.
SMALL_PANEL = 100
# Sections and options of an environment that do not change its games, or only mean something where it ran.
_NOT_COMPARED = {"split", "eval_split", "games", "data", "store", "engine", "on_error"}
_SETTINGS = (
    "context", "history", "system_prompt", "max_completion_length", "max_context_length", "chat_template_kwargs",
    "top_p", "top_k", "min_p",
)  # fmt: skip

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
        section(content), eval_results([content]), repeat_command(content, "folder", {}), _panel_names(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PublishError(f"--evaluation {path}: is damaged: {type(error).__name__}: {error}") from None
    return content


def during_training(content: Content) -> bool:
    """Whether the trainer evaluated by the way, at an update that the published weights need not be of."""
    return "step" in content["agent"]


def doubts(
    contents: list[Content], settings: Mapping[str, Any], *, weights: str | None, step: int | None, adapter: bool
) -> Iterator[str]:
    """What a reader must know about the evaluations before their numbers.

    settings: of the recipe; weights: the hash of the published weights, None when it was not taken; step: the update
    after which they are, None when it is not known.
    """
    if not contents:
        yield "This model was not evaluated: nothing is known of how well it plays."
    for content in contents:
        name = _panel_names(content)
        measured = content["agent"].get("adapter_sha256" if adapter else "weights_sha256")
        if during_training(content):
            at = content["agent"]["step"]
            if at != step:
                yield f"Evaluated ({name}) during training, after update {at}; the published weights may be others."
        elif measured is None or weights is None:
            yield f"It is not known of which weights the evaluation ({name}) is."
        elif measured != weights:
            yield f"The evaluation ({name}) is of other weights than the published ones: hashes differ."
        yield from _other_conditions(content, settings, name)
        for panel in content["panels"]:
            if panel["games"] < SMALL_PANEL:
                yield f"Only {panel['games']} games of {panel['split']} were evaluated: the intervals are wide."
            if panel["split"] == "train":
                yield "The evaluation is on training games."
        for part in content["results"]:
            if part["lost"]:
                yield f"{part['lost']} plays of {part['split']} were lost to environment errors and are left out."


def _other_conditions(content: Content, settings: Mapping[str, Any], name: str) -> Iterator[str]:
    asked, played = settings.get("environment") or {}, content["environment"]
    if asked and not during_training(content):
        compared = (set(asked) | set(played)) - _NOT_COMPARED
        differ = sorted(key for key in compared if asked.get(key) != played.get(key))
        if differ:
            said = ", ".join(f"{key} {asked.get(key)!r} trained, {played.get(key)!r} evaluated" for key in differ)
            yield f"The evaluation ({name}) is on other data than the recipe's: {said}."
    if differ := asked_otherwise(content, settings):
        said = ", ".join(f"{key} {was!r} trained, {now!r} evaluated" for key, (was, now) in differ.items())
        yield f"The evaluation ({name}) asked the model otherwise than its training: {said}."


def asked_otherwise(content: Content, settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings of prompts, sampling and length that were not the recipe's: name -> (trained, evaluated).

    What a recipe does not say has its default. Nothing is known without a recipe (empty `settings`).
    """
    if not settings:
        return {}
    from progpo_trl.config import MultiTurnGRPOConfig

    fields = MultiTurnGRPOConfig.__dataclass_fields__
    how = content["agent"].get("settings") or {}
    out = {}
    for key in _SETTINGS:
        trained = settings.get(key, fields[key].default)
        if key in how and (how[key] or None) != (trained or None):
            out[key] = (trained, how[key])
    trained = settings.get("max_turns") or (settings.get("environment") or {}).get("max_steps")
    played = content["conditions"]["max_turns"]
    if played != trained and (trained is not None or "--max_turns" in (content.get("command") or [])):
        out["max_turns"] = (trained, played)
    return out


def _panel_names(content: Content) -> str:
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


def repeat_command(content: Content, folder: str, settings: Mapping[str, Any]) -> str:
    """The command that plays the same games again, in the same way, with the downloaded folder and its recipe."""
    splits = [word for panel in content["panels"] for word in ("--split", panel["split"])]
    temperatures = dict.fromkeys(f"{part['temperature'] or 0:g}" for part in content["results"])
    seeds = sorted({seed for part in content["results"] for seed in part["seeds"]})
    limit = [] if not _was_limited(content) else ["--tasks", str(max(p["games"] for p in content["panels"]))]
    words = ["progpo", "evaluate", "--model", folder, *splits, "--temperatures", *temperatures, "--seeds", *seeds]
    asked = asked_otherwise(content, settings)
    others = [word for key, (_, played) in asked.items() for word in (f"--{key}", _word(played))]
    return shlex.join(map(str, [*words, *limit, *others]))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _was_limited(content: Content) -> bool:
    return "--tasks" in (content.get("command") or [])


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
