"""What must not leave this machine: its paths, and secrets. Found, and replaced where a text can do without."""

from __future__ import annotations

import netrc
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from progpo_trl.secret_values import LOGIN_IN_ADDRESS, SECRET_WORDS, SECRETS

# Absolute paths of two parts or more, or in a home folder; what follows a letter, a dot or a colon is part of
# something else (a URL, a task id, a date).
_PATH = re.compile(
    r"(?<![\w.:/<>~)\]}%*-])(?:/[A-Za-z_.][\w.+@-]*(?:/[\w.+@-]+)+/?|~[\w-]*/[\w.+@/-]+)"
    r"|(?<![A-Za-z])[A-Za-z]:\\[^\s\"'<>|]+"
    r"|file:/+[\w.+@/-]+|/(?:home|Users)/[\w.+@-]+(?:/[\w.+@-]+)*"
)
# A variable of any token or key may hold a secret: its value is told from a word below.
_SECRET_VARIABLE = re.compile(rf"(?i)(?:^|_)(?:{SECRET_WORDS}|tokens?|keys?|pass)(?:_|$)")
# Words in small letters, capitals or capitalised, as names of things are; a password may be of such words, too.
_WORDS = re.compile(
    r"(?:[a-z]{1,16}|[A-Z]{1,16}|[A-Z][a-z]{1,15})(?:[-_ ./](?:[a-z]{1,16}|[A-Z]{1,16}|[A-Z][a-z]{1,15}))*"
)
_SHORTEST = 12  # letters of a secret: what is shorter stands in texts by chance
# Fields of the JSON files beside the weights that say where something lay when they were written.
_PLACES = {
    *("_name_or_path", "name_or_path", "base_model_name_or_path", "tokenizer_file", "vocab_file", "merges_file"),
    "special_tokens_map_file",
}
# Lists of text pieces, in which anything may occur.
_VOCABULARY = {"tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json"}
_TEXT = {".json", ".yaml", ".yml", ".md", ".txt", ".jinja", ".jsonl", ".py", ".cfg", ".toml"}


def is_local_path(value: str) -> bool:
    """Whether a setting's value can only mean a place on this machine."""
    return value.startswith(("/", "~", "./", "../", "\\\\")) or re.match(r"[A-Za-z]:[\\/]", value) is not None


def without_places(options: Mapping[str, Any]) -> dict[str, Any]:
    """A section's options without those that are places on this machine."""
    return {name: value for name, value in options.items() if not (isinstance(value, str) and is_local_path(value))}


class PublicNames:
    """Rewrites texts for others to read. names: places of this machine -> what they are called in public; other
    absolute paths shrink to their last part.

    A place that is spelled as one bare word ("model", from the folder above it) is left alone in texts, where that
    word may mean anything.
    """

    def __init__(self, names: Mapping[str | Path, str]):
        known: dict[str, str] = {}
        for place, name in names.items():
            for form in {str(place), os.path.abspath(place), os.path.realpath(place)}:
                known[form] = name
        # The longest first: a folder's name must not break those inside it.
        self._names = dict(sorted(known.items(), key=lambda item: -len(item[0])))

    def text(self, text: str) -> str:
        """`text` without places of this machine."""
        if text in self._names and re.search(r"[/\\]", text):
            return self._names[text]
        for place, name in self._names.items():
            if os.path.isabs(place):
                text = re.sub(rf"(?<![\w.~-]){re.escape(place)}(?![\w.-])", lambda _, name=name: name, text)
        # One part alone is a word in a prompt (/no_think) rather than a path, unless it is one.
        if os.path.isabs(text) and (text.rstrip("/").count("/") > 1 or os.path.exists(text)):
            return _last(text)
        return _PATH.sub(lambda match: _last(match[0]), text)

    def value(self, value: Any) -> Any:
        """JSON or YAML values with every text in them rewritten; names of fields stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(item) for key, item in value.items()}
        return [self.value(item) for item in value] if isinstance(value, (list, tuple)) else value

    def config(self, value: Any) -> Any:
        """A model's or tokenizer's JSON, in which only the fields that hold places are rewritten."""
        if isinstance(value, Mapping):
            return {
                key: self._names.get(item, self.text(item))
                if key in _PLACES and isinstance(item, str)
                else self.config(item)
                for key, item in value.items()
            }
        return [self.config(item) for item in value] if isinstance(value, list) else value


def _last(path: str) -> str:
    parts = re.split(r"[\\/]+", path.rstrip("\\/"))
    return f".../{parts[-1]}"


def scan(folder: Path) -> list[str]:
    """Paths of this machine and secrets in the text files below `folder`: "file, line n: what", secrets not shown."""
    known, places = list(_known_secrets()), _own_places()
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix not in _TEXT:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        pieces = path.name in _VOCABULARY
        hits = dict(_secrets_in(text, known, pieces))
        for position, place in _paths_in(text, places if pieces else None):
            hits.setdefault(position, f"the path {place}")
        name, last, line = path.relative_to(folder), 0, 1
        for position in sorted(hits):
            line += text.count("\n", last, position)
            last = position
            found.append(f"{name}, line {line}: {hits[position]}")
    return found


def _secrets_in(text: str, known: list[tuple[str, str]], pieces: bool) -> Iterator[tuple[int, str]]:
    """(position, what it is). pieces: the text is a vocabulary, in which one piece may end as a login begins and a
    later one go on so."""
    taken: set[int] = set()  # ends of what was found: one secret is one finding
    for what, value in known:
        start = text.find(value)
        if start >= 0:
            taken.add(start + len(value))
            yield start, what
    for what, pattern in SECRETS.items():
        if pieces and what == LOGIN_IN_ADDRESS:
            continue
        for match in pattern.finditer(text):
            if match.end() not in taken:
                taken.add(match.end())
                yield match.start(), what


def _paths_in(text: str, places: list[str] | None) -> Iterator[tuple[int, str]]:
    """(position, path) of all absolute paths, or only of what lies in `places`."""
    if places is None:
        for match in _PATH.finditer(text):
            yield match.start(), match[0]
        return
    for place in places:
        start = text.find(place)
        if start >= 0:
            yield start, place


def _known_secrets() -> Iterator[tuple[str, str]]:
    """(what it is, its value) of the secrets that this machine has."""
    for name, value in os.environ.items():
        if _is_secret_variable(name, value):
            yield f"the value of ${name}", value
    try:
        from huggingface_hub import get_token

        if token := get_token():
            yield "the Hugging Face token", token
    except (ImportError, OSError):
        pass
    try:
        entry = netrc.netrc().authenticators("api.wandb.ai")
    except (OSError, netrc.NetrcParseError):
        return
    if entry and entry[2]:
        yield "the W&B key", entry[2]


def _is_secret_variable(name: str, value: str) -> bool:
    named = _SECRET_VARIABLE.search(name)
    if named is None or len(value) < _SHORTEST or os.path.exists(value):
        return False
    return "pass" in named[0].lower() or _WORDS.fullmatch(value) is None


def _own_places() -> list[str]:
    """Folders that a text piece of a vocabulary is not."""
    return [place + "/" for place in {str(Path.home()), os.getcwd()} if place.count("/") > 1]
