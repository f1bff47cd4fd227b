"""zero2.yaml and zero3.yaml: the same training as in one process. DeepSpeed runs on CPUs with gloo."""

import importlib.util

import pytest
from launching import LAUNCHED, QUICK, largest_difference, launch, ranks, responses, weights

from progpo_trl.settings import RECIPES

pytestmark = [
    pytest.mark.launchers,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the extra `deepspeed`"),
]

# Without a GPU accelerate has no backend of its own for DeepSpeed, and each process would be a world of one.
CPU = {"DS_ACCELERATOR": "cpu"}
ON_CPU = ["--use_cpu", "false", "--ddp_backend", "gloo"]


def train_under(stage: int, output, settings):
    """The ranks' facts of a training with ZeRO `stage` on two processes."""
    launch(f"zero{stage}", 2, LAUNCHED, *settings, *ON_CPU, "--output_dir", str(output), **CPU)
    facts = ranks(output, 2)
    for rank in facts:
        assert rank["distributed_type"] == "DEEPSPEED"
        assert rank["wrapper"] == "DeepSpeedEngine"
        assert rank["zero_stage"] == stage
        assert rank["mixed_precision"] == "no"
        assert (rank["elements_held"] == 0) is (stage == 3)
        assert min(rank["passes"]) > 1, "rows_per_forward does not bound the rows of a pass"
    return facts


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_trains_like_one_process(one_process, tmp_path, stage):
    facts = train_under(stage, tmp_path, QUICK)
    assert [len(rank["passes"]) for rank in facts] == [2, 2]
    assert responses(tmp_path) == responses(one_process)
    assert largest_difference(weights(tmp_path), weights(one_process)) < 1e-6


def test_zero_with_accumulation(one_process, tmp_path):
    """Two slices of several passes each in one update: DeepSpeed must not divide by the accumulation once more."""
    recipe = tmp_path / "recipe.yaml"
    lines = (RECIPES / "quickstart.yaml").read_text(encoding="utf-8").splitlines(keepends=True)
    derived = ("groups_per_generation", "updates_per_generation")
    recipe.write_text("".join(line for line in lines if not line.startswith(derived)), encoding="utf-8")
    settings = dict(zip(QUICK[::2], QUICK[1::2], strict=True))
    del settings["--groups_per_generation"]
    settings |= {"--config": str(recipe), "--per_device_train_batch_size": "2", "--steps_per_generation": "2"}
    settings |= {"--gradient_accumulation_steps": "2"}
    facts = train_under(2, tmp_path, [word for pair in settings.items() for word in pair])
    assert [len(rank["passes"]) for rank in facts] == [4, 4]
    assert responses(tmp_path) == responses(one_process)
    assert largest_difference(weights(tmp_path), weights(one_process)) < 1e-6
