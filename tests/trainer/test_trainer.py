"""The trainer on a toy world with a random policy: what it plays, logs, refuses and survives."""

import json
import logging

import numpy as np
import pytest
import torch
import toy

from progpo_trl import GRPO, Episode, MultiTurnGRPOTrainer, ProGPO
from progpo_trl.environments import Environment, EnvironmentTasks, Observation, StepResult
from progpo_trl.episodes import StopReason


@pytest.fixture(scope="module")
def tokenizer():
    return toy.make_tokenizer()


def make(tmp_path, tokenizer, *, cls=MultiTurnGRPOTrainer, environment=None, model=None, kwargs=None, **config):
    return cls(
        model or toy.make_model(tokenizer),
        toy.config(tmp_path, **config),
        environment=environment or toy.tasks(),
        processing_class=tokenizer,
        **(kwargs or {}),
    )


def records(tmp_path):
    return [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]


def first_log(trainer):
    return next(entry for entry in trainer.state.log_history if "rollout/success" in entry)


@pytest.mark.parametrize("context", ["window", "full"])
def test_one_update(tmp_path, tokenizer, context):
    trainer = make(tmp_path, tokenizer, context=context)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    log = first_log(trainer)
    assert log["grad_norm"] > 0
    assert any(not torch.equal(p, before[n]) for n, p in trainer.model.named_parameters())
    episodes = records(tmp_path)
    assert len(episodes) == 8
    assert log["rollout/success"] == pytest.approx(np.mean([e["success"] for e in episodes]))
    assert log["reward"] == pytest.approx(np.mean([e["return"] for e in episodes]))
    steps = [s for e in episodes for s in e["steps"]]
    assert log["rollout/steps"] == pytest.approx(len(steps) / 8)
    assert log["completions/mean_length"] == pytest.approx(np.mean([s["tokens"] for s in steps]))
    assert log["completions/clipped_ratio"] == pytest.approx(np.mean([s["truncated"] for s in steps]))
    assert log["rollout/rows"] == (len(steps) if context == "window" else 8)
    assert log["advantages/nonzero_steps"] == pytest.approx(np.mean([s["advantage"] != 0 for s in steps]))
    assert log["rollout/inadmissible"] == pytest.approx(np.mean([not s["admissible"] for s in steps]))


def test_group_members_play_the_same_task_and_sample_differently(tmp_path, tokenizer):
    make(tmp_path, tokenizer).train()
    groups = {}
    for e in records(tmp_path):
        groups.setdefault(e["group"], []).append(e)
    assert sorted(groups) == [0, 1]
    for members in groups.values():
        assert len({e["task_id"] for e in members}) == 1
        assert len({e["steps"][0]["response"] for e in members}) == 4


def test_seeds_repeat_and_differ(tmp_path, tokenizer):
    def responses(name, **config):
        make(tmp_path / name, tokenizer, **config).train()
        return [[s["response"] for s in e["steps"]] for e in records(tmp_path / name)]

    same = {"shuffle_dataset": False}
    assert responses("a", **same) == responses("b", **same)
    assert responses("c", seed=1, **same) != responses("d", **same)


def test_two_groups_of_one_task_have_their_own_randomness(tmp_path, tokenizer):
    environment = EnvironmentTasks(toy.Corridor, ["3", "3"])
    make(tmp_path, tokenizer, environment=environment).train()
    assert len({e["steps"][0]["response"] for e in records(tmp_path)}) == 8


@pytest.mark.parametrize("context", ["window", "full"])
def test_sampling_and_training_logprobs_agree(tmp_path, tokenizer, context):
    class Recording(MultiTurnGRPOTrainer):
        def rollout(self, inputs):
            self.played = super().rollout(inputs)
            return self.played

    trainer = make(tmp_path, tokenizer, cls=Recording, context=context, temperature=0.7, learning_rate=0.0)
    trainer.train()
    for e in trainer.played:
        for s in e.steps:
            ids = torch.tensor(np.concatenate([s.context_ids, s.completion_ids]).astype(np.int64))[None]
            table = (trainer.model(ids).logits / 0.7).log_softmax(-1)[0, len(s.context_ids) - 1 : -1]
            want = table.gather(-1, ids[0, len(s.context_ids) :, None])[:, 0].detach().numpy()
            np.testing.assert_allclose(s.logprobs, want, atol=1e-4)


@pytest.mark.parametrize("every", [None, 1])
def test_evaluation_leaves_training_as_it_is(tmp_path, tokenizer, every):
    trainer = make(tmp_path / str(every), tokenizer, max_generations=2, eval_every_generations=every)
    trainer.train()
    digest = [[s["response"] for s in e["steps"]] for e in records(tmp_path / str(every))]
    evaluations = [entry for entry in trainer.state.log_history if "eval_success" in entry]
    assert len(evaluations) == (0 if every is None else 2)
    known = tmp_path.parent / "evaluation_digest.json"
    weights = float(sum(p.double().sum() for p in trainer.model.parameters()))
    if every is None:
        known.write_text(json.dumps([digest, weights]))
    else:
        assert json.loads(known.read_text()) == [digest, weights]


def test_panel_plays_every_task_once_and_repeats(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, environment=toy.tasks(n_eval=7))
    episodes = trainer.evaluate_panel(temperature=1.0)
    assert [e.task_id for e in episodes] == [str(100 + i) for i in range(7)]
    again = trainer.evaluate_panel(temperature=1.0)
    assert [[s.response for s in e.steps] for e in episodes] == [[s.response for s in e.steps] for e in again]
    other = trainer.evaluate_panel(temperature=1.0, seed=1)
    assert [e.steps[0].response for e in episodes] != [e.steps[0].response for e in other]
    alone = trainer.evaluate_panel(["100"], temperature=1.0)
    assert alone[0].steps[0].response == episodes[0].steps[0].response
    greedy = trainer.evaluate_panel(temperature=0.0, seed=5)
    assert [s.response for e in greedy for s in e.steps] == [
        s.response for e in trainer.evaluate_panel(temperature=0.0) for s in e.steps
    ]


def test_episodes_per_forward_changes_memory_only(tmp_path, tokenizer):
    def play(name, size):
        make(tmp_path / name, tokenizer, context="full", episodes_per_forward=size).train()
        return [[s["response"] for s in e["steps"]] for e in records(tmp_path / name)]

    assert play("all", None) == play("three", 3) == play("one", 1)


def test_a_batch_without_signal_still_moves_the_optimizer(tmp_path, tokenizer):
    """Adam's momentum keeps moving on an all-zero batch; a trainer that skipped it would weaken every baseline."""

    class OnlyFirst(MultiTurnGRPOTrainer):
        def compute_advantages(self, batch):
            first = self.state.global_step == 0
            return np.where(batch.step % 2 == 0, 1.0, -1.0) * first

    trainer = make(tmp_path, tokenizer, cls=OnlyFirst, max_generations=2, lr_scheduler_type="constant")
    weights = []
    trainer.add_callback(_Snapshot(weights))
    trainer.train()
    assert first_log(trainer)["grad_norm"] > 0
    assert not torch.equal(weights[0], weights[1])


def test_a_first_batch_without_signal_changes_nothing(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, kwargs={"advantage": lambda batch: np.zeros(len(batch))})
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


class _Snapshot:
    def __new__(cls, into):
        from transformers import TrainerCallback

        class Snapshot(TrainerCallback):
            def on_step_end(self, args, state, control, model=None, **kwargs):
                into.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))

        return Snapshot()


# ---------------------------------------------------------------------------------------------- advantages, rewards


def test_logged_advantages_are_those_of_the_loss(tmp_path, tokenizer):
    class Recording(MultiTurnGRPOTrainer):
        def _compute_loss(self, model, inputs):
            self.used.append((inputs["advantages"] * inputs["tool_mask"] * inputs["completion_mask"]).sum().item())
            return super()._compute_loss(model, inputs)

    Recording.used = []
    make(tmp_path, tokenizer, cls=Recording, kwargs={"advantage": ProGPO(GRPO(stats="steps"))}).train()
    logged = sum(s["advantage"] * s["tokens"] for e in records(tmp_path) for s in e["steps"])
    assert sum(Recording.used) == pytest.approx(logged, abs=1e-3)


def test_overriding_compute_advantages(tmp_path, tokenizer):
    class Own(MultiTurnGRPOTrainer):
        def compute_advantages(self, batch):
            return batch.step.astype(float)

    make(tmp_path, tokenizer, cls=Own).train()
    assert all(s["advantage"] == i for e in records(tmp_path) for i, s in enumerate(e["steps"]))


@pytest.mark.parametrize(
    ("advantage", "message"),
    [
        (lambda batch: np.zeros(len(batch) + 1), "one number per step"),
        (lambda batch: np.full(len(batch), np.nan), "advantages must be finite"),
    ],
)
def test_bad_advantages_are_named(tmp_path, tokenizer, advantage, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path, tokenizer, kwargs={"advantage": advantage}).train()


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


def test_overriding_rollout(tmp_path, tokenizer):
    class Own(MultiTurnGRPOTrainer):
        def rollout(self, inputs):
            episodes = super().rollout(inputs)
            for e in episodes:
                del e.steps[1:]
            return episodes

    make(tmp_path, tokenizer, cls=Own).train()
    assert all(len(e["steps"]) == 1 for e in records(tmp_path))


# ------------------------------------------------------------------------------------------- faults of environments


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


# --------------------------------------------------------------------------------------------------- limits, warnings


def test_step_limit_and_context_limit(tmp_path, tokenizer):
    class Endless(toy.Corridor):
        def step(self, action):
            return StepResult("It goes on and on. " * 4)

    environment = EnvironmentTasks(Endless, ["0", "1"], max_steps=4)
    make(tmp_path / "steps", tokenizer, environment=environment).train()
    assert {(e["stop_reason"], len(e["steps"])) for e in records(tmp_path / "steps")} == {("step_limit", 4)}
    model = toy.make_model(tokenizer, window=200)
    trainer = make(tmp_path / "context", tokenizer, environment=environment, model=model, context="full")
    trainer.train()
    reasons = {e["stop_reason"] for e in records(tmp_path / "context")}
    assert reasons == {"context_limit"}
    assert first_log(trainer)["rollout/context_limit"] == 1.0


def test_silence_gives_one_clear_warning(tmp_path, tokenizer, caplog):
    class Nothing(toy.Corridor):
        def step(self, action):
            return StepResult("Nothing happens.", done=True)

    environment = EnvironmentTasks(Nothing, [str(i) for i in range(8)], action_format="think_action")
    with caplog.at_level(logging.WARNING, logger="progpo_trl"):
        make(tmp_path, tokenizer, environment=environment, max_generations=4).train()
    messages = [r.getMessage() for r in caplog.records if "generations in a row" in r.getMessage()]
    assert len(messages) == 2
    assert any("not one episode got any reward" in m and "You stand before door" in m for m in messages)
    assert any("not one response had the required form" in m for m in messages)


def test_a_full_disk_does_not_stop_the_run(tmp_path, tokenizer, caplog):
    (tmp_path / "episodes.jsonl").mkdir()
    with caplog.at_level(logging.WARNING, logger="progpo_trl"):
        make(tmp_path, tokenizer, max_generations=2).train()
    assert sum("episodes are not being saved" in r.getMessage() for r in caplog.records) == 1


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "hint"),
    [("tools", "write an environment"), ("rollout_func", "override rollout"), ("environment_factory", "environment=")],
)
def test_trl_arguments_that_do_not_apply_name_the_alternative(tmp_path, tokenizer, name, hint):
    with pytest.raises(ValueError, match=hint):
        make(tmp_path, tokenizer, kwargs={name: [print]})


def test_unknown_argument(tmp_path, tokenizer):
    with pytest.raises(TypeError, match="no argument 'enviroment'"):
        make(tmp_path, tokenizer, kwargs={"enviroment": 1})


def test_environment_is_required(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="environment= is required"):
        MultiTurnGRPOTrainer(toy.make_model(tokenizer), toy.config(tmp_path), processing_class=tokenizer)
    with pytest.raises(ValueError, match="train_dataset"):
        make(tmp_path, tokenizer, environment=toy.Corridor)


def test_too_few_tasks(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="1 training task.* 2 groups"):
        make(tmp_path, tokenizer, environment=toy.tasks(1))


def test_a_window_without_room_is_refused(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="leaves no room"):
        make(tmp_path, tokenizer, model=toy.make_model(tokenizer, window=12))


def test_dataset_needs_task_ids(tmp_path, tokenizer):
    from datasets import Dataset

    with pytest.raises(ValueError, match="needs a column 'task_id'"):
        make(tmp_path, tokenizer, kwargs={"train_dataset": Dataset.from_dict({"prompt": ["a"]})})


def test_stop_reasons_are_strings():
    assert json.dumps(StopReason.SUCCESS) == '"success"'
