"""The `progpo` command: fast, and every failure one clean line with the right exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

import progpo_trl
from progpo_trl.cli import main
from progpo_trl.settings import recipes


def run(*words: str, module: str = "progpo_trl") -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=240)


def test_help_is_instant_and_loads_no_torch():
    code = (
        "import sys\nfrom progpo_trl.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as done:\n    assert done.code == 0\n"
        "heavy = {'torch', 'transformers', 'trl', 'numpy', 'yaml'} & set(sys.modules)\nassert not heavy, heavy\n"
        "assert len(sys.modules) < 200, len(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("train", "verify", "webshop", "recipes", "--version"))


def test_version_and_recipes(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert f"progpo_trl {progpo_trl.__version__}" in out
    for name in recipes():
        assert f"\n  {name} " in out


@pytest.mark.parametrize("words", [[], ["trian"], ["verify"], ["webshop"], ["recipes", "--x"], ["--x"]])
def test_wrong_use_is_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "progpo" in capsys.readouterr().err


def test_a_settings_error_is_one_line_and_exit_code_2(capsys):
    assert main(["train", "--config", "quickstart", "--learning_rat", "1"]) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("WARNING")]
    assert err == ["progpo train: error: command line: unknown setting 'learning_rat'; did you mean 'learning_rate'?"]


@pytest.mark.parametrize(("module", "first"), [("progpo_trl", ["train"]), ("progpo_trl.train", [])])
def test_both_ways_to_train_take_the_same_settings_and_fail_alike(module, first):
    done = run(*first, "--config", "quickstart", "--environment.levl", "easy", module=module)
    assert done.returncode == 2
    assert "unknown setting 'environment.levl' of alfworld_generated; did you mean 'environment.level'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_verify_help_names_its_arguments(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", "alfworld", "--help"])
    assert caught.value.code == 0
    assert "--transcripts" in capsys.readouterr().out


@pytest.mark.parametrize(("module", "first"), [("progpo_trl", ["train"]), ("progpo_trl.train", [])])
def test_a_reader_that_leaves_early_ends_the_help_quietly(module, first):
    words = [sys.executable, "-m", module, *first, "--help"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141  # as any program that SIGPIPE ends
    assert not [line for line in err.splitlines() if "Error" in line or "Traceback" in line], err


def test_a_broken_pipe_elsewhere_is_no_closed_output(monkeypatch):
    def broken(argv):
        raise BrokenPipeError("a tracker's socket")

    monkeypatch.setattr("progpo_trl.cli._run", broken)
    with pytest.raises(BrokenPipeError, match="a tracker's socket"):
        main(["train"])


def test_webshop_index_builds_a_store(tmp_path, capsys):
    out = tmp_path / "store"
    assert main(["webshop", "index", "--generated", "30", "--out", str(out)]) == 0
    assert f"{out}: 30 products" in capsys.readouterr().out
    assert main(["webshop", "index", "--data", str(tmp_path), "--out", str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err.startswith("progpo webshop index: ")


@pytest.mark.parametrize("first", [["compare"], ["explain"], ["plots"], ["publish"], ["view"], ["webshop", "index"]])
def test_help_is_written_for_people(first, capsys):
    with pytest.raises(SystemExit) as done:
        main([*first, "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: progpo {' '.join(first)}" in text
    assert "%%" not in text
