"""Every recipe parses, holds the published settings, divides among 1 to 8 processes, and runs."""

from __future__ import annotations

import json
import re

import pytest

from progpo_trl.environments.webshop import GeneratedWebshopTasks
from progpo_trl.settings import RECIPES, find_recipe, load_recipe, parse, recipes, summary

NAMES = recipes()
PUBLISHED = [name for name in NAMES if re.match("(alfworld|webshop)/qwen", name)]
SECTIONS = ["Model", "Environment", "Rollout", "Advantage", "Training", "Logging and publishing"]
# A recipe for GPUs on the machine that runs the tests: what the machine lacks, and nothing else.
ON_CPU = ["--use_cpu", "--bf16", "false", "--report_to", "none"]


def parsed(name: str, *words: str):
    return parse(["--config", name, *ON_CPU, *words])


def test_the_recipes_there_should_be():
    models = ("qwen2.5-1.5b-instruct", "qwen2.5-7b-instruct")
    methods = ("grpo", "progpo", "gigpo", "hgpo", "proxmo", "progpo-gigpo", "progpo-hgpo")
    published = {f"alfworld/{model}/{method}{how}" for model in models for method in methods for how in ("", "-lora")}
    published |= {f"webshop/{model}/{method}" for model in models for method in methods if method != "progpo"}
    others = {"quickstart", "alfworld/tiny/progpo", "webshop/tiny/progpo"}
    assert {*others, *published, "alfworld/qwen2.5-7b-instruct/progpo-gigpo-qlora"} == set(NAMES)


def is_hgpo(name: str) -> bool:
    """HGPO's scripts train a little longer, in ALFWorld on longer prompts, in WebShop with more steps."""
    return "hgpo" in name.split("/")[-1]


def is_shop(name: str) -> bool:
    return name.startswith("webshop/")


ESTIMATORS = {
    "grpo": {"name": "grpo", "stats": "steps"},
    "gigpo": {"name": "gigpo", "stats": "steps", "norm": "mean_std", "w": 1.0, "gamma": 0.95},
    "hgpo": {"name": "hgpo", "history_length": 2, "norm": "mean_std", "weight_offset": 1.0, "gamma": 0.95},
    "proxmo": {"name": "proxmo", "preset": "released_code", "w": 1.0, "gamma": 0.95, "tau": 0.1},
}


def base_of(name: str) -> str:
    """The base estimator that a recipe's file name promises."""
    words = [word for word in name.split("/")[-1].split("-") if word in ESTIMATORS]
    return words[0] if words else "grpo"


@pytest.mark.parametrize("name", NAMES)
def test_the_header_and_the_sections_are_the_manual(name):
    text = find_recipe(name).read_text(encoding="utf-8")
    header = text.partition("\n\n")[0]
    assert summary(name)
    for word in ("# Hardware:", "# Time:", "# Expect:", "# Launch"):
        assert word in header
    assert re.findall(r"^# -+ ([A-Z].+?) -+$", text, re.MULTILINE) == SECTIONS
    assert max(map(len, text.splitlines())) <= 119
    for config in re.findall(r"--config_file (\S+)", header):
        assert (RECIPES.parent / config).is_file()
    for config in re.findall(r"--config (\S+\.yaml)", header):
        assert find_recipe(config).samefile(find_recipe(name))


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_iterations_are_generations_on_any_number_of_processes(name, processes, monkeypatch):
    # Not WORLD_SIZE itself, at which accelerate would look for the other processes.
    monkeypatch.setattr("progpo_trl.config._world_size", lambda: processes)
    _, args, _ = parsed(name)
    generation = args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
    assert args.max_steps == (160 if is_hgpo(name) else 150) * generation
    assert args.per_device_train_batch_size * args.steps_per_generation * processes == 16 * 8
    assert args.save_steps % generation == 0
    assert args.eval_steps % generation == 0
    assert args.logging_steps == generation
    assert (args.save_strategy, args.eval_strategy) == ("steps", "steps")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings(name):
    script, args, model = parsed(name)
    assert script.environment["name"] == name.split("/")[0]
    assert script.environment["max_steps"] == ((30 if is_hgpo(name) else 15) if is_shop(name) else 50)
    assert script.environment["success_reward"] == 10
    assert script.environment["split"] == "train"
    assert script.environment["eval_split"] == ("dev" if is_shop(name) else "valid_seen")
    assert (args.groups_per_generation, args.num_generations, args.num_iterations) == (16, 8, 1)
    assert (args.context, args.history, args.max_context_length, args.max_completion_length) == (
        "window",
        2,
        4096 if is_hgpo(name) or is_shop(name) else 2048,
        512,
    )
    assert (args.beta, args.epsilon, args.epsilon_high) == (0.01, 0.2, None)
    assert args.use_bias_correction_kl is False
    assert (args.temperature, args.eval_temperature) == (1.0, 0.4)
    assert (args.invalid_action_penalty, args.invalid_action) == (0.1, "format")
    assert (args.loss_type, args.lr_scheduler_type) == ("dapo", "constant")
    # GiGPO's and HGPO's scripts divide by the deviation in ALFWorld only.
    estimator = ESTIMATORS[base_of(name)]
    assert script.advantage == (estimator | {"norm": "mean"} if is_shop(name) and "norm" in estimator else estimator)
    assert script.progress_fallback == ({"lambda_aux": 0.3} if "progpo" in name else None)
    assert model.model_name_or_path.lower() == f"qwen/{name.split('/')[1]}"
    lora = name.endswith("lora")
    assert model.use_peft is lora
    assert args.learning_rate == (1e-5 if lora else 1e-6)
    if lora:
        assert (model.lora_target_modules, model.lora_dropout) == ("all-linear", 0.0)
    assert model.load_in_4bit is name.endswith("qlora")
    assert args.use_vllm is not name.endswith("qlora")


@pytest.mark.parametrize("name", NAMES)
def test_the_kl_is_the_published_loss_term(name):
    """TRL's default multiplies it by the importance ratio: another gradient, also on-policy."""
    recipe = load_recipe(name)
    assert recipe["beta"] == 0 or recipe["use_bias_correction_kl"] is False


@pytest.mark.parametrize("name", [name for name in PUBLISHED if base_of(name) != "grpo" or "progpo" in name])
def test_ablations_of_the_header_are_settings(name):
    """Each changes the estimator that is made, and nothing else."""
    from progpo_trl.advantages import make_estimator

    header = find_recipe(name).read_text(encoding="utf-8").partition("\n\n")[0].partition("# Ablations")[2]
    ablations = re.findall(r"^#   ((?:--\S+ \S+ ?)+) +\S", header, re.MULTILINE)
    assert len(ablations) >= 4
    script, _, _ = parsed(name)
    plain = make_estimator(script.advantage, script.progress_fallback)
    for words in ablations:
        script, _, _ = parsed(name, *words.split())
        assert make_estimator(script.advantage, script.progress_fallback) != plain, words


@pytest.mark.parametrize("name", NAMES)
def test_runs_do_not_overwrite_each_other(name):
    others = [load_recipe(other)["output_dir"] for other in NAMES if other != name]
    assert load_recipe(name)["output_dir"] not in others


def test_quickstart_is_what_its_header_says():
    script, args, model = parsed("quickstart")
    assert (args.max_steps, args.per_device_train_batch_size, args.steps_per_generation) == (120, 64, 1)
    assert (args.eval_tasks, args.eval_temperature, args.temperature) == (128, 1.0, 1.0)
    assert model.model_name_or_path == "tiny"
    assert script.evaluate_around_training
    assert script.environment["eval_split"] != script.environment["split"]


def test_the_tiny_shop_trains_two_generations(tmp_path):
    """From the recipe to the summary, with its own policy in its own shop."""
    import torch

    from progpo_trl.train import main

    torch.set_num_threads(1)
    words = ["--max_generations", "2", "--groups_per_generation", "4", "--num_generations", "4", "--eval_tasks", "16"]
    name = "webshop/tiny/progpo"
    assert main(["--config", name, *ON_CPU, "--output_dir", str(tmp_path), *words]) == 0
    found = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert found["success_before"]["n"] == found["success_after"]["n"] == 16
    assert found["success_before_metrics"]["info/bought"] > 0.3
    episodes = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(episodes) == 2 * 16
    first = [episode["steps"][0] for episode in episodes]
    assert sum(step["action"].startswith("search[") for step in first) > 20
    assert all(step["observation"].startswith("WebShop [SEP] Instruction: [SEP] Buy a ") for step in first)
    held_out = set(GeneratedWebshopTasks(400, level="tiny").task_ids("dev"))
    assert not held_out & {episode["task_id"] for episode in episodes}
    assert any(step["advantage"] for episode in episodes for step in episode["steps"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_runs_for_two_steps_with_the_tiny_policy(name, tmp_path):
    import torch

    from progpo_trl.train import main

    torch.set_num_threads(1)  # the model is tiny: threads only cost
    _, args, model = parsed(name)
    words = [
        "--config", name, *ON_CPU,
        "--output_dir", str(tmp_path),
        # the tiny policy and generated games in place of the recipe's own
        "--model_name_or_path", "tiny",
        "--dtype", "float32",
        "--environment", "{name: alfworld_generated, level: easy, eval_split: valid_unseen, max_steps: 4}",
        "--prompt_template", "tiny",
        "--max_completion_length", "8",
        # two updates, which are the first generation's or two generations
        "--groups_per_generation", "2", "--num_generations", "4",
        "--updates_per_generation", str(min(args.steps_per_generation, 2)),
        "--max_generations", str(2 // min(args.steps_per_generation, 2)),
        "--logging_steps", "1",
        "--eval_tasks", "2",
        "--show_rollout_progress", "false",
    ]  # fmt: skip
    if model.load_in_4bit:  # bitsandbytes is an extra, and wants a GPU
        words += ["--load_in_4bit", "false"]
    if args.use_vllm:
        words += ["--use_vllm", "false"]
    if args.save_strategy == "steps":
        words += ["--save_every_generations", "1", "--eval_every_generations", "1"]
    assert main(words) == 0
    assert (tmp_path / "config.yaml").is_file()
    assert (tmp_path / "summary.json").is_file()
    assert list(tmp_path.glob("adapter_model.safetensors" if model.use_peft else "model.safetensors"))
    assert (tmp_path / "checkpoint-2").is_dir() is (args.save_strategy == "steps")
    if model.use_peft:
        adapter = (tmp_path / "adapter_config.json").read_text(encoding="utf-8")
        assert '"r": 32' in adapter
