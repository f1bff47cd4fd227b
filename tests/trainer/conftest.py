"""Trainer tests import their helpers (toy, frozen) by name, also when run as scripts by a launcher."""

import gc
import sys
from pathlib import Path

import pytest
import torch
import trl.trainer.grpo_trainer  # noqa: F401  (imported before the freeze below)

sys.path.insert(0, str(Path(__file__).parent))

# The models are tiny: threads only cost.
torch.set_num_threads(1)

# Every training run ends with a full garbage collection: a quarter of a second for what the imports left alone.
gc.freeze()


@pytest.fixture(scope="module")
def start():
    """`resume_run.start`: runs in processes of their own."""
    import resume_run

    with resume_run.server() as start:
        yield start


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny policy on disk."""
    import resume_run

    return resume_run.base_model(tmp_path_factory.mktemp("base"))


@pytest.fixture
def install(monkeypatch):
    """Lets TRL use a stand-in for vLLM in this test; failed requests are repeated after a short pause."""
    from vllm_trainers import installer

    from progpo_trl import vllm_requests

    monkeypatch.setattr(vllm_requests, "FIRST_PAUSE", 0.01)
    return installer(monkeypatch)
