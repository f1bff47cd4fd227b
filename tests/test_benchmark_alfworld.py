"""benchmarks/alfworld_engine.py runs, on a small game of our own and without the real engine."""

import importlib.util
from pathlib import Path

import pytest
from alfworld_games import shard_line, write_shard

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "alfworld_engine.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("alfworld_engine_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_prints_a_row_for_each_target(benchmark, tmp_path, capsys):
    shard = write_shard(tmp_path / "x.jsonl.xz", [shard_line("train/a/b"), shard_line("train/c/d")])
    benchmark.main(["--games", str(shard), "--count", "4", "--real-games", "0"])
    out = capsys.readouterr().out
    for row in ("parse a game", "reset", "step", "4 games x 50 steps", "one more episode", "pickled"):
        assert row in out
    assert out.count(": met") + out.count(": MISSED") == 5


def test_it_says_what_to_give_when_there_are_no_games(benchmark, tmp_path, capsys):
    assert benchmark.main(["--games", str(tmp_path / "nowhere")]) == 2
    assert "--games PATH" in capsys.readouterr().err
