"""benchmarks/viewer.py runs: on few episodes here, so that its times say little."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import viewer

pytestmark = pytest.mark.browser


def test_it_prints_every_target(browser, capsys, monkeypatch):
    assert viewer.main(["--generations", "1", "--level", "easy"]) == 0
    out = capsys.readouterr().out
    assert "160 episodes" in out  # 80 of training and an evaluation of 40 games, twice
    for row in ("served    open", "served    group", "exported  open", "exported  group"):
        assert row in out
    assert out.count(": met") + out.count(": MISSED") == 4


def test_without_a_browser_nothing_is_claimed(capsys, monkeypatch):
    monkeypatch.setattr(viewer.shutil, "which", lambda name: None)
    assert viewer.main([]) == 0
    assert viewer.main(["--check"]) == 1
    assert "nothing was measured" in capsys.readouterr().out
