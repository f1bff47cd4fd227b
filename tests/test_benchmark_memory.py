"""The arithmetic of docs/scaling.md: parameter counts are the models', the memory formula is what a CPU measures."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import memory_plan
import update_memory
from update_peak import AUTOCAST, BFLOAT16, QWEN, Dims, update_peak

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scaling.md"


def meta_model(dims: Dims):
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=dims.vocabulary,
                hidden_size=dims.hidden,
                intermediate_size=dims.intermediate,
                num_hidden_layers=dims.layers,
                num_attention_heads=dims.heads,
                num_key_value_heads=dims.kv_heads,
                tie_word_embeddings=dims.tied,
            )
        )


@pytest.mark.parametrize("name", QWEN)
def test_parameters_are_those_of_the_model(name):
    from peft import LoraConfig, get_peft_model

    model = meta_model(QWEN[name])
    assert QWEN[name].parameters == sum(p.numel() for p in model.parameters())
    adapted = get_peft_model(model, LoraConfig(r=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert QWEN[name].lora(32) == sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def test_bytes_of_keys_and_values_are_those_of_the_cache():
    import torch
    from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

    dims = Dims(64, 3, 128, 4, 2, 100, True)
    config = Qwen2Config(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    cache = DynamicCache(config=config)
    Qwen2ForCausalLM(config)(torch.zeros(1, 7, dtype=torch.long), past_key_values=cache)
    assert sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values)) == 7 * dims.kv_bytes(4)


@pytest.mark.slow
def test_measured_peak_is_the_predicted_one():
    """One small shape for each of the three moments at which the peak can lie, the larger ones in the script."""
    shapes = (6, 7, 8)
    moments = set()
    for index, got in zip(shapes, update_memory.measured_apart(*shapes), strict=True):
        predicted = update_memory.SHAPES[index].predicted()
        peak = predicted.pop("peak")
        moments.add(max(predicted, key=predicted.get))
        low, high = update_memory.BAND
        assert low <= got / peak <= high, update_memory.SHAPES[index]
    assert moments == {"head", "mlp", "embedding"}


def test_what_the_formula_must_do():
    dims = QWEN["1.5B"]
    whole = update_peak(dims, 16, 2560, 8192)["peak"]
    assert update_peak(dims, 16, 2560, 8192, checkpointing=True)["peak"] < whole
    assert update_peak(dims, 16, 2560, 8192, BFLOAT16)["peak"] < update_peak(dims, 16, 2560, 8192, AUTOCAST)["peak"]
    assert update_peak(dims, 32, 2560, 16384, checkpointing=True)["peak"] < 2 * whole
    # A frozen base has no gradients; the batch's activations stay.
    adapters = update_peak(dims, 16, 2560, 8192, BFLOAT16, checkpointing=True, trained=dims.lora(32))
    assert adapters["peak"] < update_peak(dims, 16, 2560, 8192, BFLOAT16, checkpointing=True)["peak"]


@pytest.mark.parametrize("setup", ["ZeRO-2", "ZeRO-3", "FSDP2"])
def test_shards_take_less_on_more_gpus(setup):
    for name in ("1.5B", "7B"):
        totals = [memory_plan.held(name, setup, n).total for n in (1, 2, 8, 64)]
        assert totals == sorted(totals, reverse=True)
        assert memory_plan.held(name, setup, 8).optimizer == memory_plan.held(name, setup, 1).optimizer / 8


def test_the_plans_hold_the_recipes_bound():
    for folder, name in (("qwen2.5-1.5b-instruct", "1.5B"), ("qwen2.5-7b-instruct", "7B")):
        text = (Path(__file__).parents[1] / "recipes/alfworld" / folder / "progpo.yaml").read_text()
        assert f"max_tokens_per_forward: {memory_plan.TOKENS[name]} " in text


def test_the_page_has_the_tables_of_the_script():
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == len(memory_plan.tables())
    assert memory_plan.filled(text) == text, "run: python benchmarks/memory_plan.py --write docs/scaling.md"


def test_writing_changes_the_tables_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: models -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    memory_plan.main(["--write", str(page)])
    written = page.read_text(encoding="utf-8")
    assert written.startswith("before\n<!-- table: models -->\n\n| ")
    assert written.endswith(" |\n\n<!-- end -->\nafter\n")
    assert "old" not in written
    assert [p.name for p in tmp_path.iterdir()] == ["page.md"]


def test_the_page_shows_every_shape_with_its_prediction_and_a_ratio_in_the_band():
    lines = re.findall(r"^\| (\d+) x \((\d+) \+ (\d+)\).*\| (\w+) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d+ x \(", line)]
    assert len(rows) == len(lines) == len(update_memory.SHAPES)
    for row, (*sizes, moment), shape in zip(rows, lines, update_memory.SHAPES, strict=True):
        assert tuple(map(int, sizes)) == (shape.rows, shape.prompt, shape.response)
        predicted = shape.predicted()
        peak = predicted.pop("peak")
        shown, measured, ratio = (float(cell) for cell in row.split("|")[5:8])
        assert shown == pytest.approx(peak / 1e9, abs=6e-4)
        assert ratio == pytest.approx(measured / shown, abs=0.011)
        assert update_memory.BAND[0] <= ratio <= update_memory.BAND[1]
        assert moment == max(predicted, key=predicted.get)
