"""Panels are played whole, once, whatever happens on the way; what is written is what was played."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import Doors, Scripted, doors

from progpo_trl.environments.alfworld import GeneratedAlfworldTasks
from progpo_trl.environments.webshop import GeneratedWebshopTasks
from progpo_trl.environments.webshop.baselines import BASELINES, evaluate_baseline
from progpo_trl.environments.webshop.store import build_store, generated_source
from progpo_trl.episodes import episode_from_json
from progpo_trl.evaluation import EvaluationError, baseline, evaluate, panel_of, read_evaluation, table
from progpo_trl.evaluation.locks import LOCK

DOCS = Path(__file__).parents[2] / "docs"


def lines(folder):
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def games(content):
    return content["games"]


def test_every_game_once_per_seed_and_the_sums_are_those_of_the_games(tmp_path):
    agent = Scripted(lambda number, seed: number + seed)  # the step limit is 4
    content = evaluate(agent, doors(5), seeds=(0, 1, 2), out=tmp_path, command=["x"])
    assert content == read_evaluation(tmp_path)
    keys = [(g["task_id"], g["seed"]) for g in games(content)]
    assert sorted(keys) == sorted({(f"door-{i:02d}", s) for i in range(5) for s in range(3)})
    assert sorted(agent.played) == sorted(("eval", None, s, t) for t, s in keys)
    for g in games(content):
        number = int(g["task_id"][-2:]) + g["seed"]
        assert g["success"] == (number < 4)
        assert g["steps"] == min(number + 1, 4)
        assert g["repeated"] == max(0, min(number, 4) - 1)
        assert g["loop"] == (number >= 3)
        assert g["score"] == (1.0 if number < 4 else 0.5)
        assert g["tokens"] == 2 * g["steps"]
        assert g["notes"] == {"turns": g["steps"]}
    (part,) = content["results"]
    assert part["games"] == 5
    # doors 0..4 are opened under seed s when number + s < 4
    assert [s["success"]["rate"] for s in part["by_seed"]] == pytest.approx([4 / 5, 3 / 5, 2 / 5])
    assert part["success"]["rate"] == pytest.approx(9 / 15)
    assert part["success"]["n"] == 5
    assert part["score"]["mean"] == pytest.approx((9 + 6 * 0.5) / 15)
    assert part["steps"]["mean"] == pytest.approx(sum(g["steps"] for g in games(content)) / 15)
    assert part["step_limit"] == pytest.approx(6 / 15)
    assert "60.0 %" in table(content)


def test_episodes_are_written_as_a_trainings_are(tmp_path):
    evaluate(Scripted(), doors(3), out=tmp_path)
    for line in lines(tmp_path):
        e = episode_from_json(line)
        assert (e.task_id, e.success, len(e.steps)) == (
            line["game"]["task_id"],
            line["game"]["success"],
            line["game"]["steps"],
        )
        assert [s.action for s in e.steps][-1] == f"open {int(e.task_id[-2:])}"
    assert not list(tmp_path.glob("*part*"))


@pytest.mark.parametrize("concurrency", [1, 3])
def test_an_interrupted_evaluation_goes_on_where_it_was(tmp_path, concurrency):
    tasks = doors(9)
    whole = evaluate(Scripted(), tasks, seeds=(0, 1), out=tmp_path / "whole")
    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        evaluate(Scripted(stop_after=7, concurrency=concurrency), tasks, seeds=(0, 1), out=out)
    with pytest.raises(EvaluationError, match="interrupted; finish it with --resume"):
        read_evaluation(out)
    with pytest.raises(EvaluationError, match="is there already"):
        evaluate(Scripted(), tasks, seeds=(0, 1), out=out)
    (part,) = out.glob("episodes.part-*.jsonl")
    kept = part.read_text().splitlines()
    assert 0 < len(kept) < 18
    part.write_text("\n".join(kept) + "\n" + kept[0][:50])  # what a kill in the middle of a line leaves
    again = Scripted(concurrency=concurrency)
    content = evaluate(again, tasks, seeds=(0, 1), out=out, resume=True)
    assert len(again.played) == 18 - len(kept)
    assert games(content) == games(whole)
    assert lines(out) == lines(tmp_path / "whole")
    assert content["results"] == whole["results"]
    more = Scripted()
    evaluate(more, tasks, seeds=(0, 1, 2), out=out, resume=True)
    assert {seed for _, _, seed, _ in more.played} == {2}


def test_another_evaluation_is_not_gone_on_with(tmp_path):
    evaluate(Scripted(), doors(3), out=tmp_path)
    with pytest.raises(EvaluationError, match=r"panel eval.games is 3 there and 4 here"):
        evaluate(Scripted(), doors(4), out=tmp_path, resume=True)
    with pytest.raises(EvaluationError, match=r"conditions.max_turns is 4 there and 2 here"):
        evaluate(Scripted(), doors(3), max_turns=2, out=tmp_path, resume=True)
    with pytest.raises(EvaluationError, match=r"seed 0, door-00\): ask for it too"):
        evaluate(Scripted(), doors(3), seeds=(1,), out=tmp_path, resume=True)
    (tmp_path / "evaluation.json").write_text('{"format":')
    with pytest.raises(EvaluationError, match="cannot be read"):
        evaluate(Scripted(), doors(3), out=tmp_path, resume=True)


def test_damaged_lines_are_played_again(tmp_path):
    whole = evaluate(Scripted(), doors(6), out=tmp_path)
    path = tmp_path / "episodes.jsonl"
    for line, (name, value) in enumerate([("success", "x"), ("seed", 1.5), ("steps", None), ("task_id", ["a"])]):
        found = path.read_text().splitlines()
        record = json.loads(found[line])
        record["game"][name] = value
        found[line] = json.dumps(record)
        path.write_text("\n".join(found) + "\n")
    path.write_text(path.read_text() + "[" * 100_000 + "\n[]\n")
    again = Scripted()
    assert evaluate(again, doors(6), out=tmp_path, resume=True)["games"] == whole["games"]
    assert [task for *_, task in again.played] == [f"door-{i:02d}" for i in range(4)]


def test_failing_environments_are_tried_again_then_counted_and_left_out(tmp_path):
    Doors.failures = {"door-01": 1, "door-02": 9}
    content = evaluate(Scripted(), doors(6), out=tmp_path, environment_retries=1)
    lost = [g for g in games(content) if g["error"]]
    assert [g["task_id"] for g in lost] == ["door-02"]
    assert lost[0]["error"] == "OSError: the door is stuck"
    (part,) = content["results"]
    assert (part["games"], part["lost"], part["success"]["n"]) == (6, 1, 5)
    assert "1 play(s) could not be scored" in table(content)
    Doors.failures = {}
    retried = Scripted()
    content = evaluate(retried, doors(6), out=tmp_path, resume=True)
    assert [task for _, _, _, task in retried.played] == ["door-02"]
    assert content["results"][0]["lost"] == 0
    Doors.failures = {f"door-{i:02d}": 9 for i in range(4)}
    with pytest.raises(RuntimeError, match=r"4 of 6 games were lost .* more than max_dropped_fraction=0.25"):
        evaluate(Scripted(), doors(6))
    Doors.failures = {}


def test_several_episodes_at_once_are_as_one_after_the_other():
    tasks = doors(20)
    assert games(evaluate(Scripted(concurrency=8), tasks)) == games(evaluate(Scripted(), tasks))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"splits": ["evil"]}, "no split 'evil'; there are"),
        ({"seeds": ()}, "at least one sampling seed"),
        ({"temperatures": ()}, "one temperature"),
        ({"temperatures": (-1.0,)}, "at least 0"),
        ({"n_tasks": 0}, "at least 1"),
        ({"seeds": (0, -1)}, "a sampling seed must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_played_is_named(options, message):
    with pytest.raises(EvaluationError, match=message):
        evaluate(Scripted(), doors(3), **options)


# ------------------------------------------------------------------------------------------------------------ folder


def test_a_folder_is_one_evaluations_at_a_time(tmp_path):
    class Meanwhile(Scripted):
        def player(self, game, tasks):
            for resume in (True, False):
                with pytest.raises(EvaluationError, match="another evaluation is writing to"):
                    evaluate(Scripted(), tasks, out=tmp_path, resume=resume)
            return super().player(game, tasks)

    whole = evaluate(Meanwhile(), doors(3), out=tmp_path)
    assert read_evaluation(tmp_path) == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["episodes.jsonl", "evaluation.json"]
    with pytest.raises(KeyboardInterrupt):
        evaluate(Scripted(stop_after=0), doors(3), seeds=(0, 1), out=tmp_path, resume=True)
    assert not (tmp_path / LOCK).exists()


def test_two_processes_on_one_folder_and_one_that_was_killed(tmp_path):
    code = f"""
from pathlib import Path
from progpo_trl.evaluation.locks import only_one_in
with only_one_in(Path({str(tmp_path)!r})):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(EvaluationError, match="wait for it to end, or choose another --out"):
            evaluate(Scripted(), doors(3), out=tmp_path)
        assert sorted(p.name for p in tmp_path.iterdir()) == [LOCK]
        holder.kill()
    assert (tmp_path / LOCK).exists()  # what a killed process leaves
    evaluate(Scripted(), doors(3), out=tmp_path)
    assert not (tmp_path / LOCK).exists()


def test_a_place_where_no_folder_can_be(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out, message in (
        ("file", "file is a file, and results need a folder: choose another --out"),
        ("file/deep/er", r"file is a file \(.*file/deep/er would lie in it\)"),
        ("link", "link is a link to nothing"),
    ):
        with pytest.raises(EvaluationError, match=message):
            evaluate(Scripted(), doors(3), out=tmp_path / out)
    (tmp_path / "out" / ".evaluation.json.partial").mkdir(parents=True)
    with pytest.raises(EvaluationError, match="evaluation.json.partial: cannot be written: Is a directory"):
        evaluate(Scripted(), doors(3), out=tmp_path / "out")
    assert (tmp_path / "file").read_text() == "mine"


# ------------------------------------------------------------------------------------------------------------ panels


def test_a_panel_is_sorted_fixed_and_spread():
    ids = [f"door-{i:02d}" for i in range(12)]
    shuffled = random.Random(0).sample(ids, 12)
    one, two = (panel_of(doors(0, eval=order), "eval") for order in (ids, shuffled))
    assert one == two
    assert one.task_ids == tuple(ids)
    assert panel_of(doors(12), "eval", 4).task_ids == ("door-00", "door-03", "door-06", "door-09")
    assert panel_of(doors(11), "eval").panel_sha256 != one.panel_sha256
    with pytest.raises(ValueError, match="'door-01' twice"):
        panel_of(doors(0, eval=["door-01", "door-01"]), "eval")
    with pytest.raises(ValueError, match="no games"):
        panel_of(doors(0), "eval")


def test_the_data_hash_is_of_the_content(tmp_path):
    tasks = GeneratedAlfworldTasks(n_eval=12)
    one = panel_of(tasks, "valid_unseen")
    assert one.data_sha256 == panel_of(GeneratedAlfworldTasks(n_eval=12), "valid_unseen").data_sha256
    other = GeneratedAlfworldTasks(n_eval=12, game_seed=1)
    assert other.data_hash(other.task_ids("valid_unseen")) != one.data_sha256
    assert panel_of(doors(3), "eval").data_sha256 is None
    shop, same, changed = (GeneratedWebshopTasks(60, shop_seed=seed) for seed in (0, 0, 1))
    ids = list(shop.task_ids("test"))
    assert shop.data_hash(ids) == same.data_hash(ids)
    build_store(generated_source(60), tmp_path / "store")
    assert GeneratedWebshopTasks(60, store=tmp_path / "store").data_hash(ids) == shop.data_hash(ids)
    assert changed.data_hash(list(changed.task_ids("test"))) != shop.data_hash(ids)


# --------------------------------------------------------------------------------------------------------- baselines


def test_alfworlds_baselines():
    tasks = GeneratedAlfworldTasks("medium", n_eval=24)
    found = {name: evaluate(baseline(name, tasks), tasks, splits=["valid_unseen"], seeds=(0, 1)) for name in BASES}
    rates = {name: content["results"][0]["success"]["rate"] for name, content in found.items()}
    assert rates["oracle"] == 1.0
    assert rates["random"] < rates["expert"] <= 1.0
    assert rates["expert"] > 0.8
    assert found["oracle"]["results"][0]["seeds"] == [0]  # the same commands under every seed
    assert len(found["random"]["games"]) == 48
    assert all(c["results"][0]["inadmissible"] == c["results"][0]["format_invalid"] == 0 for c in found.values())


def test_the_expert_is_no_upper_bound_in_limited_steps():
    """The numbers of docs/evaluation.md."""
    tasks, page = GeneratedAlfworldTasks("hard", n_eval=64), (DOCS / "evaluation.md").read_text(encoding="utf-8")
    found = {}
    for name, limit in (("expert", 50), ("expert", 15), ("oracle", 15)):
        agent = baseline(name, tasks)
        (part,) = evaluate(agent, tasks, splits=["valid_unseen"], max_turns=limit, progress=False)["results"]
        found[name, limit] = round(100 * part["success"]["rate"], 1), round(part["steps"]["mean"], 1)
    assert found == {("expert", 50): (100, 11.9), ("expert", 15): (85.9, 11.7), ("oracle", 15): (100, 6.8)}
    for text in ("`expert` is no upper bound", "11.9 on average", "85.9 %", "6.8 on average"):
        assert text in page


BASES = ("random", "expert", "oracle")


def test_webshops_baselines_score_as_their_own_module_measures():
    tasks = GeneratedWebshopTasks(60)
    for name, rule in (("expert", "first_hit_options"), ("oracle", "oracle")):
        content = evaluate(baseline(name, tasks), tasks, splits=["test"])
        indices = [tasks.ids.goal(task_id) for task_id in tasks.task_ids("test")]
        want = evaluate_baseline(BASELINES[rule], tasks, indices)
        (part,) = content["results"]
        assert part["score"]["mean"] == pytest.approx(want.score)
        assert part["success"]["rate"] == pytest.approx(want.success)
        assert part["steps"]["mean"] == pytest.approx(want.steps)


def test_an_environment_without_a_baseline_says_so():
    with pytest.raises(ValueError, match="environment 'doors' has no oracle; there is random"):
        baseline("oracle", doors())
    with pytest.raises(EvaluationError, match="no games to evaluate in split 'none'"):
        evaluate(Scripted(), doors(3, none=[]), splits=["none"])
    tasks = doors(3)
    assert evaluate(baseline("random", tasks), tasks)["results"][0]["success"]["rate"] == 0
