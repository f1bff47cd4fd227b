"""The `progpo` command: fast, and every failure one clean line with the right exit code."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys

import pytest
from viewer_runs import episode, write

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


class Terminal(io.TextIOWrapper):
    """Standard output of a terminal that has few letters; `shown` is what it got."""

    def __init__(self, encoding: str):
        super().__init__(io.BytesIO(), encoding)

    @property
    def shown(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_the_help_is_shown_on_a_terminal_without_its_letters(encoding, monkeypatch):
    monkeypatch.setattr("sys.stdout", Terminal(encoding))
    with pytest.raises(SystemExit) as done:
        main(["train", "--help"])
    assert done.value.code == 0
    assert "\\u221a" in sys.stdout.shown  # the square root in the formula of an estimator


def test_a_folder_of_any_name_is_shown_on_any_terminal(tmp_path, monkeypatch):
    """Names that the terminal cannot spell, and one that is no text at all."""
    for name in ("tr\u00e9", "tr\udcff"):
        run_dir = tmp_path / name
        write(run_dir, *(episode(step=0, index=i, success=i > 0) for i in range(4)))
        (run_dir / "config.yaml").write_text("history: much\nlearning_rt: 1\n")
        commands = {
            ("explain", "RUN", "--group", "0"): 0,
            ("plots", "RUN", "--out", str(run_dir / "plots")): 0,
            ("view", "RUN", "--export", str(run_dir / "page.html")): 0,
            ("doctor", "--config", str(run_dir / "config.yaml")): 1,
            ("publish", "RUN", "--dry-run"): 2,
            ("evaluate", "RUN"): 2,
            ("train", "--config", str(run_dir / "config.yaml")): 2,
        }
        for words, code in commands.items():
            monkeypatch.setattr("sys.stdout", Terminal("ascii"))
            monkeypatch.setattr("sys.stderr", Terminal("ascii"))
            assert main([str(run_dir) if word == "RUN" else word for word in words]) == code, words
            shown = sys.stdout.shown + sys.stderr.shown
            assert ascii(name)[1:-1] in shown or "tr\\ufffd" in shown, (words, shown)


def test_a_process_of_its_own_prints_any_name(tmp_path):
    """With the encoding that its standard output starts with."""
    folder = tmp_path / "tr\u00e9"
    write(folder, episode())
    words = [sys.executable, "-m", "progpo_trl", "view", str(folder), "--export", str(folder / "page.html")]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, env=env, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "tr\\xe9/page.html (" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_under_the_output_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "progpo_trl", "recipes"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
        )
    assert done.returncode == 1
    assert done.stderr == "progpo: error: standard output cannot be written: No space left on device\n"


def test_no_output_at_all_is_no_fault():
    command = f"exec {shlex.quote(sys.executable)} -m progpo_trl recipes >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
