"""Episodes -> rows: merging, masks, the validator, equal counts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from progpo_trl.episodes import Episode, Step, StopReason
from progpo_trl.rows import episode_rows, padded_count, padding_row, shares


def step(context, completion, logprobs=None):
    ids = lambda values: np.array(values, np.int32)  # noqa: E731
    return Step("o", ids(context), ids(completion), logprobs, "", "a", True, True)


def episode(*steps, **kwargs):
    return Episode("task", index=3, steps=list(steps), stop_reason=StopReason.STEP_LIMIT, **kwargs)


def test_extending_contexts_share_a_row():
    logprobs = [np.array([-1.0, -2.0], np.float32), np.array([-3.0], np.float32)]
    e = episode(step([1, 2], [3, 4], logprobs[0]), step([1, 2, 3, 4, 5, 6], [7], logprobs[1]))
    (row,) = episode_rows(e, np.array([0.5, -2.0]))
    assert row.prompt_ids.tolist() == [1, 2]
    assert row.completion_ids.tolist() == [3, 4, 5, 6, 7]
    assert row.mask.tolist() == [1, 1, 0, 0, 1]
    assert row.advantages.tolist() == [0.5, 0.5, 0, 0, -2.0]
    assert row.logprobs.tolist() == [-1, -2, 0, 0, -3]
    assert row.episode == 3


def test_rebuilt_contexts_are_rows_of_their_own():
    e = episode(step([1, 2], [3]), step([1, 2, 9], [4]), step([1, 2, 9, 4], [5]))
    first, second = episode_rows(e, np.array([1.0, 2.0, 3.0]))
    assert (first.prompt_ids.tolist(), first.completion_ids.tolist()) == ([1, 2], [3])
    # The third context continues the second: a template that rewrites history once gives two rows.
    assert (second.prompt_ids.tolist(), second.completion_ids.tolist()) == ([1, 2, 9], [4, 5])
    assert second.advantages.tolist() == [2.0, 3.0]


def test_one_missing_logprob_leaves_the_row_without():
    e = episode(step([1], [2], np.array([-1.0], np.float32)), step([1, 2, 3], [4]))
    assert episode_rows(e, np.zeros(2))[0].logprobs is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (step([], [1]), r"episode 3 \(task\), step 1: 0 context ids and 1 completion ids"),
        (step([1], []), r"step 1: 1 context ids and 0 completion ids"),
        (step([1], [2, 3], np.zeros(1, np.float32)), r"step 1: 2 completion ids but 1 logprobs"),
    ],
)
def test_the_validator_names_episode_step_and_lengths(bad, message):
    with pytest.raises(ValueError, match=message):
        episode_rows(episode(step([5], [6]), bad), np.zeros(2))


def test_advantages_must_match_steps():
    with pytest.raises(ValueError, match="1 steps and 2 advantages"):
        episode_rows(episode(step([1], [2])), np.zeros(2))


def test_dropped_episodes_have_no_rows():
    e = episode(step([1], [2]))
    e.stop_reason = StopReason.ENVIRONMENT_ERROR
    assert episode_rows(e, np.zeros(0)) == []


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8), st.integers(1, 16), st.integers(2, 16))
def test_padded_count(counts, slices, group):
    total = padded_count(counts, slices=slices, group=group)
    assert total >= max(*counts, 1) if len(counts) > 1 else total >= max(counts[0], 1)
    assert total % slices == 0
    assert total * len(counts) % group == 0
    assert total - max(counts) < math.lcm(slices, group) or max(counts) == 0


def test_padding_rows_weigh_nothing():
    row = padding_row(7)
    assert not row.mask.any()
    assert not row.advantages.any()
    assert not row.real


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9))
def test_shares_move_only_the_surplus(counts):
    plan = shares(counts)
    after = [kept + taken.stop - taken.start for kept, taken in plan]
    assert sum(after) == sum(counts)
    assert max(after) - min(after) <= 1
    given_away = sum(n - kept for n, (kept, _) in zip(counts, plan, strict=True))
    moved = [i for _, taken in plan for i in range(taken.start, taken.stop)]
    assert moved == list(range(given_away))
    assert all(n <= a for n, a, (_, taken) in zip(counts, after, plan, strict=True) if taken.start < taken.stop)
