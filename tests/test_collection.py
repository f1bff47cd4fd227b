"""Every process that collects the tests names them alike; pytest-xdist stops where two of its workers differ."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_another_process_at_another_time_collects_the_same_tests(request):
    """No name holds a time, an address or the order of a set."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONHASHSEED"] = str(random.randrange(1, 2**32))
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    there = set(run.stdout.splitlines())
    here = {item.nodeid for item in request.session.items}
    assert len(here) > 0
    assert here <= there, sorted(here - there)[:5]
