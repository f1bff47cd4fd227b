"""`progpo verify estimators FILE`: run every case of a golden file through our estimators.

The file holds batches and cases with the numbers of the public reference implementations; docs/verifying.md has its
format. Parameters there bear the references' names; this is where they meet ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from progpo_trl.advantages import GRPO, HGPO, TRLGRPO, GiGPO, ProGPO, ProxMO, step_returns
from progpo_trl.advantages.progress import coverage
from progpo_trl.episodes import StepBatch
from progpo_trl.golden_batches import batch_of_columns, batch_of_rows, batch_of_trajectories, episode_names

RTOL, ATOL = 1e-4, 1e-5
_LARGEST_ATOL = 0.1  # a case that allows more compares nothing
_NORMS = {"mean_std_norm": "mean_std", "mean_norm": "mean"}


class GoldenError(ValueError):
    """A golden file is missing, damaged, or asks for something there is not."""


@dataclass(frozen=True)
class Check:
    """One compared quantity of a case. difference: the largest |ours - expected| / max(1, |expected|)."""

    quantity: str
    passed: bool
    difference: float


@dataclass(frozen=True)
class CaseResult:
    """A case and its checks."""

    name: str
    checks: list[Check]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def worst(self) -> Check:
        return max(self.checks, key=lambda check: (not check.passed, check.difference))


def verify_estimators(path: str | Path) -> list[CaseResult]:
    """The result of every case in the golden file `path`; GoldenError when it cannot be used."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        cases, batches = content["cases"], content["batches"]
    except OSError as error:
        raise GoldenError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise GoldenError(f"{path}: is no golden file: {error!r}") from None
    if not isinstance(cases, list) or not cases:
        raise GoldenError(f"{path}: holds no cases")
    results = []
    for number, case in enumerate(cases):
        name = case.get("name", f"case {number}") if isinstance(case, dict) else f"case {number}"
        try:
            results.append(CaseResult(name, list(run_case(case, batches))))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
            raise GoldenError(f"{path}: {name} cannot be run: {type(error).__name__}: {error}") from error
    return results


def run_case(case: dict[str, Any], batches: dict[str, Any]) -> Iterator[Check]:
    """Our numbers beside those of one case."""
    estimator = case["estimator"]
    if estimator not in _RUNNERS:
        raise GoldenError(f"{case.get('name')}: there is no estimator {estimator!r}; there are {sorted(_RUNNERS)}")
    inputs = batches[case["inputs"]] if isinstance(case["inputs"], str) else case["inputs"]
    ours = _RUNNERS[estimator](case["params"], inputs, case["expected"])
    expected = case["expected"]
    noisy = bool(case.get("float_noise"))
    adv, atol = expected["adv_exact" if noisy else "adv"], expected.get("atol", ATOL)
    if not np.size(list(adv)):
        raise ValueError("it expects no advantages")
    if not 0 <= atol <= _LARGEST_ATOL:
        raise ValueError(f"atol must be from 0 to {_LARGEST_ATOL}, got {atol!r}")
    yield _compare("adv", ours["adv"], adv, atol)
    for quantity, value in ours.items():
        # The reference's own terms carry the rounding noise for which the exact advantages stand in.
        if quantity != "adv" and quantity in expected and not noisy:
            yield _compare(quantity, value, expected[quantity], ATOL)
    if isinstance(inputs, dict) and "derived" in inputs:
        batch = batch_of_rows(inputs)
        yield _compare("row_score", batch.row_score, inputs["derived"]["row_score"], ATOL)
        returns = step_returns(batch, inputs["gamma"])
        yield _compare("row_return", returns, inputs["derived"]["row_return"], ATOL)


def _compare(quantity: str, ours: Any, expected: Any, atol: float) -> Check:
    if isinstance(expected, dict):  # by name
        ours, expected = [ours[name] for name in expected], list(expected.values())
    got = np.asarray(ours, float).ravel()
    want = np.array([float(Fraction(v)) if isinstance(v, str) else float(v) for v in np.ravel(expected)])
    if not np.isfinite(want).all():
        raise GoldenError(f"{quantity}: an expected value is not finite")
    if got.shape != want.shape:
        raise GoldenError(f"{quantity}: {got.size} of ours for {want.size} expected values")
    distance = np.abs(got - want)
    passed = bool((distance <= atol + RTOL * np.abs(want)).all())
    return Check(quantity, passed, float((distance / np.maximum(1.0, np.abs(want))).max(initial=0.0)))


# ------------------------------------------------------------------------------------------------------- estimators


def _grpo(params: dict, rows: dict, expected: dict) -> dict[str, Any]:
    norm = "mean_std" if params["norm_by_std"] else "mean"
    estimator = GRPO.released_code(stats=params["stats"], norm=norm, eps=params["eps"])
    return {"adv": estimator(batch_of_rows(rows))}


def _trl_grpo(params: dict, rows: dict, expected: dict) -> dict[str, Any]:
    batch = batch_of_rows(rows)
    estimator = TRLGRPO(scale_rewards=params["scale_rewards"], eps=params["eps"], penalty="none")
    names = [traj for _, traj in episode_names(rows)]
    return {"adv": _by_episode(batch, estimator(batch))[[names.index(name) for name in expected["traj"]]]}


def _by_episode(batch: StepBatch, advantages: np.ndarray) -> np.ndarray:
    """(n_episodes,) the advantage of each episode's first step; GoldenError when its steps differ."""
    first = np.unique(batch.episode, return_index=True)[1]
    if (advantages != advantages[first][batch.episode]).any():
        raise GoldenError("the steps of an episode differ where one number an episode is expected")
    return advantages[first]


def _gigpo(params: dict, rows: dict, expected: dict) -> dict[str, Any]:
    estimator = GiGPO.released_code(
        norm=_NORMS[params["mode"]],
        w=params["w"],
        gamma=params["gamma"],
        similarity=params["similarity"],
        eps=params["eps"],
    )
    return _terms(estimator, batch_of_rows(rows))


def _hgpo(params: dict, rows: dict, expected: dict) -> dict[str, Any]:
    estimator = HGPO.released_code(
        history_length=params["history_length"],
        length_weight_alpha=params["length_weight_alpha"],
        weight_offset=params["weight_offset"],
        base_group=params["base_group"],
        norm=_NORMS[params["mode"]],
        eps=params["eps"],
        gamma=rows["gamma"],
    )
    return {"adv": estimator(batch_of_rows(rows))}


def _proxmo(params: dict, rows: dict, expected: dict) -> dict[str, Any]:
    soft = params["mode"] == "soft_grouping"
    estimator = ProxMO.released_code(
        w=params["w"],
        gamma=rows["gamma"],
        norm="mean" if soft else _NORMS[params["mode"]],
        aggregation="soft" if soft else "exact",
        psc=params["psc"],
        psc_form={"code": "power"}.get(params["psc_form"], params["psc_form"]),
        alpha=params["alpha"],
        beta=params["beta"],
        tau=params["tau"],
        tfidf_scope=params["tfidf_scope"],
        max_features=params["max_features"],
    )
    return _terms(estimator, batch_of_rows(rows))


def _terms(estimator: GiGPO | ProxMO, batch: StepBatch) -> dict[str, Any]:
    terms = estimator.terms(batch)
    episode = terms["episode term"] * terms.get("modulation W", 1.0)
    return {"adv": estimator(batch), "episode_adv": episode, "step_adv": terms["step term"]}


# What a golden file calls "verl-agent / ProxMO defaults"; the rows' own gamma is the default one.
_BASES: dict[str, Callable] = {
    "grpo": GRPO.released_code,
    "gigpo": GiGPO.released_code,
    "hgpo": HGPO.released_code,
    "proxmo": lambda: ProxMO.released_code(alpha=4.0, beta=0.1),
}


def _progpo(params: dict, inputs: dict, expected: dict) -> dict[str, Any]:
    options = {name: params[name] for name in ("lambda_aux", "tau_R", "tau_P", "eps_P", "scale_by_q_fail")}
    options |= {name: params[name] for name in ("include_final_obs", "gate", "combine") if name in params}
    if "derived" in inputs:
        return _progpo_rows(ProGPO(_BASES[params["base"]](), **options), inputs)
    # Cases of single trajectories are the literal Eq. 7, which replaces; without penalties both agree.
    options.setdefault("combine", "replace")
    given = None
    if "groups" in inputs:
        batch = batch_of_trajectories(inputs["groups"])
    else:
        batch, given = batch_of_columns(inputs)
    base = GRPO(stats=params["base_stats"], eps=params["base_eps"])
    estimator = ProGPO(base, **options, **_variant(params, given))
    groups, all_fail, q_fail = estimator.all_fail(batch)
    progress = estimator.scores(batch)
    fails = [progress[batch.episode_group == group] for group in groups[all_fail]]
    # A control that draws scores states the coverage it was drawn in place of.
    drawn = params.get("variant") in ("shuffle", "random")
    return {
        "adv": _by_episode(batch, estimator(batch)),
        "coverage": coverage(batch, params["include_final_obs"]) if drawn else progress,
        "q_fail": q_fail,
        "lambda_eff": estimator.effective_lambda(q_fail),
        "coverage_mean": [p.mean() for p in fails],
        "coverage_var_population": [p.var() for p in fails],
    }


def _variant(params: dict, given: np.ndarray | None) -> dict[str, Any]:
    """ProGPO's options for a case's `variant`; a permutation or values that the case states are taken as they are."""
    variant = params.get("variant", "coverage")
    if given is not None:
        return {"progress": lambda batch: given}
    if variant == "shuffle":
        permutation = np.array(params["permutation"])
        return {"progress": lambda batch: coverage(batch, params["include_final_obs"])[permutation]}
    if variant == "random":
        return {"progress": lambda batch: np.array(params["values"], float)}
    if variant in ("neg", "none"):
        return {"control": variant}
    return {"progress": {"edit_d": "edit_distance"}.get(variant, variant)}


def _progpo_rows(estimator: ProGPO, rows: dict) -> dict[str, Any]:
    batch = batch_of_rows(rows)
    groups, all_fail, q_fail = estimator.all_fail(batch)
    labels = list(dict.fromkeys(rows["group"]))
    names = [traj for _, traj in episode_names(rows)]
    return {
        "adv": estimator(batch),
        "base_adv": estimator.base(batch),
        "q_fail": q_fail,
        "coverage": dict(zip(names, estimator.scores(batch).tolist(), strict=True)),
        "all_fail": {labels[group]: fails for group, fails in zip(groups, all_fail.tolist(), strict=True)},
    }


_RUNNERS: dict[str, Callable] = {
    "grpo": _grpo,
    "trl_grpo": _trl_grpo,
    "gigpo": _gigpo,
    "hgpo": _hgpo,
    "proxmo": _proxmo,
    "progpo": _progpo,
}
