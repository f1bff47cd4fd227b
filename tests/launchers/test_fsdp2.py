"""fsdp2.yaml on CPUs: what accelerate makes of it, and our loss on parameters that torch itself has sharded.

The two processes are launched as on two machines, as docs/scaling.md says.
"""

import pytest
import torch
from frozen import Case, save_base
from launching import REPOSITORY, launch
from reference import reference_gradient

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    save_base(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def processes(base, tmp_path_factory):
    output = tmp_path_factory.mktemp("sharded")
    script = str(REPOSITORY / "tests" / "launchers" / "sharded.py")
    launch("fsdp2", 2, script, str(output), base, machines=2, ACCELERATE_USE_CPU="true")
    facts = [torch.load(output / f"rank{i}.pt") for i in range(2)]
    assert [f["world"] for f in facts] == [2, 2], "the launcher did not start one world of two"
    return facts


def test_accelerate_forms_no_fsdp_on_cpus(processes):
    """When this fails, accelerate has learned to: then a test can train through fsdp2.yaml as test_deepspeed does, and
    the notes in the config and in docs/scaling.md are out of date."""
    assert {f["distributed_type"] for f in processes} == {"MULTI_CPU"}
    assert not any(f["is_fsdp2"] for f in processes)


def test_gradient_of_sharded_parameters(processes, base):
    want = reference_gradient(Case(), base)["gradient"]
    assert max(g.abs().max().item() for g in want.values()) > 1e-2
    for f in processes:
        assert f["sharded"], "parameters or gradients are no DTensors"
        assert f["share_held"] == pytest.approx(0.5, abs=0.01)
        assert f["passes"] > 1, "rows_per_forward does not bound the rows of a pass"
        assert set(f["gradient"]) == set(want)
        for name, gradient in f["gradient"].items():
            assert (gradient - want[name]).abs().max().item() < 1e-6, name
