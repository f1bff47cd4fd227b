"""Reads the official product files of WebShop, plain or .gz.

Whatever is wrong with a file, only ShopFileError leaves this module, and it names the file and the record or line.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.products import Product, is_listed, parse_product

logger = logging.getLogger(__name__)

SIZES = ("1000", "all")
# kind -> stem of its file; the set of 1,000 products adds "_1000".
_STEMS = {"items": "items_shuffle", "attributes": "items_ins_v2", "nouns": "title_nouns", "human": "items_human_ins"}
_PIECE = 1 << 20
_LONGEST_RECORD = 1 << 24  # characters; the official ones stay below 200,000
_SPACE = re.compile(r"[ \t\n\r]*")
_NAMED = 5  # damaged records named in the log; the rest is counted


@dataclass(frozen=True, slots=True)
class ShopFiles:
    """The files of a shop: products, attributes and instructions, title nouns and, for human goals, requests."""

    items: Path
    attributes: Path
    nouns: Path
    human: Path | None = None


def find_files(folder: str | Path, *, size: str | None = None, human: bool = False) -> ShopFiles:
    """The files of the set of 1,000 products (size "1000") or of the full one ("all") in `folder`.

    size None takes the set that is there, the small one if both are; human: with human instructions. Attributes, title
    nouns and human instructions of the full set serve the small one as well. ShopFileError names what is missing.
    """
    folder = Path(folder)
    if size not in (None, *SIZES):
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    if not folder.is_dir():
        raise ShopFileError(str(folder), "there is no such folder")
    sizes = SIZES if size is None else (size,)
    for small in (name == "1000" for name in sizes):
        items = _find(folder, "items", ("_1000",) if small else ("",))
        if items is not None:
            break
    else:
        expected = " or ".join(f"items_shuffle{'_1000' if name == '1000' else ''}.json[.gz]" for name in sizes)
        raise ShopFileError(str(folder), f"has no product file ({expected})")
    suffixes = ("_1000", "") if small else ("",)
    found = {kind: _find(folder, kind, suffixes) for kind in ("attributes", "nouns", *(["human"] if human else []))}
    for kind, path in found.items():
        if path is None:
            raise ShopFileError(str(folder), _MISSING[kind].format(suffix=suffixes[0], folder=folder))
    return ShopFiles(items, **found)


_MISSING = {
    "attributes": "has no attributes and instructions (items_ins_v2{suffix}.json[.gz])",
    "human": "has no human instructions (items_human_ins.json[.gz])",
    "nouns": "has no title nouns (title_nouns{suffix}.json[.gz]), which the reward compares; make the file once with: "
    "python -m progpo_trl.environments.webshop.title_nouns --data {folder}",
}


def read_products(
    files: ShopFiles, *, on_error: str = "raise", skipped: Counter[str] | None = None
) -> Iterator[Product]:
    """The products of a shop, in the order of the file, read one by one.

    Left out, and counted in `skipped` by reason: what the original leaves out (ids that are "nan" or too long or come
    again) and, with on_error "skip", damaged records. ShopFileError for a file that cannot be read, for a damaged
    record unless it is skipped, and for a shop without products.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
    skipped = Counter() if skipped is None else skipped
    attributes, nouns = read_mapping(files.attributes), read_mapping(files.nouns)
    human = read_mapping(files.human) if files.human else {}
    seen: set[str] = set()
    for number, record in read_records(files.items):
        source = f"{files.items}, record {number}"
        asin = record.get("asin") if isinstance(record, dict) else None
        if isinstance(asin, str) and (asin in seen or not is_listed(asin)):
            skipped["repeated id" if asin in seen else "no valid id"] += 1
            continue
        try:
            product = _product(record, asin, attributes, nouns, human, files)
        except ValueError as error:
            if on_error == "raise":
                raise ShopFileError(source, str(error)) from None
            skipped["damaged record"] += 1
            if skipped["damaged record"] <= _NAMED:
                logger.warning("skipping a damaged product: %s: %s", source, error)
            continue
        seen.add(product.asin)
        yield product
    if skipped["damaged record"] > _NAMED:
        logger.warning("%d damaged products skipped in %s", skipped["damaged record"], files.items)
    if not seen:
        raise ShopFileError(str(files.items), "holds no product")


def _product(record: Any, asin: Any, attributes: dict, nouns: dict, human: dict, files: ShopFiles) -> Product:
    if not isinstance(record, dict):
        raise ValueError("is not an object")
    if not isinstance(asin, str):
        raise ValueError("has no 'asin'" if asin is None else "'asin' is not text")
    if asin not in nouns:
        raise ValueError(f"{files.nouns.name} has no title nouns for {asin!r}; was it made for other products?")
    requests = human.get(asin, [])
    if not isinstance(requests, list):
        raise ValueError(f"its entry in {files.human.name} is not a list")
    return parse_product(record, attributes.get(asin), nouns[asin], requests)


def read_records(path: Path) -> Iterator[tuple[int, Any]]:
    """(number from 1, record) for each record of a file that holds a JSON list, read piece by piece."""
    decode = json.JSONDecoder().raw_decode
    number, text, at, more = 0, "", 0, True
    with open_text(path) as file:

        def skip_space() -> str:
            """The next character that counts, "" at the end of the file."""
            nonlocal text, at, more
            while True:
                at = _SPACE.match(text, at).end()
                if at < len(text) or not more:
                    return text[at : at + 1]
                read_on()

        def read_on() -> None:
            nonlocal text, at, more
            piece = _read(file, path, f"after record {number}")
            text, at, more = text[at:] + piece, 0, bool(piece)

        if skip_space() != "[":
            raise ShopFileError(str(path), "is not a JSON list of products")
        at += 1
        while (character := skip_space()) != "]":
            if number:
                if character != ",":
                    raise ShopFileError(str(path), f"is cut or damaged after record {number}")
                at += 1
                skip_space()
            while True:
                try:
                    record, end = decode(text, at)
                    break
                except (ValueError, RecursionError) as error:
                    # It may only be cut by the end of the piece; a damaged one must not pull in the whole file.
                    if isinstance(error, ValueError) and more and len(text) - at < _LONGEST_RECORD:
                        read_on()
                        continue
                    raise ShopFileError(f"{path}, record {number + 1}", f"is not JSON: {_reason(error)}") from None
            number, at = number + 1, end
            yield number, record
        at += 1
        if skip_space():
            raise ShopFileError(str(path), f"goes on after its list of {number} records")


def read_mapping(path: Path) -> dict[str, Any]:
    """The JSON object a file holds."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise ShopFileError(str(path), "is JSON, but not an object")
    return content


def read_json(path: Path) -> Any:
    """What a JSON file holds. ShopFileError when it cannot be read."""
    with open_text(path) as file:
        text = _read(file, path, "", whole=True)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShopFileError(str(path), f"is not JSON: {_reason(error)}") from None


def open_text(path: Path) -> IO[str]:
    """The file opened for reading, unpacked if its name ends in .gz."""
    try:
        return (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8")
    except OSError as error:
        raise ShopFileError(str(path), f"cannot be read: {_reason(error)}") from None


def _read(file: IO[str], path: Path, where: str, *, whole: bool = False) -> str:
    try:
        return file.read(-1 if whole else _PIECE)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ShopFileError(str(path), f"cannot be read{where and ' ' + where}: {_reason(error)}") from None


def _find(folder: Path, kind: str, suffixes: tuple[str, ...]) -> Path | None:
    # The only official file of human instructions has no number; an extract for the small set may have one.
    for suffix in suffixes:
        for ending in (".json", ".json.gz"):
            path = folder / f"{_STEMS[kind]}{suffix}{ending}"
            if path.is_file():
                return path
    return None


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
