"""Two gloo processes against one: the same episodes, statistics, updates and panel."""

import json

import pytest
from distributed_run import main
from exactness import launch


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("context", ["window", "full"])
def test_two_processes_train_like_one(tmp_path, context):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    from distributed_run import Trainer

    Trainer.seen = []
    main(str(tmp_path / "one"), context, 1)
    launch(2, "distributed_run.py", str(tmp_path / "two"), context, "2")
    one = json.loads((tmp_path / "one" / "rank0.json").read_text())
    ranks = [json.loads((tmp_path / "two" / f"rank{i}.json").read_text()) for i in range(2)]
    assert [r["world"] for r in ranks] == [2, 2]
    # Statistics are global: every process sees all steps, and the same as a single process does.
    assert ranks[0]["seen"] == ranks[1]["seen"]
    assert [s[:3] for s in ranks[0]["seen"]] == [s[:3] for s in one["seen"]]
    for got, want in zip(ranks[0]["seen"], one["seen"], strict=True):
        assert got[3] == pytest.approx(want[3], abs=1e-4)
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert ranks[0]["weights"] == pytest.approx(one["weights"], rel=1e-6)
    assert ranks[0]["panel"] == ranks[1]["panel"] == one["panel"]
    assert [task for task, _ in ranks[0]["panel"]] == [str(100 + i) for i in range(5)]
    for got, want in zip(ranks[0]["logs"], one["logs"], strict=True):
        for name in ("rollout/success", "rollout/steps", "reward", "groups/all_fail", "rollout/rows", "num_tokens"):
            assert got[name] == pytest.approx(want[name]), name

    def episodes(name):
        lines = (tmp_path / name / "run" / "episodes.jsonl").read_text().splitlines()
        return [[s["response"] for s in json.loads(line)["steps"]] for line in lines]

    assert episodes("two") == episodes("one")
