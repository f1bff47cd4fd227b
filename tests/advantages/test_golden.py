"""All estimators against vectors of the public reference implementations (../shared/data/estimators)."""

import json
from collections import Counter

import pytest

from progpo_trl.verify_estimators import run_case, verify_estimators

# What the file holds of each estimator; a case that is skipped would show here.
CASES = {"hgpo": 236, "proxmo": 136, "grpo": 104, "gigpo": 84, "trl_grpo": 78, "progpo": 57}


@pytest.fixture(scope="session")
def golden(shared_data):
    return json.loads((shared_data / "estimators" / "golden.json").read_text())


def test_the_file_holds_what_it_should(golden):
    assert Counter(case["estimator"] for case in golden["cases"]) == CASES


@pytest.mark.parametrize("estimator", CASES)
def test_every_case(golden, estimator):
    failed = {}
    compared = Counter()
    for case in golden["cases"]:
        if case["estimator"] == estimator:
            for check in run_case(case, golden["batches"]):
                compared[check.quantity] += 1
                if not check.passed:
                    failed[case["name"]] = (check.quantity, check.difference)
    assert not failed
    assert compared["adv"] == CASES[estimator]
    if estimator in ("gigpo", "proxmo"):  # both terms, except where the reference's own are rounding noise
        assert compared["episode_adv"] == compared["step_adv"] >= CASES[estimator] - 2
    if estimator == "progpo":
        assert compared["q_fail"] == CASES[estimator]
        assert compared["coverage"] == CASES[estimator] - 1


def test_worst_difference(shared_data):
    results = verify_estimators(shared_data / "estimators" / "golden.json")
    assert len(results) == sum(CASES.values())
    assert max(result.worst.difference for result in results) < 1e-5
