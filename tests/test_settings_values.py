"""Values of settings: what a scalar written in YAML or on the command line becomes, and what it cannot become."""

from __future__ import annotations

import contextlib
import enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from progpo_trl.advantages.base import load_function
from progpo_trl.settings import SettingsError
from progpo_trl.settings_values import LARGEST, Setting, convert, one_line, read_argument, read_file


class Colour(enum.Enum):
    RED = "red"
    NO = "no"


@pytest.mark.parametrize(
    ("written", "hint", "expected"),
    [
        ("1e-6", float, 1e-6),
        ("1E5", float, 1e5),
        (".5", float, 0.5),
        ("-.inf", float, float("-inf")),
        ("3", float, 3.0),
        ("1e3", int, 1000),
        ("010", int, 10),
        ("1_000", int, 1000),
        ("-7", int, -7),
        ("yes", bool, True),
        ("off", bool, False),
        ("0", bool, False),
        ("False", bool, False),
        ("no", str, "no"),
        ("1.10", str, "1.10"),
        ("12e4567", str, "12e4567"),
        ("true", str, "true"),
        ("12:30", str, "12:30"),
        ("a: b", str, "a: b"),
        ("50% # off", str, "50% # off"),
        ("null", str | None, None),
        ("~", int | None, None),
        ("null", bool | None, None),
        ("no", Colour | str, "no"),
        ("red", Colour, "red"),
        ("8", int | str | None, 8),
        ("eight", int | str | None, "eight"),
        ("false", str | None | Literal[False], False),
        ("2", Literal[1, 2], 2),
        ("1", Literal["1", "2"], "1"),
        ('{"a": 1.0e-3}', dict | str | None, {"a": 1e-3}),
        ("[a, b]", None | str | list[str], ["a", "b"]),
        ("a", None | str | list[str], "a"),
        ("a", list[str], ["a"]),
        ("[1, 2.5]", list[float], [1.0, 2.5]),
        ("[1, 2]", list[str], ["1", "2"]),
        ("[1, 2]", tuple[int, ...], (1, 2)),
        ("x/y", str | Path, Path("x/y")),
        ("1e-6", Any, 1e-6),
    ],
)
def test_scalars_as_the_field_wants_them(tmp_path, written, hint, expected):
    assert convert("x", read_argument([written]), hint) == expected
    if ": " not in written and "#" not in written:
        (tmp_path / "x.yaml").write_text(f"x: {written}\n", encoding="utf-8")
        assert convert("x", read_file(tmp_path / "x.yaml")["x"], hint) == expected


@settings(max_examples=200)
@given(st.floats(allow_nan=False), st.integers(-LARGEST, LARGEST))
def test_numbers_survive_being_written(number, whole):
    assert convert("x", read_argument([repr(number)]), float) == number or abs(number) == float("inf")
    assert convert("x", read_argument([str(whole)]), int) == whole


@settings(max_examples=300)
@given(st.text(max_size=30))
@example("<<")
def test_any_text_is_text_or_a_one_line_error(text):
    if text[:1] in ("{", "["):  # YAML's own: a value or a SettingsError
        with contextlib.suppress(SettingsError):
            read_argument([text])
    else:
        value = convert("x", read_argument([text]), str | None)
        assert value == (None if text in ("", "~", "null", "Null", "NULL") else text)


def test_what_yaml_cannot_say_is_refused():
    class Odd:
        pass

    with pytest.raises(SettingsError, match="expected Odd"):
        convert("x", Setting(1, "here", "1"), Odd | None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError("no\n  such\nmodel"), "no such model"),
        (ImportError("vLLM is not available"), 'vLLM is not available (here: pip install "progpo_trl[vllm]")'),
        (ImportError("No package metadata was found for bitsandbytes"), 'pip install "progpo_trl[quantization]")'),
        (ImportError("No module named 'x'"), "No module named 'x'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_errors_of_libraries_become_one_line_that_names_our_extra(error, expected):
    assert one_line(error).endswith(expected)


@pytest.mark.parametrize("value", [".x:y", "..:y", ".:y", ":y", "json:", "json", 5, "nowhere_at_all:y"])
def test_a_bad_name_of_a_function_is_a_clear_error(value):
    with pytest.raises(ValueError, match=r"^Owner: progress.*(must be a function or its name|cannot be imported)"):
        load_function("Owner", "progress", value)
