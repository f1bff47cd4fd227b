"""The edge cases of the specification (section 7), a test a row."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from test_properties import ESTIMATORS, batch_of, episode

from progpo_trl.advantages import GRPO, HGPO, TRLGRPO, GiGPO, ProGPO, ProxMO, coverage
from progpo_trl.episodes import StepBatch, StopReason

OURS = {name: estimator for name, estimator in ESTIMATORS.items() if name != "own function"}
DEFAULTS = {name: estimator for name, estimator in OURS.items() if not name.endswith("released")}


def each(estimators):
    return pytest.mark.parametrize("estimator", estimators.values(), ids=estimators)


@each(DEFAULTS)
def test_group_of_one_episode(estimator):
    if "hgpo" in str(estimator).lower() or getattr(estimator, "w", 0) or getattr(estimator, "similarity", None):
        # step terms may compare the steps of one episode; here no observation repeats
        batch = batch_of([episode(0, ["aa"], 10.0)])
    else:
        batch = batch_of([episode(0, ["aa", "bb"], 10.0)])
    assert not estimator(batch).any()


def test_group_of_one_step_with_the_released_code_keeps_its_score():
    single = batch_of([episode(0, "a", 10.0)])
    assert GRPO(singleton="raw", norm="mean")(single).tolist() == [10.0]
    assert GRPO.released_code()(single)[0] == pytest.approx(10.0)
    assert GRPO.released_code()(batch_of([episode(0, "ab", 10.0)])).tolist() == [0.0, 0.0]


def test_group_of_one_episode_counts_in_q_fail():
    lone = batch_of([episode(0, "ab"), episode(1, "ab", 10.0), episode(1, "ab")])
    assert not ProGPO()(lone)[:2].any()
    assert ProGPO().all_fail(lone)[2] == 0.5


def test_one_step_episodes():
    """All share the start: GiGPO's step term is its episode term, HGPO has depth 0 only, coverage is 0 or 1."""
    batch = batch_of([episode(0, "a", 10.0), episode(0, "a", final="a"), episode(0, "a", final="b")], penalty=0)
    terms = GiGPO().terms(batch)
    np.testing.assert_allclose(terms["step term"], terms["episode term"])
    terms = HGPO(history_length=2).terms(batch)
    assert not terms["depth 1 size"].any()
    assert not terms["depth 2 size"].any()
    assert coverage(batch).tolist() == [1.0, 0.0, 1.0]


@each(OURS)
def test_all_fail_without_penalty(estimator):
    batch = batch_of([episode(0, ["aa", "bb", "cc"]), episode(0, ["aa", "aa"], final="aa")], penalty=0.0)
    assert not estimator(batch).any()
    np.testing.assert_allclose(ProGPO(estimator)(batch), [0.3, 0.3, 0.3, -0.3, -0.3], rtol=1e-6)


def test_all_fail_with_some_invalid():
    """The base carries the format signal and nothing else; the fallback comes on top."""
    batch = batch_of([episode(0, "abc", valid=[True, True, False]), episode(0, "aaa", final="a")])
    for base in (GRPO(stats="steps"), GiGPO(stats="steps"), ProxMO(stats="steps")):
        plain = base(batch)
        assert plain[2] < 0
        expected = plain + np.repeat([0.3, -0.3], 3).astype(np.float32)
        np.testing.assert_allclose(ProGPO(base)(batch), expected, rtol=1e-6)
        assert ProGPO(base, gate="row_score")(batch).tobytes() == plain.tobytes()


@each(OURS)
def test_all_fail_with_all_steps_invalid(estimator):
    """Exactly 0; float32 references return +0.0074."""
    batch = batch_of([episode(0, ["aa", "bb"], valid=[False] * 2), episode(0, ["aa"] * 3, valid=[False] * 3)])
    assert not estimator(batch).any()
    assert ProGPO(estimator)(batch).any()


def test_all_succeed():
    """Nothing at the level of episodes; step terms prefer the shorter way; ProGPO leaves it alone."""
    short, long = episode(0, ["aa", "bb"], 10.0), episode(0, ["aa", "cc", "dd", "bb"], 10.0)
    batch = batch_of([short, long], penalty=0)
    for base in (GRPO(), TRLGRPO()):
        assert not base(batch).any()
    for base in (GiGPO(), HGPO(), ProxMO(), ProxMO.released_code()):
        advantage = base(batch)
        assert advantage[0] > 0 > advantage[2]
        assert ProGPO(base)(batch).tobytes() == advantage.tobytes()


def test_constant_coverage():
    batch = batch_of([episode(0, "abc", final="d"), episode(0, "xy", final="z")])
    assert not ProGPO()(batch).any()
    assert not ProGPO(combine="replace")(batch).any()


def test_partial_scores():
    """PSC's threshold on raw scores is absolute; any partial reward keeps a group with the base."""
    batch = batch_of([episode(0, "ab", 0.6), episode(0, "ab", 0.4), episode(0, "aa", final="a")], penalty=0)
    batch = replace(batch, success=np.array([False, False, False]))
    rate, success, _ = ProxMO(psc_success="raw_score").modulation(batch)
    assert success.tolist() == [True, True, False, False, False, False]
    assert rate[0] == pytest.approx(1 / 3)
    assert not ProxMO().modulation(batch)[1].any()
    assert ProGPO()(batch).tobytes() == GRPO()(batch).tobytes()
    assert ProGPO(gate="success")(batch).tobytes() != GRPO()(batch).tobytes()


def test_empty_observation():
    """An ordinary text; without a token, ProxMO is equally near to every step."""
    batch = batch_of([episode(0, ["", "go on"], 10.0), episode(0, ["", "go on"], 0.0)], penalty=0)
    assert GiGPO().terms(batch)["anchor size"].tolist() == [2, 2, 2, 2]
    terms = ProxMO().terms(batch)
    assert terms["baseline"][0] == pytest.approx(terms["return"].mean())
    assert coverage(batch_of([episode(0, ["", "a", ""], final="")])).tolist() == [1 / 3]


def test_fixed_answer_to_invalid_actions():
    """ "Nothing happens." is new once, like any other text, and can be ignored."""
    nothing = "Nothing happens."
    batch = batch_of([episode(0, ["a", nothing, nothing, "b"], 1.0, nothing), episode(0, [nothing, "a"], final="a")])
    np.testing.assert_allclose(coverage(batch), [2 / 4, 1 / 2])
    np.testing.assert_allclose(coverage(batch, ignore_obs=[nothing]), [1 / 4, 1 / 2])
    ignoring = GiGPO(ignore_obs=[nothing]).terms(batch)
    assert ignoring["anchor size"].tolist() == [2, 0, 0, 1, 0, 2]
    assert not ignoring["step term"][[1, 2, 4]].any()
    assert HGPO(ignore_obs=[nothing]).levels(batch)[1].tolist() == [-1, -1, -1, -1, -1, -1]
    soft = ProxMO(ignore_obs=[nothing]).step_term(batch, np.arange(6.0))
    assert not soft[[1, 2, 4]].any()


def test_truncated_episode():
    """A failure with its return so far; T counts executed actions."""
    batch = batch_of([episode(0, "ab", 0.0, final="c"), episode(0, "aabb", 0.0, final="b")], penalty=0)
    np.testing.assert_allclose(coverage(batch), [2 / 2, 1 / 4])
    np.testing.assert_allclose(ProGPO()(batch), [0.3] * 2 + [-0.3] * 4, rtol=1e-6)


@each(OURS)
def test_crashed_episode(estimator):
    kept = [episode(0, ["aa", "bb"], 10.0), episode(0, ["aa", "cc"]), episode(1, ["aa", "bb"]), episode(1, ["aa"] * 2)]
    crashed = episode(1, ["aa", "bb", "cc", "dd"], 10.0, dropped=True)
    batch = batch_of([*kept[:3], crashed, kept[3]])
    assert len(batch) == 8
    np.testing.assert_array_equal(ProGPO(estimator)(batch), ProGPO(estimator)(batch_of(kept)))
    assert ProGPO(estimator).all_fail(batch)[2] == 0.5


def test_crashed_but_one():
    batch = batch_of([episode(0, "ab", 10.0), episode(0, "ab", dropped=True)])
    for estimator in (GRPO(), TRLGRPO(), ProGPO()):
        assert not estimator(batch).any()


def test_volatile_text():
    """A step counter makes every observation unique: nothing is shared, P = 1 everywhere; obs_key takes it off."""
    first = episode(0, ["1: aa", "2: aa", "3: bb"], 0.0, "4: cc")
    second = episode(0, ["11: aa", "12: aa", "13: aa"], 0.0, "14: aa")
    batch = batch_of([first, second], penalty=0.1)
    assert coverage(batch).tolist() == [1.0, 1.0]
    assert not ProGPO()(batch).any()

    def key(text):
        return text.partition(": ")[2]

    np.testing.assert_allclose(coverage(batch, obs_key=key), [2 / 3, 0.0])
    assert GiGPO().terms(batch)["anchor size"].max() == 1
    assert GiGPO(obs_key=key).terms(batch)["anchor size"].tolist() == [5, 5, 1, 5, 5, 5]
    assert HGPO(obs_key=key, history_length=1).terms(batch)["depth 1 size"].tolist() == [0, 3, 1, 0, 3, 3]
    sizes = [len(vectors) for _, _, vectors in ProxMO(obs_key=key).candidate_sets(batch)]
    assert sizes == [2]
    np.testing.assert_allclose(ProGPO(obs_key=key)(batch), [0.3] * 3 + [-0.3] * 3, rtol=1e-6)


@each(OURS)
def test_duplicates_of_an_episode(estimator):
    twins = [episode(0, ["aa", "bb"], 10.0), episode(0, ["aa", "cc"]), episode(0, ["aa", "bb"], 10.0)]
    got = ProGPO(estimator)(batch_of(twins))
    assert got[:2].tolist() == got[4:].tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rewards_that_are_not_finite_name_the_episode(value):
    with pytest.raises(ValueError, match="task 't'.*group 3"):
        batch_of([episode(0, "ab"), episode(3, "ab", value)])


@each({**OURS, "progpo on a function": ProGPO(ESTIMATORS["own function"])})
@pytest.mark.parametrize("column", ["reward", "penalty", "episode_return"])
def test_estimators_refuse_values_that_are_not_finite(estimator, column):
    batch = batch_of([episode(0, "ab"), episode(3, "ab")])
    values = getattr(batch, column).copy()
    values[-1] = np.nan
    with pytest.raises(ValueError, match="episode 1 of the batch .group 3"):
        estimator(replace(batch, **{column: values}))


def test_zero_spread():
    """Sums of thirds differ in their last bits; constant sets are 0 all the same."""
    thirds = [episode(0, "abc", 0.1, valid=[False] * 3), episode(0, "ab", 0.1, valid=[False] * 2)]
    for stats in ("steps", "trajectories"):
        assert not GRPO(stats=stats)(batch_of(thirds)).any()


def test_equal_representatives_do_not_explode():
    """The released code gives -1e5 here: every first step scores 0, a later step is penalised."""
    batch = batch_of([episode(0, "abc", valid=[True, False, True]), episode(0, "ab")])
    np.testing.assert_allclose(GRPO()(batch), [0, -0.1, 0, 0, 0], atol=1e-7)
    np.testing.assert_allclose(GRPO.released_code(stats="trajectories")(batch), [0, -1e5, 0, 0, 0], rtol=1e-6)


@each(ESTIMATORS)
def test_empty_batch(estimator):
    assert ProGPO(estimator)(batch_of([])).shape == (0,)
    assert np.shape(estimator(batch_of([]))) == (0,)


def test_episode_without_steps_or_final_observation():
    """P = 0 without steps; a missing final observation is left out, with a warning."""
    batch = StepBatch.from_episodes([episode(0, "ab", final=None), episode(0, "", final="x")])
    assert coverage(batch).tolist() == [0.5, 0.0]
    with pytest.warns(UserWarning, match="1 of 1 episodes have no final observation"):
        ProGPO()(batch)


def failed_without_a_step(group):
    """An episode whose first prompt did not fit: no steps, but a failure."""
    e = episode(group, "")
    e.stop_reason = StopReason.CONTEXT_LIMIT
    return e


def test_a_failure_without_steps_counts_in_its_group():
    wins = [episode(0, "ab", 1.0) for _ in range(3)]
    batch = batch_of([*wins, failed_without_a_step(0)])
    # three returns of 1 and one of 0: mean 3/4, sd 1/2
    np.testing.assert_allclose(GRPO()(batch), [0.5] * 6, atol=1e-5)
    np.testing.assert_allclose(TRLGRPO()(batch), [0.25 / 0.5001] * 6, rtol=1e-6)
    np.testing.assert_allclose(TRLGRPO(scale_rewards="batch")(batch), [0.25 / 0.5001] * 6, rtol=1e-6)
    assert ProxMO().modulation(batch)[0].tolist() == [0.75] * 6
    last = batch_of([failed_without_a_step(0), *wins, episode(1, "ab"), failed_without_a_step(1)])
    np.testing.assert_allclose(GRPO()(last)[:6], [0.5] * 6, atol=1e-5)
    assert ProGPO().all_fail(last)[2] == 0.5


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_mean_but_for_rounding_is_the_mean_in_any_order(order):
    """As it is added, 0.1 + 0.2 + 0.3 is more or less than 0.6; the one in the middle is the mean all the same."""
    episodes = [episode(0, ["a"], 0.1), episode(0, ["b"], 0.2), episode(0, ["b"], 0.3)]
    terms = HGPO(base_group=True).terms(batch_of([episodes[i] for i in order]))
    middle = order.index(1)
    assert terms["base group term"][middle] == 0
    assert terms["depth 0 weight"][middle] == pytest.approx(1, abs=1e-5)
