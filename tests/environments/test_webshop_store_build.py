"""Builds of a store: they go on where they stopped, make damaged chunks again, and touch nothing of others."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from webshop_shop import choices, item, write_shop

from progpo_trl.environments.webshop import store_build
from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.files import find_files
from progpo_trl.environments.webshop.store import StoreSource, build_store, files_source, generated_source, open_store

N = 130


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A store in several chunks."""
    return build_store(generated_source(N, 5), tmp_path_factory.mktemp("store") / "shop", seed=5, chunk=40)


def failing_source(source, at, starts):
    """As `source`, but reading breaks off before product `at`; remembers where it is begun from."""

    def products(start):
        starts.append(start)
        for position, product in enumerate(source.products(start), start):
            if position == at:
                raise KeyboardInterrupt
            yield product

    return replace(source, products=products)


def test_a_broken_build_goes_on_where_it_stopped(built, tmp_path):
    source, out, starts = generated_source(N, 5), tmp_path / "shop", []
    for at in (100, 125):
        with pytest.raises(KeyboardInterrupt):
            build_store(failing_source(source, at, starts), out, seed=5, chunk=40)
        assert not out.exists()
        with pytest.raises(ShopFileError, match="does not exist"):
            open_store(out)
    build_store(failing_source(source, N, starts), out, seed=5, chunk=40)
    assert starts == [0, 80, 120]
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]
    for file in sorted(out.glob("*.npy")):
        assert file.read_bytes() == (built / file.name).read_bytes(), file.name


def test_a_build_of_something_else_starts_anew(tmp_path, caplog):
    starts, out = [], tmp_path / "shop"
    with pytest.raises(KeyboardInterrupt):
        build_store(failing_source(generated_source(N, 5), 100, starts), out, chunk=40)
    build_store(failing_source(generated_source(60, 6), N, starts), out, chunk=40)
    assert starts == [0, 0]
    assert "starting anew" in caplog.text
    fresh = build_store(generated_source(60, 6), tmp_path / "fresh")
    assert (out / "products.npy").read_bytes() == (fresh / "products.npy").read_bytes()


def test_a_build_that_broke_off_after_the_last_product_only_merges(built, tmp_path, monkeypatch):
    out, starts = tmp_path / "shop", []
    with monkeypatch.context() as patched:
        patched.setattr(store_build, "draw_prices", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_store(generated_source(N, 5), out, seed=5, chunk=40)
    build_store(failing_source(generated_source(N, 5), N, starts), out, seed=5, chunk=40)
    assert starts == [160]
    for file in sorted(out.glob("*.npy")):
        assert file.read_bytes() == (built / file.name).read_bytes(), file.name


def test_a_shop_without_products(tmp_path):
    shop = open_store(build_store(StoreSource(lambda start: iter(())), tmp_path / "shop"), verify=True)
    assert (len(shop), len(shop.goals), shop.search("mug")) == (0, 0, ())


def flip(path, place):
    """Spoil one bit."""
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)


def spoilt_checksum(chunk):
    flip(chunk.with_suffix(".sha256"), 5)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda chunk: os.truncate(chunk, chunk.stat().st_size // 2), "is damaged"),
        (lambda chunk: os.truncate(chunk, 0), "is damaged"),
        (lambda chunk: flip(chunk, 0), "is damaged"),
        (lambda chunk: flip(chunk, chunk.stat().st_size // 2), "is damaged"),
        (lambda chunk: flip(chunk, -3), "is damaged"),
        (lambda chunk: shutil.copy(chunk.with_name("chunk-00000.npz"), chunk), "is damaged"),
        (spoilt_checksum, "is damaged"),
        (lambda chunk: chunk.with_suffix(".sha256").unlink(), ""),  # as a build leaves it that is killed just there
        (lambda chunk: chunk.unlink(), ""),
    ],
)
def test_a_damaged_chunk_is_made_again(built, tmp_path, caplog, spoil, said):
    source, out, starts = generated_source(N, 5), tmp_path / "shop", []
    with pytest.raises(KeyboardInterrupt):
        build_store(failing_source(source, 125, starts), out, seed=5, chunk=40)
    work = tmp_path / "shop.building"
    assert (work / "chunk-00002.npz").exists()
    spoil(work / "chunk-00001.npz")
    caplog.clear()
    with pytest.raises(KeyboardInterrupt):  # once more killed, before anything is put in its place
        build_store(failing_source(source, 70, starts), out, seed=5, chunk=40)
    left = sorted(path.name for path in work.iterdir())
    assert left == ["chunk-00000.npz", "chunk-00000.sha256", "source.json"]
    assert ("chunk-00001.npz is damaged: the products from there on are indexed again" in caplog.text) == bool(said)
    build_store(failing_source(source, N, starts), out, seed=5, chunk=40)
    assert starts == [0, 40, 40]
    for file in sorted(out.glob("*.npy")):
        assert file.read_bytes() == (built / file.name).read_bytes(), file.name


def test_a_chunk_that_is_damaged_during_the_build_is_named_and_made_again(built, tmp_path):
    source, out = generated_source(N, 5), tmp_path / "shop"
    chunk = tmp_path / "shop.building" / "chunk-00001.npz"

    def damaging(start):
        yield from source.products(start)
        os.truncate(chunk, chunk.stat().st_size // 2)

    with pytest.raises(ShopFileError, match=r"chunk-00001.npz: is damaged .*; build again, which makes it anew"):
        build_store(replace(source, products=damaging), out, seed=5, chunk=40)
    build_store(source, out, seed=5, chunk=40)
    assert (out / "products.npy").read_bytes() == (built / "products.npy").read_bytes()


def test_a_killed_build_goes_on(built, tmp_path):
    """A process that is killed in the middle, as by the system."""
    out = tmp_path / "shop"
    code = (
        "import sys, time; from progpo_trl.environments.webshop.store import *; from dataclasses import replace\n"
        f"source = generated_source({N}, 5)\n"
        "def slow(start):\n"
        "    for position, product in enumerate(source.products(start), start):\n"
        "        if position == 90: print('half', flush=True); time.sleep(60)\n"
        "        yield product\n"
        "build_store(replace(source, products=slow), sys.argv[1], seed=5, chunk=40)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, env=environment)
    assert process.stdout.readline() == b"half\n"
    with pytest.raises(ShopFileError, match="is being built by another process"):
        build_store(generated_source(N, 5), out, seed=5, chunk=40)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    starts: list[int] = []
    build_store(failing_source(generated_source(N, 5), N, starts), out, seed=5, chunk=40)
    assert starts == [80]
    for file in sorted(out.glob("*.npy")):
        assert file.read_bytes() == (built / file.name).read_bytes(), file.name


def test_ctrl_c_is_one_line_and_the_same_command_goes_on(tmp_path):
    words = [
        sys.executable,
        "-m",
        "progpo_trl",
        "webshop",
        "index",
        "--generated",
        "9000",
        "--out",
        str(tmp_path / "a"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    seen = b""
    while b"product/s" not in seen:
        seen += os.read(process.stderr.fileno(), 4096)
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=240)
    assert (process.returncode, out) == (130, b"")
    said = (seen + rest).decode()
    assert said.endswith("\nprogpo webshop index: stopped; the same command goes on from here\n")
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["a.building"]


def test_too_many_combinations_of_options_are_named_with_the_file(tmp_path):
    record = item("A", "B", customization_options={str(n): choices(*map(str, range(50))) for n in range(4)})
    wish = {"attributes": [], "instruction": "Find me", "instruction_attributes": ["x"]}
    write_shop(tmp_path / "data", items=[record], attributes={"A": wish}, nouns={"A": []})
    message = "items_shuffle_1000.json: product A has 6250000 combinations of options"
    with pytest.raises(ShopFileError, match=message):
        build_store(files_source(find_files(tmp_path / "data")), tmp_path / "shop")


def test_nothing_of_others_is_deleted(tmp_path):
    work = tmp_path / "shop.building"
    work.mkdir()
    (work / "thesis.txt").write_text("x")
    with pytest.raises(ShopFileError, match=r"holds 'thesis.txt', which no build has made"):
        build_store(generated_source(N), tmp_path / "shop")
    assert (work / "thesis.txt").read_text() == "x"
    with pytest.raises(ShopFileError, match="has no manifest.json"):
        build_store(generated_source(N), work)
    (tmp_path / "file.building").write_text("x")
    with pytest.raises(ShopFileError, match="is in the way"):
        build_store(generated_source(N), tmp_path / "file")
    with pytest.raises(ShopFileError, match=r"^/: has no manifest.json"):
        build_store(generated_source(N), "/")
