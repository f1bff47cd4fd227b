"""The tiny policy of the generated shop: its words, and the noisy play it is warm-started on (see `make.py`)."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from progpo_trl.environments.webshop import assortment
from progpo_trl.environments.webshop.shopper import noisy_play
from progpo_trl.environments.webshop.tasks import GeneratedWebshopTasks
from progpo_trl.tiny_policy.tokenizer import assemble
from progpo_trl.tiny_policy.warm_start import Phase, TraceEncoder, prompt

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

# Other shops than the default one, so that the policy is not warm-started on what it is trained on later.
SHOP_SEEDS = range(1, 21)
PRODUCTS = 400
MAX_STEPS = 10

# name -> (where it starts from, how it is trained), as in `make.STAGES`; p_expert is how careful the shopper is,
# p_wrong the share of refused commands and of random ones.
STAGES: dict[str, tuple[str | None, Phase]] = {
    "shop-expert": (None, Phase(0.95, 0.02, 1500, 16, 5e-3, 0.5, ("tiny",))),
    "base-shop": ("shop-expert", Phase(0.45, 0.02, 100, 16, 1e-3, 0.5, ("tiny",))),
}


def shops() -> list[GeneratedWebshopTasks]:
    """The shops of the warm start."""
    return [GeneratedWebshopTasks(PRODUCTS, level="tiny", shop_seed=s, max_steps=MAX_STEPS) for s in SHOP_SEEDS]


def words() -> list[str]:
    """The words a title or an option can have, and the ids of the products."""
    nouns = [noun for nouns in assortment.TINY_KINDS.values() for noun in nouns]
    ids = [f"p{number}" for number in range(PRODUCTS)]
    return [*assortment.TINY_TRAITS, *nouns, *assortment.TINY_COLORS, *ids]


def corpus(tasks: list[GeneratedWebshopTasks], seed: int, episodes: int) -> Iterator[str]:
    """Texts for the tokenizer: prompts and commands of half-careful, noisy play."""
    rng = random.Random(f"shop-corpus/{seed}")
    for _ in range(episodes):
        shop = rng.choice(tasks)
        play = noisy_play(shop.make(), rng.choice(shop.task_ids()), 0.5, rng, 0.3, 0.1)
        # The page after a purchase is never part of a prompt.
        yield from map(prompt, play.observations[: len(play.commands)])
        yield from play.commands


def build_shop_tokenizer(texts: Iterable[str], n_merges: int = 48, min_count: int = 20) -> Qwen2Tokenizer:
    """The tokenizer: the words of the shop, with and without a space before them, and the phrases seen `min_count`
    times between two of them are one token each. The space before the first word of a title or list belongs to the
    phrase before it, so that a word reads the same on a page, in the instruction and in an action."""
    names = "|".join(sorted(words(), key=lambda word: (-len(word), word)))
    run = re.compile(rf"((?<![a-z\d])(?:{names})(?: (?:{names}))*(?![a-z\d])|(?<=dollars))")
    phrases: Counter[str] = Counter()
    for text in texts:
        phrases.update(part for part in run.split(text)[::2] if part)
    plain = [word for word in words() if not re.fullmatch(r"p\d+", word)]
    added = [*words(), *(f" {word}" for word in plain)]
    added += [
        phrase
        for phrase in sorted(phrases, key=lambda phrase: (-phrases[phrase], phrase))
        if phrases[phrase] >= min_count and not re.fullmatch(r" ?[A-Za-z]+|\W+", phrase)
    ]
    rest = [phrase for phrase in sorted(phrases) if phrase not in added for _ in range(phrases[phrase])]
    return assemble(rest, added, n_merges)


def traces(
    tasks: list[GeneratedWebshopTasks], phase: Phase, encoder: TraceEncoder, seed: str
) -> Iterator[tuple[list[int], list[int]]]:
    """Endless encoded episodes of `phase`."""
    rng = random.Random(f"traces/{seed}")
    while True:
        shop = rng.choice(tasks)
        play = noisy_play(shop.make(), rng.choice(shop.task_ids()), phase.p_expert, rng, phase.p_wrong, phase.p_wrong)
        yield encoder(play.observations, play.commands, play.refused)
