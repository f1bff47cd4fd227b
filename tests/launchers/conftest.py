"""Launch tests import their helpers by name, and share the run of one process that the others are compared with."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))


@pytest.fixture(scope="session")
def one_process(tmp_path_factory):
    """Output directory of the short training in one process, launched with single_gpu.yaml."""
    from launching import QUICK, launch, ranks

    output = tmp_path_factory.mktemp("one")
    launch("single_gpu", 1, "-m", "progpo_trl.train", *QUICK, "--output_dir", str(output), ACCELERATE_USE_CPU="true")
    assert json.loads((output / "summary.json").read_text())["machine"]["processes"] == 1
    assert ranks(output, 0) == []
    return output
