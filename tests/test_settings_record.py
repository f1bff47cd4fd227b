"""What a checkpoint records of its run's settings: every setting on one side, and what counts as a change."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from pathlib import Path

import pytest

from progpo_trl.config import MultiTurnGRPOConfig
from progpo_trl.model_arguments import ModelArguments
from progpo_trl.secret_values import is_secret_name
from progpo_trl.settings import ScriptArguments, find_recipe, parse
from progpo_trl.settings_record import MAY_CHANGE, differences, not_recorded, of_asked, of_run, of_trainer, read_asked
from progpo_trl.settings_sections import environments, section_options
from progpo_trl.settings_unused import UNUSED

# What makes a run the experiment it is. A setting that a new version of TRL or transformers brings is refused until it
# stands here or in MAY_CHANGE.
KEPT = """
environment advantage progress_fallback
model_name_or_path model_revision model_init_kwargs dtype cast_lm_head_to_fp32 router_aux_loss_coef
use_peft lora_r lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type
use_rslora use_dora load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage
seed data_seed shuffle_dataset ignore_data_skip
context history prompt_template system_prompt chat_template_kwargs max_turns max_context_length
temperature top_p top_k min_p repetition_penalty max_completion_length generation_kwargs vllm_structured_outputs_regex
max_tool_calling_iterations
num_generations num_iterations generation_batch_size
learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args optim_target_modules weight_decay
adam_beta1 adam_beta2 adam_epsilon max_grad_norm neftune_noise_alpha disable_dropout
loss_type beta epsilon epsilon_high delta importance_sampling_level use_bias_correction_kl off_policy_mask_threshold
sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg
top_entropy_quantile entropy_coef entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
use_adaptive_entropy mask_truncated_completions sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max
vllm_importance_sampling_clip_min vllm_importance_sampling_cap
scale_rewards reward_weights multi_objective_aggregation invalid_action invalid_action_penalty
metric_for_best_model greater_is_better
""".split()


def fields():
    classes = (ScriptArguments, ModelArguments, MultiTurnGRPOConfig)
    return {f.name for cls in classes for f in dataclasses.fields(cls) if f.init}


@cache
def parsed(*words, config="quickstart"):
    return parse(["--config", config, *words])


def record(*words, config="quickstart"):
    return of_run(*parsed(*words, config=config))


def test_every_setting_is_on_one_side_on_purpose():
    assert sorted(fields() - MAY_CHANGE - set(KEPT) - set(UNUSED)) == [], "decide: may it change while a run goes on?"
    assert sorted(MAY_CHANGE & set(KEPT)) == []
    assert not [name for name in KEPT if is_secret_name(name)], "a secret is recorded nowhere, so it is not compared"


def test_the_names_of_what_may_change_are_spelt_right():
    options = {f"environment.{key}" for name in environments() for key in section_options("environment", name)}
    loading = {name for name in MAY_CHANGE if name.startswith("model_init_kwargs.")}
    assert sorted(MAY_CHANGE - fields() - options - loading) == ["logging_dir"], "which older versions have"


def test_the_record_holds_what_is_kept_and_nothing_else():
    known = record("--generation_kwargs", "{max_time: 9}")
    plain = {name.partition(".")[0] for name in known}
    assert plain == {*KEPT, "reward_funcs", "updates_per_generation"}
    assert json.loads(json.dumps(known)) == known


@pytest.mark.parametrize(
    "words",
    [
        ["--learning_rate", "0.0012"],
        ["--learning_rate", "12e-4", "--temperature", "1", "--top_p", "1.0", "--optim", "adamw_torch_fused"],
        ["--advantage.norm", "mean_std", "--advantage.preset", "default", "--progress_fallback.tau_R", "1e-3"],
        ["--environment.n_train", "2000", "--environment.game_seed", "0", "--environment.n_eval", "16"],
        ["--lr_scheduler_kwargs", "{}", "--lora_r", "8", "--use_peft", "false"],
        ["--optim", "adamw_torch", "--data_seed", "0"],
        ["--max_generations", "7", "--output_dir", "x", "--save_every_generations", "2", "--logging_steps", "5"],
        [
            "--eval_tasks",
            "8",
            "--eval_temperature",
            "0",
            "--evaluate_around_training",
            "false",
            "--report_to",
            "wandb",
        ],
        ["--gradient_checkpointing", "true", "--max_tokens_per_forward", "4096", "--rows_per_forward", "2"],
        ["--bf16", "true", "--attn_implementation", "sdpa", "--dataloader_num_workers", "1"],
        ["--model_init_kwargs", "{attn_implementation: eager, token: abcdefgh}", "--hub_token", "abcdefgh"],
        ["--load_best_model_at_end", "--save_every_generations", "1", "--eval_every_generations", "1"],
    ],
)
def test_what_is_no_change(words):
    assert differences(record(), record(*words)) == []
    assert differences(record(*words), record()) == []


def test_the_batch_settings_are_compared_by_what_they_come_to(tmp_path):
    """8 groups of 8 in one update, in TRL's own terms and on less memory."""
    lines = find_recipe("quickstart").read_text().splitlines()
    own = tmp_path / "own.yaml"
    own.write_text("\n".join(line for line in lines if not re.match("(groups|updates|max)_(per_)?generation", line)))
    words = ["--per_device_train_batch_size", "16", "--steps_per_generation", "4", "--gradient_accumulation_steps"]
    assert differences(record(), record(*words, "4", config=str(own))) == []
    assert differences(record(), record(*words, "2", config=str(own))) == [
        "updates_per_generation (optimizer steps per generation): 1, now 2"
    ]


def test_a_folder_is_the_same_however_it_is_written(tmp_path, monkeypatch):
    model, prompt = tmp_path / "models" / "mine", tmp_path / "prompt.jinja"
    model.mkdir(parents=True)
    prompt.write_text("{{ observation }}")
    monkeypatch.chdir(tmp_path)
    relative = record("--model_name_or_path", "models/mine", "--prompt_template", "prompt.jinja")
    monkeypatch.chdir(model)
    absolute = record("--model_name_or_path", str(model), "--prompt_template", "../../prompt.jinja")
    assert differences(relative, absolute) == []
    # Moved to another machine, it is no more where it was; a second model of that name is another one.
    other = tmp_path / "other" / "mine"
    other.mkdir(parents=True)
    elsewhere = record("--model_name_or_path", str(other), "--prompt_template", str(prompt))
    assert differences(relative, elsewhere) == [f"model_name_or_path: {model}, now {other}"]
    monkeypatch.chdir(tmp_path)
    model.rmdir()
    assert differences(relative, elsewhere) == []


def test_a_prompt_is_its_text(tmp_path):
    prompt = tmp_path / "prompt.jinja"
    prompt.write_text("{{ observation }}")
    before = record("--prompt_template", str(prompt))
    prompt.write_text("Think first. {{ observation }}")
    (change,) = differences(before, record("--prompt_template", str(prompt)))
    assert re.fullmatch(r"prompt_template: file of sha256 \w{12}, now file of sha256 \w{12}", change)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (["--learning_rate", "0.5"], "learning_rate: 0.0012, now 0.5"),
        (["--model_name_or_path", "tiny-hard"], "model_name_or_path: tiny, now tiny-hard"),
        (["--dtype", "bfloat16"], "dtype: float32, now bfloat16"),
        (["--use_peft", "true"], "use_peft: false, now true"),
        (["--seed", "99"], "seed: 0, now 99"),
        (["--temperature", "0.5"], "temperature: 1.0, now 0.5"),
        (["--loss_type", "bnpo"], "loss_type: dapo, now bnpo"),
        (["--lr_scheduler_type", "constant"], "lr_scheduler_type: linear, now constant"),
        (["--max_completion_length", "32"], "max_completion_length: 16, now 32"),
        (["--system_prompt", "Be brief."], "system_prompt: null, now Be brief."),
        (["--system_prompt", "Be\nbrief."], 'system_prompt: null, now "Be\\nbrief."'),
        (["--generation_kwargs", "{max_time: 9}"], 'generation_kwargs: null, now {"max_time": 9}'),
        (["--environment.level", "hard"], "environment.level: easy, now hard"),
        (["--advantage.name", "gigpo"], "advantage.name: grpo, now gigpo"),
        (["--advantage.norm", "mean"], "advantage.norm: mean_std, now mean"),
        (["--progress_fallback", "null"], "progress_fallback: true, now false"),
        (["--progress_fallback.lambda_aux", "0.1"], "progress_fallback.lambda_aux: 0.3, now 0.1"),
        (["--groups_per_generation", "4"], "generation_batch_size (episodes per generation): 64, now 32"),
        (["--num_iterations", "2"], "num_iterations: 1, now 2"),
    ],
)
def test_what_is_a_change(words, change):
    found = differences(record(), record(*words))
    assert change in found
    # Two iterations are also twice the updates.
    assert len(found) == 1 + (words[0] == "--num_iterations")
    # The same of what was asked for, which is all that a run without a record left.
    assert change in differences(*(of_asked(parsed(*more)[0].asked) for more in ([], words)))


def test_another_environment_is_one_change_not_a_list_of_options():
    now = record("--environment", "{name: webshop_generated, products: 20}")
    assert differences(record(), now) == ["environment.name: alfworld_generated, now webshop_generated"]


def test_the_first_metric_for_the_best_model_compares_nothing():
    best = ["--load_best_model_at_end", "--save_every_generations", "1", "--eval_every_generations", "1"]
    steps = [*best, "--metric_for_best_model", "steps"]
    assert differences(record(), record(*steps)) == differences(record(*steps), record()) == []
    changes = differences(record(*best), record(*steps))
    assert changes == ["metric_for_best_model: success, now steps", "greater_is_better: true, now false"]


def test_a_setting_that_a_record_does_not_know_had_its_default():
    then = record()
    del then["epsilon_high"], then["lora_alpha"], then["advantage.norm"]
    assert differences(then, record()) == []
    assert differences(then, record("--epsilon_high", "0.3")) == ["epsilon_high: null, now 0.3"]
    lora = record("--use_peft")
    del lora["lora_alpha"]
    assert differences(lora, record("--use_peft", "--lora_alpha", "8")) == ["lora_alpha: null, now 8"]
    then["gone_since"] = 1
    assert differences(then, record()) == []


def test_a_new_setting_is_recorded_before_anybody_has_thought_of_it(tmp_path):
    @dataclasses.dataclass
    class Next(MultiTurnGRPOConfig):
        brand_new: float = 0.0

    def made(**values):
        args = Next(output_dir=str(tmp_path), use_cpu=True, bf16=False, groups_per_generation=1, **values)
        return of_trainer(args, one_for_all, ["environment_return"], {})

    assert differences(made(), made(brand_new=0.0)) == []
    assert differences(made(), made(brand_new=0.5)) == ["brand_new: 0.0, now 0.5"]
    assert made()["advantage.name"] == f"{__name__}.one_for_all"


def one_for_all(batch):
    """An estimator of somebody's own."""
    return batch.score * 0


def test_secrets_are_recorded_nowhere():
    words = ["--model_init_kwargs", "{token: hf_abcdefgh}", "--hub_token", "hf_abcdefgh"]
    assert "hf_abcdefgh" not in json.dumps(record(*words))


def test_a_scripts_record_leaves_out_what_it_cannot_name():
    now = record()
    script = {name: value for name, value in now.items() if not name.startswith(("environment", "model_n", "lora"))}
    assert differences(script, now) == []
    assert not_recorded(script, now) == ["model", "environment"]
    assert not_recorded(now, script) == not_recorded(now, now) == []


def test_a_config_that_was_written_says_what_was_asked(tmp_path):
    from progpo_trl.settings import dump

    script, _, _ = parsed("--generation_kwargs", "{max_time: 9}", "--reward_weights", "1", "0.5")
    dump(script, tmp_path / "config.yaml")
    read = read_asked(Path(tmp_path, "config.yaml"))
    assert read == script.asked
    assert of_asked(read) == of_asked(script.asked)
