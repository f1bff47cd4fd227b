"""single_gpu.yaml and multi_gpu.yaml on CPUs, started as the README says."""

import json

import pytest
from launching import LAUNCHED, QUICK, largest_difference, launch, ranks, responses, weights

from progpo_trl.tiny_policy import checkpoint_path

CPU = {"ACCELERATE_USE_CPU": "true"}

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def test_single_gpu(one_process):
    summary = json.loads((one_process / "summary.json").read_text())
    assert summary["machine"]["distributed"] == "NO"
    assert summary["updates"] == 2
    # The config says bf16, the recipe says float32: the recipe decides.
    assert summary["machine"]["mixed_precision"] == "no"
    moved = largest_difference(weights(one_process), weights(checkpoint_path()))
    assert moved > 1e-3, "nothing was learned, so the comparisons with other launchers would hold anything equal"


def test_multi_gpu_is_a_world_of_two_that_trains_like_one(one_process, tmp_path):
    output = launch("multi_gpu", 2, LAUNCHED, *QUICK, "--output_dir", str(tmp_path), **CPU)
    assert output.count("training tasks") == 1, "two worlds of one process each"
    for rank in ranks(tmp_path, 2):
        assert rank["distributed_type"] == "MULTI_CPU"
        assert rank["wrapper"] == "DistributedDataParallel"
        assert rank["mixed_precision"] == "no"
        assert min(rank["passes"]) > 1
    assert responses(tmp_path) == responses(one_process)
    assert largest_difference(weights(tmp_path), weights(one_process)) < 1e-6
