"""benchmarks/advantages.py: what it times is right, and it fails where a limit is missed; long texts fit."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import advantages as benchmark
from advantage_batches import alfworld_like, all_distinct, fresh, shop_like


@pytest.mark.parametrize("item", benchmark.ITEMS, ids=[item.name for item in benchmark.ITEMS])
def test_the_loops_compute_the_same(item):
    batch = alfworld_like(4, 8, 12)
    ours, loop = item.work(batch), item.loop(batch)
    if item.name == "similarity grouping":
        assert len(set(zip(ours.tolist(), loop, strict=True))) == len(set(ours.tolist())) == len(set(loop))
    else:
        np.testing.assert_allclose(ours, loop, atol=1e-5)


def test_batches_are_what_they_say():
    batch = alfworld_like(64)
    assert len(batch) == 25_600
    distinct = [len(set(batch.observation[batch.group == g])) for g in range(64)]
    assert 80 < np.mean(distinct) < 110
    assert 0.3 < np.mean([not batch.success[batch.episode_group == g].any() for g in range(64)]) < 0.6
    pages = shop_like(4, 8, 16)
    assert len(pages) == 512
    assert all(2000 < len(page.encode()) < 4200 for page in pages.observation)
    one = all_distinct(200, pages=True)
    assert len(one) == len(set(one.observation)) == 200
    assert len(set(one.group.tolist())) == 1
    copy = fresh(batch)
    assert (copy.observation == batch.observation).all()
    assert copy.observation[5] is not batch.observation[5]


def run(capsys, *words):
    status = benchmark.main(["--groups", "2", "--repeats", "1", *words])
    return status, capsys.readouterr().out


def test_a_missed_limit_is_exit_code_1_with_check_only(capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "measure_alone", lambda batch, name: (0.1, 100.0))
    monkeypatch.setattr(benchmark, "GROWTH", 1e9)
    status, out = run(capsys, "--check")
    assert (status, "all limits are met" in out) == (0, True)
    for item in benchmark.ITEMS:
        assert item.name in out
    for name in (*benchmark.BATCHES, *benchmark.EVERY):
        assert name in out
    monkeypatch.setattr(benchmark, "ITEMS", [replace(item, limit=1e-9) for item in benchmark.ITEMS])
    status, out = run(capsys, "--check", "--only", "speed")
    assert (status, "MISSED" in out) == (1, True)
    assert run(capsys, "--only", "speed")[0] == 0
    monkeypatch.setattr(benchmark, "measure_alone", lambda batch, name: (0.1, 5000.0))
    assert run(capsys, "--check", "--only", "sizes")[0] == 1


def test_growth_counts(capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "measure_alone", lambda batch, name: (0.1, 100.0))
    monkeypatch.setattr(benchmark, "GROWTH", 0.0)
    assert run(capsys, "--check", "--only", "speed")[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("batch", benchmark.BATCHES)
def test_long_texts_and_huge_groups_fit(batch):
    """One process for each of the two dearest estimators; benchmarks/advantages.py --check measures all."""
    for name in ("proxmo", "gigpo similarity"):
        seconds, memory = benchmark.measure_alone(batch, name)
        assert seconds <= (60 if "similarity" in name else 10)
        assert memory <= 1024
