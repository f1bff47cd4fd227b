"""Environments that fail: what is played again, left out, or stops the run."""

import logging

import numpy as np
import pytest
import toy
from running import first_log, make, records

from progpo_trl.environments import Environment, EnvironmentTasks, Observation, OpenCommand, StepResult


@pytest.fixture(scope="module")
def tokenizer():
    return toy.make_tokenizer()


class Flaky(toy.Corridor):
    """Raises on its first step, `crashes` times in all; None: always."""

    crashes: int | None = None
    tasks = ("0",)

    def reset(self, task_id, seed=0):
        self.task = task_id
        return super().reset(task_id, seed)

    def step(self, action):
        kind = type(self)
        if self.task in kind.tasks and kind.crashes != 0:
            kind.crashes = None if kind.crashes is None else kind.crashes - 1
            raise RuntimeError("the simulator went away")
        return super().step(action)


def flaky(crashes, tasks=("0",), ids=("0", "1")):
    kind = type("Flaky", (Flaky,), {"crashes": crashes, "tasks": tasks})
    return EnvironmentTasks(kind, list(ids))


def test_a_crashed_episode_is_played_again(tmp_path, tokenizer):
    make(tmp_path, tokenizer, environment=flaky(3)).train()
    assert all(e["stop_reason"] != "environment_error" for e in records(tmp_path))


def test_a_lost_episode_is_dropped_not_scored_zero(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, environment=flaky(2), environment_retries=0, max_dropped_fraction=0.5)
    trainer.train()
    episodes = records(tmp_path)
    lost = [e for e in episodes if e["stop_reason"] == "environment_error"]
    assert len(lost) == 2
    assert all(e["error"] == "RuntimeError: the simulator went away" for e in lost)
    assert all(s["advantage"] is None for e in lost for s in e["steps"])
    assert first_log(trainer)["rollout/dropped"] == pytest.approx(0.25)


def test_too_many_lost_episodes_stop_the_run_with_the_reason(tmp_path, tokenizer):
    with pytest.raises(RuntimeError, match=r"episodes were lost.*task '0': RuntimeError: the simulator went away"):
        make(tmp_path, tokenizer, environment=flaky(None)).train()


def test_environments_must_return_the_contract(tmp_path, tokenizer):
    class Tuple(Environment):
        def reset(self, task_id, seed=0):
            return Observation("x")

        def step(self, action):
            return "y", 0.0, False, {}

    with pytest.raises(RuntimeError, match="step\\(\\) returned tuple, not a StepResult"):
        make(tmp_path, tokenizer, environment=EnvironmentTasks(Tuple, ["0", "1"])).train()


def test_rewards_that_are_not_finite_stop_the_run(tmp_path, tokenizer):
    class Nan(toy.Corridor):
        def step(self, action):
            return StepResult("x", reward=float("nan"), done=True)

    with pytest.raises(ValueError, match="reward that is not finite"):
        make(tmp_path, tokenizer, environment=EnvironmentTasks(Nan, ["0", "1"])).train()


GARBAGE = {
    "reward none": {"reward": None},
    "reward text": {"reward": "10"},
    "text list": {"text": ["a"]},
    "text none": {"text": None},
    "info none": {"info": None},
    "admissible text": {"admissible": "go"},
    "admissible numbers": {"admissible": [1, 2]},
    "admissible pattern": {"admissible": (OpenCommand("go", "["),), "done": False},
    "success array": {"success": np.array([True, False])},
    "success text": {"success": "False"},
    "done array": {"done": np.array([True, False])},
    "done list": {"done": [False]},
}


@pytest.mark.parametrize("fields", GARBAGE.values(), ids=GARBAGE)
def test_garbage_costs_the_episode_and_says_why(tmp_path, tokenizer, fields):
    class Odd(toy.Corridor):
        def reset(self, task_id, seed=0):
            self.task = task_id
            return super().reset(task_id, seed)

        def step(self, action):
            if self.task == "0":
                return StepResult(**{"text": "x", "done": True} | fields)
            return super().step(action)

    environment = EnvironmentTasks(Odd, ["0", "1"])
    make(tmp_path, tokenizer, environment=environment, max_dropped_fraction=0.5).train()
    lost = [e for e in records(tmp_path) if e["task_id"] == "0"]
    assert {e["stop_reason"] for e in lost} == {"environment_error"}
    assert all("must be" in e["error"] for e in lost)


def test_a_command_that_cannot_be_compared_costs_the_episode(tmp_path, tokenizer):
    class Picky(OpenCommand):
        __slots__ = ()

        def accepts(self, action):
            raise ArithmeticError(action[:0] + "no")

    class Odd(toy.Corridor):
        def reset(self, task_id, seed=0):
            first = super().reset(task_id, seed)
            return Observation(first.text, (Picky("go", "x"),)) if task_id == "0" else first

    make(tmp_path, tokenizer, environment=EnvironmentTasks(Odd, ["0", "1"]), max_dropped_fraction=0.5).train()
    assert {e["task_id"]: e["error"] for e in records(tmp_path)} == {"0": "ArithmeticError: no", "1": None}


@pytest.mark.parametrize("context", ["window", "full"])
def test_texts_of_other_kinds_are_plain_text(tmp_path, tokenizer, context):
    class Unlike(str):
        __slots__ = ()
        __hash__ = None

        def __eq__(self, other):
            raise ArithmeticError("compared")

    odd = Unlike("broken \ud800 text")
    commands = (odd, OpenCommand("say \ud800", "say .*"))

    class Odd(toy.Corridor):
        def reset(self, task_id, seed=0):
            super().reset(task_id, seed)
            return Observation(odd, commands, odd)

        def step(self, action):
            super().step(action)
            return StepResult(odd, commands, done=self.t > 1)

    environment = EnvironmentTasks(Odd, ["0", "1"], prompt_template="alfworld")
    make(tmp_path, tokenizer, environment=environment, context=context).train()
    for episode in records(tmp_path):
        assert episode["error"] is None
        assert {step["observation"] for step in episode["steps"]} == {"broken ? text"}


def test_numbers_of_any_type_are_averaged_and_names_of_any_type_are_text(tmp_path, tokenizer):
    info = {
        "float": np.float32(2), "int": np.int64(3), "flag": np.bool_(True), "yes": True, 1: 4, ("a", 2): 5,
        "text": "6", "array": np.ones(2), "nan": np.float64("nan"), "huge": 10**400, "function": len,
    }  # fmt: skip

    class Odd(toy.Corridor):
        def step(self, action):
            return StepResult("x", done=np.bool_(True), success=np.array(False), info=info)

    trainer = make(tmp_path, tokenizer, environment=EnvironmentTasks(Odd, ["0", "1"]))
    trainer.train()
    logged = {key: value for key, value in first_log(trainer).items() if key.startswith("rollout/info/")}
    assert logged == {
        "rollout/info/float": 2, "rollout/info/int": 3, "rollout/info/flag": 1, "rollout/info/yes": 1,
        "rollout/info/1": 4, "rollout/info/('a', 2)": 5,
    }  # fmt: skip


def test_a_lone_surrogate_is_replaced(tmp_path, tokenizer):
    class Surrogate(toy.Corridor):
        def step(self, action):
            return StepResult("broken \ud800 text", done=self.t > 0)

    make(tmp_path, tokenizer, environment=EnvironmentTasks(Surrogate, ["0", "1"], max_steps=2)).train()
    assert {e["final_observation"] for e in records(tmp_path)} == {"broken ? text"}


def test_a_retried_episode_forgets_its_error(tmp_path, tokenizer):
    make(tmp_path, tokenizer, environment=flaky(3)).train()
    assert all(e["error"] is None for e in records(tmp_path))


def test_a_lone_survivor_is_left_out(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, environment=flaky(3), environment_retries=0, max_dropped_fraction=0.5)
    trainer.train()
    assert first_log(trainer)["rollout/dropped"] == 0.5


def test_the_panel_names_the_games_it_could_not_play(tmp_path, tokenizer, caplog):
    environment = EnvironmentTasks(type("F", (Flaky,), {"crashes": None, "tasks": ("7",)}), ["0", "1"])
    trainer = make(
        tmp_path,
        tokenizer,
        environment=environment,
        kwargs={"eval_dataset": ["5", "6", "7", "8"]},
        max_dropped_fraction=0.25,
    )
    with caplog.at_level(logging.WARNING, logger="progpo_trl"):
        metrics = trainer.evaluate()
    assert metrics["eval_dropped"] == 0.25
    assert "1 of 4 tasks of the panel could not be scored: 7" in caplog.text
    trainer.args.max_dropped_fraction = 0.2
    with pytest.raises(RuntimeError, match="1 of 4 episodes were lost"):
        trainer.evaluate()


def test_a_first_prompt_that_does_not_fit_is_a_failure(tmp_path, tokenizer):
    class Wordy(toy.Corridor):
        def reset(self, task_id, seed=0):
            first = super().reset(task_id, seed)
            return first if task_id != "5" else Observation(first.text * 30)

    trainer = make(
        tmp_path,
        tokenizer,
        environment=EnvironmentTasks(Wordy, ["0", "1"]),
        max_context_length=200,
        kwargs={"eval_dataset": ["5", "6", "7", "8"]},
    )
    episodes = trainer.evaluate_panel(temperature=1.0)
    assert [e.stop_reason == "context_limit" for e in episodes] == [True, False, False, False]
    assert trainer.evaluate()["eval_success"] in (0.0, 0.25, 0.5, 0.75)
    assert trainer.evaluate()["eval_dropped"] == 0


def test_no_prompt_fits(tmp_path, tokenizer):
    with pytest.raises(RuntimeError, match="no first prompt fits the context"):
        make(tmp_path, tokenizer, max_context_length=3).train()


def test_a_new_run_puts_the_files_of_all_earlier_ones_aside(tmp_path, tokenizer):
    """Also one that writes none: what lies in the folder would pass for its own."""
    written = []
    options = {"max_generations": 2, "eval_every_generations": 1, "kwargs": {"eval_dataset": ["5", "6"]}}
    for seed in range(3):
        make(tmp_path, tokenizer, seed=seed, save_episodes=seed < 2, **options).train()
        assert (tmp_path / "episodes.jsonl").exists() == (seed < 2)
        if seed < 2:
            assert len(records(tmp_path)) == 16
            written.append((tmp_path / "episodes.jsonl").read_bytes())
        (tmp_path / "config.yaml").write_text(f"# progpo_trl 1\n\nseed: {seed}\n")
    assert len(set(written)) == 2
    for seed, name in enumerate(["previous-run", "previous-run-2"]):
        assert (tmp_path / name / "episodes.jsonl").read_bytes() == written[seed]
        assert (tmp_path / name / "evaluation-1.json").is_file()
        assert (tmp_path / name / "evaluation-2.episodes.jsonl").is_file()
        assert f"seed: {seed}" in (tmp_path / name / "config.yaml").read_text()
    assert (tmp_path / "evaluation-2.json").is_file()
    assert not (tmp_path / "evaluation-2.episodes.jsonl").exists()


def test_a_resumed_run_drops_what_its_checkpoint_does_not_know(tmp_path, tokenizer):
    options = {"max_generations": 3, "save_every_generations": 1, "lr_scheduler_type": "constant"}
    make(tmp_path, tokenizer, **options).train()
    with open(tmp_path / "episodes.jsonl", "a") as file:
        file.write('{"step": 0, "cut off')
    trainer = make(tmp_path, tokenizer, **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [e["step"] for e in records(tmp_path)] == [0] * 8 + [1] * 8 + [2] * 8


def test_limits_of_the_environment_are_step_limits(tmp_path, tokenizer):
    class Own(toy.Corridor):
        def step(self, action):
            self.t += 1
            return StepResult("On.", done=self.t == 3)

    make(tmp_path, tokenizer, environment=EnvironmentTasks(Own, ["0", "1"], max_steps=3), max_turns=9).train()
    assert {e["stop_reason"] for e in records(tmp_path)} == {"step_limit"}
