"""The evaluation's tests share the trainer tests' toy world and random policy."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
sys.path.insert(0, str(Path(__file__).parents[1]))

# The models are tiny: threads only cost.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny():
    """The tiny policy that ships with the package, as the quickstart asks it."""
    from progpo_trl.evaluation import PlaySettings, load_policy

    return load_policy("tiny", settings=PlaySettings(context="full", max_completion_length=16, prompt_template="tiny"))
