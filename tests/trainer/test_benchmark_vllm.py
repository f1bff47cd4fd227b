"""benchmarks/vllm_check.py runs from end to end, against the stand-in server."""

import importlib.util
import json
from pathlib import Path

import pytest
import vllm_on_cpu
from vllm_trainers import installer

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "vllm_check.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("vllm_check_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_measures_both_schedules(benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(vllm_on_cpu, "install", installer(monkeypatch))
    out = tmp_path / "numbers.json"
    argv = ["--stand-in", "--episodes", "3", "--turns", "4", "--tokens", "12", "--context", "full", "--out", str(out)]
    assert benchmark.main([*argv, "--", "--temperature", "0.7"]) == 0
    result = json.loads(out.read_text())
    assert set(result["schedules"]) == {"lockstep", "streaming"}
    for numbers in result["schedules"].values():
        assert numbers["episodes"] == 3
        assert 3 <= numbers["turns"] <= 12
        assert numbers["turns"] <= numbers["sampled_tokens"] <= 12 * numbers["turns"]
        assert numbers["sampled_tokens_per_second"] > 0
        # The server samples from the trainer's own weights, at its temperature.
        assert 0 < numbers["logprob_difference_mean"] <= numbers["logprob_difference_p99"]
        assert numbers["logprob_difference_p99"] <= numbers["logprob_difference_max"] < 1e-4
    changed = result["changed_weights"]
    assert changed["logprob_difference_max"] < 1e-4
    assert changed["if_stale"] > 0.01
    assert result["memory"]["process_peak_gib"] > 0.1
    assert {"trl", "torch", "transformers"} <= set(result["versions"])
    table = capsys.readouterr().out
    assert "lockstep" in table
    assert "streaming" in table
    assert not list(tmp_path.glob("*.partial"))


def test_it_says_that_there_is_no_vllm(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark.importlib.util, "find_spec", lambda name: None)
    assert benchmark.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "needs vllm" in line
