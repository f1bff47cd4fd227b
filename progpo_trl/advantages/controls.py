"""Negative controls of ProGPO: what its fallback is worth when the progress score carries no or wrong information.

Source: the ablations of ProGPO (arXiv:2607.22724), known by name; the definitions are our reading.
"""

from __future__ import annotations

import zlib

import numpy as np

from progpo_trl.episodes import StepBatch

CONTROLS = ("none", "shuffle", "random", "neg")


def apply_control(control: str, batch: StepBatch, progress: np.ndarray, seed: int) -> np.ndarray:
    """(n_episodes,) the scores in place of `progress`.

    shuffle: permuted among the kept episodes of each group; random: uniform in [0, 1); neg: the opposite sign.
    Random controls depend on the seed and on the batch, so that every generation draws anew and every process alike.
    """
    if control == "none":
        return progress
    if control == "neg":
        return -progress
    rng = np.random.default_rng([seed, _fingerprint(batch)])
    if control == "random":
        return rng.random(len(progress))
    out = progress.copy()
    kept = np.flatnonzero(~batch.dropped)
    for group in np.unique(batch.episode_group[kept]):
        members = kept[batch.episode_group[kept] == group]
        out[members] = progress[rng.permutation(members)]
    return out


def _fingerprint(batch: StepBatch) -> int:
    """A number that differs between batches and is the same on every process (Python's own hash is not)."""
    words = "\0".join([*batch.action.tolist(), *map(str, batch.final_observation.tolist())])
    return zlib.crc32(words.encode("utf-8", "surrogatepass"))
