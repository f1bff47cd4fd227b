"""What must not leave the machine is found, and what only looks like it is not."""

import pytest

from progpo_trl.publishing.local import PublicNames, scan


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hf_" + "a1B2" * 9, "a Hugging Face token"),
        ('"WANDB_API_KEY": "' + "0123456789" * 4 + '"', "a W&B key"),
        ("wandb_v1_" + "a" * 30, "a W&B key"),
        ("sk-proj-" + "a" * 30, "a key of an API"),
        ("AIzaSy" + "aB3_-" * 7, "a key of an API"),
        ("xoxb-123456789012-abcdefGHIJKL", "a key of an API"),
        ("glpat-" + "x1_-" * 6, "a key of an API"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJlLWhlcmU", "a signed token"),
        ("Authorization: Bearer abc.def-12345678", "a login in a header"),
        ('"headers": {"Authorization": "Bearer 0123456789abcdef"}', "a login in a header"),
        ("api-key: 0f1e2d3c4b5a6978", "named a secret"),
        ("OPENAI_API_KEY=abcdefgh12345678", "named a secret"),
        ("progpo evaluate x --api_key abcdefgh12345678", "named a secret"),
        ("progpo evaluate x --api-key=abcdefgh12345678", "named a secret"),
        ('"--api-key", "abcdefgh12345678"', "named a secret"),
        ("api_token: abcdefghijklmnopqrstu1", "named a secret"),
        ("GITHUB_TOKEN=abcdefghijklmnopqrstu1", "named a secret"),
        ('"passphrase": "abcdefghijklmnopqrstu1"', "named a secret"),
        ("credentials: abcdefghijklmnopqrst1", "named a secret"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
        ("password: correct-horse-battery", "named a secret"),
        ("see /home/alice/runs/x for more", "the path /home/alice/runs/x"),
        ("'~/runs/x'", "the path ~/runs/x"),
        (r"C:\Users\alice\runs", r"the path C:\Users\alice\runs"),
    ],
)
def test_found(text, what, tmp_path):
    (tmp_path / "evaluation.json").write_text(f"first\n{text}\n")
    (found,) = scan(tmp_path)
    assert found.startswith("evaluation.json, line 2: ")
    assert what in found
    if "path" not in what:
        assert text not in found


@pytest.mark.parametrize(
    "text",
    [
        "https://huggingface.co/alice/agent and file.py/x",
        "easy/valid_unseen/000003, ../data/x, runs/quickstart/evaluation",
        "<think></think><action>go to bed 1</action> and/or 1/2",
        "revision: " + "a1" * 20,
        "data " + "cd" * 32,
        "token_level: sequence_level_x, max_tokens: 1000000000000, tokens_per_second: 123456789012.5",
        "tokenizer_class: Qwen2TokenizerFast",
        '"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"',
        "--api-key-env OPENAI_API_KEY, or the secret: keep it; the password is asked for",
        "Authorization: see the manual; a bearer of tokens",
        "eyJ and AIza, xoxb- and glpat- are how keys begin",
        "finished 2026-11-30T01:17:53Z, 12:30:01",
    ],
)
def test_not_found(text, tmp_path):
    (tmp_path / "evaluation.json").write_text(text)
    (tmp_path / "config.yaml").write_text(text)
    assert scan(tmp_path) == []


def test_a_vocabulary_may_hold_any_piece(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"/usr/bin/env": 1, "/home/user/x": 2}')
    (tmp_path / "model.safetensors").write_bytes(b"/home/alice/x hf_" + b"a" * 34)
    assert scan(tmp_path) == []
    for name in ("vocab.json", "tokenizer.json"):
        (tmp_path / name).write_text('{"http://":1,"a":2,"@b":3}')
    assert scan(tmp_path) == []
    (tmp_path / "tokenizer.json").write_text('{"hf_' + "a" * 34 + '": 1}')
    assert "a Hugging Face token" in scan(tmp_path)[0]


def test_public_names(tmp_path):
    run = tmp_path / "run"
    names = PublicNames({run: "alice/agent", "/base/of/mine": "Qwen/X"})
    value = {"run": str(run), "command": ["progpo", "evaluate", f"{run}/checkpoint-3"], "m": "/base/of/mine"}
    assert names.value(value) == {
        "run": "alice/agent",
        "command": ["progpo", "evaluate", "alice/agent/checkpoint-3"],
        "m": "Qwen/X",
    }
    assert names.text("FileNotFoundError: /data/private/games/x.json is gone") == (
        "FileNotFoundError: .../x.json is gone"
    )
    assert names.text("/mnt/my disk/alfworld") == ".../alfworld"
    assert names.text("/no_think Be brief.") == "/no_think Be brief."
    assert names.text("/usr") == ".../usr"
    assert names.text(f"{run}-other") != "alice/agent-other"
    assert names.value([1, None, 0.5, True]) == [1, None, 0.5, True]


@pytest.mark.parametrize(
    "text",
    [
        "http://alice:hunter2hunter2@10.1.2.3:8000",
        "see file:///home/alice/private/x",
        "A:/home/alice/zz",
        "x=/Users/bo/y",
    ],
)
def test_logins_in_addresses_and_homes_anywhere_are_found(text, tmp_path):
    (tmp_path / "config.yaml").write_text(f"system_prompt: '{text}'\n")
    assert list(scan(tmp_path))


def test_secrets_of_any_variable_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN_2", "q8w7e6r5t4y3u2i1o0p9a8s7d6f5g4h3j2k1l0z9")
    monkeypatch.setenv("api_key", "m1n2b3v4c5x6z7l8k9j0h1g2f3d4s5a6p7o8i9u0")
    for value in ("q8w7e6r5t4y3u2i1o0p9a8s7d6f5g4h3j2k1l0z9", "m1n2b3v4c5x6z7l8k9j0h1g2f3d4s5a6p7o8i9u0"):
        (tmp_path / "config.yaml").write_text(f"system_prompt: my {value}\n")
        assert list(scan(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZER_NAME", "alfworld_generated"),  # no name of a secret
        ("KEYBOARD_LAYOUT", "q8w7e6r5t4y3u2i1"),
        ("MODEL_TOKEN", "alfworld_generated"),  # a word
        ("PROJECT_KEY", "a1b2c3d4"),  # so short that it stands anywhere
    ],
)
def test_words_of_other_variables_are_no_secrets(name, value, tmp_path, monkeypatch):
    monkeypatch.setenv(name, value)
    (tmp_path / "config.yaml").write_text(f"environment:\n  name: {value}\n")
    assert scan(tmp_path) == []


def test_a_password_of_words_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "correct-horse-battery")
    (tmp_path / "config.yaml").write_text("note: it is correct-horse-battery\n")
    assert scan(tmp_path) == ["config.yaml, line 1: the value of $DB_PASSWORD"]


def test_a_bare_word_that_is_a_folder_stays_what_it_means(tmp_path, monkeypatch):
    """From the folder above it, a run is called by one word, which texts hold for other reasons."""
    (tmp_path / "runs" / "qwen2").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "runs")
    names = PublicNames({"qwen2": "me/agent"})
    value = {
        "model_type": "qwen2",
        "qwen2": 1,
        "run": str(tmp_path / "runs" / "qwen2" / "x"),
        "_name_or_path": "qwen2",
    }
    assert names.value(value) == value | {"run": "me/agent/x"}
    assert names.config(value) == value | {"_name_or_path": "me/agent"}
    monkeypatch.chdir(tmp_path)
    assert PublicNames({"runs/qwen2": "me/agent"}).value(["runs/qwen2", "qwen2"]) == ["me/agent", "qwen2"]


def test_in_a_models_files_only_fields_of_places_change():
    names = PublicNames({"/base/of/mine": "Qwen/X"})
    value = {
        "chat_template": "{# as in /usr/share/x #}",
        "text_config": {"_name_or_path": "/base/of/mine"},
        "tokenizer_file": "/home/alice/tokenizer.json",
    }
    assert names.config(value) == value | {
        "text_config": {"_name_or_path": "Qwen/X"},
        "tokenizer_file": ".../tokenizer.json",
    }
    assert names.text("/base/of/mine and x/base/of/mine") == "Qwen/X and x/base/of/mine"
