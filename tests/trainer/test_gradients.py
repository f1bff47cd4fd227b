"""The trainer's gradient against an independent float64 reference, for every case of the exactness matrix."""

import pytest
from exactness import CASES, LOSSES, TOLERANCE, WORLDS, References, difference, gradients
from frozen import save_base, trainer_gradient

from progpo_trl.config_refusals import PROVEN_LOSSES


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    save_base(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def references(base):
    return References(base)


@pytest.fixture(scope="module", params=WORLDS, ids=lambda n: f"{n}-processes")
def run(request, base):
    """(process count, what the trainer gave for each case)"""
    return request.param, dict(zip(CASES, gradients(request.param, base), strict=True))


# A few seconds' worth for every change: each loss type once, in this process.
QUICK = CASES[: 2 * len(LOSSES) : 2] + CASES[-3:]


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_gradient_in_this_process(case, base, references):
    assert difference(case, trainer_gradient(case, base), 1, references) < TOLERANCE


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case, run, references):
    world, got = run
    assert difference(case, got[case], world, references) < TOLERANCE


def test_the_matrix_holds_what_the_configuration_admits():
    assert set(LOSSES) == set(PROVEN_LOSSES) == {c.loss_type for c in QUICK}
    assert {(c.loss_type, c.context, c.level, c.iterations) for c in CASES} >= {
        (loss, context, level, n)
        for loss in LOSSES
        for context in ("window", "full")
        for level in ("token", "sequence")
        for n in (1, 2)
    }
    for field, values in {"beta": (0.0, 0.04), "layout": ("even", "mixed", "uneven"), "duplicate": (1, 2)}.items():
        for loss in LOSSES:
            assert {getattr(c, field) for c in CASES if c.loss_type == loss} >= set(values), (loss, field)
