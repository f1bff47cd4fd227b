"""Every option of every estimator does what its docstring says, and nothing else is accepted."""

import math
from dataclasses import fields

import numpy as np
import pytest
from test_properties import batch_of, episode

from progpo_trl.advantages import (
    ESTIMATORS,
    GRPO,
    HGPO,
    TRLGRPO,
    GiGPO,
    ProGPO,
    ProxMO,
    StepEstimator,
    coverage,
    make_estimator,
    proximity,
    step_returns,
)
from progpo_trl.advantages.controls import apply_control
from progpo_trl.advantages.progress import edit_distance, first_visits, obs_change

MIXED = batch_of(
    [
        episode(0, ["on the desk", "on the shelf", "by the door"], 10.0),
        episode(0, ["on the desk", "on the desk"], 0.0, valid=[True, False]),
        episode(0, ["on the desk", "by the door", "on the shelf"], 0.0),
        episode(1, ["on the desk", "near it"], 0.0, final="on the desk"),
        episode(1, ["on the desk", "on the desk"], 0.0, final="on the desk"),
    ]
)


# ------------------------------------------------------------------------------------------------ shared options


def test_stats():
    score = MIXED.row_score
    steps = score[:8] - score[:8].mean()
    np.testing.assert_allclose(GRPO(norm="mean", stats="steps")(MIXED)[:8], steps, rtol=1e-5)
    np.testing.assert_allclose(GRPO(norm="mean")(MIXED)[:8], score[:8] - 10 / 3, rtol=1e-5)


def test_norm_and_eps():
    sd = np.std([10, 0, 0], ddof=1)
    np.testing.assert_allclose(GRPO(eps=0.5)(MIXED)[0], (10 - 10 / 3) / (sd + 0.5), rtol=1e-6)
    np.testing.assert_allclose(GRPO(norm="mean")(MIXED)[0], 10 - 10 / 3, rtol=1e-6)


@pytest.mark.parametrize("cls", [GRPO, GiGPO, HGPO, ProxMO])
def test_released_code_is_a_preset_that_single_options_change(cls):
    assert cls.released_code() == cls(**cls.RELEASED)
    assert cls.released_code() != cls()
    assert cls.released_code(eps=0.1).eps == 0.1
    assert cls.released_code(eps=0.1).stats == "steps"
    name = next(name for name, known in ESTIMATORS.items() if known is cls)
    assert make_estimator({"name": name, "preset": "released_code", "eps": 0.1}) == cls.released_code(eps=0.1)
    assert make_estimator({"name": name, "preset": "default"}) == cls()


def test_gamma_and_penalty_in_returns():
    np.testing.assert_allclose(step_returns(MIXED, 0.5)[:5], [2.5, 5, 10, 0, -0.1])
    np.testing.assert_allclose(step_returns(MIXED, 0.0)[:5], [0, 0, 10, 0, -0.1])
    assert GiGPO(gamma=0.5).terms(MIXED)["return"][0] == 2.5
    assert HGPO(gamma=0.5).terms(MIXED)["return"][0] == 2.5
    assert ProxMO(gamma=0.5).terms(MIXED)["return"][0] == 2.5


# ---------------------------------------------------------------------------------------------------------- TRL


def test_trl_scales():
    returns = np.array([10.0, 0, 0, 0, 0])
    group = returns[0] - 10 / 3
    first = {s: TRLGRPO(scale_rewards=s, penalty="none")(MIXED)[0] for s in ("group", "batch", "none")}
    assert first["none"] == pytest.approx(group)
    assert first["group"] == pytest.approx(group / (returns[:3].std(ddof=1) + 1e-4))
    assert first["batch"] == pytest.approx(group / (returns.std(ddof=1) + 1e-4))


def test_trl_penalty():
    assert TRLGRPO(penalty="none", scale_rewards="none")(MIXED)[3] == pytest.approx(-10 / 3)
    # one of the episode's two steps is invalid: 0.05 of it, and a third of that goes into the mean
    assert TRLGRPO(scale_rewards="none")(MIXED)[3] == pytest.approx(-0.05 - (10 - 0.05) / 3)


def test_trl_is_what_trl_computes():
    """The lines of TRL's GRPOTrainer with torch."""
    import torch

    rng = np.random.default_rng(0)
    rewards = rng.choice([0.0, 1.0, 0.3], 24)
    batch = batch_of([episode(i // 8, "a" * (1 + i % 3), r) for i, r in enumerate(rewards)])
    grouped = torch.tensor(rewards).view(-1, 8)
    expected = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    first = np.unique(batch.episode, return_index=True)[1]
    np.testing.assert_allclose(TRLGRPO()(batch)[first], expected.flatten().numpy(), rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------------------------------------------- GiGPO


def test_gigpo_by_hand():
    terms = GiGPO(norm="mean", w=0.5, gamma=1.0).terms(MIXED)
    assert terms["anchor size"].tolist() == [4, 2, 2, 4, 4, 4, 2, 2, 3, 1, 3, 3]
    np.testing.assert_allclose(terms["step term"][0], 10 - (10 + 0 - 0.1 + 0) / 4)
    assert GiGPO(norm="mean", w=0.5, gamma=1.0)(MIXED)[0] == pytest.approx(
        terms["episode term"][0] + 0.5 * terms["step term"][0]
    )


def test_gigpo_similarity():
    batch = batch_of([episode(0, ["You see a mug 1.", "You see a mug 2."], 1.0), episode(0, ["You see a cup 9."])])
    assert len(set(GiGPO().anchors(batch))) == 3
    assert GiGPO(similarity=0.9).anchors(batch).tolist() == [0, 0, 1]
    assert GiGPO(similarity=0.5).anchors(batch).tolist() == [0, 0, 0]


# --------------------------------------------------------------------------------------------------------- HGPO


def test_hgpo_by_hand():
    terms = HGPO(norm="mean", gamma=1.0, eps=0, history_length=1).terms(MIXED)
    assert terms["depth 1 size"].tolist() == [0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1]
    assert terms["depth 0 weight"][0] == 1.0
    twice = batch_of([episode(0, "ab", 1.0), episode(0, "ab"), episode(0, "cb")], penalty=0)
    # at b: depth 0 has 1, 0, 0; depth 1 has 1, 0 after a
    advantage = HGPO(norm="mean", gamma=1.0, eps=0, history_length=1)(twice)
    assert advantage[1] == pytest.approx((2 * (2 / 3) + 3 * 0.5) / 5)
    assert HGPO(norm="mean", gamma=1.0, eps=0, history_length=1, weight_offset=0)(twice)[1] == pytest.approx(
        ((2 / 3) + 2 * 0.5) / 3
    )
    assert HGPO(norm="mean", gamma=1.0, eps=0, history_length=1, length_weight_alpha=0)(twice)[1] == pytest.approx(
        ((2 / 3) + 0.5) / 2
    )
    assert HGPO(norm="mean", gamma=1.0, eps=1.0, history_length=1)(twice)[1] == pytest.approx(
        (2 * (2 / 3) + 3 * 0.5) / 6
    )
    with_base = HGPO(norm="mean", gamma=1.0, eps=0, history_length=1, base_group=True)(twice)
    assert with_base[1] == pytest.approx((2 * (2 / 3) + 3 * 0.5 + 2 / 3) / 6)


def test_hgpo_uses_the_population_deviation():
    pair = batch_of([episode(0, "a", 1.0), episode(0, "a")], penalty=0)
    np.testing.assert_allclose(HGPO(eps=0)(pair), [1, -1], rtol=1e-6)
    np.testing.assert_allclose(GiGPO(eps=0).terms(pair)["step term"], [0.5**0.5, -(0.5**0.5)], rtol=1e-6)


# ------------------------------------------------------------------------------------------------------- ProxMO


def group_of(successes, failures, **kwargs):
    wins = [episode(0, ["aa", "bb"], 10.0) for _ in range(successes)]
    return batch_of(wins + [episode(0, ["aa", "cc", "dd"]) for _ in range(failures)], **kwargs)


def test_modulation_of_the_paper():
    """The authors' numbers: 1.05 for a success at p near 0, 1 at p = 0.5, 0.95 for a failure at p near 1."""
    rare = ProxMO().modulation(group_of(1, 19))
    assert rare[0][0] == pytest.approx(0.05)
    assert rare[2][0] == pytest.approx(1 + 0.1 * (1 / (1 + math.exp(-4 * 0.9)) - 0.5))
    assert rare[2][0] == pytest.approx(1.05, abs=0.005)
    assert rare[2][-1] == 1.0
    even = ProxMO().modulation(group_of(4, 4))[2]
    assert set(even.tolist()) == {1.0}
    easy = ProxMO().modulation(group_of(19, 1))[2]
    assert easy[0] == 1.0
    assert easy[-1] == pytest.approx(0.95, abs=0.005)
    advantage = ProxMO(w=0)(group_of(1, 19))
    np.testing.assert_allclose(advantage, GRPO()(group_of(1, 19)) * rare[2], rtol=1e-6)


def test_modulation_options():
    batch = group_of(1, 3)
    assert ProxMO(alpha=0).modulation(batch)[2].tolist() == [1.0] * 11
    assert ProxMO(psc=False).modulation(batch)[2].tolist() == [1.0] * 11
    assert ProxMO(beta=0.2).modulation(batch)[2][0] - 1 == pytest.approx(2 * (ProxMO().modulation(batch)[2][0] - 1))
    power = ProxMO(psc_form="power", psc_range=0.05)
    assert power.strength == pytest.approx(0.21639534)
    assert power.modulation(batch)[2][0] == pytest.approx(
        1 + power.strength * (1 / (1 + math.exp(-((1 - 0.25) ** 4))) - 0.5)
    )
    assert power.modulation(batch)[2][-1] == pytest.approx(1 + power.strength * (1 / (1 + math.exp(0.25**4)) - 0.5))
    assert ProxMO(psc_range=0.05).strength * (1 / (1 + math.exp(-4)) - 0.5) == pytest.approx(0.05)
    own = ProxMO(psc_form=lambda p, success: np.where(success, 1 - p, -p), beta=0.5)
    assert own.modulation(batch)[2].tolist() == [1.375] * 2 + [0.875] * 9
    with pytest.raises(ValueError, match="psc_form returned shape"):
        ProxMO(psc_form=lambda p, success: 1.0).modulation(batch)


def test_success_rate_options():
    batch = group_of(1, 3)
    assert ProxMO().modulation(batch)[0][0] == 1 / 4
    assert ProxMO(psc_stats="steps").modulation(batch)[0][0] == 2 / 11
    assert ProxMO(psc_success="raw_score", psc_stats="steps").modulation(batch)[0][0] == 1.0
    assert ProxMO(psc_success="raw_score").modulation(batch)[0][0] == 1.0


def test_aggregation_options():
    returns = step_returns(MIXED, 0.95)
    assert not ProxMO(aggregation="none").step_term(MIXED, returns).any()
    exact = ProxMO(aggregation="exact").step_term(MIXED, returns)
    np.testing.assert_allclose(exact, GiGPO().terms(MIXED)["step term"])
    assert ProxMO(w=0)(MIXED).tobytes() == ProxMO(aggregation="none")(MIXED).tobytes()
    warm, cold = (np.abs(ProxMO(tau=tau).step_term(MIXED, returns)) for tau in (10.0, 0.01))
    assert warm[2] > cold[2] > 0


def test_exclude_self():
    """A_incl = (1 - q_self) * A_loo (specification, X8)."""
    batch = batch_of([episode(0, ["on the desk", "on the shelf"], 1.0), episode(0, ["on the desk", "by the door"])])
    returns = step_returns(batch, 0.95)
    with_self = ProxMO().step_term(batch, returns)
    without = ProxMO(exclude_self=True).step_term(batch, returns)
    ((_, local, vectors),) = ProxMO().candidate_sets(batch)
    weights = np.exp(vectors.cosines(local)[:, local] / 0.1)
    own = np.diag(weights) / weights.sum(axis=1)
    np.testing.assert_allclose(with_self, (1 - own) * without, rtol=1e-9)


def test_same_step_candidates():
    batch = batch_of([episode(0, ["aa", "bb"], 1.0), episode(0, ["aa", "aa"])], penalty=0)
    same = ProxMO(psa_candidates="same_step", tau=1e6).step_term(batch, np.array([1.0, 4.0, 0.0, 2.0]))
    np.testing.assert_allclose(same, [0.5, 1.0, -0.5, -1.0], atol=1e-5)


def test_tfidf_scope():
    """Fitted on the batch, a group's step term depends on the other group."""
    one = [episode(0, ["on the desk", "on the shelf"], 1.0), episode(0, ["on the desk", "by the door"])]
    other = [episode(1, ["by the desk", "by the desk"], 1.0), episode(1, ["by the desk", "by the desk"])]
    for scope, differs in (("group", False), ("batch", True)):
        alone = ProxMO(tfidf_scope=scope)(batch_of(one))
        together = ProxMO(tfidf_scope=scope)(batch_of([*one, *other]))[:4]
        assert (np.abs(alone - together).max() > 1e-4) == differs


def test_max_features():
    """One term left, the most frequent: "on" and "by" texts are told apart by nothing else."""
    batch = batch_of([episode(0, ["on desk", "on shelf"], 1.0), episode(0, ["on desk", "by door"])], penalty=0)
    returns = step_returns(batch, 1.0)
    np.testing.assert_allclose(
        ProxMO(max_features=1, tau=0).step_term(batch, returns), returns - [2 / 3, 2 / 3, 2 / 3, 0.5]
    )
    unlimited = ProxMO(max_features=None).step_term(batch, returns)
    np.testing.assert_array_equal(unlimited, ProxMO().step_term(batch, returns))


def test_very_many_terms_are_kept_sparse_and_give_the_same(monkeypatch):
    batch = batch_of([episode(0, ["on desk", "on shelf", "go east"], 1.0), episode(0, ["on desk", "by door", ""])])
    returns = step_returns(batch, 0.95)
    expected = {scope: ProxMO(tfidf_scope=scope).step_term(batch, returns) for scope in ("group", "batch")}
    monkeypatch.setattr(proximity, "_DENSE", 2)
    for scope, values in expected.items():
        np.testing.assert_allclose(ProxMO(tfidf_scope=scope).step_term(batch, returns), values, atol=1e-12)
        same_step = ProxMO(tfidf_scope=scope, psa_candidates="same_step", exclude_self=True)
        assert np.isfinite(same_step.step_term(batch, returns)).all()
    assert ProxMO().nearest(batch, 0)


def test_embed():
    """Any function of texts in place of TF-IDF; it is asked once, for the distinct texts of steps."""
    asked = []

    def embed(texts):
        asked.append(texts)
        return [[len(t), 0.0] if "desk" in t else [0.0, 1.0] for t in texts]

    estimator = ProxMO(embed=embed, tau=0.0)
    terms = estimator.terms(MIXED)
    assert len(asked) == 1
    assert sorted(asked[0]) == ["by the door", "near it", "on the desk", "on the shelf"]
    desk = np.array(["desk" in o for o in MIXED.observation]) & (MIXED.group == 0)
    np.testing.assert_allclose(terms["baseline"][0], terms["return"][desk].mean())
    for bad in (lambda texts: [[1.0]], lambda texts: [[np.nan]] * len(texts)):
        with pytest.raises(ValueError, match="embed returned"):
            ProxMO(embed=bad)(MIXED)


def test_text_without_words_has_no_step_term():
    batch = batch_of([episode(0, ["a", "b"], 1.0), episode(0, ["?"])], penalty=0)
    for scope in ("group", "batch"):
        assert not ProxMO(tfidf_scope=scope).terms(batch)["step term"].any()


# ------------------------------------------------------------------------------------------------------- ProGPO

FAILED = batch_of(
    [
        episode(0, "abc", final="d"),
        episode(0, "aba", final="a"),
        episode(0, "aaa", final="a"),
        episode(1, "abc", 10.0),
        episode(1, "aaa", 0.0),
    ],
    penalty=0,
)


def z(values):
    values = np.asarray(values, float)
    return np.repeat((values - values.mean()) / values.std(), 3)


def test_lambda():
    for options, scale in (
        ({}, 0.15),
        ({"scale_by_q_fail": False}, 0.3),
        ({"lambda_aux": 1.0}, 0.5),
        ({"lambda_aux": 1.0, "scale_by_q_fail": False}, 1.0),
    ):
        np.testing.assert_allclose(ProGPO(**options)(FAILED)[:9], scale * z([1, 1 / 3, 0]), rtol=1e-5)


def test_gates_and_thresholds():
    assert not ProGPO(tau_P=0.5)(FAILED)[:9].any()
    assert ProGPO(tau_R=11.0)(FAILED)[9:].tobytes() != GRPO()(FAILED)[9:].tobytes()
    assert not ProGPO(tau_R=0.0)(FAILED)[:9].any()
    std = np.std([1, 1 / 3, 0])
    np.testing.assert_allclose(ProGPO(eps_P=std)(FAILED)[:9], 0.075 * z([1, 1 / 3, 0]), rtol=1e-5)
    nobody = ProGPO(gate=lambda batch: np.zeros(batch.n_episodes), scale_by_q_fail=False)
    np.testing.assert_allclose(nobody(FAILED)[:9], 0.3 * z([1, 1 / 3, 0]), rtol=1e-5)
    assert nobody.all_fail(FAILED)[2] == 1.0
    with pytest.raises(ValueError, match="gate returned shape"):
        ProGPO(gate=lambda batch: np.zeros(1))(FAILED)


def test_combine():
    base = lambda batch: np.ones(len(batch), np.float32)  # noqa: E731
    fallback = 0.15 * z([1, 1 / 3, 0])
    np.testing.assert_allclose(ProGPO(base)(FAILED)[:9], 1 + fallback, rtol=1e-5)
    np.testing.assert_allclose(ProGPO(base, combine="replace")(FAILED)[:9], fallback, rtol=1e-4)
    assert ProGPO(base, combine="replace")(FAILED)[9:].tolist() == [1.0] * 6


def test_final_observation():
    np.testing.assert_allclose(coverage(FAILED, include_final_obs=False)[:3], [2 / 3, 1 / 3, 0])
    without = ProGPO(include_final_obs=False)(FAILED)[:9]
    np.testing.assert_allclose(without, 0.15 * z([2 / 3, 1 / 3, 0]), rtol=1e-5)


def test_progress_scores():
    np.testing.assert_allclose(obs_change(FAILED)[:3], [1, 2 / 3, 0])
    np.testing.assert_allclose(obs_change(FAILED, include_final_obs=False)[:3], [2 / 3, 2 / 3, 0])
    np.testing.assert_allclose(ProGPO(progress="obs_change")(FAILED)[:9], 0.15 * z([1, 2 / 3, 0]), rtol=1e-5)
    words = batch_of([episode(0, ["kitten"], final="sitting"), episode(0, ["", "ab"], final="ab")], penalty=0)
    np.testing.assert_allclose(edit_distance(words), [3 / 7, (1 + 0) / 2])
    np.testing.assert_allclose(edit_distance(words, include_final_obs=False), [0, 1 / 2])
    assert ProGPO(progress="edit_distance")(words).any()
    own = ProGPO(progress=lambda batch: np.arange(batch.n_episodes))
    np.testing.assert_allclose(own(FAILED)[:9], 0.15 * z([0, 1, 2]), rtol=1e-5)
    with pytest.raises(ValueError, match="one number an episode"):
        ProGPO(progress=lambda batch: np.zeros(len(batch)))(FAILED)
    with pytest.raises(ValueError, match="progress of episode 2"):
        ProGPO(progress=lambda batch: np.where(np.arange(batch.n_episodes) == 2, np.nan, 0.0))(FAILED)


def test_negative_controls():
    plain = ProGPO()(FAILED)
    np.testing.assert_allclose(ProGPO(control="neg")(FAILED)[:9], -plain[:9], rtol=1e-6)
    progress = coverage(FAILED)
    shuffled = [apply_control("shuffle", FAILED, progress, seed) for seed in range(20)]
    for values in shuffled:  # within each group
        assert sorted(values[:3]) == sorted(progress[:3])
        assert sorted(values[3:]) == sorted(progress[3:])
    assert len({tuple(values) for values in shuffled}) > 3
    drawn = [apply_control("random", FAILED, progress, seed) for seed in range(20)]
    assert all(((values >= 0) & (values < 1)).all() for values in drawn)
    for control in ("shuffle", "random"):
        estimator = ProGPO(control=control, seed=3)
        assert estimator(FAILED).tobytes() == estimator(FAILED).tobytes()
        assert estimator(FAILED)[9:].tobytes() == plain[9:].tobytes()
    # the next generation draws anew
    other = batch_of([episode(0, "abc", final=f) for f in "def"])
    again = batch_of([episode(0, "abc", final=f) for f in "deg"])
    assert apply_control("random", other, np.zeros(3), 0)[0] != apply_control("random", again, np.zeros(3), 0)[0]


def test_always_on():
    base = GRPO()(FAILED)
    got = ProGPO(always_on=True)(FAILED)
    np.testing.assert_allclose(got[:9], 0.3 * z([1, 1 / 3, 0]), rtol=1e-5)
    np.testing.assert_allclose(got[9:], base[9:] + 0.3 * z([1, 1 / 3]), rtol=1e-5)
    with pytest.raises(ValueError, match="always_on with combine='replace'"):
        ProGPO(always_on=True, combine="replace")


def test_step_level():
    """The base on surrogate rewards: GRPO gives the broadcast, a step-level base tells steps apart."""
    assert first_visits(FAILED)[:9].tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    grpo = ProGPO(GRPO(eps=0), level="step")(FAILED)
    bessel = z([1, 1 / 3, 0]) * np.sqrt(2 / 3)
    np.testing.assert_allclose(grpo[:9], 0.15 * bessel, rtol=1e-5)
    steps = ProGPO(GiGPO(), level="step")(FAILED)
    assert len(set(steps[3:6].tolist())) > 1
    np.testing.assert_allclose(ProGPO(GiGPO(), level="step", control="neg")(FAILED)[:9], -steps[:9], rtol=1e-5)
    for options in ({"progress": "obs_change"}, {"control": "random"}):
        with pytest.raises(ValueError, match="level='step' is defined for"):
            ProGPO(level="step", **options)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("advantage", "fallback", "message"),
    [
        ({"name": "gigo"}, None, "did you mean 'gigpo'"),
        ({"name": "hgpo", "preset": "released"}, None, "did you mean 'released_code'"),
        ({"name": "hgpo", "history": 2}, None, "hgpo has no option 'history'; did you mean 'history_length'"),
        ({"name": "grpo", "stats": "step"}, None, "did you mean 'steps'"),
        ({"name": "gigpo", "norm": "std"}, None, "did you mean 'mean_std'"),
        ({"name": "gigpo", "w": -1}, None, "w must be a number >= 0.0, got -1; the nearest valid value is 0"),
        ({"name": "gigpo", "gamma": 1.5}, None, "a number from 0.0 to 1.0, got 1.5; the nearest valid value is 1.0"),
        ({"name": "gigpo", "similarity": 1.0}, None, "between 0 and 1"),
        ({"name": "gigpo", "similarity": 2}, None, "nearest valid value is 1.0"),
        ({"name": "gigpo", "ignore_obs": "x"}, None, "ignore_obs must be a list"),
        ({"name": "gigpo", "obs_key": "x"}, None, "obs_key must be a function or its name as 'module:function'"),
        ({"name": "gigpo", "obs_key": "os:nothing"}, None, "cannot be imported"),
        ({"name": "gigpo", "obs_key": "os:sep"}, None, "is not a function"),
        ({"name": "hgpo", "history_length": -1}, None, "a whole number >= 0, got -1; the nearest valid value is 0"),
        ({"name": "hgpo", "history_length": 1.5}, None, "a whole number"),
        ({"name": "hgpo", "base_group": "yes"}, None, "base_group must be true or false"),
        ({"name": "hgpo", "weight_offset": -1}, None, "weight_offset must be"),
        ({"name": "hgpo", "length_weight_alpha": float("inf")}, None, "length_weight_alpha must be"),
        ({"name": "proxmo", "psc_form": "logstic"}, None, "did you mean 'logistic'"),
        ({"name": "proxmo", "psc_success": "raw"}, None, "did you mean 'raw_score'"),
        ({"name": "proxmo", "psc_stats": "episodes"}, None, "psc_stats='episodes'"),
        ({"name": "proxmo", "aggregation": "softly"}, None, "did you mean 'soft'"),
        ({"name": "proxmo", "psa_candidates": "every"}, None, "psa_candidates"),
        ({"name": "proxmo", "tfidf_scope": "batches"}, None, "did you mean 'batch'"),
        ({"name": "proxmo", "max_features": 0}, None, "max_features must be a whole number >= 1"),
        ({"name": "proxmo", "tau": -0.1}, None, "tau must be"),
        ({"name": "proxmo", "beta": -0.1}, None, "beta must be"),
        ({"name": "proxmo", "psc": 1}, None, "psc must be true or false"),
        ({"name": "proxmo", "beta": 0.1, "psc_range": 0.05}, None, "give beta or psc_range"),
        ({"name": "proxmo", "psc_form": "math:exp", "psc_range": 0.05}, None, "psc_range needs a named psc_form"),
        ({"name": "trl_grpo", "scale_rewards": "groups"}, None, "did you mean 'group'"),
        ({"name": "trl_grpo", "penalty": "sum"}, None, "penalty='sum'"),
        ({}, {"lambda": 0.3}, "progress_fallback has no option 'lambda'; did you mean 'lambda_aux'"),
        ({}, {"lambda_aux": -1}, "lambda_aux must be a number >= 0"),
        ({}, {"gate": "row_scores"}, "did you mean 'row_score'"),
        ({}, {"combine": "ad"}, "did you mean 'add'"),
        ({}, {"progress": "coverag"}, "did you mean 'coverage'"),
        ({}, {"control": "shufle"}, "did you mean 'shuffle'"),
        ({}, {"level": "steps"}, "did you mean 'step'"),
        ({}, {"seed": -1}, "seed must be a whole number"),
        ({}, {"always_on": "no"}, "always_on must be true or false"),
    ],
)
def test_wrong_options_are_refused_with_the_nearest_valid_one(advantage, fallback, message):
    with pytest.raises(ValueError, match=message):
        make_estimator(advantage, fallback)


def test_functions_by_name():
    """In a settings file a function is named as module:function."""
    estimator = make_estimator(
        {"name": "gigpo", "obs_key": "string:capwords"}, {"progress": "progpo_trl.advantages.progress:obs_change"}
    )
    assert estimator.base.obs_key("a  b") == "A B"
    assert estimator.progress is obs_change


def test_every_estimator_wraps():
    for name, cls in ESTIMATORS.items():
        assert make_estimator({"name": name}, {}) == ProGPO(cls())
        assert issubclass(cls, StepEstimator)
        assert ProGPO(cls())(FAILED)[:9].any()
    with pytest.raises(ValueError, match="base must be an estimator"):
        ProGPO("grpo")


def test_obs_key_must_return_text():
    with pytest.raises(TypeError, match="obs_key returned int"):
        GiGPO(obs_key=len)(FAILED)


@pytest.mark.parametrize("cls", [*ESTIMATORS.values(), ProGPO])
def test_docstrings_name_every_option_and_the_source(cls):
    text = cls.__doc__
    assert "Source:" in text
    for field in fields(cls):
        if field.name not in ("base", "w", "gamma"):  # those are symbols of the formula
            assert field.name in text, field.name
