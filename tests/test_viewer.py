"""The index behind `progpo view`: what it counts, what it survives, and that it reads growing files."""

import json
import math
import random
import re

import numpy as np
import pytest
from viewer_runs import EVIL, episode, opened, step, write, write_run

from progpo_trl.advantages import ProGPO, coverage
from progpo_trl.cli import main
from progpo_trl.episodes import StepBatch, episode_from_json
from progpo_trl.faults import exclude_lonely
from progpo_trl.metrics import episode_metrics, group_metrics
from progpo_trl.viewer import index as index_module
from progpo_trl.viewer.curves import BINS, curves_of, histogram_of
from progpo_trl.viewer.document import as_json, document
from progpo_trl.viewer.groups import Gate, groups_of
from progpo_trl.viewer.index import FileChangedError
from progpo_trl.viewer.records import for_page, json_number
from progpo_trl.viewer.sources import NothingToViewError, open_run


def index_of(folder, *records):
    write(folder, *records)
    return opened(folder).training.index


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("played") / "run"
    write_run(folder, 3, groups=4, rollouts=4, level="easy", steps=12, evaluated=5)
    return folder


def test_its_numbers_are_those_of_metrics_and_progpo(played):
    run = opened(played)
    index = run.training.index
    curves, groups = curves_of(index, groups_of(index, run.gate)), groups_of(index, run.gate)
    records = [json.loads(line) for line in (played / "episodes.jsonl").read_text().splitlines()]
    assert curves.update.tolist() == [0, 1, 2]
    for generation in range(3):
        episodes = [episode_from_json(r) for r in records if r["step"] == generation]
        batch = StepBatch.from_episodes(episodes)
        expected = {f"rollout/{name}": value for name, value in episode_metrics(episodes).items()}
        expected |= group_metrics(batch, np.concatenate([e.advantages for e in episodes]))
        for name, values in curves.values.items():
            assert values[generation] == pytest.approx(expected[name]), name
        shares = [index.rows[i].coverage for i, r in enumerate(records) if r["step"] == generation]
        assert shares == pytest.approx(coverage(batch).tolist())
        _, open_, _ = ProGPO().all_fail(batch)
        assert [g.gate for g in groups if g.section == generation] == open_.tolist()
    assert 0 < curves.values["rollout/success"][2] < 1
    assert sorted(index.advantages) == pytest.approx(sorted(s["advantage"] for r in records for s in r["steps"]))


def test_a_lonely_and_a_dropped_episode_do_not_count(tmp_path):
    lost = episode(stop_reason="environment_error", error="it crashed", steps=[])
    records = [
        episode(success=True, stop_reason="success", **{"return": 10.0}),
        lost | {"index": 1},
        episode(group=1, index=2),
        episode(group=1, index=3),
        episode(group=2, index=4, steps=[], stop_reason="context_limit", final_observation=None),
    ]
    index = index_of(tmp_path, *records)
    groups = groups_of(index)
    episodes = [episode_from_json(r) for r in records]
    exclude_lonely(episodes)
    assert [i for g in groups for i in g.kept] == [e.index for e in episodes if not e.dropped] == [2, 3, 4]
    assert [g.all_fail for g in groups] == [False, True, True]
    assert [g.gate for g in groups] == [None, True, True]


def test_gates():
    assert Gate("row_score").is_open(None, [0]) is None
    assert Gate("my.module:gate").is_open(None, [0]) is None


def test_a_growing_file(tmp_path):
    first = json.dumps(episode()).encode() + b"\n"
    second = json.dumps(episode(index=1, step=4)).encode() + b"\n"
    path = write(tmp_path, first, second[:90])
    index = opened(tmp_path).training.index
    assert (len(index.rows), index.pending, index.n_damaged) == (1, 90, 0)
    assert not index.refresh()
    with open(path, "ab") as file:
        file.write(second[90:-1])
    assert index.refresh()  # complete with its last bracket
    assert (len(index.rows), index.pending, index.rows[1].section) == (2, 0, 4)
    with open(path, "ab") as file:
        file.write(b"\n" + first.replace(b'"index": 0', b'"index": 7'))
    assert index.refresh()
    assert [row.index for row in index.rows] == [0, 1, 7]
    assert [index.record(i)["index"] for i in range(3)] == [0, 1, 7]
    assert index.n_damaged == 0
    assert index.rows[2].line == 4  # the line break that was missing counts as an empty line


def test_a_rewritten_file_is_read_again(tmp_path):
    index = index_of(tmp_path, episode(), episode(index=1), episode(index=2))
    write(tmp_path, episode(index=5, task_id="other"), episode(index=6), episode(index=7))
    with pytest.raises(FileChangedError):
        index.record(0)
    assert index.refresh()
    assert [row.index for row in index.rows] == [5, 6, 7]
    assert index.task_ids.texts == ["other", "task-0"]


def test_damaged_lines_are_named_and_the_others_are_read(tmp_path, capsys):
    bad = {
        b"\xff\xfe\n": "UTF-8",
        b"{\n": "JSON",
        b"[1]\n": "list",
        b"3\n": "int",
        b'"x"\n': "str",
        b"[" * 100_000 + b"\n": "deep",
        b"{}\n": "no list of steps",
        b'{"steps": [1]}\n': "step 0 is no object",
        b'{"steps": [{"reward": "ten"}]}\n': "step 0: reward is str",
        b'{"steps": [{"advantage": []}]}\n': "step 0: advantage is list",
        b'{"steps": [{"observation": 7}]}\n': "step 0: observation is int",
        b'{"steps": [{"reward": 1' + b"0" * 400 + b"}]}\n": "step 0: reward is too large",
        b'{"steps": [], "group": 1e300}\n': "group is 1e+300",
        b'{"steps": [], "index": 1.5}\n': "index is 1.5",
        b'{"steps": [], "step": NaN}\n': "step is nan",
        b'{"steps": [], "success": "yes"}\n': "success is str",
        b'{"steps": [], "task_id": {}}\n': "task_id is dict",
        b'{"steps": [], "extra_rewards": [1]}\n': "extra_rewards",
        b'{"steps": [], "return": 1' + b"0" * 5000 + b"}\n": "not JSON",
    }
    index = index_of(tmp_path, episode(), *bad, b"\n", episode(index=1), b'{"cut')
    assert [row.index for row in index.rows] == [0, 1]
    assert index.n_damaged == len(bad)
    assert [line for line, _ in index.damaged] == list(range(2, 2 + len(bad)))
    for (_, problem), expected in zip(index.damaged, bad.values(), strict=True):
        assert expected in problem
    notices = document(opened(tmp_path))["notices"]
    assert (
        f"{len(bad)} damaged lines of episodes.jsonl left out: line 2 is not UTF-8 text; line 3 is not" in notices[0]
    )
    assert "the last line is not complete yet (5 bytes)" in notices[1]
    assert main(["view", str(tmp_path), "--export", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().err
    assert f"{len(bad)} damaged lines of episodes.jsonl left out" in said
    assert "(5 bytes)" in said
    assert main(["plots", str(tmp_path), "--out", str(tmp_path / "plots")]) == 0
    assert said.replace("view:", f"plots: {tmp_path.name}:") == capsys.readouterr().err


def test_many_damaged_lines_are_counted(tmp_path):
    index_of(tmp_path, episode(), *[b"x\n"] * 50)
    assert "; and 30 more" in document(opened(tmp_path))["notices"][0]


def test_a_line_that_is_too_long_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "LONGEST_LINE", 2000)
    index = index_of(tmp_path, episode(), episode(task="x" * 5000), episode(index=1), b'{"a": "' + b"y" * 9000)
    assert [row.index for row in index.rows] == [0, 1]
    assert [line for line, _ in index.damaged] == [2, 4]
    assert index.record(1)["index"] == 1


def test_what_is_missing_is_defined(tmp_path):
    index = index_of(tmp_path, {"steps": [{}]}, {"steps": [], "task_id": "b"}, {"steps": [{"observation": "x"}]})
    one, two, three = index.rows
    assert (one.section, one.group, one.index, one.seed, one.success, one.dropped) == (0, 0, 0, 0, False, False)
    assert math.isnan(one.coverage)
    assert (one.episode_return, one.bad_format, one.inadmissible, one.advantage_at) == (0.0, 0, 0, -1)
    assert (two.dropped, two.group, two.index) == (True, 1, 1)
    assert (three.group, three.coverage) == (0, 0.0)
    assert index.task_types.texts == ["all"]
    assert json.loads(as_json(document(opened(tmp_path))))["sources"][0]["rows"]["coverage"] == ["NaN", 0.0, 0.0]


def test_numbers_that_are_not_finite(tmp_path):
    steps = [step(advantage=math.nan), step(advantage=-math.inf, reward=math.inf), step(reward=-math.inf)]
    run = index_of(
        tmp_path, episode(steps=steps, **{"return": math.inf}), episode(index=1, steps=[step(advantage=1.0)])
    )
    content = json.loads(as_json(document(opened(tmp_path))))
    assert content["sources"][0]["rows"]["return"] == ["Infinity", 0.0]
    sent = for_page(run.record(0), 100)
    assert [s["advantage"] for s in sent["steps"]] == ["NaN", "-Infinity", 0.5]
    assert json.loads(as_json(sent)) == sent
    histogram = histogram_of(run, groups_of(run))
    assert histogram.left_out == 2
    assert histogram.counts == {"update 0": 2}
    assert groups_of(run)[0].gate is None  # inf - inf
    assert [json_number(x) for x in (1.5, math.nan)] == [1.5, "NaN"]


def test_histograms_cover_all_generations(tmp_path):
    rng = random.Random(0)
    records = [
        episode(step=10 * g, index=i, steps=[step(advantage=rng.gauss(0, 1)) for _ in range(20)])
        for g in range(7)
        for i in range(4)
    ]
    index = index_of(tmp_path, *records)
    histogram = histogram_of(index, groups_of(index))
    assert list(histogram.shares) == ["updates 0 to 10", "updates 20 to 30", "updates 40 to 50", "update 60"]
    assert sum(histogram.counts.values()) == 7 * 4 * 20
    for shares in histogram.shares.values():
        assert len(shares) == BINS
        assert shares.sum() == pytest.approx(1)
    assert histogram.edges[0] < 0 == pytest.approx(histogram.edges[BINS // 2] + histogram.edges[BINS // 2 + 1])


def test_one_document_is_ascii_that_cannot_leave_its_element(tmp_path):
    index_of(tmp_path, episode(task_id=EVIL, task=EVIL, task_type=EVIL, stop_reason=EVIL))
    text = as_json(document(opened(tmp_path)))
    assert text.isascii()
    assert "<" not in text
    assert json.loads(text)["sources"][0]["tasks"] == [EVIL]


# ---- searching -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("DESK", [0, 1]),
        ("ÉCLAIR", [1]),
        ("éclair", [1]),
        ('say "hi"\nthen', [2]),
        ("back\\slash", [2]),
        ("observation", []),  # a name in the file, not a text
        ("format_valid", []),
        ("\ud800", [2]),
        ("the prompt", [2]),
        ("look around", [0, 1, 2]),
        ("<b>", [0]),
    ],
)
def test_search(tmp_path, query, found):
    index = index_of(
        tmp_path,
        json.dumps(episode(steps=[step(response="<b>")])).replace("<", "\\u003c").encode() + b"\n",
        json.dumps(episode(steps=[step(response="an Éclair")]), ensure_ascii=False).encode() + b"\n",
        episode(steps=[step(observation='Say "hi"\nthen back\\slash \ud800', prompt="The Prompt")]),
    )
    assert [row for row in index.scan(query) if row is not None] == found


# ---- which files ---------------------------------------------------------------------------------------------------


def test_evaluations_inside_and_beside_a_run(tmp_path):
    run = tmp_path / "run"
    write(run, episode())
    game = {"split": "valid_seen", "task_id": "task-0", "temperature": 0.4, "seed": 1}
    write(run / "evaluation", episode(game=game, seed=1), episode(game=game | {"temperature": 0.0}))
    write(run / "evaluation-late" / "unseen", episode(game=game))
    write(run / "eval-part", episode(game=game), name="episodes.part-0.jsonl")
    write(tmp_path / "run-evaluation", episode())
    write(tmp_path / "another-evaluation", episode())
    numbers = {"split": "test", "task_id": "task-9", "task_type": "x", "temperature": None, "seed": 0, "steps": 7}
    numbers |= {"success": True, "return": 10.0, "stop_reason": "success", "format_invalid": 2, "inadmissible": 1}
    (run / "evaluation-3.json").write_text(json.dumps({"games": [numbers, {"steps": -1}, 5]}))
    found = opened(run)
    assert [(s.name, s.kind, len(s.index.rows)) for s in found.sources] == [
        ("training", "training", 1),
        ("evaluation-3", "evaluation", 1),
        ("eval-part/episodes.part-0", "evaluation", 1),
        ("evaluation", "evaluation", 2),
        ("evaluation-late/unseen", "evaluation", 1),
        ("../run-evaluation", "evaluation", 1),
    ]
    evaluation = found.sources[3].index
    assert evaluation.parts.texts == ["valid_seen, temperature 0.4", "valid_seen, greedy"]
    assert [(g.section, g.group) for g in groups_of(evaluation)] == [(0, 0), (1, 0)]
    games = found.sources[1].index
    assert (games.rows[0].steps, games.rows[0].bad_format, games.rows[0].success) == (7, 2, True)
    assert games.record(0) == {"task_id": "task-9", "steps": []}
    assert games.n_damaged == 2
    assert [row for row in games.scan("task") if row is not None] == []
    only = opened(run / "evaluation")
    assert [(s.name, s.kind) for s in only.sources] == [("evaluation", "evaluation")]
    more = opened(run, evaluations=[tmp_path / "another-evaluation"])
    assert more.sources[-1].name == "../another-evaluation"
    with pytest.raises(NothingToViewError, match="nowhere"):
        open_run(run, [tmp_path / "nowhere"])


def test_an_evaluation_file_that_changes_is_read_again(tmp_path):
    path = tmp_path / "evaluation.json"
    path.write_text("{}")
    index = opened(tmp_path).sources[0].index
    assert index.damaged == [(1, "has no list of games")]
    assert not index.refresh()
    path.write_text("[1")
    assert index.refresh()
    assert "JSON" in index.damaged[0][1]


def test_settings_are_data(tmp_path):
    write(tmp_path, episode())
    (tmp_path / "config.yaml").write_text("advantage: {name: gigpo}\nprogress_fallback: {gate: success, tau_R: 0.5}\n")
    run = open_run(tmp_path)
    assert (run.method, run.gate) == ("GIGPO + ProGPO", Gate("success", 0.5))
    for text, problem in (
        ("!!python/object/apply:os.system [echo]", "could not determine a constructor"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("- 1", "no settings"),
        ("a: [", "parsing"),
    ):
        (tmp_path / "config.yaml").write_text(text)
        run = open_run(tmp_path)
        assert problem in run.notices[0]
        assert run.config == {}
    (tmp_path / "config.yaml").write_text("progress_fallback: {tau_R: x, gate: [1]}\nadvantage: 3")
    assert open_run(tmp_path).gate == Gate("[1]")


def test_nothing_to_view(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NothingToViewError, match=re.escape(str(path))):
            open_run(path)
