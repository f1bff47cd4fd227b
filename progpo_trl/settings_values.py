"""Raw settings with the place they came from, and their conversion to the types that dataclasses ask for."""

from __future__ import annotations

import collections.abc
import enum
import os
import re
import types
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

COMMAND_LINE = "command line"
_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)
LARGEST = 2**63 - 1  # what arrays hold as a whole number
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class SettingsError(ValueError):
    """A setting that cannot be used; the message is one line and says where the setting stands."""


@dataclass
class Setting:
    """One value as it was written.

    value: what YAML makes of it; text: the scalar as written, so that `run_name: 1.10` stays "1.10"; place:
    "file:line" or "command line"; children: the entries, when it is a mapping.
    """

    value: Any
    place: str
    text: str | None = None
    children: dict[str, Setting] | None = field(default=None, repr=False)

    def fail(self, name: str, message: str) -> SettingsError:
        """The error that names this setting and its place."""
        return SettingsError(f"{self.place}: {name}: {message}")


class _Loader(yaml.SafeLoader):
    """YAML with the scalars of its version 1.2: `1e-6` is a number, and `no`, `on`, `010` and `12:30` are text.

    PyYAML follows version 1.1, where `1e-6` is a string, `save_strategy: no` is False and `12:30` is 750.
    """


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def read_file(path: Path) -> dict[str, Setting]:
    """The settings of a YAML file; errors name the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(f"{path}: cannot be read: {reason}") from None
    setting = _load(text, lambda line: f"{path}:{line}")
    if setting.value is None:
        return {}
    if setting.children is None:
        raise SettingsError(f"{path}: expected `name: value` settings, got {_kind(setting.value)}")
    return setting.children


def read_argument(words: list[str]) -> Setting:
    """The value of a command line option from the words after it: none is a flag, several are a list."""
    if not words:
        return Setting(True, COMMAND_LINE)
    if len(words) > 1:
        return Setting([read_argument([word]).value for word in words], COMMAND_LINE)
    word = words[0]
    if word[:1] in ("{", "["):
        return _load(word, lambda line: COMMAND_LINE)
    # Not parsed as a document: "a: b" and "50% # off" are plain text on a command line.
    loader = _Loader("")
    tag = loader.resolve(yaml.ScalarNode, word, (True, False))
    if tag.endswith(":merge"):  # `<<` means something among keys only
        tag = "tag:yaml.org,2002:str"
    try:
        return Setting(loader.construct_object(yaml.ScalarNode(tag, word)), COMMAND_LINE, word)
    except ValueError:  # Python makes no number of thousands of digits
        return Setting(word, COMMAND_LINE, word)


def _load(text: str, place) -> Setting:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return Setting(None, place(1)) if node is None else _setting(loader, node, place)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context
        raise SettingsError(f"{place(mark.line + 1 if mark else 1)}: not valid YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SettingsError(f"{place(line)}: not valid YAML: {error.reason}") from None
    except RecursionError:
        raise SettingsError(f"{place(1)}: not valid YAML: nested too deeply") from None
    except SettingsError:
        raise
    except ValueError as error:  # a tag that does not fit, such as `!!int abc`
        raise SettingsError(f"{place(1)}: not valid YAML: {error}") from None


def _setting(loader: _Loader, node: yaml.Node, place) -> Setting:
    here = place(node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return Setting(loader.construct_object(node, deep=True), here, node.value)
    if not isinstance(node, yaml.MappingNode):
        return Setting(loader.construct_object(node, deep=True), here)
    seen = set()
    for key, _ in node.value:
        where = place(key.start_mark.line + 1)
        if not isinstance(key, yaml.ScalarNode):
            raise SettingsError(f"{where}: a name must be plain text")
        if key.value in seen:  # YAML itself would silently keep the last
            raise SettingsError(f"{where}: {key.value!r} is set twice")
        seen.add(key.value)
    loader.flatten_mapping(node)
    children = {}
    for key, item in node.value:
        children[key.value] = child = _setting(loader, item, place)
        child.place = place(key.start_mark.line + 1)
    return Setting({name: child.value for name, child in children.items()}, here, children=children)


def nearest(name: str, names: collections.abc.Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest of `names`, worded more carefully when it is not close."""
    names = list(names)
    if near := get_close_matches(name, names, n=1, cutoff=0.6):
        return f"; did you mean {near[0]!r}?"
    near = get_close_matches(name, names, n=1, cutoff=0.0)
    return f"; the nearest is {near[0]!r}" if near else ""


# Module whose absence an error may report -> the extra of this package that installs it.
_EXTRAS = {"vllm": "vllm", "bitsandbytes": "quantization", "deepspeed": "deepspeed", "trackio": "trackio"}


def one_line(error: BaseException) -> str:
    """The message of an error of another library for a SettingsError; names our extra when one is missing."""
    message = " ".join(str(error).split())
    if isinstance(error, ImportError):
        for module, extra in _EXTRAS.items():
            if module in message.lower():
                return f'{message} (here: pip install "progpo_trl[{extra}]")'
    return message or type(error).__name__


def said_of(place: str | Path, error: Exception) -> str:
    """What is wrong with what lies at `place`, in one line that names the place once and has no error numbers."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename2 or error.filename or place}: {error.strerror}"
    text = one_line(error)
    named = any(str(name) in text for name in (place, Path(place).expanduser(), os.path.abspath(place)))
    return text if named else f"{place}: {text}"


def check_choice(name: str, setting: Setting, value: Any, choices: collections.abc.Iterable[Any]) -> None:
    """Refuse a value that is none of `choices`, with the nearest one."""
    choices = list(choices)
    if value not in choices:
        listed = ", ".join(str(choice) for choice in choices)
        near = nearest(str(value), (str(choice) for choice in choices))
        raise setting.fail(name, f"{value!r} is not one of {listed}{near}")


def convert(name: str, setting: Setting, hint: Any) -> Any:
    """`setting` as a value of type `hint`; SettingsError when it is none."""
    origin, arguments = get_origin(hint), get_args(hint)
    value = setting.value
    if origin in (Union, types.UnionType):
        return _convert_union(name, setting, arguments)
    if value is None and hint not in (Any, types.NoneType):
        raise setting.fail(name, f"null is not allowed, expected {describe(hint)}")
    if origin is Literal:
        if value not in arguments and setting.text in arguments:
            value = setting.text
        check_choice(name, setting, value, arguments)
        return value
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        value = setting.text if setting.text is not None else value
        check_choice(name, setting, value, [member.value for member in hint])
        return value
    kind = origin or hint
    if kind is Any:
        return value
    if kind in _LISTS:
        return _convert_list(name, setting, kind, arguments)
    if kind in _SCALARS:
        converted = _SCALARS[kind](setting)
        if converted is not None:
            return converted
    needs = f"needs a value: {describe(hint)}" if value is True and setting.text is None else None
    if kind in (int, float) and isinstance(value, int) and abs(value) > LARGEST:
        needs = f"expected {describe(hint)} from {-LARGEST} to {LARGEST}, got {_shown(setting)}"
    raise setting.fail(name, needs or f"expected {describe(hint)}, got {_shown(setting)}")


def _convert_union(name: str, setting: Setting, members: tuple) -> Any:
    if setting.value is None and types.NoneType in members:
        return None
    # str late: it would take the text of anything. Lists after it for what is no list: `str | list` keeps `none`.
    plain = not isinstance(setting.value, list)
    candidates = sorted(
        (m for m in members if m is not types.NoneType),
        key=lambda member: 2 * (plain and (get_origin(member) or member) in _LISTS) + (member is str),
    )
    if any(isinstance(m, type) and issubclass(m, enum.Enum) for m in candidates):
        candidates = [m for m in candidates if m is not str]
    if len(candidates) == 1:
        return convert(name, setting, candidates[0])
    for candidate in candidates:
        try:
            return convert(name, setting, candidate)
        except SettingsError:
            continue
    expected = " or ".join(describe(candidate) for candidate in candidates)
    raise setting.fail(name, f"expected {expected}, got {_shown(setting)}")


def _convert_list(name: str, setting: Setting, kind: Any, arguments: tuple) -> Any:
    if isinstance(setting.value, dict) or (setting.value is True and setting.text is None):
        raise setting.fail(name, f"expected a list, got {_shown(setting)}")
    item_hint = arguments[0] if arguments else Any
    if isinstance(setting.value, list):
        items = [
            Setting(item, setting.place, None if isinstance(item, (list, dict)) else str(item))
            for item in setting.value
        ]
    else:
        items = [setting]
    made = [convert(f"{name}[{i}]" if len(items) > 1 else name, item, item_hint) for i, item in enumerate(items)]
    return kind(made) if kind in (tuple, set, frozenset) else made


def _bool(setting: Setting) -> bool | None:
    word = str(setting.value).lower() if isinstance(setting.value, (bool, int, str)) else ""
    return True if word in _TRUE else False if word in _FALSE else None


def _int(setting: Setting) -> int | None:
    value = setting.value
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"[-+]?[0-9]{1,40}", value) else None
    if not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        return None
    return int(value) if abs(value) <= LARGEST else None


def _float(setting: Setting) -> float | None:
    value = setting.value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _str(setting: Setting) -> str | None:
    if isinstance(setting.value, str):
        return setting.value
    return setting.text


def _dict(setting: Setting) -> dict | None:
    return setting.value if isinstance(setting.value, dict) else None


_SCALARS = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    Path: lambda setting: Path(setting.text) if setting.text else None,
    dict: _dict,
    collections.abc.Mapping: _dict,
}


def describe(hint: Any) -> str:
    """A type in words, for messages and the help."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        members = [m for m in arguments if m is not types.NoneType]
        if any(isinstance(m, type) and issubclass(m, enum.Enum) for m in members):
            members = [m for m in members if m is not str]
        words = list(dict.fromkeys(describe(member) for member in members))
        return " or ".join([*words, "null"] if types.NoneType in arguments else words)
    if origin is Literal:
        return "one of " + ", ".join(str(argument) for argument in arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in hint)
    kind = origin or hint
    if kind in _LISTS:
        return "a list"
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        Path: "a path",
        dict: "a mapping",
        collections.abc.Mapping: "a mapping",
        collections.abc.Callable: "a function",
        Any: "any value",
        types.NoneType: "null",
    }
    return words.get(kind, getattr(kind, "__name__", str(kind)))


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "text"}.get(type(value), f"{value!r}")


def _shown(setting: Setting) -> str:
    if isinstance(setting.value, (dict, list)):
        return f"{_kind(setting.value)} {setting.value!r:.200}"
    return f"{setting.value!r:.200}"
