"""Compares evaluations: agents game by game on one panel, and groups of training runs run by run.

Two kinds of chance are kept apart. `compare` asks whether two agents differ on the games of a panel; training once
more could still turn it round. `compare_groups` asks whether two methods differ, and only their training runs count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np

from progpo_trl.evaluation.errors import EvaluationError
from progpo_trl.evaluation.intervals import (
    Mean,
    bootstrap_mean,
    difference_of_runs,
    mcnemar,
    mean_over_runs,
    paired_difference,
    paired_test,
    repeated_rate,
)
from progpo_trl.evaluation.results import Record, game_means, is_lost, per_game, sampling_name

FORMAT = "progpo_trl comparison 1"

# (name, content of evaluation.json)
Entry = tuple[str, Mapping[str, Any]]


def compare(
    entries: Sequence[Entry], *, splits: Sequence[str] | None = None, temperatures: Sequence[float] | None = None
) -> dict[str, Any]:
    """Each agent against the first, paired by game; JSON, see docs/evaluation.md.

    splits, temperatures: what to compare, where the evaluations hold more. Raises EvaluationError, which names what
    differs, for evaluations of other panels, data, step limits or temperatures.
    """
    if len(entries) < 2:
        raise EvaluationError("a comparison needs at least two evaluations")
    parts = _parts(entries, splits, temperatures)
    return {
        "format": FORMAT,
        "kind": "agents",
        "warnings": list(_warnings(entries)),
        "agents": [{"name": name, "agent": content["agent"]} for name, content in entries],
        "panels": [p for p in entries[0][1]["panels"] if p["split"] in {split for split, _ in parts}],
        "conditions": entries[0][1]["conditions"],
        "parts": [_compare_part(entries, split, temperature) for split, temperature in parts],
    }


def compare_groups(
    groups: Mapping[str, Sequence[Entry]],
    *,
    splits: Sequence[str] | None = None,
    temperatures: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Means over the training runs of each group, and each group against the first; JSON, see docs/evaluation.md.

    A run counts once, with its mean over games and sampling seeds. Raises EvaluationError as `compare` does, and for
    a run that stands in the groups twice.
    """
    entries = [entry for group in groups.values() for entry in group]
    if not entries or not all(groups.values()):
        raise EvaluationError("every group needs at least one evaluation")
    _refuse_repeated_runs(entries)
    parts = _parts(entries, splits, temperatures)
    return {
        "format": FORMAT,
        "kind": "training runs",
        "warnings": list(_warnings(entries)),
        "groups": {
            name: [{"name": run, "agent": content["agent"]} for run, content in group]
            for name, group in groups.items()
        },
        "panels": [p for p in entries[0][1]["panels"] if p["split"] in {split for split, _ in parts}],
        "conditions": entries[0][1]["conditions"],
        "parts": [_groups_part(groups, split, temperature) for split, temperature in parts],
    }


# --------------------------------------------------------------------------------------------- what may be compared


def _parts(entries, splits, temperatures) -> list[tuple[str, float | None]]:
    """The splits and temperatures to compare; refuses evaluations that differ in what decides the numbers."""
    first_name, first = entries[0]
    for name, content in entries[1:]:
        what = _incomparable(first, content)
        if what:
            raise EvaluationError(f"{first_name} and {name} cannot be compared: {what}")
    wanted = list(splits or [panel["split"] for panel in first["panels"]])
    for name, content in entries:
        own = {panel["split"]: panel for panel in content["panels"]}
        for split in wanted:
            if split not in own:
                raise EvaluationError(f"{name} has no split {split!r}, only {', '.join(own)}; choose with --split")
        extra = sorted(set(own) - set(wanted))
        if extra and splits is None:
            raise EvaluationError(
                f"{name} has split {extra[0]!r}, which {first_name} has not; choose with --split what to compare"
            )
    for split in wanted:
        _same_panels(entries, split)
    return [(split, t) for split in wanted for t in _temperatures(entries, temperatures)]


def _incomparable(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    if first["environment"].get("name") != second["environment"].get("name"):
        one, other = (content["environment"].get("name") for content in (first, second))
        return f"the environment is {one} in one and {other} in the other"
    for key in dict.fromkeys([*first["conditions"], *second["conditions"]]):
        a, b = first["conditions"].get(key), second["conditions"].get(key)
        if a != b:
            label = {"max_turns": "the step limit (max_turns)"}.get(key, key)
            return f"{label} is {a} in one and {b} in the other"
    return None


def _same_panels(entries: Sequence[Entry], split: str) -> None:
    panels = [next(p for p in content["panels"] if p["split"] == split) for _, content in entries]
    for (name, _), panel in zip(entries[1:], panels[1:], strict=True):
        for key, label in (("games", "number of games"), ("panel_sha256", "games"), ("data_sha256", "data version")):
            if panel[key] != panels[0][key]:
                a, b = (str(p[key])[:12] for p in (panels[0], panel))
                raise EvaluationError(
                    f"{entries[0][0]} and {name} cannot be compared: the {label} of split {split} differ ({a} and {b})"
                )


def _temperatures(entries: Sequence[Entry], wanted: Sequence[float] | None) -> list[float | None]:
    """Those that all have; an agent without temperature can be held against any."""
    found = {
        name: sorted({r["temperature"] for r in content["results"] if r["temperature"] is not None}, reverse=True)
        for name, content in entries
    }
    sampled = {name: ts for name, ts in found.items() if ts}
    if wanted is None and len({tuple(ts) for ts in sampled.values()}) > 1:
        listed = "; ".join(f"{name}: {', '.join(f'{t:g}' for t in ts)}" for name, ts in sampled.items())
        raise EvaluationError(f"the temperatures differ ({listed}); choose with --temperature what to compare")
    if wanted is None:
        return list(next(iter(sampled.values()), [None]))
    if not sampled:
        raise EvaluationError("none of these agents has a temperature: leave out --temperature")
    for name, ts in sampled.items():
        for t in wanted:
            if t not in ts:
                raise EvaluationError(f"{name} has no temperature {t:g}, only {', '.join(f'{x:g}' for x in ts)}")
    return list(dict.fromkeys(wanted))


def _warnings(entries: Sequence[Entry]) -> Iterator[str]:
    """What a reader of the numbers must know."""
    tries: dict[int, list[str]] = {}
    for name, content in entries:
        tries.setdefault(tries_of(content["agent"]), []).append(name)
    if len(tries) > 1:
        said = [f"{', '.join(names)}: {'one try' if n == 1 else f'up to {n}'}" for n, names in sorted(tries.items())]
        yield (
            f"several tries against fewer. Tries of each game: {'; '.join(said)}. An agent that is told that it "
            "failed and tries again solves more games than in one try; its success after the first is in "
            "totals.trials of its evaluation.json."
        )


def tries_of(agent: Mapping[str, Any]) -> int:
    """How often the agent of an evaluation.json tries a game at most: 1, but for Reflexion."""
    settings = agent.get("settings")
    trials = settings.get("trials") if isinstance(settings, Mapping) else None
    return trials if isinstance(trials, int) and trials > 1 else 1


def _refuse_repeated_runs(entries: Sequence[Entry]) -> None:
    seen: dict[tuple, str] = {}
    for name, content in entries:
        agent = content["agent"]
        weights = (agent.get("weights_sha256"), agent.get("adapter_sha256"))
        if weights != (None, None) and weights in seen:
            raise EvaluationError(
                f"{seen[weights]} and {name} are evaluations of the same weights: a run counts once, however often it "
                "was evaluated"
            )
        seen[weights] = name


# --------------------------------------------------------------------------------------------------------- numbers


def _records(content: Mapping[str, Any], split: str, temperature: float | None) -> list[Record]:
    """The plays that could be scored, of a split at a temperature (or of an agent without)."""
    return [
        r
        for r in content["games"]
        if r["split"] == split and r["temperature"] in (temperature, None) and not is_lost(r)
    ]


def _numbers(records: Sequence[Record]) -> dict[str, Any]:
    scored = any(r["score"] is not None for r in records)
    return {
        "games": len({r["task_id"] for r in records}),
        "seeds": sorted({r["seed"] for r in records}),
        "success": asdict(repeated_rate(game_means(records, "success"))),
        **({"score": asdict(bootstrap_mean(game_means(records, "score")))} if scored else {}),
    }


def _compare_part(entries: Sequence[Entry], split: str, temperature: float | None) -> dict[str, Any]:
    plays = [(name, _records(content, split, temperature)) for name, content in entries]
    first_name, first = plays[0]
    pairs = [{"first": first_name, "second": name, **_pair(first, second)} for name, second in plays[1:]]
    for pair, p in zip(pairs, _holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = p
    return {
        "split": split,
        "temperature": temperature,
        "agents": [{"name": name, **_numbers(records)} for name, records in plays],
        "pairs": pairs,
    }


def _pair(first: Sequence[Record], second: Sequence[Record]) -> dict[str, Any]:
    """The second against the first on the games that both played."""
    a, b = per_game(first, "success"), per_game(second, "success")
    both = sorted(a.keys() & b.keys())
    if not both:
        raise EvaluationError("there is no game that both could be scored on")
    kinds = {r["task_id"]: r["task_type"] for r in first}
    out = {
        "games": len(both),
        "left_out": len(a.keys() ^ b.keys()),
        "difference": _difference(a, b, both),
        "p": paired_test([_share(a[i]) for i in both], [_share(b[i]) for i in both]),
        "by_seed": list(_by_seed(first, second)),
        "by_task_type": {
            kind: {"games": len(ids), "difference": _difference(a, b, ids)}
            for kind in sorted({kinds[i] for i in both})
            for ids in [[i for i in both if kinds[i] == kind]]
        },
    }
    if any(r["score"] is not None for r in (*first, *second)):
        out["score_difference"] = _difference(per_game(first, "score"), per_game(second, "score"), both)
    return out


def _difference(a: Mapping[str, list[float]], b: Mapping[str, list[float]], ids: Sequence[str]) -> dict[str, Any]:
    return asdict(paired_difference(*(np.array([np.mean(of[i]) for i in ids]) for of in (a, b))))


def _share(values: Sequence[float]) -> Fraction:
    return Fraction(int(sum(values)), len(values))


def _by_seed(first: Sequence[Record], second: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """McNemar's table for every sampling seed that both have."""
    for seed in sorted({r["seed"] for r in first} & {r["seed"] for r in second}):
        a, b = ({r["task_id"]: r["success"] for r in of if r["seed"] == seed} for of in (first, second))
        both = sorted(a.keys() & b.keys())
        won = [np.array([of[i] for i in both], bool) for of in (a, b)]
        only_first, only_second, p = mcnemar(*won)
        yield {"seed": seed, "games": len(both), "only_first": only_first, "only_second": only_second, "p": p}


def _holm(values: Sequence[float]) -> list[float]:
    """p values corrected for testing several agents against one (Holm 1979)."""
    order, out, least = np.argsort(values, kind="stable"), [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(values) - rank) * values[i]))
        out[i] = least
    return out


def _within(mean: Mean, least: float = -1.0) -> dict[str, Any]:
    """As JSON, without what the ends of Student's interval say beyond the shares there can be."""
    ends = {} if mean.low is None else {"low": max(least, mean.low), "high": min(1.0, mean.high)}
    return asdict(mean) | ends


def _groups_part(groups: Mapping[str, Sequence[Entry]], split: str, temperature: float | None) -> dict[str, Any]:
    out: dict[str, Any] = {"split": split, "temperature": temperature, "groups": {}, "pairs": []}
    rates: dict[str, list[float]] = {}
    scores: dict[str, list[float]] = {}
    for name, group in groups.items():
        runs = []
        for run, content in group:
            records = _records(content, split, temperature)
            if not records:
                raise EvaluationError(f"{run} has no scored game of split {split}, {sampling_name(temperature)}")
            runs.append({"name": run, "training_seed": content["agent"].get("training_seed"), **_numbers(records)})
        rates[name] = [run["success"]["rate"] for run in runs]
        scores[name] = [run["score"]["mean"] for run in runs if "score" in run]
        out["groups"][name] = {"runs": runs, "success": _within(mean_over_runs(rates[name]), 0.0)}
        if scores[name]:
            out["groups"][name]["score"] = asdict(mean_over_runs(scores[name]))
    first, *others = groups
    for name in others:
        pair = {"first": first, "second": name, "difference": _within(difference_of_runs(rates[first], rates[name]))}
        if scores[first] and scores[name]:
            pair["score_difference"] = asdict(difference_of_runs(scores[first], scores[name]))
        out["pairs"].append(pair)
    return out
