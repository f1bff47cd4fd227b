"""What must be shown to nobody: patterns of keys and tokens, names of settings that hold them, command lines without
them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

MASK = "***"
# What a secret is called: a part of the name of a setting, a variable, a field in a text.
SECRET_WORDS = (
    r"(?:(?:api|auth|access|hub|hf|bearer|github|gitlab)[_-]?tokens?|(?:api|access|private|secret(?:[_-]?access)?)[_-]?keys?"
    r"|credentials?|pass(?:word|wd|phrase)s?|secrets?)"
)
# Names after which a value is one, in any spelling: api_key, api-key, API_KEY and the end of OPENAI_API_KEY.
_NAMED = rf"(?<![a-z0-9]){SECRET_WORDS}"
LOGIN_IN_ADDRESS = "a login in an address"
SECRETS = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{20,}"),
    "a W&B key": re.compile(
        r"\bwandb_v\d_[A-Za-z0-9_-]{20,}|(?i:wandb|api.?key|token|secret)\W{1,20}[0-9a-f]{40}(?![0-9a-f])"
    ),
    "a key of an API": re.compile(
        r"\b(?:sk-[A-Za-z0-9_-]{20,}|gh[opsu]_[A-Za-z0-9]{30,}|github_pat_\w{20,}|glpat-[A-Za-z0-9_-]{20,}"
        r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}\b|AIza[A-Za-z0-9_-]{30,})"
    ),
    "a signed token (JWT)": re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    "a login in a header": re.compile(
        r"(?i)\bauthorization\b[\"']?\s*[:=]\s*[\"']?"
        r"(?:(?:bearer|basic|token)\s+[\w.~+/=-]{8,}|(?=[\w.~+/=-]*\d)[\w.~+/=-]{12,})"
        r"|\bbearer\s+(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}"
    ),
    LOGIN_IN_ADDRESS: re.compile(r"\b[A-Za-z][\w+.-]*://[^/\s:@]+:[^/\s@]+@"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    # As a setting (`api_key: x`), in JSON, and as an option, with its value in the next word or the next item.
    "something that is named a secret": re.compile(
        rf"(?i){_NAMED}[\"']?\s*[:=]\s*[\"']?[\w.+/=-]{{12,}}"
        rf"|--[\w.-]*{_NAMED}(?:[\"']\s*,)?[\s-]*[\s=][\"']?[\w.+/=-]{{12,}}"
    ),
}  # fmt: skip


def is_secret_name(name: str) -> bool:
    """Whether a setting, or an option of a section, of this name holds a secret; such are in no config.yaml."""
    plain = name.lstrip("-").rpartition(".")[2].replace("-", "_").lower()
    return plain == "token" or re.search(f"{_NAMED}$", plain) is not None


def without_secret_words(words: Sequence[Any]) -> list[str]:
    """A command line with `***` for the values of secret options, and for what looks like a key anywhere in it."""
    shown, hide = [], False
    for word in map(str, words):
        if not word.startswith("--"):
            shown.append(MASK if hide else _masked(word))
            continue
        name, equals, value = word.partition("=")
        hide = is_secret_name(name)
        shown.append(name + equals + (MASK if hide and equals else _masked(value)))
    return shown


def without_secret_options(words: Sequence[Any]) -> tuple[list[str], list[str]]:
    """(a command line that may be given again, the options left out of it): secret ones, and those with something
    named a secret inside, go with their values. Every other word stays as it was."""
    options: list[list[str]] = [[]]  # the first: what stands before any option
    for word in map(str, words):
        if word.startswith("--"):
            options.append([word])
        else:
            options[-1].append(word)
    kept, left_out = options[0], []
    for option in options[1:]:
        name, _, value = option[0].partition("=")
        if is_secret_name(name) or any(_names_a_secret(_parsed(text)) for text in (value, *option[1:])):
            left_out.append(name)
        else:
            kept += option
    return kept, left_out


def _names_a_secret(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(is_secret_name(str(key)) or _names_a_secret(item) for key, item in value.items())
    return isinstance(value, list) and any(map(_names_a_secret, value))


def _parsed(text: str) -> Any:
    """The mapping or list that a value is; None for any other."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _masked(text: str) -> str:
    """One value: where it is a mapping or a list, what is secret inside."""
    value = _parsed(text)
    masked = _masked_inside(value)
    if masked != value:
        return json.dumps(masked, default=str)
    for pattern in SECRETS.values():
        text = pattern.sub(MASK, text)
    return text


def _masked_inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: MASK if is_secret_name(str(key)) else _masked_inside(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked_inside(item) for item in value]
    return _masked(value) if isinstance(value, str) else value
