"""benchmarks/gpu_check.py: every line of it runs on a CPU; failures, and sections left out, are said."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import gpu_check
import gpu_models

CPU = torch.device("cpu")
torch.set_num_threads(1)  # the work is tiny: threads only cost
pytestmark = pytest.mark.slow


def test_every_section_runs(tmp_path, capsys):
    out = tmp_path / "check.json"
    assert gpu_check.main(["--device", "cpu", "--size", "tiny", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    sections = found["sections"]
    assert [s["status"] for s in sections.values()] == ["ok"] * 5
    printed = capsys.readouterr().out
    assert all(name in printed for name in sections)
    parity = sections["tiny: log-probabilities"]
    assert parity["turns that reused the cache"] == 1
    differences = {key: value for key, value in parity.items() if key.startswith("|log p")}
    assert len(differences) == 9
    assert all(0 < value < 0.1 for value in differences.values())
    for context in ("window", "full"):
        training = sections[f"tiny: training, {context} context"]
        assert training["sampled tokens"] == training["turns"] * 4
        shares = [value for key, value in training.items() if key.startswith("share of the time")]
        assert sum(shares) == pytest.approx(1)
        assert min(shares) > 0
        assert training["update: tokens of rows/s"] > 0
    update = sections["tiny: update"]
    assert 0 < update["share of the matrix-multiply ceiling"] < 1
    assert update["peak memory, GB"] > 0


def test_a_failing_section_is_reported_and_the_others_run(capsys):
    check = gpu_check.Check(CPU, minutes=5)

    def broken(check, why):
        raise RuntimeError(why)

    check.section("one", 1, broken, "no luck")
    check.section("two", 1, lambda check: {"speed": 3.0})
    assert check.sections["one"]["status"] == "failed"
    assert check.sections["one"]["reason"] == "RuntimeError: no luck"
    assert check.sections["two"]["status"] == "ok"
    assert "one: failed" in capsys.readouterr().out


def test_without_time_everything_is_left_out_and_named(monkeypatch, capsys):
    assert gpu_check.main(["--device", "cpu", "--size", "tiny", "--minutes", "0"]) == 0
    assert "left out: matrix-multiply ceiling, bfloat16, tiny: log-probabilities" in capsys.readouterr().out


def test_the_exit_code_tells_of_a_failure(monkeypatch):
    def broken(*_):
        raise ValueError("broken")

    for name in ("ceiling", "parity", "update", "training"):
        monkeypatch.setattr(gpu_check, name, broken)
    assert gpu_check.main(["--device", "cpu", "--size", "tiny"]) == 1


def test_operations_are_those_pytorch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    dims = gpu_models.SIZES["tiny"]
    tokenizer = type("Tokens", (), {"eos_token_id": 1, "pad_token_id": 0})
    model = gpu_models.make_model(dims, tokenizer, CPU)
    ids = torch.randint(0, 100, (2, 64))
    with FlopCounterMode(display=False) as counter:
        model(ids).logits.sum().backward()
    ours = gpu_models.update_flops(dims, [64, 64], 128)
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.02)
    assert math.isclose(gpu_models.update_flops(dims, [64], 64), ours / 2)
