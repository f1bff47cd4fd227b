"""The trainer on a toy world with a random policy: what it plays, logs, refuses and survives."""

import json
import logging

import numpy as np
import pytest
import torch
import toy
from running import first_log, make, records

from progpo_trl import GRPO, MultiTurnGRPOTrainer, ProGPO
from progpo_trl.environments import EnvironmentTasks, StepResult
from progpo_trl.episodes import StopReason


@pytest.fixture(scope="module")
def tokenizer():
    return toy.make_tokenizer()


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


def test_evaluation_leaves_training_as_it_is(tmp_path, tokenizer):
    def train(every):
        trainer = make(tmp_path / str(every), tokenizer, max_generations=2, eval_every_generations=every)
        trainer.train()
        evaluations = [entry for entry in trainer.state.log_history if "eval_success" in entry]
        assert len(evaluations) == (0 if every is None else 2)
        responses = [[s["response"] for s in e["steps"]] for e in records(tmp_path / str(every))]
        return responses, float(sum(p.double().sum() for p in trainer.model.parameters()))

    assert train(1) == train(None)


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


def test_overriding_rollout(tmp_path, tokenizer):
    class Own(MultiTurnGRPOTrainer):
        def rollout(self, inputs):
            episodes = super().rollout(inputs)
            for e in episodes:
                del e.steps[1:]
            return episodes

    make(tmp_path, tokenizer, cls=Own).train()
    assert all(len(e["steps"]) == 1 for e in records(tmp_path))


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


def test_episodes_that_cannot_be_written_do_not_stop_the_run(tmp_path, tokenizer, caplog):
    # An old file that cannot be put aside, since a file is in the way.
    (tmp_path / "episodes.jsonl").write_text("old")
    (tmp_path / ".previous-run.partial").touch()
    with caplog.at_level(logging.WARNING, logger="progpo_trl"):
        make(tmp_path, tokenizer, max_generations=2).train()
    assert sum("episodes are not being saved" in r.getMessage() for r in caplog.records) == 1
    assert (tmp_path / "episodes.jsonl").read_text() == "old"


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


def test_metrics_do_not_depend_on_the_chunking(tmp_path, tokenizer):
    """TRL logs one value per loss call; what we log is the value of the whole slice."""

    def logs(n):
        trainer = make(
            tmp_path / str(n), tokenizer, rows_per_forward=n, max_generations=2, num_iterations=2, beta=0.0,
            updates_per_generation=2, learning_rate=1e-2, lr_scheduler_type="constant",
        )  # fmt: skip
        trainer.train()
        return [e for e in trainer.state.log_history if "entropy" in e]

    one, three, all_rows = logs(1), logs(3), logs(64)
    assert any(e["clip_ratio/region_mean"] > 0 for e in all_rows)
    for name in ("entropy", "clip_ratio/region_mean", "clip_ratio/high_max", "clip_ratio/low_min", "loss"):
        want = [e[name] for e in all_rows]
        assert [e[name] for e in one] == pytest.approx(want, abs=2e-3), name
        assert [e[name] for e in three] == pytest.approx(want, abs=2e-3), name


def test_a_class_of_tasks_is_not_an_environment(tmp_path, tokenizer):
    from progpo_trl.environments.alfworld import GeneratedAlfworldTasks

    with pytest.raises(TypeError, match=r"pass an instance: GeneratedAlfworldTasks\(\)"):
        make(tmp_path, tokenizer, environment=GeneratedAlfworldTasks)


def test_task_ids_may_come_from_a_generator(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, environment=toy.Corridor, kwargs={"train_dataset": (str(i) for i in range(4))})
    assert len(trainer.train_dataset) == 4


def test_a_shorter_panel_is_spread_over_the_ids(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, environment=toy.tasks(n_eval=10), eval_tasks=4)
    assert trainer.eval_task_ids == ["100", "102", "105", "107"]


def test_prompt_learning_adapters_are_refused(tmp_path, tokenizer):
    from peft import PromptTuningConfig

    with pytest.raises(ValueError, match="use LoRA"):
        make(
            tmp_path,
            tokenizer,
            kwargs={"peft_config": PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")},
        )


def test_metrics_of_single_token_rows_do_not_depend_on_packing(tmp_path, tokenizer):
    """TRL's means take a chunk one column wide for one value a row; padding rows and short rows must not look so."""
    logged = []
    for n, bounds in enumerate(({"max_tokens_per_forward": 1}, {"max_tokens_per_forward": 100_000})):
        trainer = make(
            tmp_path / str(n), tokenizer, max_completion_length=1, groups_per_generation=3, updates_per_generation=2,
            **bounds,
        )  # fmt: skip
        trainer.train()
        logged.append([e["entropy"] for e in trainer.state.log_history if "entropy" in e])
    assert logged[0] == pytest.approx(logged[1], rel=1e-5)
