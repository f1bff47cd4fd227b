"""GRPO and ProGPO against vectors of the public reference implementations (../shared/data/estimators)."""

import json
from fractions import Fraction

import numpy as np
import pytest

from progpo_trl.advantages import GRPO, ProGPO, coverage
from progpo_trl.episodes import StepBatch


@pytest.fixture(scope="session")
def golden(shared_data):
    return json.loads((shared_data / "estimators" / "golden.json").read_text())


def objects(values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def batch_of_rows(rows) -> StepBatch:
    """A golden batch (flat rows) as a StepBatch; episodes in first-seen order."""
    names = list(dict.fromkeys(zip(rows["group"], rows["traj"], strict=True)))
    groups = list(dict.fromkeys(rows["group"]))
    episode = np.array([names.index(key) for key in zip(rows["group"], rows["traj"], strict=True)])
    returns = np.zeros(len(names))
    returns[episode] = rows["episode_return"]
    valid = np.array(rows["valid"], bool)
    n = len(episode)
    return StepBatch(
        episode=episode,
        step=np.array([int((episode[:i] == episode[i]).sum()) for i in range(n)]),
        observation=objects(rows["obs"]),
        action=objects([""] * n),
        reward=np.array(rows["step_reward"], float),
        penalty=np.where(valid, 0.0, rows["invalid_penalty"]),
        format_valid=valid,
        admissible=np.ones(n, bool),
        episode_group=np.array([groups.index(g) for g, _ in names]),
        episode_return=returns,
        success=returns > 0,
        dropped=np.zeros(len(names), bool),
        final_observation=objects([None] * len(names)),
    )


def batch_of_trajectories(groups) -> StepBatch:
    """An inline ProGPO input (trajectories with T+1 observations) as a StepBatch."""
    flat = [(g, t) for g, group in enumerate(groups) for t in group["trajectories"]]
    sizes = [len(t["obs"]) - 1 for _, t in flat]
    episode = np.repeat(np.arange(len(flat)), sizes)
    n = len(episode)
    return StepBatch(
        episode=episode,
        step=np.concatenate([np.arange(s) for s in sizes]),
        observation=objects([o for _, t in flat for o in t["obs"][:-1]]),
        action=objects([""] * n),
        reward=np.zeros(n),
        penalty=np.zeros(n),
        format_valid=np.ones(n, bool),
        admissible=np.ones(n, bool),
        episode_group=np.array([g for g, _ in flat]),
        episode_return=np.array([t["episode_return"] for _, t in flat], float),
        success=np.zeros(len(flat), bool),
        dropped=np.zeros(len(flat), bool),
        final_observation=objects([t["obs"][-1] for _, t in flat]),
    )


def close(case, got):
    expected = case["expected"]
    want = expected["adv_exact"] if case.get("float_noise") else expected["adv"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=expected.get("atol", 1e-5), err_msg=case["name"])


def test_grpo(golden):
    cases = [c for c in golden["cases"] if c["estimator"] == "grpo" and not c.get("pathological")]
    assert len(cases) >= 100
    for case in cases:
        params = case["params"]
        estimator = GRPO(
            stats=params["stats"],
            norm="mean_std" if params["norm_by_std"] else "mean",
            eps=params["eps"],
            singleton="raw",
        )
        close(case, estimator(batch_of_rows(golden["batches"][case["inputs"]])))


def test_progpo_over_grpo_rows(golden):
    cases = [
        c
        for c in golden["cases"]
        if c["estimator"] == "progpo" and isinstance(c["inputs"], str) and c["params"]["base"] == "grpo"
    ]
    assert len(cases) == 10
    for case in cases:
        params = case["params"]
        estimator = ProGPO(
            GRPO(stats="steps", singleton="raw"),
            lambda_aux=params["lambda_aux"],
            tau_R=params["tau_R"],
            tau_P=params["tau_P"],
            eps_P=params["eps_P"],
            scale_by_q_fail=params["scale_by_q_fail"],
            include_final_obs=params["include_final_obs"],
            gate=params["gate"],
            combine=params["combine"],
        )
        close(case, estimator(batch_of_rows(golden["batches"][case["inputs"]])))


def test_progpo_trajectories(golden):
    cases = [
        c
        for c in golden["cases"]
        if c["estimator"] == "progpo" and "groups" in c["inputs"] and c["params"].get("variant") == "coverage"
    ]
    assert len(cases) >= 10
    for case in cases:
        params = case["params"]
        batch = batch_of_trajectories(case["inputs"]["groups"])
        estimator = ProGPO(
            GRPO(stats=params["base_stats"], eps=params["base_eps"], singleton="raw"),
            lambda_aux=params["lambda_aux"],
            scale_by_q_fail=params["scale_by_q_fail"],
            include_final_obs=params["include_final_obs"],
            combine="replace",  # the inline cases are the literal Eq. 7
        )
        expected = case["expected"]
        if "coverage" in expected:
            want = [float(Fraction(c)) for c in expected["coverage"]]
            np.testing.assert_allclose(coverage(batch, params["include_final_obs"]), want, atol=1e-12)
        if "q_fail" in expected:
            assert estimator.all_fail(batch)[2] == pytest.approx(float(Fraction(expected["q_fail"])))
        rows = estimator(batch)
        first = [int(np.flatnonzero(batch.episode == i)[0]) for i in range(batch.n_episodes)]
        close(case, rows[first])
        assert all(len(set(rows[batch.episode == i].tolist())) == 1 for i in range(batch.n_episodes))


def test_progpo_columns(golden):
    cases = [c for c in golden["cases"] if c["estimator"] == "progpo" and "coverage" in c["inputs"]]
    assert cases
    for case in cases:
        params, columns = case["params"], case["inputs"]
        n = len(columns["coverage"])
        groups = list(dict.fromkeys(columns["group"]))
        # One step per trajectory: the coverage is given, so its observations do not matter.
        batch = batch_of_trajectories(
            [
                {
                    "trajectories": [
                        {"obs": ["a", "b"], "episode_return": columns["episode_return"][i]}
                        for i in range(n)
                        if columns["group"][i] == g
                    ]
                }
                for g in groups
            ]
        )
        order = [i for g in groups for i in range(n) if columns["group"][i] == g]
        estimator = ProGPO(
            GRPO(stats=params["base_stats"], eps=params["base_eps"]),
            lambda_aux=params["lambda_aux"],
            eps_P=params["eps_P"],
            scale_by_q_fail=params["scale_by_q_fail"],
        )
        progress = np.array([float(Fraction(columns["coverage"][i])) for i in order])
        fallback, active = estimator.fallback(batch, progress)
        got = np.where(active, fallback, 0.0) + np.where(active, 0.0, estimator.base(batch))
        close({**case, "expected": {**case["expected"], "adv": [case["expected"]["adv"][i] for i in order]}}, got)
