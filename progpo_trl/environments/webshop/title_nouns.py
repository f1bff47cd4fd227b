"""Makes the file of title nouns, which the reward compares and the official data do not include.

    pip install "progpo_trl[webshop-nouns]" && python -m spacy download en_core_web_sm
    python -m progpo_trl.environments.webshop.title_nouns --data DIR

The original tags both titles with spaCy at every purchase. Here that is done once: for each product the tokens of its
title, as written there, that spaCy's en_core_web_sm takes for nouns or proper nouns, in lower case and with repeats.
Another model, or another version of it, gives other nouns: en_core_web_sm 3.8.0 is what the recordings were made with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.files import SIZES, read_records
from progpo_trl.environments.webshop.products import is_listed

MODEL = "en_core_web_sm"
_NEEDLESS = ("parser", "ner", "lemmatizer", "senter")  # for the tags; a third of the time without them
_BATCH = 256

# Texts in, the nouns of each out, in the same order.
Tagger = Callable[[Iterable[str]], Iterable[list[str]]]


def spacy_tagger(model: str = MODEL) -> Tagger:
    """A tagger of a spaCy model: the name of an installed one, or its folder.

    Raises ImportError that names the extra when spaCy is missing, OSError when the model is, ValueError when the model
    tags no parts of speech.
    """
    try:
        import spacy
    except ImportError:
        raise ImportError('title nouns need spaCy: pip install "progpo_trl[webshop-nouns]"') from None
    try:
        pipeline = spacy.load(model)
    except OSError as error:
        raise OSError(f"{error}\nTo install the model: python -m spacy download {MODEL}") from None
    return tagger_of(pipeline, model)


def tagger_of(pipeline: Any, name: str) -> Tagger:
    """A tagger of a loaded spaCy pipeline; name: for the message of the ValueError for one without tags."""
    if not {"tagger", "morphologizer", "attribute_ruler"} & set(pipeline.pipe_names):
        raise ValueError(f"the model {name} tags no parts of speech; use {MODEL}")
    disabled = [part for part in pipeline.pipe_names if part in _NEEDLESS]

    def nouns(texts: Iterable[str]) -> Iterator[list[str]]:
        for title in pipeline.pipe(texts, disable=disabled, batch_size=_BATCH):
            yield [token.text.lower() for token in title if token.pos_ in ("NOUN", "PROPN")]

    return nouns


def find_items(folder: Path, size: str | None = None) -> Path:
    """The product file in `folder`: of the set of 1,000 ("1000"), the full one ("all"), or what is there (None)."""
    names = [
        f"items_shuffle{'_1000' if small else ''}.json{ending}"
        for small in (True, False)
        if size in (None, "1000" if small else "all")
        for ending in ("", ".gz")
    ]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ShopFileError(str(folder), f"has no product file ({', '.join(names)})")


def read_titles(items: Path) -> Iterator[tuple[str, str]]:
    """(asin, title) of each product that the shop lists. ShopFileError for a damaged file or record."""
    seen: set[str] = set()
    for number, record in read_records(items):
        asin, title = (record.get(name) if isinstance(record, dict) else None for name in ("asin", "name"))
        if not isinstance(asin, str) or not isinstance(title, str):
            raise ShopFileError(f"{items}, record {number}", "has no 'asin' or no 'name' that is text")
        if is_listed(asin) and asin not in seen:
            seen.add(asin)
            yield asin, title


def write_nouns(items: Path, tagger: Tagger, out: Path, *, progress: bool = False) -> int:
    """Write the nouns of all titles in `items` to `out`, a JSON object by asin, and return how many products it has.

    The file appears when it is whole. Memory: the ids, and one batch of titles.
    """
    asins: list[str] = []

    def titles() -> Iterator[str]:
        for asin, title in read_titles(items):
            asins.append(asin)
            yield title

    part = out.with_name(out.name + ".part")
    count = 0
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write("{")
            for nouns in tqdm(tagger(titles()), "Tagging titles", unit="product", disable=not progress):
                # The tagger may have read ahead, but its answers come in the order of the titles.
                file.write(f"{',' if count else ''}\n{json.dumps(asins[count])}: {json.dumps(nouns)}")
                count += 1
            file.write("\n}\n")
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
    return count


def main(argv: list[str] | None = None) -> int:
    """The command line; the exit status is 0, or 2 when the file cannot be made."""
    parser = argparse.ArgumentParser(
        prog="python -m progpo_trl.environments.webshop.title_nouns",
        description="Make title_nouns*.json for a folder of the official files, once.",
    )
    parser.add_argument("--data", metavar="DIR", help="the official files (default: $WEBSHOP_DATA)")
    parser.add_argument("--size", choices=SIZES, help="which set of them (default: what is there)")
    parser.add_argument("--out", metavar="FILE", type=Path, help="where to write (default: beside the products)")
    parser.add_argument("--model", default=MODEL, help="spaCy model (default: %(default)s)")
    arguments = parser.parse_args(argv)
    from progpo_trl.environments.webshop.tasks import find_data

    try:
        items = find_items(find_data(arguments.data), arguments.size)
        out = arguments.out or items.with_name(f"title_nouns{'_1000' if '_1000' in items.name else ''}.json")
        tagger = spacy_tagger(arguments.model)
        count = write_nouns(items, tagger, out, progress=True)
    except (OSError, ImportError, ValueError) as error:
        print(f"title_nouns: {error}", file=sys.stderr)
        return 2
    print(f"{out}: title nouns of {count} products")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
