"""Command lines are recorded without the values of secret options, and otherwise as they were."""

import dataclasses

import pytest

from progpo_trl.secret_values import is_secret_name, without_secret_options, without_secret_words
from progpo_trl.settings import ScriptArguments, without_secrets

TOKEN = "hf_" + "aB3" * 10


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--hub_token", "hf_abc", "--seed", "1"], ["--hub_token", "***", "--seed", "1"]),
        (["--hub-token=hf_abc"], ["--hub-token=***"]),
        (["--environment.api_key", "a b", "c"], ["--environment.api_key", "***", "***"]),
        (["--wandb_api_key", "0123456789"], ["--wandb_api_key", "***"]),
        (["--run_name", TOKEN], ["--run_name", "***"]),
        (["--model", f"https://alice:secret@host/{TOKEN}"], ["--model", "***host/***"]),
        (["--model_init_kwargs", "{token: x, a: [1]}"], ["--model_init_kwargs", '{"token": "***", "a": [1]}']),
        (["--model_init_kwargs={'token': 'x'}"], ['--model_init_kwargs={"token": "***"}']),
        (["--model_init_kwargs", f"[{{a: {TOKEN}}}]"], ["--model_init_kwargs", '[{"a": "***"}]']),
        (["--x", "{token: ["], ["--x", "{token: ["]),
    ],
)
def test_values_of_secrets_are_masked(words, shown):
    assert without_secret_words(words) == shown


def test_everything_else_stays():
    words = ["--config", "a b.yaml", "--seeds", "0", "1", "--api-key-env", "OPENAI_API_KEY", "--x={a:  1}", "-h", "--"]
    words += ["--max_new_tokens", "5", "--environment.level", "hard", "--chat_template_kwargs", '{"a":  true}']
    assert without_secret_words(words) == words
    assert without_secret_words([0, None]) == ["0", "None"]


@pytest.mark.parametrize(
    ("words", "kept", "left_out"),
    [
        (["--hub_token", "hf_abc", "--seed", "1"], ["--seed", "1"], ["--hub_token"]),
        (["--seed=1", "--hub-token=hf_abc", "--x"], ["--seed=1", "--x"], ["--hub-token"]),
        (["--environment.api_key", "a", "b"], [], ["--environment.api_key"]),
        (["--model_init_kwargs", "{token: x, a: [1]}"], [], ["--model_init_kwargs"]),
        (["--model_init_kwargs={a: [{'api-key': x}]}"], [], ["--model_init_kwargs"]),
        (["--output_dir", "runs/hf_qwen25instructalfworld1"], ["--output_dir", "runs/hf_qwen25instructalfworld1"], []),
        (["--x", "{token: [", "--y={a:  1}"], ["--x", "{token: [", "--y={a:  1}"], []),
    ],
)
def test_a_command_to_give_again_has_no_secrets_and_no_stars(words, kept, left_out):
    assert without_secret_options(words) == (kept, left_out)


def test_names_of_secrets():
    for name in ("hub_token", "push_to_hub_token", "--api-key", "OPENAI_API_KEY", "environment.password", "token"):
        assert is_secret_name(name), name
    for name in ("api_token", "apikey", "credentials", "passphrase", "github_token", "client_secret", "bearer_token"):
        assert is_secret_name(name), name
        assert without_secrets({"environment": {name: "x", "level": "easy"}}) == {"environment": {"level": "easy"}}
    for name in ("AWS_SECRET_ACCESS_KEY", "secret_key", "DB_PASSWD", "api_keys", "private-key"):
        assert is_secret_name(name), name
    for name in ("max_tokens", "tokenizer", "api_key_env", "keep", "pad_token", "--secretary", "eos_token_id"):
        assert not is_secret_name(name), name
    for name in ("token_level", "tokens_per_minute", "compass", "passes", "password_file", "tokenizer_name", "keys"):
        assert not is_secret_name(name), name


def test_of_all_settings_only_the_token_of_the_hub_is_a_secret():
    from progpo_trl.config import MultiTurnGRPOConfig
    from progpo_trl.model_arguments import ModelArguments

    kinds = (MultiTurnGRPOConfig, ModelArguments, ScriptArguments)
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)}
    assert "max_tokens_per_forward" in names
    assert {name for name in names if is_secret_name(name)} == {"hub_token"}
