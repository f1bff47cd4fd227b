"""benchmarks/webshop_engine.py runs, on small generated shops and on official files."""

import importlib.util
import json
from pathlib import Path

import pytest

from progpo_trl.environments.webshop.generate import generate_records

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "webshop_engine.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("webshop_engine_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_prints_a_row_for_each_target(benchmark, capsys):
    assert benchmark.main(["--products", "60", "--sizes", "30,60", "--searches", "5"]) == 0
    out = capsys.readouterr().out
    for row in (
        *("steps per CPU-second", "build, read or generated", "growth of a process, imports", "one more episode"),
        *("build of the store", "search, median", "95th percentile", "of it not shared", "on disk"),
    ):
        assert row in out
    # The targets of the small shop; those of the stores are for 100,000 products.
    assert out.count(": met") + out.count(": MISSED") == 4
    assert "1,180,000" in out


def test_check_fails_when_a_target_is_missed(benchmark, capsys, monkeypatch):
    monkeypatch.setitem(benchmark.TARGETS, "episode", (1, False))
    monkeypatch.setattr(benchmark, "LARGE", 30)
    arguments = ["--products", "30", "--sizes", "30", "--searches", "3"]
    assert benchmark.main(arguments) == 0
    assert benchmark.main([*arguments, "--check"]) == 1
    out = capsys.readouterr().out
    assert "<= 1: MISSED" in out
    assert out.count(": met") + out.count(": MISSED") == 14  # seven each


def test_it_reads_official_files(benchmark, capsys, tmp_path):
    made = list(generate_records(20))
    content = {
        "items_shuffle_1000": [record.item for record in made],
        "items_ins_v2_1000": {record.item["asin"]: record.instruction for record in made},
        "title_nouns_1000": {record.item["asin"]: record.nouns for record in made},
    }
    for name, records in content.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(records), encoding="utf-8")
    assert benchmark.main(["--data", str(tmp_path), "--sizes", "10", "--searches", "1"]) == 0
    assert f"20 products (real, {tmp_path})" in capsys.readouterr().out
    assert benchmark.main(["--data", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_the_line_through_the_last_two_points(benchmark):
    full = benchmark.FULL
    assert benchmark.extrapolate([1, 10, 20], [99.0, 10.0, 20.0]) == pytest.approx(full)
    assert benchmark.extrapolate([10], [1.0]) is None
