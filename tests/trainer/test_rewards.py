"""Reward functions of whole episodes."""

import numpy as np
import pytest
import toy
from running import first_log, make, records

from progpo_trl import Episode
from progpo_trl.episodes import Step, StopReason


@pytest.fixture(scope="module")
def tokenizer():
    return toy.make_tokenizer()


def test_reward_functions_see_whole_episodes_and_add_to_the_return(tmp_path, tokenizer):
    seen = []

    def brevity(episodes, **kwargs):
        seen.extend(episodes)
        return [-0.25 * len(e.steps) for e in episodes]

    def abstain(episodes, **kwargs):
        return [None] * len(episodes)

    async def later(episodes, task_id, **kwargs):
        return [1.0 if e.task_id == t else 0.0 for e, t in zip(episodes, task_id, strict=True)]

    trainer = make(
        tmp_path, tokenizer, kwargs={"reward_funcs": [brevity, abstain, later]}, reward_weights=[2.0, 1.0, 0.5]
    )
    trainer.train()
    assert all(isinstance(e, Episode) and e.stop_reason for e in seen)
    for e in records(tmp_path):
        paid = sum(s["reward"] for s in e["steps"])
        assert e["return"] == pytest.approx(paid - 0.5 * len(e["steps"]) + 0.5)
        assert e["extra_rewards"] == pytest.approx({"brevity": -0.5 * len(e["steps"]), "later": 0.5})
    log = first_log(trainer)
    assert log["rewards/brevity/mean"] == pytest.approx(np.mean([-0.25 * len(e.steps) for e in seen]))


def test_functions_of_one_name_keep_their_rewards(tmp_path, tokenizer):
    def bonus(episodes, **kwargs):
        return [100.0] * len(episodes)

    first = bonus

    def bonus(episodes, **kwargs):
        return [1.0] * len(episodes)

    def environment_return(episodes, **kwargs):
        return [0.5] * len(episodes)

    anonymous = [lambda episodes, **kwargs: [0.25] * len(episodes)]
    functions = [first, bonus, environment_return, *anonymous]
    make(tmp_path, tokenizer, kwargs={"reward_funcs": functions}).train()
    for e in records(tmp_path):
        assert e["return"] == pytest.approx(sum(s["reward"] for s in e["steps"]) + 101.75)
        assert len(e["extra_rewards"]) == 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([float("nan")] * 8, "'odd' returned nan for episode 0"),
        ([float("inf")] * 8, "'odd' returned inf"),
        (["a"] * 8, "'odd' returned 'a'"),
        (None, "'odd' returned None; it must return one number per episode"),
        ([1.0], "'odd' returned 1 rewards for 8 episodes"),
        (np.float64(3.0), "'odd' returned 3.0; it must return one number per episode"),
    ],
)
def test_values_that_are_no_rewards_name_the_function(tmp_path, tokenizer, value, message):
    def odd(episodes, **kwargs):
        return value

    with pytest.raises((TypeError, ValueError), match=message):
        make(tmp_path, tokenizer, kwargs={"reward_funcs": odd}).train()


def test_extra_rewards_do_not_close_the_gate_of_progpo(tmp_path, tokenizer):
    """A constant length penalty is no success: the gate looks at the environment's return."""
    from progpo_trl import ProGPO, StepBatch
    from progpo_trl.environments import EnvironmentTasks, StepResult

    class Never(toy.Corridor):
        def step(self, action):
            return StepResult(f"Nothing {len(action)}.", done=len(action) % 2 == 0)

    seen = []

    class Recording(ProGPO):
        def __call__(self, batch: StepBatch):
            seen.append(self.all_fail(batch)[2])
            return super().__call__(batch)

    def brevity(episodes, **kwargs):
        return [-0.5] * len(episodes)

    make(
        tmp_path,
        tokenizer,
        environment=EnvironmentTasks(Never, ["0", "1"]),
        kwargs={"reward_funcs": brevity, "advantage": Recording()},
    ).train()
    assert seen == [1.0]


def test_names_are_distinct_and_numbers_of_any_kind_count():
    import torch

    from progpo_trl.rewards import add_rewards, checked_rewards

    def f(episodes, **kwargs):
        return [np.float32(0.5), np.int64(1), np.bool_(True), torch.tensor(2.0), None]

    def f_2(episodes, **kwargs):
        return torch.ones(5)

    def environment_weight(episodes, **kwargs):
        return np.full(5, 7.0)

    checked = checked_rewards([f, f_2, f, environment_weight])
    names = [function.__name__ for function in checked]
    assert names == ["f", "f_2", "f_3", "environment_weight_2"]
    assert checked[0](episodes=[None] * 5) == [0.5, 1, True, 2.0, None]
    assert checked[1](episodes=[None] * 5) == [1.0] * 5
    step = Step("o", np.zeros(1, np.int32), np.zeros(1, np.int32), None, "", "a", True, True, reward=1.0)
    e = Episode("t", steps=[step], stop_reason=StopReason.FAILURE)
    add_rewards(e, ["environment_return", *names], [0.5, 1.0, 1.0, 1.0, 7.0], 0.5)
    assert e.episode_return == 10.5
