"""Prints the peak memory of one pass of the update; the formula is `progpo_trl.memory`.

python benchmarks/update_peak.py 4 2048 512 --hidden 256 --layers 4      float32 on a CPU, whole rows
"""

from __future__ import annotations

import argparse

from progpo_trl.memory import (
    AUTOCAST,
    BFLOAT16,
    FLOAT32,
    GB,
    QWEN,
    TILE_TOKENS,
    TILE_VOCABULARY,
    TILES_TORCH,
    TILES_TRITON,
    Dims,
    Precision,
    layer_bytes,
    update_peak,
)

__all__ = [
    "AUTOCAST",
    "BFLOAT16",
    "FLOAT32",
    "GB",
    "QWEN",
    "TILES_TORCH",
    "TILES_TRITON",
    "TILE_TOKENS",
    "TILE_VOCABULARY",
    "Dims",
    "Precision",
    "layer_bytes",
    "update_peak",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="?", default=4)
    parser.add_argument("prompt", type=int, nargs="?", default=2048)
    parser.add_argument("response", type=int, nargs="?", default=512)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    o = parser.parse_args()
    dims = Dims(o.hidden, o.layers, 4 * o.hidden, 4, 2, QWEN["1.5B"].vocabulary, True)
    length, scored = o.prompt + o.response, o.rows * o.response
    for moment, value in update_peak(dims, o.rows, length, scored, checkpointing=o.gradient_checkpointing).items():
        print(f"{moment:10s} {value / GB:8.3f} GB")


if __name__ == "__main__":
    main()
