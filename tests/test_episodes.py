"""Plain data: JSON records, copies for other processes, metrics with intervals."""

import json
import pickle
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from progpo_trl.environments import Environment, EnvironmentTasks, Observation, StepResult
from progpo_trl.episodes import Episode, Step, StepBatch, StopReason
from progpo_trl.generation import TurnOutput
from progpo_trl.metrics import episode_metrics, group_metrics, wilson
from progpo_trl.rollout import play


def episode(success, *, group=0, task_type="a", n=2, **flags):
    steps = [
        Step(f"o{i}", np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32), None, "r", "go", True, i == 0)
        for i in range(n)
    ]
    steps[-1].reward = 10.0 * success
    reason = StopReason.SUCCESS if success else StopReason.STEP_LIMIT
    return Episode(
        "t", task_type, group=group, steps=steps, final_observation="end", success=success, stop_reason=reason, **flags
    )


def test_json_record_holds_every_step_and_no_token_arrays():
    e = episode(True)
    e.advantages = np.array([1.0, 2.0], np.float32)
    record = json.loads(json.dumps(e.to_json()))
    assert record["stop_reason"] == "success"
    assert record["return"] == 10.0
    assert [s["advantage"] for s in record["steps"]] == [1.0, 2.0]
    assert [s["tokens"] for s in record["steps"]] == [2, 2]
    assert set(record["steps"][0]) == {
        "observation",
        "response",
        "action",
        "format_valid",
        "admissible",
        "reward",
        "tokens",
        "truncated",
        "advantage",
    }


def test_copy_for_other_processes_is_light_and_the_original_stays():
    e = episode(True)
    copy = pickle.loads(pickle.dumps(e.without_tokens()))
    assert len(copy.steps[0].context_ids) == 0
    assert copy.steps[0].response == "r"
    assert len(e.steps[0].context_ids) == 3


def test_extra_rewards_fall_on_the_last_step():
    e = episode(False, extra_rewards={"length": -0.5})
    batch = StepBatch.from_episodes([e])
    assert batch.reward.tolist() == [0.0, -0.5]
    assert batch.episode_return.tolist() == [-0.5]


@pytest.mark.parametrize(("which", "penalty"), [("format", [0, 0]), ("admissible", [0, 0.1]), ("either", [0, 0.1])])
def test_penalty_by_format_or_admissibility(which, penalty):
    batch = StepBatch.from_episodes([episode(False)], invalid_action_penalty=0.1, invalid_action=which)
    assert batch.penalty.tolist() == penalty


def test_metrics():
    episodes = [episode(True, task_type="a"), episode(False, task_type="b", n=4)]
    crashed = Episode("t", group=0, stop_reason=StopReason.ENVIRONMENT_ERROR)
    metrics = episode_metrics([*episodes, crashed])
    assert metrics["success"] == 0.5
    assert metrics["success/a"] == 1.0
    assert metrics["success/b"] == 0.0
    assert metrics["steps"] == 3.0
    assert metrics["inadmissible"] == pytest.approx(4 / 6)
    assert metrics["dropped"] == pytest.approx(1 / 3)
    assert metrics["step_limit"] == 0.5
    batch = StepBatch.from_episodes([episode(True), episode(False), episode(False, group=1), episode(False, group=1)])
    groups = group_metrics(batch, np.array([1, 0, 0, 0, 0, 0, 0, 0.0]))
    assert groups["groups/all_fail"] == 0.5
    assert groups["groups/all_success"] == 0.0
    assert groups["advantages/nonzero_steps"] == 0.125
    assert groups["coverage/mean"] == 1.0


@pytest.mark.parametrize(
    ("k", "n", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1)]
)
def test_wilson_interval(k, n, low, high):
    """Values of Wilson (1927) as tabulated by statsmodels' proportion_confint(method="wilson")."""
    rate = wilson(k, n)
    assert (rate.rate, rate.n) == (k / n, n)
    assert rate.low == pytest.approx(low, abs=1e-4)
    assert rate.high == pytest.approx(high, abs=1e-4)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


def test_wilson_interval_holds_its_rate():
    """Exactly, or what draws it as a rate and two distances sees a negative one."""
    for n in range(1, 200):
        for wins in (0, n):
            rate = wilson(wins, n)
            assert rate.low <= rate.rate <= rate.high


class Counted(Environment):
    """Ends at "stop" and reports then; the class says what an episode that did not stop counts as."""

    fallback_characters = 4
    unreported = MappingProxyType({"stopped": 0.0})

    def reset(self, task_id, seed=0):
        return Observation("Say stop.")

    def step(self, action):
        done = action == "stop"
        return StepResult("Say stop.", done=done, info={"stopped": 1.0, "words": len(action)} if done else {})


def test_what_an_environment_class_says_reaches_the_rollout_and_the_means():
    tasks = EnvironmentTasks(Counted, ["a", "b"], action_format="action")
    assert (tasks.fallback_characters, tasks.unreported) == (4, {"stopped": 0.0})
    assert EnvironmentTasks(Counted, ["a"], fallback_characters=0, unreported={}).fallback_characters == 0
    assert EnvironmentTasks(Counted, ["a"], unreported={}).unreported == {}
    episodes = [Episode("a"), Episode("b")]
    said = {"a": "I stop: stop", "b": "I go on"}
    play(
        episodes,
        tasks,
        SimpleNamespace(prompts=lambda views: [np.zeros(1, np.int32)] * len(views)),
        generate=lambda live, prompts: [TurnOutput(np.array([ord(e.task_id)], np.int32), None, False) for e in live],
        decode=lambda ids: [said[chr(i[0])] for i in ids],
        max_turns=2,
        step_limit=2,
        action_format=tasks.action_format,
    )
    assert [e.steps[0].action for e in episodes] == ["stop", "o on"]
    assert [e.unreported for e in episodes] == [{}, {"stopped": 0.0}]
    metrics = episode_metrics(episodes)
    assert (metrics["info/stopped"], metrics["info/words"]) == (0.5, 4.0)
