"""Command lines are recorded without the values of secret options, and otherwise as they were."""

import pytest

from progpo_trl.secret_values import is_secret_name, without_secret_words

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


def test_names_of_secrets():
    for name in ("hub_token", "push_to_hub_token", "--api-key", "OPENAI_API_KEY", "environment.password", "token"):
        assert is_secret_name(name), name
    for name in ("max_tokens", "tokenizer", "api_key_env", "keep", "pad_token", "--secretary", "eos_token_id"):
        assert not is_secret_name(name), name
