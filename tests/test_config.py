"""MultiTurnGRPOConfig: batch arithmetic, generation boundaries, and settings refused with their alternative."""

import warnings
from typing import get_args, get_origin, get_type_hints

import pytest

from progpo_trl.config import MultiTurnGRPOConfig


def config(tmp_path, **kwargs):
    return MultiTurnGRPOConfig(
        **{"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": "none"} | kwargs
    )


@pytest.mark.parametrize(
    ("world", "updates", "per_device"), [(1, 1, 128), (1, 16, 8), (2, 16, 4), (8, 16, 1), (4, 8, 4)]
)
def test_published_batch_on_any_number_of_processes(tmp_path, monkeypatch, world, updates, per_device):
    monkeypatch.setattr("progpo_trl.config._world_size", lambda: world)
    monkeypatch.setattr(MultiTurnGRPOConfig, "world_size", property(lambda self: world))
    c = config(
        tmp_path,
        groups_per_generation=16,
        updates_per_generation=updates,
        max_generations=150,
        save_every_generations=10,
        eval_every_generations=5,
    )
    assert (c.per_device_train_batch_size, c.steps_per_generation, c.gradient_accumulation_steps) == (
        per_device,
        updates,
        1,
    )
    assert c.generation_batch_size == 128
    assert (c.max_steps, c.save_steps, c.eval_steps) == (150 * updates, 10 * updates, 5 * updates)
    assert c.do_eval
    assert c.eval_strategy == "steps"


def test_batches_that_do_not_divide_name_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"128 episodes.*nearest that does is updates_per_generation=16"):
        config(tmp_path, groups_per_generation=16, updates_per_generation=15)
    with pytest.raises(ValueError, match="remove gradient_accumulation_steps=4"):
        config(tmp_path, groups_per_generation=16, gradient_accumulation_steps=4)
    with pytest.raises(ValueError, match="remove per_device_train_batch_size=4"):
        config(tmp_path, groups_per_generation=16, per_device_train_batch_size=4)
    with pytest.raises(ValueError, match="needs groups_per_generation"):
        config(tmp_path, updates_per_generation=2)
    with pytest.raises(ValueError, match="mix two generations"):
        config(tmp_path, steps_per_generation=3, gradient_accumulation_steps=2)


def test_num_iterations_count_as_updates(tmp_path):
    c = config(tmp_path, groups_per_generation=2, num_iterations=3, max_generations=5)
    assert c.max_steps == 15


def test_save_steps_inside_a_generation_are_moved_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="saved every 32 steps"):
        c = config(tmp_path, groups_per_generation=16, updates_per_generation=16, save_strategy="steps", save_steps=20)
    assert c.save_steps == 32
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        config(tmp_path, groups_per_generation=16, updates_per_generation=4, save_strategy="steps", save_steps=20)


def test_eval_steps_inside_a_generation_are_moved_with_a_warning(tmp_path):
    steps = {"groups_per_generation": 2, "updates_per_generation": 4, "eval_strategy": "steps"}
    with pytest.warns(UserWarning, match="eval_steps=6 lies inside.*evaluated every 8 steps"):
        assert config(tmp_path, **steps, eval_steps=6).eval_steps == 8


@pytest.mark.parametrize("kind", ["save", "eval"])
def test_shares_of_the_run_become_steps_on_generation_boundaries(tmp_path, kind):
    steps = {"groups_per_generation": 2, "updates_per_generation": 4, f"{kind}_strategy": "steps"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        c = config(tmp_path, **steps, **{f"{kind}_steps": 0.25}, max_generations=8)
    assert getattr(c, f"{kind}_steps") == 8
    with pytest.warns(UserWarning, match=f"{kind}_steps=0.3 lies inside a generation.*every 12 steps"):
        c = config(tmp_path, **steps, **{f"{kind}_steps": 0.3}, max_generations=8)
    assert getattr(c, f"{kind}_steps") == 12
    with pytest.raises(ValueError, match=f"set max_generations too, or {kind}_every_generations"):
        config(tmp_path, **steps, **{f"{kind}_steps": 0.3})
    with pytest.raises(ValueError, match=f"{kind}_strategy: no"):
        config(tmp_path, **steps, **{f"{kind}_steps": -1})


def test_a_run_ends_with_a_generation(tmp_path):
    with pytest.warns(UserWarning, match=r"max_steps=5 lies inside a generation \(2 optimizer.*ends at step 6"):
        assert config(tmp_path, groups_per_generation=2, updates_per_generation=2, max_steps=5).max_steps == 6


def test_the_best_checkpoint_needs_one_after_every_evaluation(tmp_path):
    batch = {"groups_per_generation": 2, "updates_per_generation": 4}
    best = {**batch, "load_best_model_at_end": True}
    c = config(tmp_path, **best, save_every_generations=2, eval_every_generations=2)
    assert c.load_best_model_at_end
    assert (c.metric_for_best_model, c.greater_is_better) == ("success", True)
    # also where one is a multiple: transformers would forget a best evaluation without a checkpoint, but not its value
    for saves, evaluations in ((3, 2), (4, 2), (1, 2)):
        said = rf"saved every {saves} generation\(s\), evaluations take place every {evaluations} generation"
        with pytest.raises(ValueError, match=said):
            config(tmp_path, **best, save_every_generations=saves, eval_every_generations=evaluations)
    assert config(tmp_path, **best, save_strategy="best", eval_every_generations=2).load_best_model_at_end
    # in steps, both are fine before they are moved to the ends of generations: 12 and 8
    steps = {"save_strategy": "steps", "save_steps": 10, "eval_strategy": "steps", "eval_steps": 5}
    with pytest.warns(UserWarning, match="inside a generation"), pytest.raises(ValueError, match="every 3 generation"):
        config(tmp_path, **best, **steps)
    with pytest.raises(ValueError, match="evaluations take place never"):
        config(tmp_path, **best, save_every_generations=3)
    with pytest.raises(ValueError, match="saved every epoch, evaluations take place every 2"):
        config(tmp_path, **best, save_strategy="epoch", eval_every_generations=2)
    with pytest.raises(ValueError, match="not both"):
        config(tmp_path, **batch, save_strategy="epoch", save_every_generations=3)
    with pytest.raises(ValueError, match="set eval_every_generations"):
        config(tmp_path, **batch, save_strategy="best")
    assert config(tmp_path, **batch, save_strategy="best", eval_every_generations=2).metric_for_best_model == "success"


def test_max_generations_and_max_steps_contradict(tmp_path):
    with pytest.raises(ValueError, match="not both"):
        config(tmp_path, groups_per_generation=2, max_generations=3, max_steps=5)


@pytest.mark.parametrize(
    ("setting", "alternative"),
    [
        ({"loss_type": "ppo"}, "use one of dapo"),
        ({"loss_type": "cispo"}, "epsilon_high is the bound of the ratio itself"),
        ({"loss_type": "cispo", "epsilon_high": 0.28}, "at 0.28 every token would be cut"),
        ({"scale_rewards": "none"}, "norm: mean"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "reward_weights"),
        ({"entropy_coef": 0.001}, "entropy_coef=0"),
        ({"top_entropy_quantile": 0.2}, "leave it at 1.0"),
        ({"mask_truncated_completions": True}, "counts as a failure"),
        ({"num_generations_eval": 2}, "remove it"),
        ({"max_tool_calling_iterations": 3}, "use max_turns"),
        (
            {"use_vllm": True, "vllm_mode": "server", "vllm_enable_sleep_mode": True},
            "keeps its GPUs to itself; remove",
        ),
        ({"vllm_mode": "servr"}, "colocate, server; did you mean 'server'"),
        ({"rollout_schedule": "stream"}, "lockstep, streaming; did you mean 'streaming'"),
        ({"rollout_schedule": "streaming"}, "use_vllm: true and vllm_mode: server"),
        ({"rollout_schedule": "streaming", "use_vllm": True}, "or leave rollout_schedule: lockstep"),
        ({"use_vllm": True, "generation_kwargs": {"seed": 1}}, "seed would override.*the same responses"),
        ({"use_vllm": True, "generation_kwargs": {"max_tokens": 9, "n": 2}}, "max_tokens, n would override"),
        ({"generation_kwargs": {"do_sample": False}}, "do_sample would override"),
        ({"bf16": True, "use_cpu": False}, "no GPU here.*--use_cpu true --bf16 false"),
        ({"max_concurrent_requests": 0}, "max_concurrent_requests must be a number >= 1"),
        ({"vllm_request_timeout": 0.0}, "vllm_request_timeout must be a number > 0"),
        ({"vllm_request_retries": -1}, "vllm_request_retries must be a number >= 0"),
        ({"sync_ref_model": True, "beta": 0.1}, "leave it off"),
        ({"ignore_data_skip": True}, "play the first tasks again"),
        ({"neftune_noise_alpha": 5.0}, "not the one that played"),
        ({"delta": 0.5}, "bounds the ratio itself"),
        ({"save_steps": float("inf")}, "save_steps must be"),
        ({"logging_steps": float("nan")}, "logging_steps must be"),
        (
            {
                "load_best_model_at_end": True,
                "save_every_generations": 1,
                "eval_every_generations": 1,
                "metric_for_best_model": "sucess",
                "groups_per_generation": 2,
                "num_generations": 4,
                "max_generations": 2,
            },
            "gives no 'sucess'; did you mean 'success'",
        ),
        (
            {
                "metric_for_best_model": "loss",
                "eval_every_generations": 1,
                "groups_per_generation": 2,
                "num_generations": 4,
            },
            "gives no 'loss'",
        ),
        ({"context": "sliding"}, "window, full"),
        ({"invalid_action": "tags"}, "format, admissible, either"),
        ({"history": -1}, "history must be a number >= 0"),
        ({"max_turns": 0}, "max_turns must be a number >= 1"),
        ({"invalid_action_penalty": float("nan")}, ">= 0"),
        ({"eval_temperature": -0.1}, ">= 0"),
        ({"max_dropped_fraction": 1.5}, "between 0 and 1"),
        ({"temperature": 0.0}, "temperature must be a number >= 0.001, got 0; .*eval_temperature: 0"),
        ({"temperature": float("inf")}, "temperature must be a number >= 0.001, got inf"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"top_p": 1.1}, "at most 1"),
        ({"min_p": -0.1}, "min_p must be between 0 and 1"),
        ({"top_k": -1}, "0 samples from all tokens"),
        ({"repetition_penalty": 0.0}, "1.0 is none"),
        ({"beta": -0.1}, "beta must be a number >= 0"),
        ({"epsilon": 0.0}, "epsilon must be a number > 0"),
        ({"epsilon_high": float("nan")}, "epsilon_high must be a number > 0, got nan"),
        ({"delta": -1.0}, "delta must be a number > 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number >= 0, got nan"),
        ({"learning_rate": -1e-6}, "learning_rate must be a number >= 0, got -1e-06"),
        ({"num_generations": 1}, "compares the episodes of one task"),
        ({"num_generations": 0}, "num_generations must be a number >= 2, got 0"),
        ({"num_generations": None}, "num_generations must be a number >= 2, got null"),
        ({"num_iterations": 0}, "num_iterations must be a number >= 1"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be a number >= 1"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size must be a number >= 1"),
        ({"steps_per_generation": 0}, "steps_per_generation must be a number >= 1"),
        ({"importance_sampling_level": "sequense"}, "token, sequence; did you mean 'sequence'"),
    ],
)
def test_settings_that_would_not_do_what_they_say_are_refused(tmp_path, setting, alternative):
    with pytest.raises(ValueError, match=alternative):
        config(tmp_path, **setting)


def test_vllm_settings_that_are_allowed(tmp_path):
    config(tmp_path, use_vllm=True, vllm_enable_sleep_mode=True)
    config(tmp_path, use_vllm=True, vllm_mode="server", rollout_schedule="streaming")
    config(tmp_path, use_vllm=True, generation_kwargs={"frequency_penalty": 0.1})


def test_every_field_of_ours_has_a_help_text():
    from trl import GRPOConfig

    for name, f in MultiTurnGRPOConfig.__dataclass_fields__.items():
        if name not in GRPOConfig.__dataclass_fields__:
            assert f.metadata.get("help"), name


@pytest.mark.parametrize(
    ("metric", "greater"),
    [
        ("success", True), ("eval_return", True), ("success/heat", True), ("steps", False), ("format_invalid", False),
        ("eval_inadmissible", False), ("step_limit", False), ("context_limit", False), ("dropped", False),
    ],
)  # fmt: skip
def test_what_is_better_of_a_metric(tmp_path, metric, greater):
    best = {
        "groups_per_generation": 2, "load_best_model_at_end": True, "save_every_generations": 1,
        "eval_every_generations": 1, "metric_for_best_model": metric,
    }  # fmt: skip
    assert config(tmp_path, **best).greater_is_better == greater
    assert config(tmp_path, **best, greater_is_better=not greater).greater_is_better != greater


def test_of_the_environments_own_metrics_somebody_must_say_what_is_better(tmp_path):
    best = {
        "groups_per_generation": 2, "load_best_model_at_end": True, "save_every_generations": 1,
        "eval_every_generations": 1, "metric_for_best_model": "info/loops",
    }  # fmt: skip
    with pytest.raises(ValueError, match="set greater_is_better"):
        config(tmp_path, **best)
    assert config(tmp_path, **best, greater_is_better=False).greater_is_better is False


def fields_with(kind):
    """Names of the settings that may be a whole number, or a mapping."""
    hints = get_type_hints(MultiTurnGRPOConfig)
    named = (name for name, f in MultiTurnGRPOConfig.__dataclass_fields__.items() if f.init)
    return [n for n in named if any((get_origin(m) or m) is kind for m in (get_args(hints[n]) or (hints[n],)))]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_no_whole_number_is_beyond_what_arrays_hold(tmp_path, value):
    names = fields_with(int)
    assert {"num_generations", "seed", "eval_seed", "pad_to_multiple_of"} < set(names)
    for name in names:
        with pytest.raises(ValueError, match=rf"^{name}\b"):
            config(tmp_path, **{name: value})


def test_more_episodes_than_can_be_counted_are_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="65536 x 65536.* must be at most 2147483647 episodes"):
        config(tmp_path, groups_per_generation=2**16, num_generations=2**16)
    prime = 2**31 - 1
    with pytest.raises(ValueError, match=f"the nearest that does is updates_per_generation={prime}"):
        config(tmp_path, groups_per_generation=1, num_generations=prime, updates_per_generation=prime - 1)


@pytest.mark.parametrize("value", [2**63, "9223372036854775808", "5", "true", "[1]", '{"a"', "text", [1], False])
def test_what_is_no_mapping_is_refused_where_one_is_needed(tmp_path, value):
    names = fields_with(dict)
    assert {"chat_template_kwargs", "generation_kwargs", "fsdp_config", "accelerator_config"} < set(names)
    for name in names:
        if name == "deepspeed" and isinstance(value, str) and not value.startswith("{"):
            continue  # the name of a file, or one in base64
        with pytest.raises(ValueError, match=rf"^{name} must be a mapping"):
            config(tmp_path, **{name: value})


def test_mappings_may_be_json(tmp_path):
    made = config(
        tmp_path, chat_template_kwargs='{"enable_thinking": false}', accelerator_config={"split_batches": True}
    )
    assert made.chat_template_kwargs == {"enable_thinking": False}
    assert made.accelerator_config.split_batches


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"eval_seed": -1}, "eval_seed must be between 0 and 4294967295, got -1"),
        ({"seed": -1}, "seed must be between 0 and 4294967295, got -1"),
        ({"data_seed": 2**32}, "data_seed must be between 0 and 4294967295, got 4294967296"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs: tokenize is what the trainer itself"),
        ({"accelerator_config": {"split_batch": True}}, "no 'split_batch'; did you mean 'split_batches'"),
        ({"pad_to_multiple_of": "8x"}, "pad_to_multiple_of must be a whole number from 1"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of must be a whole number from 1"),
    ],
)
def test_values_that_nothing_can_use_are_named(tmp_path, setting, said):
    with pytest.raises(ValueError, match=said):
        config(tmp_path, **setting)


def test_seeds_and_paddings_at_their_ends(tmp_path):
    made = config(tmp_path, seed=2**32 - 1, data_seed=0, eval_seed=2**32 - 1, pad_to_multiple_of="8")
    assert (made.seed, made.pad_to_multiple_of) == (2**32 - 1, 8)
