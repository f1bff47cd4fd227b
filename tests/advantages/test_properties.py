"""Invariants of the estimators (spec, section 8) and their edge cases, on random batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from progpo_trl.advantages import GRPO, ProGPO, coverage, make_estimator
from progpo_trl.episodes import Episode, Step, StepBatch, StopReason

EMPTY = np.empty(0, np.int32)


def episode(group, observations, reward=0.0, final="end", valid=None, dropped=False):
    """An episode whose last step pays `reward`."""
    steps = [
        Step(o, EMPTY, EMPTY, None, "", "go", format_valid=valid is None or valid[i], admissible=True)
        for i, o in enumerate(observations)
    ]
    if steps:
        steps[-1].reward = reward
    reason = StopReason.ENVIRONMENT_ERROR if dropped else StopReason.STEP_LIMIT
    return Episode("t", group=group, steps=steps, final_observation=final, success=reward > 0, stop_reason=reason)


def batch_of(episodes, penalty=0.1):
    return StepBatch.from_episodes(episodes, invalid_action_penalty=penalty)


@st.composite
def random_episodes(draw, penalties=True):
    """A few groups of a few episodes each over a small alphabet of observations."""
    out = []
    for group in range(draw(st.integers(1, 4))):
        fails = draw(st.booleans())
        for _ in range(draw(st.integers(1, 5))):
            observations = draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=6))
            reward = 0.0 if fails else draw(st.sampled_from([0.0, 10.0]))
            valid = draw(st.lists(st.booleans(), min_size=len(observations), max_size=len(observations)))
            final = draw(st.sampled_from("abcdef"))
            out.append(episode(group, observations, reward, final, valid if penalties else None))
    return out


BASES = [GRPO(), GRPO(stats="steps"), GRPO(norm="mean"), GRPO(stats="steps", norm="mean"), lambda b: b.row_score]


@pytest.mark.parametrize("base", BASES)
@given(episodes=random_episodes())
@settings(max_examples=60, deadline=None)
def test_groups_with_reward_are_untouched_bitwise(base, episodes):
    batch = batch_of(episodes)
    plain = np.asarray(base(batch), np.float32)
    with_progress = ProGPO(base)(batch)
    signal = np.zeros(4, bool)
    np.logical_or.at(signal, batch.episode_group, np.abs(batch.episode_return) >= 1e-3)
    rows = signal[batch.group]
    assert plain[rows].tobytes() == with_progress[rows].tobytes()
    assert ProGPO(base, lambda_aux=0.0)(batch).tobytes() == plain.tobytes()


@given(episodes=random_episodes(penalties=False))
@settings(max_examples=60, deadline=None)
def test_fallback_is_centred_scaled_and_bounded(episodes):
    batch = batch_of(episodes)
    estimator = ProGPO()
    groups, all_fail, q_fail = estimator.all_fail(batch)
    fallback, active = estimator.fallback(batch, coverage(batch))
    for group, fails in zip(groups, all_fail, strict=True):
        members = batch.episode_group == group
        if not fails:
            assert not active[members].any()
            continue
        values = fallback[members]
        scale = 0.3 * q_fail
        assert abs(values.sum()) < 1e-9
        assert values.std() == pytest.approx(scale, abs=1e-9) or not values.any()
        assert np.abs(values).max() <= scale * np.sqrt(max(members.sum() - 1, 0)) + 1e-9


@pytest.mark.parametrize("estimator", [GRPO(), GRPO(stats="steps"), ProGPO(), ProGPO(combine="replace")])
@given(episodes=random_episodes(), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_order_of_episodes_does_not_matter(estimator, episodes, seed):
    order = np.random.default_rng(seed).permutation(len(episodes))
    plain = np.split(estimator(batch_of(episodes)), np.cumsum([len(e.steps) for e in episodes])[:-1])
    shuffled = [episodes[i] for i in order]
    got = np.split(estimator(batch_of(shuffled)), np.cumsum([len(e.steps) for e in shuffled])[:-1])
    for position, i in enumerate(order):
        np.testing.assert_allclose(got[position], plain[i], atol=1e-6)


def test_constant_groups_are_exactly_zero():
    thirds = [episode(0, "abc", 0.1, valid=[False] * 3), episode(0, "ab", 0.1, valid=[False] * 2)]
    for stats in ("steps", "trajectories"):
        assert not GRPO(stats=stats)(batch_of(thirds)).any()


def test_equal_representatives_do_not_explode():
    """The released code gives -1e5 here: every first step scores 0, a later step is penalised."""
    got = GRPO(stats="trajectories")(batch_of([episode(0, "abc", valid=[True, False, True]), episode(0, "ab")]))
    np.testing.assert_allclose(got, [0, -0.1, 0, 0, 0], atol=1e-7)


def test_single_episode_groups():
    assert not GRPO()(batch_of([episode(0, "a", 10.0)])).any()
    assert GRPO(singleton="raw", norm="mean")(batch_of([episode(0, "a", 10.0)])).tolist() == [10.0]
    lone = batch_of([episode(0, "ab"), episode(1, "ab", 10.0), episode(1, "ab")])
    assert not ProGPO()(lone)[:2].any()
    assert ProGPO().all_fail(lone)[2] == 0.5


def test_dropped_episodes_leave_the_statistics():
    kept = [episode(0, "ab", 10.0), episode(0, "ab"), episode(1, "ab"), episode(1, "aa")]
    crashed = episode(1, "abcd", 10.0, dropped=True)
    batch = batch_of([*kept[:3], crashed, kept[3]])
    assert len(batch) == 8
    np.testing.assert_array_equal(ProGPO()(batch), ProGPO()(batch_of(kept)))
    assert ProGPO().all_fail(batch)[2] == 0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rewards_that_are_not_finite_name_the_episode(value):
    with pytest.raises(ValueError, match="task 't'.*group 3"):
        batch_of([episode(0, "ab"), episode(3, "ab", value)])


def test_coverage_by_hand():
    batch = batch_of([episode(0, "abc", final="d"), episode(0, "aaa", final="a"), episode(0, "aba", final="c")])
    np.testing.assert_allclose(coverage(batch), [1.0, 0.0, 2 / 3])
    np.testing.assert_allclose(coverage(batch, include_final_obs=False), [2 / 3, 0.0, 1 / 3])


def test_penalty_does_not_open_or_close_the_gate():
    """An all-fail group with invalid actions keeps its format signal and gets the fallback on top."""
    episodes = [episode(0, "abc", valid=[True, True, False]), episode(0, "aaa", final="a")]
    batch = batch_of(episodes)
    base = GRPO(stats="steps")
    np.testing.assert_allclose(
        ProGPO(base)(batch), base(batch) + np.repeat([0.3, -0.3], 3).astype(np.float32), rtol=1e-6
    )
    assert ProGPO(base, gate="row_score")(batch).tobytes() == base(batch).tobytes()


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'grpo'"):
        make_estimator({"name": "grppo"})
    with pytest.raises(ValueError, match="did you mean 'steps'"):
        GRPO(stats="step")
    with pytest.raises(ValueError, match="lambda_aux must be a number >= 0"):
        make_estimator({"name": "grpo"}, {"lambda_aux": -1})
    assert make_estimator({"name": "grpo", "stats": "steps"}, {"lambda_aux": 0.1}) == ProGPO(
        GRPO(stats="steps"), lambda_aux=0.1
    )


def test_empty_batch():
    assert ProGPO()(batch_of([])).shape == (0,)
