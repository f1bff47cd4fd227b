"""`progpo plots`: which runs are pooled, the intervals, and that whatever a run holds can be drawn."""

import json
import math

import numpy as np
import pytest
from PIL import Image
from scipy import stats
from small_disk import files_of_at_most
from viewer_runs import EVIL, episode, step, write

from progpo_trl.cli import main
from progpo_trl.reporting.plots import draw, lines_of, mean_and_interval, read_run
from progpo_trl.viewer.sources import NothingToViewError

CONFIG = {"advantage": {"name": "grpo"}, "learning_rate": 1e-3, "seed": 0, "output_dir": "a"}


def make(folder, wins, config=None, **fields):
    """A run with these numbers of successes of 4 in each generation (of one group)."""
    records = [
        episode(step=g, index=i, success=i < n, stop_reason="success" if i < n else "step_limit", **fields)
        for g, n in enumerate(wins)
        for i in range(4)
    ]
    write(folder, *records)
    if config is not None:
        (folder / "config.yaml").write_text(json.dumps(config))
    return folder


def test_runs_are_pooled_over_seeds_alone(tmp_path):
    folders = [
        make(tmp_path / "a", [0, 1, 2, 3], CONFIG),
        make(tmp_path / "b", [0, 2, 4], CONFIG | {"seed": 1, "output_dir": "b", "report_to": "wandb"}),
        make(tmp_path / "c", [1], CONFIG | {"progress_fallback": {}}),
        make(tmp_path / "d", [1], CONFIG | {"learning_rate": 0.5}),
        make(tmp_path / "e", [1]),
        make(tmp_path / "f", [1]),
        make(tmp_path / "other" / "f", [1]),
    ]
    lines = lines_of([read_run(folder) for folder in folders])
    assert [line.label for line in lines] == [
        "GRPO (learning_rate 0.001), 2 runs",
        "GRPO + ProGPO, 1 run",
        "GRPO (learning_rate 0.5), 1 run",
        "e, 1 run",
        "f, 1 run",
        "f, 1 run",
    ]
    both = lines[0]
    assert both.update.tolist() == [0, 1, 2]  # where the shorter one ends
    first, second = np.array([0, 1, 2, 3]) / 4, np.array([0, 2, 4]) / 4
    smoothed = [[s[max(0, i - 2) : i + 3].mean() for i in range(len(s))] for s in (first, second)]
    expected = np.array([s[:3] for s in smoothed])
    name = "rollout/success"
    assert both.values[name] == pytest.approx(expected.mean(axis=0))
    half = stats.t.ppf(0.975, 1) * expected.std(axis=0, ddof=1) / math.sqrt(2)
    assert both.high[name] - both.values[name] == pytest.approx(half)
    assert np.isnan(lines[1].low[name]).all()  # one run has no interval over runs


def test_the_interval_is_students():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(5, 3))
    mean, low, high = mean_and_interval(table)
    expected = stats.t.interval(0.95, 4, loc=table.mean(axis=0), scale=stats.sem(table, axis=0))
    assert low == pytest.approx(expected[0])
    assert high == pytest.approx(expected[1])
    table[0, 1] = np.nan
    table[1:, 2] = np.nan
    mean, low, high = mean_and_interval(table)
    assert mean[1] == pytest.approx(table[1:, 1].mean())
    assert high[1] - mean[1] == pytest.approx(stats.t.ppf(0.975, 3) * stats.sem(table[1:, 1]))
    assert mean[2] == table[0, 2]
    assert np.isnan(high[2])
    assert np.isnan(mean_and_interval(np.full((2, 1), np.nan))[0]).all()


def test_the_interval_covers_what_it_says():
    """Of 2,000 experiments with 3 seeds each, 95 % have the truth inside."""
    table = np.random.default_rng(1).normal(0.3, 0.1, size=(3, 2000))
    _, low, high = mean_and_interval(table)
    assert np.mean((low < 0.3) & (high > 0.3)) == pytest.approx(0.95, abs=0.015)


def test_pictures(tmp_path, capsys):
    kinds = [{"task_type": "look"}, {"task_type": f"$x_{EVIL}$", "task_id": "b"}]
    for seed, wins in enumerate(([0, 1, 2, 3, 2, 3], [0, 2, 1, 2])):
        folder = make(tmp_path / f"s{seed}", wins, CONFIG | {"seed": seed}, **kinds[seed])
        rate = {"rate": 0.5, "low": 0.4, "high": 0.6, "n": 100}
        (folder / "summary.json").write_text(json.dumps({"success_before": rate, "success_after": rate}))
    make(tmp_path / "odd", [1, 1], None, steps=[step(advantage=math.nan, reward=math.inf)])
    make(tmp_path / "none", [1], None, steps=[step(advantage=None)])
    out = tmp_path / "out"
    assert main(["plots", *(str(tmp_path / n) for n in ("s0", "s1", "odd", "none", "s0")), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "GRPO, 2 runs: s0, s1; cut at update 3, where the shortest ends" in said
    names = ["learning_curves.png", "success_by_task_type.png", "all_fail.png", "advantages.png"]
    assert said.splitlines()[-4:] == [str(out / name) for name in names]
    for name in names:
        with Image.open(out / name) as picture:
            assert picture.width > 500
            assert np.asarray(picture.convert("L")).std() > 10
    assert sorted(p.name for p in out.iterdir()) == sorted(names)


def test_colours_of_lines_are_told_apart(tmp_path):
    """A picture with two runs has both of their colours; one with the first alone has not the second's."""
    runs = [read_run(make(tmp_path / name, [n] * 6, None)) for name, n in (("a", 1), ("b", 3))]
    for shown in (runs[:1], runs):
        draw(shown, tmp_path / "out")
        with Image.open(tmp_path / "out" / "all_fail.png") as picture:
            pixels = np.asarray(picture.convert("RGB")).astype(int)
        found = [(np.abs(pixels - colour).sum(axis=2) < 30).any() for colour in ((0, 0x72, 0xB2), (0xD5, 0x5E, 0))]
        assert found == [True, len(shown) == 2]


def test_many_lines_are_told_apart(tmp_path, monkeypatch):
    """What is drawn of 16 runs: no two lines have both colour and style in common."""
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: drawn.append(self) or path.write_bytes(b""))
    config = [CONFIG | {"learning_rate": float(i)} for i in range(16)]
    draw([read_run(make(tmp_path / str(i), [1, 2], config[i])) for i in range(16)], tmp_path / "out")
    lines = drawn[0].axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 16


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere", "--out", "out"], "nowhere: there is no such file or folder"),
        (["run", "--out", "run/episodes.jsonl"], "is a file; name a folder"),
        (["empty", "--out", "out"], "holds no episodes"),
        (["early", "late", "--out", "out"], "no update in common"),
        (
            ["early", "late", "copy", "--out", "out"],
            "early and copy are runs of one seed (0) and the same settings: it counts once, leave one out",
        ),
    ],
)
def test_wrong_words(tmp_path, monkeypatch, capsys, words, problem):
    make(tmp_path / "run", [1])
    write(tmp_path / "empty", b"{\n")
    make(tmp_path / "early", [1], CONFIG)
    write(tmp_path / "late", episode(step=7))
    (tmp_path / "late" / "config.yaml").write_text(json.dumps(CONFIG | {"seed": 1}))
    make(tmp_path / "copy", [1], CONFIG | {"output_dir": "copy"})
    monkeypatch.chdir(tmp_path)
    assert main(["plots", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("progpo plots: error: ")
    assert problem in err


def test_an_evaluation_is_no_training(tmp_path):
    write(tmp_path, episode(game={"split": "x"}))
    with pytest.raises(NothingToViewError, match="no episodes of a training"):
        read_run(tmp_path)


def test_a_full_disk_is_named(tmp_path, capsys):
    make(tmp_path / "run", [1, 2])
    words = ["plots", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    picture = tmp_path / "out" / "learning_curves.png"
    before = picture.read_bytes()
    capsys.readouterr()
    with files_of_at_most(5000):
        assert main(words) == 2
    assert capsys.readouterr().err == f"progpo plots: error: {picture}: File too large\n"
    assert picture.read_bytes() == before
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("number", [10**400, float("inf"), "0.5", None, True])
def test_a_rate_that_is_no_number_is_none(number, tmp_path):
    make(tmp_path, [1, 2])
    found = {"rate": number, "low": 0.1, "high": 0.9}
    (tmp_path / "summary.json").write_text(json.dumps({"success_after": found}))
    assert read_run(tmp_path).held_out == {}


@pytest.mark.parametrize("interval", [(0.6, 0.5, 0.7), (0.2, 0.1, 0.15), (3.0, 2.0, 4.0), (0.5, -1.0, 0.9)])
def test_an_impossible_interval_is_said_and_left_out(interval, tmp_path, capsys):
    low, rate, high = interval
    for name in ("broken", "good"):
        make(tmp_path / name, [1, 2])
        found = {"rate": rate, "low": low, "high": high} if name == "broken" else {"rate": 0, "low": 0, "high": 1}
        (tmp_path / name / "summary.json").write_text(json.dumps({"success_after": found}))
    words = ["plots", str(tmp_path / "broken"), str(tmp_path / "good"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert capsys.readouterr().err == (
        f"progpo plots: broken: summary.json: success_after is left out: a rate of {rate:g} and an interval from "
        f"{low:g} to {high:g} cannot be\n"
    )
    assert [set(read_run(tmp_path / name).held_out) for name in ("broken", "good")] == [set(), {"after"}]
