"""How a store keeps its pieces: product records as bytes, arrays as .npy, files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tokenize
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.products import HumanInstruction, Product

GOALS = ("positions", "choices", "price_uppers")  # a store's columns of goals
HOW_TO_BUILD = "Build a store in another folder: progpo webshop index (--data DIR or --generated N) --out FOLDER"
_KEPT = 4096  # parsed products kept; about 5 KB each
_CHECK = 4  # bytes of a record's checksum, which stands before it
# What numpy raises for a damaged header, which it parses as code.
_NO_ARRAY = (OSError, ValueError, EOFError, SyntaxError, TypeError, OverflowError, MemoryError, tokenize.TokenError)
_ENCODING = ("utf-8", "surrogatepass")  # the files may hold half a surrogate pair, which plain UTF-8 refuses


def pack_product(product: Product) -> bytes:
    """A product as a JSON list of its fields, after the checksum of that."""
    fields = [getattr(product, name) for name in Product.__slots__]
    data = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(*_ENCODING)
    return zlib.crc32(data).to_bytes(_CHECK) + data


def unpack_product(data: bytes) -> Product:
    """The product that `pack_product` was given. ValueError when the bytes are not as it made them."""
    check, data = data[:_CHECK], data[_CHECK:]
    if check != zlib.crc32(data).to_bytes(_CHECK):
        raise ValueError("is damaged: its checksum does not fit")
    fields = dict(zip(Product.__slots__, json.loads(data.decode(*_ENCODING)), strict=True))
    for name in ("bullets", "prices", "attributes", "nouns", "instruction_attributes"):
        fields[name] = tuple(fields[name])
    fields["options"] = {name: tuple(values) for name, values in fields["options"].items()}
    human = fields["human"]
    fields["human"] = tuple(HumanInstruction(text, tuple(wanted), tuple(values)) for text, wanted, values in human)
    return Product(**fields)


def encode_asins(asins: Sequence[str]) -> np.ndarray:
    """(n,) bytes, in an order that sorts as the texts do."""
    return np.array([asin.encode(*_ENCODING) for asin in asins], np.bytes_)


class PackedProducts(Sequence[Product]):
    """Products kept as bytes and parsed when asked for; the recent ones stay parsed.

    data: (bytes,) uint8; ends: (n,) int64, where each record ends; source: the file they are in, which the
    ShopFileError for a record that cannot be read names.
    """

    def __init__(self, data: np.ndarray, ends: np.ndarray, source: str = "packed products"):
        self._data, self._ends, self._source = data, ends, source
        self._kept = lru_cache(_KEPT)(self._parse)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, position: int) -> Product:
        if not 0 <= position < len(self._ends):
            raise IndexError(f"no product at {position}, there are {len(self._ends)}")
        return self._kept(int(position))

    def __iter__(self) -> Iterator[Product]:
        return map(self._parse, range(len(self)))

    def __reduce__(self):
        return PackedProducts, (self._data, self._ends, self._source)  # without what it keeps

    def _parse(self, position: int) -> Product:
        start = int(self._ends[position - 1]) if position else 0
        try:
            return unpack_product(self._data[start : int(self._ends[position])].tobytes())
        except ValueError as error:
            raise ShopFileError(f"{self._source}, record {position + 1}", f"{error}. {HOW_TO_BUILD}") from None


def save_array(folder: Path, name: str, array: np.ndarray) -> None:
    """Write `<name>.npy`."""
    np.save(folder / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)


def map_array(folder: Path, name: str) -> np.ndarray:
    """`<name>.npy`, memory-mapped read-only. ShopFileError when it is no such file."""
    path = folder / f"{name}.npy"
    try:
        # asarray: plain arrays are sliced faster than np.memmap, and stay mapped.
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except _NO_ARRAY as error:
        reason = " ".join(str(error).split())[:200]
        raise ShopFileError(str(path), f"cannot be mapped: {reason}. {HOW_TO_BUILD}") from None


def new_array(folder: Path, name: str, kind: Any, length: int) -> np.ndarray:
    """An array of `length` in `<name>.npy`, memory-mapped for writing; larger than memory if need be."""
    if length == 0:  # nothing can be mapped
        save_array(folder, name, np.zeros(0, kind))
        return np.zeros(0, kind)
    return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=(length,))


def sha256_of(path: Path) -> str:
    """Checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it appears with all its content."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
