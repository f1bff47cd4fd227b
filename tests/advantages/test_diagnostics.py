"""What is logged of the advantages of every generation."""

import numpy as np
import pytest
from test_properties import ESTIMATORS, batch_of, episode

from progpo_trl.advantages import GRPO, HGPO, GiGPO, ProGPO, ProxMO
from progpo_trl.advantages.gigpo import set_sizes
from progpo_trl.metrics import group_metrics, rank_correlation

BATCH = batch_of(
    [
        episode(0, "abc", 10.0, final="d"),
        episode(0, "aab", 0.0, final="a"),
        episode(0, "aaa", 0.0, final="a"),
        episode(1, "aaa", final="b"),
        episode(1, "aaa", final="a"),
        episode(2, "ab", 10.0),
        episode(2, "ab", 10.0),
    ],
    penalty=0,
)


def test_groups_and_coverage():
    out = group_metrics(BATCH, GRPO()(BATCH))
    assert out["groups/all_fail"] == out["groups/all_success"] == pytest.approx(1 / 3)
    progress = np.array([1, 1 / 3, 0, 1 / 3, 0, 1, 1])
    assert out["coverage/mean"] == pytest.approx(progress.mean())
    assert out["coverage/std"] == pytest.approx(progress.std())
    assert out["coverage/group_std"] == pytest.approx((progress[:3].std() + progress[3:5].std()) / 3)
    assert out["advantages/nonzero_steps"] == 9 / 19


def test_correlation_of_coverage_with_return():
    """Only group 0 has returns that differ: ranks 3, 2, 1 against 3, 1.5, 1.5."""
    expected = np.corrcoef([3, 2, 1], [3, 1.5, 1.5])[0, 1]
    assert group_metrics(BATCH, GRPO()(BATCH))["coverage/return_correlation"] == pytest.approx(expected)
    fails = batch_of([episode(0, "abc"), episode(0, "aaa")], penalty=0)
    assert "coverage/return_correlation" not in group_metrics(fails, GRPO()(fails))
    assert rank_correlation(np.array([1.0, 2, 30]), np.array([1.0, 4, 5])) == pytest.approx(1.0)
    assert rank_correlation(np.array([1.0, 1]), np.array([1.0, 2])) is None


def test_sizes_of_anchor_groups():
    out = GiGPO().diagnostics(BATCH)
    # group 0: a 6, b 2, c 1; group 1: a 6; group 2: a 2, b 2
    assert out["anchors/singletons"] == 1 / 19
    assert out["anchors/size_2_3"] == 6 / 19
    assert out["anchors/size_4_7"] == 12 / 19
    assert out["anchors/size_8_15"] == out["anchors/size_16_up"] == 0
    assert out["anchors/mean_size"] == pytest.approx((6 * 6 * 2 + 2 * 2 * 3 + 1) / 19)
    assert set_sizes("x", [np.array([-1, -1, 0] * 1)])["x/singletons"] == 1.0
    assert set_sizes("x", [np.zeros(20, int), np.zeros(10, int)])["x/size_16_up"] == pytest.approx(2 / 3)


def test_hgpo_also_shows_the_deepest_level():
    out = HGPO().diagnostics(BATCH)
    assert out["anchors/singletons"] == 1 / 19
    assert out["anchors_full_depth/singletons"] > 0.5
    assert "anchors_full_depth/singletons" not in HGPO(history_length=0).diagnostics(BATCH)


def test_range_of_the_modulation():
    easy = [episode(3, "a", 10.0), episode(3, "a", 10.0), episode(3, "a"), episode(4, "a"), episode(4, "a", 10.0)]
    mixed = batch_of([*easy, episode(4, "b"), episode(5, "c")])
    out, weight = ProxMO().diagnostics(mixed), ProxMO().modulation(mixed)[2]
    assert out["proxmo/modulation_min"] == weight.min() < 1
    assert out["proxmo/modulation_max"] == weight.max() > 1
    assert out["anchors/singletons"] == 2 / 7


def test_progpo_adds_to_its_base():
    out = ProGPO(GiGPO()).diagnostics(BATCH)
    assert out["progpo/q_fail"] == pytest.approx(1 / 3)
    assert out["progpo/lambda_eff"] == pytest.approx(0.1)
    assert out["progpo/fallback_steps"] == 6 / 19
    assert out["anchors/singletons"] == 1 / 19


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "own function"])
def test_every_number_can_be_logged(name):
    for estimator in (ESTIMATORS[name], ProGPO(ESTIMATORS[name])):
        for batch in (BATCH, batch_of([episode(0, "a")]), batch_of([])):
            out = estimator.diagnostics(batch)
            assert all(isinstance(value, float) and np.isfinite(value) for value in out.values())
