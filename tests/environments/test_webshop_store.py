"""The memory-mapped store: the same shop as in memory, resumed when killed, refused when it is not whole."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from progpo_trl.environments.webshop import store as store_module
from progpo_trl.environments.webshop.catalogue import build_catalogue
from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.files import find_files
from progpo_trl.environments.webshop.generate import generate_records
from progpo_trl.environments.webshop.products import HumanInstruction, Product
from progpo_trl.environments.webshop.store import (
    MANIFEST,
    VERSION,
    build_store,
    files_source,
    generated_source,
    main,
    open_store,
)
from progpo_trl.environments.webshop.store_parts import PackedProducts, pack_product, unpack_product

N = 130


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A store in several chunks."""
    return build_store(generated_source(N, 5), tmp_path_factory.mktemp("store") / "shop", seed=5, chunk=40)


@pytest.fixture
def copied(built, tmp_path):
    """A store to spoil."""
    return Path(shutil.copytree(built, tmp_path / "shop"))


def fields(product):
    return [getattr(product, name) for name in Product.__slots__]


def assert_same_shop(stored, memory):
    assert len(stored) == len(memory)
    assert [fields(product) for product in stored.products] == [fields(product) for product in memory.products]
    assert np.array_equal(stored.prices, memory.prices)
    assert len(stored.goals) == len(memory.goals) > 0
    for index, goal in enumerate(memory.goals):
        found = stored.goals[index]
        assert (found.position, *found[2:]) == (goal.position, *goal[2:])
        assert found.product.asin == goal.product.asin
    for index in range(0, len(memory.goals), 9):
        goal = memory.goals[index]
        query = goal.instruction.lower()
        assert stored.search(query) == memory.search(query)
        assert np.array_equal(stored.index.scores(query), memory.index.scores(query))
        assert stored.position(goal.product.asin) == goal.position
        assert stored.pages(goal.position).item == memory.pages(goal.position).item


def test_it_is_the_shop_in_memory(built):
    stored = open_store(built, generated_source(N, 5), seed=5, verify=True)
    assert_same_shop(stored, build_catalogue(generated_source(N, 5).products(0), seed=5))
    for unknown in ("", "G", "G000000999", "\u00e9" * 10):
        with pytest.raises(KeyError):
            stored.position(unknown)
    with pytest.raises(IndexError):
        stored.product(N)


def test_it_is_mapped_and_pickles_as_its_path(built):
    stored = open_store(built)
    assert isinstance(stored.index.arrays.documents.base, np.memmap)
    data = pickle.dumps(stored)
    assert len(data) < 500
    assert_same_shop(pickle.loads(data), stored)


def test_the_number_of_chunks_changes_nothing(built, tmp_path):
    one = build_store(generated_source(N, 5), tmp_path / "one", seed=5)
    for file in sorted(one.glob("*.npy")):
        assert file.read_bytes() == (built / file.name).read_bytes(), file.name


def test_products_survive_packing():
    product = Product(
        asin="A1",
        title='caf\u00e9 "\U0001f600" \ud83d \x00',
        description="",
        bullets=("", "a\nb"),
        prices=(0.1, 1e300),
        price_tag="$0.1",
        options={"size": ("a", "b"), "": ()},
        attributes=(),
        query="q",
        category="c",
        product_category="p \u203a q",
        nouns=("n",),
        instruction=None,
        human=(HumanInstruction("t", ("a",), ()), HumanInstruction("u", (), ("o", "p"))),
    )
    data = pack_product(product)
    assert fields(unpack_product(data)) == fields(product)
    packed = PackedProducts(np.frombuffer(data * 2, np.uint8), np.array([len(data), 2 * len(data)]))
    assert [fields(copy) for copy in packed] == [fields(product)] * 2
    assert packed[1] is packed[1]
    assert fields(pickle.loads(pickle.dumps(packed))[1]) == fields(product)


# ---- official files -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """The files of a generated shop under the official names, with one human instruction and one repeated id."""
    made = list(generate_records(25, 1))
    asins = [record.item["asin"] for record in made]
    human = {"instruction": "a thing.", "instruction_attributes": ["soft"], "instruction_options": ["red"]}
    content = {
        "items_shuffle_1000": [record.item for record in made] + [made[3].item],
        "items_ins_v2_1000": {record.item["asin"]: record.instruction for record in made},
        "title_nouns_1000": {record.item["asin"]: record.nouns for record in made},
        "items_human_ins": {asins[7]: [human]},
    }
    place = tmp_path / "data"
    place.mkdir()
    for name, records in content.items():
        (place / f"{name}.json").write_text(json.dumps(records), encoding="utf-8")
    return place


def test_a_store_of_official_files_by_command(folder, tmp_path, capsys):
    out = tmp_path / "shop"
    assert main(["--data", str(folder), "--out", str(out), "--verify"]) == 0
    assert "25 products, 1 left out (repeated id), " in capsys.readouterr().out
    with_human = files_source(find_files(folder, human=True))
    for source in (with_human, files_source(find_files(folder))):
        assert_same_shop(open_store(out, source), build_catalogue(with_human.products(0)))
    stored = open_store(out, with_human, human_goals=True)
    assert_same_shop(stored, build_catalogue(with_human.products(0), human_goals=True))
    assert stored.skipped == {"repeated id": 1}
    assert main(["--data", str(folder), "--out", str(out)]) == 0  # it is there already


def test_a_store_of_other_files_is_refused(folder, tmp_path):
    source = files_source(find_files(folder))
    out = build_store(source, tmp_path / "shop", chunk=10)
    items = folder / "items_shuffle_1000.json"
    os.utime(items, (1, 1))  # a copy of the same content is the same file
    open_store(out, source)
    text = items.read_text("utf-8")
    items.write_text(text.replace("G000000002", "G00000000X"), encoding="utf-8")
    for build_or_open in (open_store, lambda out, source: build_store(source, out)):
        with pytest.raises(ShopFileError, match=r"was built from another items_shuffle_1000.json.*Build a store"):
            build_or_open(out, source)
    items.write_text(text, encoding="utf-8")
    open_store(out, source)
    with pytest.raises(ShopFileError, match=r"was built without items_human_ins.json"):
        open_store(out, files_source(find_files(folder, human=True)))
    with pytest.raises(ShopFileError, match="holds no human instructions"):
        open_store(out, human_goals=True)


def test_the_command_says_what_is_wrong(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    assert main(["--out", str(tmp_path / "shop")]) == 2
    assert "set WEBSHOP_DATA" in capsys.readouterr().err
    (folder / "items_shuffle_1000.json").write_text('[{"asin": "A1"}]', encoding="utf-8")
    assert main(["--data", str(folder), "--out", str(tmp_path / "shop")]) == 2
    assert "items_shuffle_1000.json, record 1" in capsys.readouterr().err
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--generated", "5", "--size", "all"], "--size is of the official files, and --generated needs none"),
        (["--generated", "5", "--on-error", "raise"], "--on-error is of the official files"),
        (
            ["--data", "DIR", "--level", "full"],
            "--level is of generated shops, and this store is made of",
        ),
        (["--level", "tiny"], "--level is of generated shops, .* give --generated N"),
        (["--generated", "0"], "products must be at least 1, not 0"),
        (["--generated", "-5", "--level", "tiny"], "products must be at least 1, not -5"),
    ],
)
def test_options_that_do_not_apply_are_refused_and_nothing_is_written(folder, tmp_path, capsys, words, said):
    words = [str(folder) if word == "DIR" else word for word in words]
    before = sorted(tmp_path.iterdir())
    assert main([*words, "--out", str(tmp_path / "shop")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"progpo webshop index: {said}.*\n", err), err
    assert sorted(tmp_path.iterdir()) == before


def test_the_options_of_generated_shops(tmp_path, capsys):
    out = tmp_path / "shop"
    assert main(["--generated", "12", "--level", "tiny", "--seed", "3", "--out", str(out)]) == 0
    assert_same_shop(open_store(out), build_catalogue(generated_source(12, 3, "tiny").products(0), seed=3))
    assert main(["--generated", "12", "--seed", "3", "--out", str(out)]) == 2
    assert "was built with other settings" in capsys.readouterr().err


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_another_seed_or_shop_is_refused(built):
    with pytest.raises(ShopFileError, match="was built with seed 5, not 0"):
        open_store(built, seed=0)
    with pytest.raises(ShopFileError, match=r"was built with other settings: .*'seed': 5.*, wanted .*'seed': 6"):
        open_store(built, generated_source(N, 6))
    with pytest.raises(ShopFileError, match="is a store with seed 5; delete it to build one with 6"):
        build_store(generated_source(N, 5), built, seed=6)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "does not exist"),
        (lambda folder: (folder / MANIFEST).unlink(), "has no manifest.json"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "damaged or not of a store"),
        (lambda folder: (folder / MANIFEST).write_text("[" * 100_000), "damaged or not of a store"),
        (lambda folder: (folder / MANIFEST).write_text('{"format": "x", "store": {}}'), "damaged or not of a store"),
        (lambda folder: (folder / "prices.npy").unlink(), "is not whole: prices.npy is missing"),
        (lambda folder: os.truncate(folder / "products.npy", 500), "products.npy has 500 bytes instead of"),
    ],
)
def test_what_is_not_a_whole_store_is_refused_with_how_to_rebuild(copied, spoil, message):
    spoil(copied)
    with pytest.raises(ShopFileError, match=message) as refused:
        open_store(copied)
    assert "in another folder: progpo webshop index (--data DIR or --generated N) --out" in str(refused.value)


def test_a_changed_manifest_is_refused(copied):
    manifest = json.loads((copied / MANIFEST).read_bytes())
    manifest["store"]["seed"] = 0
    (copied / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ShopFileError, match="changed after it was written"):
        open_store(copied)


def test_another_format_is_refused(copied, monkeypatch):
    monkeypatch.setattr(store_module, "VERSION", 99)
    with pytest.raises(ShopFileError, match=f"is of format {VERSION}, and this version reads format 99"):
        open_store(copied)


def test_a_flipped_bit_is_found_when_asked_to_verify(copied):
    data = bytearray((copied / "index_documents.npy").read_bytes())
    data[-1] ^= 1
    (copied / "index_documents.npy").write_bytes(data)
    open_store(copied)
    with pytest.raises(ShopFileError, match="index_documents.npy is not as it was written"):
        open_store(copied, verify=True)


def test_files_that_are_no_arrays_are_refused(copied):
    (copied / "prices.npy").write_bytes(b"x" * (copied / "prices.npy").stat().st_size)
    with pytest.raises(ShopFileError, match=r"prices.npy: cannot be mapped"):
        open_store(copied)


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_opening_reads_little_and_episodes_of_searches_do_not_grow(built):
    code = (
        "import sys, random; from progpo_trl.environments.webshop.store import open_store\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4\n"
        "shop = open_store(sys.argv[1]); rng = random.Random(0)\n"
        "def play(n):\n"
        "    for i in range(n):\n"
        "        goal = shop.goals[rng.randrange(len(shop.goals))]\n"
        "        for position in shop.search(goal.instruction.lower() + f' {i % 3000}'): shop.row(position)\n"
        "play(4000); before = resident(); play(4000); print(resident() - before)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, str(built)], capture_output=True, env=environment, check=True)
    assert int(done.stdout) < 1500  # KB; each search kept for good would be 2 KB more
