"""Builds a store in steps, so that a killed build goes on where it stopped.

Beside the store grows `<name>.building`: source.json says what is being built, chunk-*.npz each hold some thousand
products with their part of the index, chunk-*.sha256 their checksums. Chunks that are not as they were written are
made again. When all are there they are merged into a folder, prices and goals are drawn,
and the folder is renamed to the store. Nothing under the store's own name is ever half-written.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import random
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from progpo_trl.environments.webshop.bm25 import Postings, pack_lengths
from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.goals import Goals, draw_prices
from progpo_trl.environments.webshop.products import Product, document
from progpo_trl.environments.webshop.store import (
    VERSION,
    StoreSource,
    check_files,
    check_source,
    read_manifest,
    write_manifest,
)
from progpo_trl.environments.webshop.store_parts import (
    GOALS,
    PackedProducts,
    encode_asins,
    map_array,
    new_array,
    pack_product,
    save_array,
    sha256_of,
    write_whole,
)

logger = logging.getLogger(__name__)


def build(source: StoreSource, path: Path, *, seed: int, progress: bool, chunk: int) -> Path:
    """See `store.build_store`."""
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    path = path.absolute()
    if path.exists():
        return _keep(path, source, seed)
    work = path.with_name(path.name + ".building")
    with _locked(work, path):
        if path.exists():  # another process finished it in this moment
            return _keep(path, source, seed)
        made_of = source.identity()
        _start_or_resume(work, {"version": VERSION, "chunk": chunk, "seed": seed, "source": made_of})
        chunks = _write_chunks(work, source, chunk, progress)
        ready = work / "store"
        shutil.rmtree(ready, ignore_errors=True)
        ready.mkdir()
        _merge(chunks, ready, progress)
        try:
            _draw(ready, seed, progress)
        except ShopFileError:
            raise
        except ValueError as error:  # a product with too many combinations of options
            raise ShopFileError(str(source.files[0] if source.files else path), str(error)) from None
        files = sorted(ready.glob("*.npy"))
        write_manifest(
            ready,
            {
                "source": made_of,
                "seed": seed,
                "products": len(map_array(ready, "product_ends")),
                "skipped": dict(source.skipped),
                "files": {file.name: {"bytes": file.stat().st_size, "sha256": sha256_of(file)} for file in files},
            },
        )
        os.replace(ready, path)
        shutil.rmtree(work)
    return path


def _keep(path: Path, source: StoreSource, seed: int) -> Path:
    """`path`, if it holds the store that is to be built; else ShopFileError."""
    manifest = read_manifest(path)
    check_files(path, manifest, verify=False)
    check_source(path, manifest, source)
    if manifest["seed"] != seed:
        raise ShopFileError(str(path), f"is a store with seed {manifest['seed']}; delete it to build one with {seed}")
    return path


@contextmanager
def _locked(work: Path, path: Path) -> Iterator[None]:
    """Makes the folder `work` and keeps a second build out of it; the lock goes with the process, however it ends."""
    try:
        work.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ShopFileError(str(work), "is in the way and was not made by a build; move it away") from None
    folder = os.open(work, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ShopFileError(str(path), "is being built by another process; wait for it") from None
        yield
    finally:
        os.close(folder)


def _start_or_resume(work: Path, plan: dict[str, Any]) -> None:
    """Leaves in `work` what a build of the same plan has made, and nothing else."""
    foreign = [entry.name for entry in work.iterdir() if not _ours(entry.name)]
    if foreign:
        raise ShopFileError(str(work), f"holds {foreign[0]!r}, which no build has made; move the folder away")
    plan_file = work / "source.json"
    try:
        known = json.loads(plan_file.read_bytes())
    except FileNotFoundError:
        known = None
    except ValueError:
        known = "damaged"
    if known == plan:
        return
    if known is not None:
        logger.warning("starting anew: %s was begun from other files or settings", work)
    shutil.rmtree(work / "store", ignore_errors=True)
    for file in work.iterdir():
        file.unlink()
    write_whole(plan_file, json.dumps(plan).encode())


def _ours(name: str) -> bool:
    return name in ("source.json", "store") or name.startswith("chunk-") or name.endswith(".part")


def _write_chunks(work: Path, source: StoreSource, size: int, progress: bool) -> list[Path]:
    """The files of all chunks, in order; those that are there in full are not made again."""
    chunks = _whole_chunks(work)
    done = len(chunks) * size
    products = source.products(done)
    with tqdm(
        desc="Indexing products",
        total=source.count,
        initial=min(done, source.count or done),
        unit="product",
        disable=not progress,
    ) as bar:
        while part := list(islice(_counted(products, bar), size)):
            file = _chunk(work, len(chunks))
            _write_chunk(file, part)
            chunks.append(file)
    return chunks


def _whole_chunks(work: Path) -> list[Path]:
    """The files of the chunks, in order, up to the first that is missing or damaged; what follows is deleted."""
    chunks: list[Path] = []
    while _is_whole(file := _chunk(work, len(chunks))):
        chunks.append(file)
    for left in sorted(work.glob("chunk-*")):
        if left.with_suffix(".npz") not in chunks:
            left.unlink()
    return chunks


def _chunk(work: Path, number: int) -> Path:
    return work / f"chunk-{number:05d}.npz"


def _is_whole(chunk: Path) -> bool:
    """Whether the chunk is as it was written. Its checksum is written last, so without one it is not finished."""
    try:
        checksum = chunk.with_suffix(".sha256").read_bytes()
        if sha256_of(chunk).encode() == checksum:
            return True
    except FileNotFoundError:
        return False
    except OSError as error:
        logger.warning("%s cannot be read (%s)", chunk, error.strerror or error)
    logger.warning("%s is damaged: the products from there on are indexed again", chunk)
    return False


def _counted(products: Iterator[Product], bar: tqdm) -> Iterator[Product]:
    for product in products:
        bar.update()
        yield product


def _write_chunk(file: Path, products: list[Product]) -> None:
    postings, packed = Postings(), []
    for product in products:
        postings.add(document(product))
        packed.append(pack_product(product))
    terms, counts, documents, frequencies = postings.arrays()
    part = file.with_name(file.name + ".part")
    with part.open("wb") as out:
        np.savez(
            out,
            terms=np.frombuffer(b"".join(terms), np.uint8),
            term_ends=np.cumsum([len(term) for term in terms], dtype=np.int64),
            counts=counts,
            documents=documents,
            frequencies=frequencies,
            lengths=np.array(postings.lengths, np.int32),
            asins=encode_asins([product.asin for product in products]),
            products=np.frombuffer(b"".join(packed), np.uint8),
            product_ends=np.cumsum([len(data) for data in packed], dtype=np.int64),
        )
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, file)
    write_whole(file.with_suffix(".sha256"), sha256_of(file).encode())


def _read(file: Path, *names: str) -> list[np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as content:
            return [content[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ShopFileError(str(file), f"is damaged ({error}); build again, which makes it anew") from None


def _terms(file: Path) -> list[bytes]:
    data, ends = _read(file, "terms", "term_ends")
    text, starts = data.tobytes(), [0, *ends.tolist()]
    return [text[start:end] for start, end in pairwise(starts)]


def _merge(chunks: list[Path], out: Path, progress: bool) -> None:
    """One index and one file of products from all chunks. Memory: the terms, and one chunk at a time."""
    everything: set[bytes] = set()
    for file in chunks:
        everything.update(_terms(file))
    terms = sorted(everything)
    numbers = {term: number for number, term in enumerate(terms)}
    del everything
    of_chunk = [np.array([numbers[term] for term in _terms(file)], np.int64) for file in chunks]
    counts = np.zeros(len(terms), np.int64)
    for file, known in zip(chunks, of_chunk, strict=True):
        counts[known] += _read(file, "counts")[0]
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    documents = new_array(out, "index_documents", np.int32, int(starts[-1]))
    frequencies = new_array(out, "index_frequencies", np.uint16, int(starts[-1]))
    free = starts[:-1].copy()  # where the next posting of each term goes
    lengths, asins, sizes = [], [], []
    first = 0
    data_file = new_array(out, "products", np.uint8, sum(int(_read(file, "product_ends")[0][-1]) for file in chunks))
    written = 0
    for file, known in zip(tqdm(chunks, "Merging", unit="chunk", disable=not progress), of_chunk, strict=True):
        own, found, often = _read(file, "counts", "documents", "frequencies")
        own_starts = np.concatenate([[0], np.cumsum(own)[:-1]]) if len(own) else own
        places = np.repeat(free[known] - own_starts, own) + np.arange(len(found))
        documents[places] = found + np.int32(first)
        frequencies[places] = often
        free[known] += own
        names, length, data, ends = _read(file, "asins", "lengths", "products", "product_ends")
        data_file[written : written + len(data)] = data
        sizes.append(np.diff(ends, prepend=0))
        lengths.append(length)
        asins.append(names)
        first += len(length)
        written += len(data)
    every_asin = np.concatenate(asins) if asins else np.zeros(0, "S1")
    every_length = np.concatenate(lengths).astype(np.int64) if lengths else np.zeros(0, np.int64)
    order = np.argsort(every_asin, kind="stable")
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    index = {
        "term_bytes": np.frombuffer(b"".join(terms), np.uint8),
        "term_ends": np.cumsum([len(term) for term in terms], dtype=np.int64),
        "starts": starts,
        "lengths": pack_lengths(every_length),
        "ranks": ranks,
        "total": np.array([np.count_nonzero(every_length), every_length.sum()], np.int64),
    }
    for name, array in index.items():
        save_array(out, f"index_{name}", array)
    save_array(out, "product_ends", np.cumsum(np.concatenate(sizes)) if sizes else np.zeros(0, np.int64))
    save_array(out, "asins", every_asin[order])
    save_array(out, "asin_positions", order.astype(np.int32))


def _draw(out: Path, seed: int, progress: bool) -> None:
    """Prices and goals, drawn exactly as `build_catalogue` draws them."""
    products = PackedProducts(map_array(out, "products"), map_array(out, "product_ends"), str(out / "products.npy"))
    total = len(products)
    generator = random.Random(seed)
    prices = draw_prices(tqdm(products, "Prices", total, unit="product", disable=not progress), generator)
    save_array(out, "prices", prices)
    state = generator.getstate()
    with_human: list[int] = []

    def remembering() -> Iterator[tuple[int, Product]]:
        bar = tqdm(products, "Goals", total, unit="product", disable=not progress)
        for position, product in enumerate(bar):
            if product.human:
                with_human.append(position)
            yield position, product

    _save_goals(out, "synthetic", Goals.draw(products, prices, generator, candidates=remembering()))
    generator.setstate(state)
    asked = ((position, products[position]) for position in with_human)
    _save_goals(out, "human", Goals.draw(products, prices, generator, human=True, candidates=asked))


def _save_goals(out: Path, kind: str, goals: Goals) -> None:
    for name in GOALS:
        save_array(out, f"goals_{kind}_{name}", getattr(goals, name))
