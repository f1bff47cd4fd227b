"""A large catalogue as a folder of memory-mapped arrays: built once, opened in a moment, shared by all processes.

    progpo webshop index --data DIR --out STORE

`build_store` writes the folder (in steps that a killed build resumes from, see `store_build.py`), `open_store` checks
it and gives a `Catalogue` that behaves as one in memory. The folder holds manifest.json, which names every other file
with its size and checksum and says what the store was made of. A folder that is damaged, half-written, of another
format or made of other files is refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.files import SIZES, ShopFiles, find_files, read_products
from progpo_trl.environments.webshop.generate import LEVELS, generate_records
from progpo_trl.environments.webshop.products import Product, parse_product
from progpo_trl.environments.webshop.store_parts import HOW_TO_BUILD, sha256_of, write_whole
from progpo_trl.environments.webshop.stored_catalogue import StoredCatalogue

FORMAT = "progpo_trl webshop store"
VERSION = 2  # also of the search: another analyzer or another arithmetic needs another number
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class StoreSource:
    """What a store is made of.

    products: makes an iterator over the products from a position on, always the same ones; count: how many there are,
    for the progress bar, None if that is not known; files: the files they are read from; settings: whatever else
    decides what the products are, as JSON values; skipped: how many records were left out, by reason, once an
    iterator came to its end.
    """

    products: Callable[[int], Iterator[Product]]
    count: int | None = None
    files: tuple[Path, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """What the products are, as JSON: the settings and the files with size, time of change and checksum."""
        files = []
        for path in self.files:
            stat = path.stat()
            entry = {"name": path.name, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
            files.append({**entry, "sha256": sha256_of(path)})
        return {"settings": json.loads(json.dumps(dict(self.settings))), "files": files}


def generated_source(products: int, seed: int = 0, level: str = "full") -> StoreSource:
    """The source of a generated catalogue. ValueError as in `generate_records`."""

    def from_position(start: int) -> Iterator[Product]:
        for made in generate_records(products, seed, level, start):
            yield parse_product(made.item, made.instruction, made.nouns)

    generate_records(products, seed, level)  # its errors come here, before anything is built
    settings = {"generated": {"products": products, "seed": seed, "level": level}}
    return StoreSource(from_position, products, settings=settings)


def files_source(files: ShopFiles, on_error: str = "raise") -> StoreSource:
    """The source of a catalogue from official files; on_error as in `read_products`."""
    skipped: Counter[str] = Counter()

    def from_position(start: int) -> Iterator[Product]:
        skipped.clear()
        return islice(read_products(files, on_error=on_error, skipped=skipped), start, None)

    paths = (files.items, files.attributes, files.nouns, *([files.human] if files.human else []))
    return StoreSource(from_position, files=paths, settings={"on_error": on_error}, skipped=skipped)


def build_store(
    source: StoreSource, path: str | Path, *, seed: int = 0, progress: bool = False, chunk: int = 20_000
) -> Path:
    """Build a store at `path` and return the path; a build that was killed goes on where it stopped.

    seed: draws the prices of price ranges and the goals' price limits, as in `build_catalogue`; progress: show bars;
    chunk: products between two points to resume from. A store of the same source and seed that is there already is
    kept. Raises ShopFileError when something else is in the way, or another process is building there.
    """
    from progpo_trl.environments.webshop.store_build import build

    return build(source, Path(path), seed=seed, progress=progress, chunk=chunk)


def open_store(
    path: str | Path,
    source: StoreSource | None = None,
    *,
    seed: int | None = None,
    human_goals: bool = False,
    verify: bool = False,
) -> StoredCatalogue:
    """The catalogue in the store at `path`, memory-mapped.

    source, seed: what it must have been made of, None to take what is there; human_goals: goals from human
    instructions instead of synthetic ones; verify: read every file and compare its checksum (sizes and the manifest
    are always checked). Raises ShopFileError, with how to rebuild, for anything that is not a whole store of that.
    """
    folder = Path(path).absolute()
    manifest = read_manifest(folder)
    check_files(folder, manifest, verify=verify)
    if source is not None:
        check_source(folder, manifest, source)
    if seed is not None and seed != manifest["seed"]:
        raise _refused(folder, f"was built with seed {manifest['seed']}, not {seed}")
    origin = (_reopen, (str(folder), human_goals))
    return StoredCatalogue(folder, manifest, human_goals=human_goals, origin=origin)


def open_files_store(
    path: str, files: ShopFiles, seed: int = 0, human_goals: bool = False, on_error: str = "raise"
) -> StoredCatalogue:
    """The catalogue of official files in the store at `path`; refused when it was built from others."""
    return open_store(path, files_source(files, on_error), seed=seed, human_goals=human_goals)


def _reopen(folder: str, human_goals: bool) -> StoredCatalogue:
    return open_store(folder, human_goals=human_goals)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a store. ShopFileError when there is none, or it is damaged or of another version."""
    if not folder.exists():
        raise _refused(folder, "does not exist")
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        body = content["store"]
        if content["format"] != FORMAT or not isinstance(body, dict):
            raise KeyError("format")
    except FileNotFoundError:
        raise _refused(folder, f"has no {MANIFEST}, so it is no store, or only part of one") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise _refused(folder, f"has a {MANIFEST} that is damaged or not of a store") from None
    if content.get("version") != VERSION:
        raise _refused(folder, f"is of format {content.get('version')}, and this version reads format {VERSION}")
    if content.get("sha256") != _checksum(body):
        raise _refused(folder, f"has a {MANIFEST} that was changed after it was written")
    return body


def write_manifest(folder: Path, body: Mapping[str, Any]) -> None:
    """Write the manifest; the last thing a build does in the folder."""
    content = {"format": FORMAT, "version": VERSION, "sha256": _checksum(body), "store": body}
    write_whole(folder / MANIFEST, json.dumps(content, indent=1).encode())


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def check_files(folder: Path, manifest: Mapping[str, Any], *, verify: bool, progress: bool = False) -> None:
    """ShopFileError unless every file of the manifest is there in full; with `verify`, unchanged too."""
    for name, entry in tqdm(manifest["files"].items(), "Checking the store", unit="file", disable=not progress):
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            problem = "is missing" if size is None else f"has {size} bytes instead of {entry['bytes']}"
            raise _refused(folder, f"is not whole: {name} {problem}")
        if verify and sha256_of(path) != entry["sha256"]:
            raise _refused(folder, f"is damaged: {name} is not as it was written")


def check_source(folder: Path, manifest: Mapping[str, Any], source: StoreSource) -> None:
    """ShopFileError unless the store was made of `source`; it may have been made of more files, such as human goals.

    A file of the same size and time of change is taken for the same; one with another time is compared by checksum.
    """
    made_of = manifest["source"]
    settings = json.loads(json.dumps(dict(source.settings)))
    if made_of["settings"] != settings:
        raise _refused(folder, f"was built with other settings: {made_of['settings']}, wanted {settings}")
    known = {entry["name"]: entry for entry in made_of["files"]}
    for path in source.files:
        if path.name not in known:
            raise _refused(folder, f"was built without {path.name}, from {', '.join(known) or 'no files'}")
        entry = known[path.name]
        stat = path.stat()
        same = stat.st_size == entry["bytes"]
        if same and stat.st_mtime_ns != entry["mtime_ns"]:
            same = sha256_of(path) == entry["sha256"]
        if not same:
            raise _refused(folder, f"was built from another {path.name} than {path}")


def _refused(folder: Path, problem: str) -> ShopFileError:
    return ShopFileError(str(folder), f"{problem}. {HOW_TO_BUILD}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `progpo webshop index`."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--data", metavar="DIR", help="folder of the official files (default: $WEBSHOP_DATA)")
    what.add_argument("--generated", type=int, metavar="N", help="a generated shop of N products instead")
    out = "the folder to build; where it is this very store already, it is kept"
    parser.add_argument("--out", metavar="STORE", required=True, help=out)
    # Without defaults here, so that an option that does not apply is seen and refused.
    parser.add_argument("--size", choices=SIZES, help="which set of the official files (default: what is there)")
    damaged = "at a damaged record of the official files: stop, or leave it out (default: raise)"
    parser.add_argument("--on-error", choices=("raise", "skip"), help=damaged)
    parser.add_argument("--level", choices=tuple(LEVELS), help="of the generated shop (default: full)")
    parser.add_argument("--seed", type=int, default=0, help="of prices, goals and the generated shop (default: 0)")
    parser.add_argument("--verify", action="store_true", help="read the store once more and compare all checksums")


def run(arguments: argparse.Namespace) -> int:
    """Build the store, or finish it, or find it whole.

    The exit status is 0, 2 when that cannot be done, 130 when Ctrl-C stopped it.
    """
    from progpo_trl.environments.webshop.tasks import find_data

    try:
        _refuse_what_does_not_apply(arguments)
        out = Path(os.path.expandvars(os.path.expanduser(arguments.out))).absolute()
        if arguments.generated is not None:
            source = generated_source(arguments.generated, arguments.seed, arguments.level or "full")
        else:
            folder = find_data(arguments.data)
            files = find_files(folder, size=arguments.size)
            with suppress(ShopFileError):  # without human instructions the store has the synthetic goals alone
                files = find_files(folder, size=arguments.size, human=True)
            source = files_source(files, arguments.on_error or "raise")
        build_store(source, out, seed=arguments.seed, progress=True)
        manifest = read_manifest(out)
        check_files(out, manifest, verify=arguments.verify, progress=True)
        catalogue = open_store(out)
    except (OSError, ValueError) as error:
        print(f"progpo webshop index: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nprogpo webshop index: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    left_out = "".join(f", {count} left out ({reason})" for reason, count in manifest["skipped"].items())
    print(f"{out}: {len(catalogue)} products{left_out}, {len(catalogue.goals)} goals, {size / 1e6:.0f} MB")
    return 0


def _refuse_what_does_not_apply(arguments: argparse.Namespace) -> None:
    if arguments.generated is None:
        given = {"--level": arguments.level}
        why = "is of generated shops, and this store is made of the official files; leave it out or give --generated N"
    else:
        given = {"--size": arguments.size, "--on-error": arguments.on_error}
        why = "is of the official files, and --generated needs none; leave one of the two out"
    for option, value in given.items():
        if value is not None:
            raise ValueError(f"{option} {why}")


def main(argv: list[str] | None = None) -> int:
    """`progpo webshop index` as a program of its own."""
    parser = argparse.ArgumentParser(prog="progpo webshop index", description="Build the store of a large catalogue.")
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    raise SystemExit(main())
