"""A small shop of our own making, in the official file format, with the oddities the real files have."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

CHAIRS = "Home \u203a Furniture \u203a Chairs"


def item(asin: str, name: str, **changes: Any) -> dict[str, Any]:
    """A record of items_shuffle.json."""
    record = {
        "asin": asin,
        "name": name,
        "full_description": f"About the {name}.",
        "small_description": ["Easy clean. ", "Made of solid wood"],
        "pricing": "$25.50",
        "customization_options": "",
        "query": " Chairs ",
        "category": "garden",
        "product_category": CHAIRS,
        "images": [""],
    }
    return record | changes


def choices(*values: str) -> list[dict[str, Any]]:
    return [{"value": value, "is_selected": False} for value in values]


ITEMS = [
    item(
        "C000000001",
        "Oak Chair",
        customization_options={
            "Color": choices("Red", "navy/white ", "light green"),
            "Size": choices("large", "x-large"),
        },
    ),
    item("C000000002", "Pine Chair", pricing="$10.00 to $20.00", small_description=" \n ", full_description=" "),
    item("C000000003", "Birch <Bench> & 'Stool'", pricing="", query="benches", product_category="Home"),
    item(
        "L000000004",
        "Desk Lamp",
        query="lamps",
        category="electronics",
        product_category="Electronics \u203a Lamps",
        pricing="$985.00",
        customization_options={"Shade": choices("black"), "Gone": None},
    ),
    # The same values under two names: in the original the last one takes the click.
    item("C000000005", "Folding Chair", customization_options={"Seat": choices("6", "8"), "Back": choices("6", "8")}),
    item("nan", "Left Out"),
    item("C000000001", "Oak Chair Again"),
    item("TOOLONGANID", "Left Out Too"),
]
ATTRIBUTES = {
    "C000000001": {
        "attributes": ["solid wood", "easy clean"],
        "instruction": "Find me a sturdy chair with solid wood",
        "instruction_attributes": ["solid wood", "easy clean"],
    },
    "C000000002": {"attributes": ["pine"], "instruction": "Find me pine chairs", "instruction_attributes": ["pine"]},
    "C000000003": {"attributes": []},
    "L000000004": {
        "attributes": ["long lasting"],
        "instruction": "Find me lamps that are long lasting",
        "instruction_attributes": ["long lasting"],
    },
    "C000000005": {
        "attributes": ["space saving"],
        "instruction": "Find me folding chairs",
        "instruction_attributes": ["space saving"],
    },
}
NOUNS = {
    "C000000001": ["oak", "chair"],
    "C000000002": ["pine", "chair"],
    "C000000003": ["bench", "stool"],
    "L000000004": ["desk", "lamp"],
    "C000000005": [],
}


def request(instruction: str, attributes: list[str], options: list[str]) -> dict[str, Any]:
    """An entry of items_human_ins.json."""
    return {"instruction": instruction, "instruction_attributes": attributes, "instruction_options": options}


HUMAN = {
    "C000000001": [
        request("i want a red oak chair.", ["solid wood"], ["red"]),
        request("asks for nothing", [], []),
        request("a large one", ["easy clean"], ["large", "blue"]),
    ]
}


def write_shop(folder: Path, *, suffix: str = "_1000", packed: bool = False, **contents: Any) -> Path:
    """Write the shop's files; contents: items, attributes, nouns, human to write others, None to leave a file out."""
    files = {
        "items": (f"items_shuffle{suffix}", ITEMS),
        "attributes": (f"items_ins_v2{suffix}", ATTRIBUTES),
        "nouns": (f"title_nouns{suffix}", NOUNS),
        "human": ("items_human_ins", HUMAN),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for kind, (name, own) in files.items():
        content = contents.get(kind, own)
        if content is not None:
            text = json.dumps(content).encode()
            (folder / f"{name}.json{'.gz' if packed else ''}").write_bytes(gzip.compress(text) if packed else text)
    return folder
