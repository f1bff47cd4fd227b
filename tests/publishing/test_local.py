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
        '"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"',
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
