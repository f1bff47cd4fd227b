"""Settings: YAML and command line -> dataclasses, with every wrong name and value refused where it stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from progpo_trl import settings_sections
from progpo_trl.settings import ScriptArguments, SettingsError, dump, find_recipe, load_recipe, parse, recipes

BASE = """\
model_name_or_path: some/model
environment:
  name: rooms
  size: 3
use_cpu: true
bf16: false
report_to: none
"""


class Rooms:
    """An environment's constructor, as the settings see it."""

    def __init__(
        self,
        size: int,
        *,
        rate: float = 0.5,
        path: str | Path | None = None,
        kinds: Sequence[str] | None = None,
        weights: Any = None,
    ):
        pass


class Corridor:
    def __init__(self, length: int = 2):
        pass


@pytest.fixture(autouse=True)
def known_environments(monkeypatch):
    monkeypatch.setattr(
        settings_sections, "environments", lambda: {"rooms": f"{__name__}:Rooms", "corridor": f"{__name__}:Corridor"}
    )


@pytest.fixture
def recipe(tmp_path):
    def write(text: str = BASE) -> str:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def parsed(path: str, *words: str):
    return parse(["--config", path, *words])


def error_of(path: str, *words: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parsed(path, *words)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_file_alone(recipe):
    script, training, model = parsed(recipe())
    assert script.environment == {"name": "rooms", "size": 3, "split": "train", "eval_split": "valid_seen"}
    assert script.advantage == {"name": "grpo"}
    assert script.progress_fallback is None
    assert model.model_name_or_path == "some/model"
    assert training.report_to == []


def test_command_line_wins_at_every_depth(recipe):
    script, training, _ = parsed(
        recipe(BASE + "learning_rate: 1e-6\nadvantage: {name: grpo, eps: 1e-5}\n"),
        "--learning_rate", "1e-4",
        "--environment.split=valid_seen",
        "--environment.size", "7",
        "--advantage.norm", "mean",
        "--temperature", "0.7", "--temperature", "0.9",
    )  # fmt: skip
    assert training.learning_rate == 1e-4
    assert training.temperature == 0.9
    assert script.environment["split"] == "valid_seen"
    assert script.environment["size"] == 7
    assert script.advantage == {"name": "grpo", "eps": 1e-5, "norm": "mean"}


def test_a_whole_section_on_the_command_line_replaces_the_file(recipe):
    script, _, _ = parsed(recipe(), "--environment", "{name: corridor, length: 5, split: train}")
    assert script.environment == {"name": "corridor", "length": 5, "split": "train", "eval_split": "valid_seen"}


def test_no_file_at_all():
    script, training, model = parse(
        "--environment.name corridor --model_name_or_path m --use_cpu --bf16 false --report_to none".split()
    )
    assert (script.environment["name"], model.model_name_or_path, training.use_cpu) == ("corridor", "m", True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], None),
        (["--progress_fallback", "{}"], {}),
        (["--progress_fallback.lambda_aux", "0.1"], {"lambda_aux": 0.1}),
        (["--progress_fallback.lambda_aux", "1"], {"lambda_aux": 1.0}),
        (["--progress_fallback", "{lambda_aux: 0.1}", "--progress_fallback", "null"], None),
    ],
)
def test_progress_fallback_on_and_off(recipe, words, expected):
    assert parsed(recipe(), *words)[0].progress_fallback == expected


def test_a_flag_is_true_with_or_without_the_word_and_no_flag_is_false(recipe):
    assert parsed(recipe(), "--evaluate_around_training")[0].evaluate_around_training is True
    assert parsed(recipe(), "--evaluate-around-training", "false")[0].evaluate_around_training is False
    assert parsed(recipe(), "--no_save_episodes")[1].save_episodes is False
    assert "takes no value" in error_of(recipe(), "--no_save_episodes", "true")


def test_lists_and_free_mappings(recipe):
    path = recipe(BASE + "use_peft: true\nlora_target_modules: [q_proj, v_proj]\n")
    _, training, model = parsed(
        path, "--report_to", "tensorboard", "none", "--chat_template_kwargs.enable_thinking", "false"
    )
    assert model.lora_target_modules == ["q_proj", "v_proj"]
    assert training.chat_template_kwargs == {"enable_thinking": False}
    assert parsed(path, "--lora_target_modules", "all-linear")[2].lora_target_modules == "all-linear"
    assert parsed(path, "--environment.kinds", "a", "b")[0].environment["kinds"] == ["a", "b"]
    assert parsed(path, "--environment.kinds", "a")[0].environment["kinds"] == ["a"]


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (BASE + "learning_rat: 1\n", [], "run.yaml:8: unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
        (BASE, ["--learning_rat", "1"], "command line: unknown setting 'learning_rat'; did you mean 'learning_rate'?"),
        (
            BASE.replace("size", "siez"),
            [],
            "run.yaml:4: unknown setting 'environment.siez' of rooms; did you mean 'environment.size'?",
        ),
        (
            BASE,
            ["--environment.splt", "x"],
            "command line: unknown setting 'environment.splt' of rooms; did you mean 'e",
        ),
        (BASE, ["--environment.zzzzzz", "x"], "(there are name, split, eval_split, size, rate, path, kinds, weights)"),
        (BASE, ["--split", "x"], "unknown setting 'split'; did you mean 'environment.split'?"),
        (BASE, ["--advantage.stat", "steps"], "'advantage.stat' of grpo; did you mean 'advantage.stats'?"),
        (BASE, ["--advantage.base", "x"], "unknown setting 'advantage.base'"),
        (BASE, ["--progress_fallback.base", "x"], "unknown setting 'progress_fallback.base'"),
        (BASE, ["--progress_fallback.lamda_aux", "1"], "did you mean 'progress_fallback.lambda_aux'?"),
        (
            BASE,
            ["--environment.name", "room"],
            "environment.name: 'room' is not one of corridor, rooms; did you mean 'rooms'",
        ),
        (BASE, ["--environment.name", "corridor"], "run.yaml:4: unknown setting 'environment.size' of corridor"),
        (BASE, ["--advantage.name", "grpp"], "did you mean 'grpo'?"),
        (BASE, ["--advantage.norm", "std"], "command line: advantage: grpo: norm='std' is not one of"),
        (BASE, ["--advantage", "{name: gigpo, preset: released}"], "did you mean 'released_code'?"),
        (BASE, ["--advantage", "{name: gigpo, similarity: 7}"], "the nearest valid value is 1.0"),
        (BASE, ["--progress_fallback.obs_key", "os:nothing"], "progpo: obs_key='os:nothing' cannot be imported"),
        (BASE + "env: {A: b}\n", [], "set environment variables in the shell"),
        (BASE, ["--dataset_name", "x"], "the tasks come from the environment"),
    ],
)
def test_unknown_names_are_refused_with_the_place_and_the_nearest_name(recipe, text, words, expected):
    assert expected in error_of(recipe(text), *words)


def test_options_of_estimators_take_presets_lists_and_functions_by_name(recipe):
    words = ["--advantage", "{name: proxmo, preset: released_code, ignore_obs: [Nothing happens., ''], embed: null}"]
    words += ["--advantage.obs_key", "string:capwords", "--progress_fallback.progress", "edit_distance"]
    script, _, _ = parse(["--config", recipe(BASE), *words])
    assert script.advantage == {
        "name": "proxmo",
        "preset": "released_code",
        "ignore_obs": ("Nothing happens.", ""),
        "embed": None,
        "obs_key": "string:capwords",
    }
    assert script.progress_fallback["progress"] == "edit_distance"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--learning_rate", "fast"], "learning_rate: expected a number, got 'fast'"),
        (["--learning_rate"], "learning_rate: needs a value: a number"),
        (["--learning_rate", "1", "2"], "learning_rate: expected a number, got a list [1, 2]"),
        (["--learning_rate", "null"], "learning_rate: null is not allowed, expected a number"),
        (["--max_steps", "1.5"], "max_steps: expected a whole number, got 1.5"),
        (["--max_steps", "true"], "max_steps: expected a whole number, got True"),
        (["--bf16", "maybe"], "bf16: expected true or false, got 'maybe'"),
        (["--run_name"], "run_name: needs a value: text"),
        (["--save_strategy", "stepz"], "save_strategy: 'stepz' is not one of"),
        (["--context", "fulll"], "context: 'fulll' is not one of window, full; did you mean 'full'?"),
        (["--environment.size", "big"], "environment.size: expected a whole number, got 'big'"),
        (["--environment.kinds", "{a: 1}"], "environment.kinds: expected a list"),
        (["--environment", "rooms"], "environment: is a section, got 'rooms'; write --environment.name VALUE"),
        (["--environment", "{size: 1}"], "environment: `name` is missing: one of corridor, rooms"),
        (["--environment", "{name: rooms}"], "environment: needs size"),
        (["--environment", "{name: rooms"], "command line: not valid YAML"),
        (["--progress_fallback", "true"], "write {} for its defaults, null to leave it off"),
        (["--learning_rate.x", "1"], "--learning_rate.x: 'learning_rate'"),
        (["--environment..x", "1"], "a name is missing beside a dot"),
        (["--updates_per_generation", "4"], "updates_per_generation needs groups_per_generation"),
        (["--groups_per_generation", "1", "--per_device_train_batch_size", "8"], "follows from groups_per_generation"),
        (["--deepspeed", "nowhere.json"], "run.yaml: "),
        (["--environment.rate", "nan"], "command line: environment.rate: numbers must be finite, got nan"),
        (["--environment.rate=-.inf"], "environment.rate: numbers must be finite, got -inf"),
        (["--environment.weights", "[1, .nan]"], "environment.weights: numbers must be finite"),
        (["--environment.weights", "{a: {b: .inf}}"], "environment.weights: numbers must be finite"),
        (["--progress_fallback.lambda_aux", "inf"], "progress_fallback.lambda_aux: numbers must be finite"),
        (["--temperature", "nan"], "temperature must be a number >= 0.001, got nan"),
        (["--temperature", "1e-45"], "temperature must be a number >= 0.001, got 1e-45; sampling needs a temperature"),
        (["--temperature", "0"], "temperature must be a number >= 0.001, got 0; sampling needs a temperature"),
        (["--eval_temperature", "1e-4"], "eval_temperature must be 0 or a number >= 0.001, got 0.0001; 0 is greedy"),
        (["--eval_temperature", "-1"], "eval_temperature must be 0 or a number >= 0.001, got -1"),
        (["--num_train_epochs", "0"], "num_train_epochs must be a number > 0, got 0; max_generations is"),
        (["--num_train_epochs", "-1"], "num_train_epochs must be a number > 0, got -1"),
        (["--max_steps", "0"], "max_steps must be -1 or a number >= 1, got 0"),
        (["--adam_beta1", "2"], "adam_beta1 must be at least 0 and below 1, got 2"),
        (["--adam_beta2", "1"], "adam_beta2 must be at least 0 and below 1, got 1"),
        (["--adam_epsilon", "0"], "adam_epsilon must be a number > 0, got 0"),
        (["--max_grad_norm", "-1"], "max_grad_norm must be a number >= 0, got -1; 0 leaves gradients as they are"),
        (["--reward_weights", "nan"], "reward_weights must be a list of finite numbers, got [nan]"),
        (["--reward_weights", "1", "inf"], "reward_weights must be a list of finite numbers, got [1.0, inf]"),
        (
            ["--generation_kwargs", "{no_repeat_ngram_sise: 3}"],
            "generate takes no 'no_repeat_ngram_sise'; did you mean 'no_repeat_ngram_size'?",
        ),
        (["--generation_kwargs", "{stop_strings: [x]}"], "stop_strings is not supported: a turn ends at"),
        (["--generation_kwargs", "{num_beams: 4}"], "num_beams is not supported: a turn is one"),
        (["--generation_kwargs", "{disable_compile: true}"], "generate takes no 'disable_compile'"),
        (
            ["--use_vllm", "--vllm_importance_sampling_mode", "token_mas"],
            "vllm_importance_sampling_mode='token_mas' is not one of token_truncate, token_mask, sequence_truncate, "
            "sequence_mask; did you mean 'token_mask'?",
        ),
        (["--num_generations", "9" * 19], f"num_generations: expected a whole number from -{2**63 - 1} to "),
        (["--num_generations", "9" * 5000], "num_generations: expected a whole number, got '999"),
        (["--lora_r", "9" * 19], f"lora_r: expected a whole number from -{2**63 - 1} to {2**63 - 1}, got 999"),
        (["--learning_rate", "9" * 400], f"learning_rate: expected a number from -{2**63 - 1} to {2**63 - 1}, got 9"),
        (["--environment.size", "9" * 19], "environment.size: expected a whole number"),
        (["--chat_template_kwargs", "9" * 19], "chat_template_kwargs must be a mapping, got 999"),
        (["--eval_seed", "-1"], "eval_seed must be between 0 and 4294967295, got -1"),
        (["stray"], "--config takes one file"),
        (["--use_cpu", "--", "x"], "unexpected '--'"),
        (["--config", "other"], "only once"),
        (["--model_name_or_path", "null"], "no model: set model_name_or_path"),
    ],
)
def test_wrong_values_are_refused_in_one_line(recipe, words, expected):
    assert expected in error_of(recipe(BASE + "learning_rate: 1e-6\n"), *words)


def test_values_at_the_edge_of_their_range_are_taken(recipe):
    words = "--eval_temperature 0 --temperature 0.001 --adam_beta1 0 --max_grad_norm 0 --max_steps -1"
    _, args, _ = parsed(recipe(), *words.split(), "--reward_weights", "-1", "0.5")
    assert (args.eval_temperature, args.temperature, args.adam_beta1) == (0, 0.001, 0)
    assert args.reward_weights == [-1, 0.5]


def test_generation_kwargs_are_those_of_who_generates(recipe):
    own = ["--generation_kwargs", "{no_repeat_ngram_size: 3}"]
    assert parsed(recipe(), *own)[1].generation_kwargs == {"no_repeat_ngram_size": 3}
    vllm = ["--use_vllm", "--generation_kwargs", "{frequency_penalty: 0.1}"]
    assert parsed(recipe(), *vllm)[1].generation_kwargs == {"frequency_penalty": 0.1}
    assert "takes no 'frequency_penalty'" in error_of(recipe(), *vllm[1:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: b: c\n", "run.yaml:1: not valid YAML"),
        ("a: 1\nb: [1\n", "run.yaml:3: not valid YAML"),
        ("a: 1\n\tb: 2\n", "run.yaml:2: not valid YAML"),
        ("a: 1\na: 2\n", "run.yaml:2: 'a' is set twice"),
        ("environment: {name: rooms, name: corridor}\n", "run.yaml:1: 'name' is set twice"),
        ("- a\n", "expected `name: value` settings, got a list"),
        ("just words\n", "expected `name: value` settings"),
        ("a: !!int abc\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "run.yaml:1: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("a: \x07\n", "run.yaml:1: not valid YAML"),
        ("? [a]\n: 1\n", "a name must be plain text"),
        ("a: &x [*x]\n", "recursive"),
        ("b: &y {c: *y}\n", "nested too deeply"),
        ("", "no environment"),
    ],
)
def test_broken_files_are_refused_with_file_and_line(recipe, text, expected):
    assert expected in error_of(recipe(text))


def test_unreadable_files(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"run_name: caf\xe9\n")
    assert "not UTF-8" in error_of(str(tmp_path / "latin.yaml"))
    assert "is a folder" in error_of(str(tmp_path))
    assert "no such file, and no recipe of that name; did you mean 'quickstart'?" in error_of("quickstrt")


def test_nothing_asked():
    with pytest.raises(SettingsError, match="no environment: give --config RECIPE"):
        parse([])


# ---- recipes, dump, help -------------------------------------------------------------------------------------------


def test_recipes_by_name_or_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # as from an installed wheel: no checkout in sight
    assert "quickstart" in recipes()
    shipped = find_recipe("quickstart")
    for name in ("quickstart.yaml", "recipes/quickstart.yaml", "./recipes/quickstart.yaml"):
        assert find_recipe(name).samefile(shipped)
    assert load_recipe("quickstart")["environment"]["name"] == "alfworld_generated"


def test_dump_reads_back_as_the_same_settings_without_secrets(recipe, tmp_path):
    path = recipe(BASE + "hub_token: hf_secret\nlearning_rate: 1e-6\nrun_name: 'no'\nsave_strategy: no\n")
    first = parsed(path, "--environment.path", "a/b", "--progress_fallback", "{}", "--environment.kinds", "x")
    dump(first[0], tmp_path / "config.yaml")
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    assert "secret" not in text
    assert "# trl 1." in text
    assert yaml.safe_load(text)["learning_rate"] == 1e-6
    again = parsed(str(tmp_path / "config.yaml"))
    assert again[0] == first[0]
    assert again[2] == first[2]
    assert (again[1].run_name, again[1].save_strategy) == ("no", first[1].save_strategy)
    assert (first[1].hub_token, again[1].hub_token) == ("hf_secret", None)


def test_help_names_every_setting_and_option(capsys):
    import dataclasses

    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.model_arguments import ModelArguments

    with pytest.raises(SystemExit) as caught:
        parse(["--config", "nowhere", "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "%%" not in text
    words = text.split()
    for cls in (ScriptArguments, MultiTurnGRPOConfig, ModelArguments):
        for field in dataclasses.fields(cls):
            assert words.count(f"--{field.name}") == int(field.init), field.name
    for option in ("environment.rate", "environment.length", "advantage.stats", "progress_fallback.lambda_aux"):
        assert f"--{option}" in words


@pytest.mark.parametrize("way", [".config.yaml.partial", "config.yaml"])
def test_a_folder_in_the_way_of_the_runs_settings_is_named(recipe, tmp_path, way):
    script = parsed(recipe(BASE))[0]
    (tmp_path / way).mkdir()
    said = re.escape(f"output_dir: {tmp_path / way} cannot be written: ")
    with pytest.raises(SettingsError, match=f"^{said}") as error:
        dump(script, tmp_path / "config.yaml")
    assert "make way for it, or choose another --output_dir" in str(error.value)
    assert "\n" not in str(error.value)
    assert (tmp_path / way).is_dir()
