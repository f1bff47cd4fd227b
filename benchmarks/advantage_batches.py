"""Batches of made-up episodes for benchmarks/advantages.py and the memory tests: no text of a real environment.

Rooms with furniture and things in sentences of ALFWorld's kind and length, and shop pages of WebShop's length (2 to
4 KB). Everything follows from a seed.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from progpo_trl.episodes import StepBatch

FURNITURE = "shelf drawer cabinet counter basket locker bench stand rack chest table stool sofa hamper".split()
THINGS = (
    "cup book lamp towel plate spoon pencil vase clock candle bottle card bowl knife apple onion bread pillow "
    "kettle statue watch phone box ladle cloth mug"
).split()
WORDS = (
    "soft light women men classic slim cotton long sleeve casual summer travel case cover wireless charger steel "
    "kitchen storage set pack large small black blue green red grey white natural organic vanilla chocolate snack "
    "machine washable outdoor camping waterproof shoes running leather strap watch glass mirror wall art canvas "
    "print modern table wood frame desk chair cushion throw blanket queen size bed sheet hair care oil serum face "
    "cream dry skin sensitive gentle fragrance free vitamin protein bar gluten low sugar coffee tea gift box holiday "
    "party decor birthday candle holder vintage retro style premium quality easy clean durable lightweight portable "
    "foldable adjustable heavy duty high speed cable adapter screen protector tempered compatible tablet keyboard"
).split()


def alfworld_like(groups: int, episodes: int = 8, steps: int = 50, seed: int = 0) -> StepBatch:
    """groups x episodes x steps steps; some ninety distinct observations in a group; half of the groups all-fail.

    Half of the room's places are opened and closed, so that a place has several texts and episodes come back to it.
    """
    rng = random.Random(seed)
    columns = _Columns()
    for group in range(groups):
        room = _room(rng)
        hopeless = rng.random() < 0.45
        for _ in range(episodes):
            success = not hopeless and rng.random() < 0.4
            length = rng.randint(steps // 3, steps) if success else steps
            place = rng.randrange(len(room))
            seen = []
            for _ in range(length + 1):
                if rng.random() < 0.15:
                    seen.append("Nothing happens.")
                    continue
                if rng.random() < 0.7:
                    place = min(int(rng.expovariate(0.1)), len(room) - 1)
                seen.append(rng.choice(room[place]))
            # Failures and successes fill `steps` together, so that the number of steps is groups x episodes x steps.
            while len(seen) < steps + 1:
                seen.append(seen[-1])
            columns.add(group, seen, success, [rng.random() > 0.1 for _ in range(steps)])
    return columns.batch()


def shop_like(groups: int, episodes: int, steps: int, seed: int = 0) -> StepBatch:
    """Pages of 2 to 4 KB; episodes of a group often open the same pages."""
    rng = random.Random(seed)
    columns = _Columns()
    for group in range(groups):
        pages = [shop_page(rng) for _ in range(3 * steps)]
        for _ in range(episodes):
            seen = [pages[min(int(rng.expovariate(0.1)), len(pages) - 1)] for _ in range(steps + 1)]
            columns.add(group, seen, rng.random() < 0.4, [rng.random() > 0.1 for _ in range(steps)])
    return columns.batch()


def all_distinct(steps: int, pages: bool, episodes: int = 8, seed: int = 0) -> StepBatch:
    """ONE group whose steps all see another text: rooms' sentences, or shop pages."""
    rng = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < steps + episodes:
        for text in [shop_page(rng)] if pages else [t for place in _room(rng) for t in place]:
            texts.setdefault(text)
    rest = list(texts)[: steps + episodes]
    rng.shuffle(rest)
    columns = _Columns()
    for i in range(episodes):
        size = steps // episodes + (i < steps % episodes)
        seen, rest = rest[: size + 1], rest[size + 1 :]
        columns.add(0, seen, i % 2 == 0, [True] * size)
    return columns.batch()


def fresh(batch: StepBatch) -> StepBatch:
    """The same batch with new string objects and nothing remembered, as it comes from other processes.

    Python keeps the hash of a string in the string; a second look-up of the same object would be too cheap.
    """

    def copied(column: np.ndarray) -> np.ndarray:
        out = np.empty_like(column)
        out[:] = [text[:1] + text[1:] for text in column]
        return out

    return replace(batch, observation=copied(batch.observation), final_observation=copied(batch.final_observation))


def shop_page(rng: random.Random) -> str:
    """One page of a shop: a request, buttons, and offers."""
    words = " ".join(rng.choices(WORDS, k=16))
    parts = ["Request:", f"Find {words}, below {rng.randint(10, 200)}.00 dollars", "Back", f"Page {rng.randint(1, 5)}"]
    length = rng.randint(2200, 3900)
    size = sum(map(len, parts))
    while size < length:
        price = f"${rng.randint(300, 9999) / 100}"
        offer = [f"X{rng.randrange(16**9):09X}", " ".join(rng.choices(WORDS, k=14)), price]
        parts += offer
        size += sum(map(len, offer)) + 21
    return " [SEP] ".join(parts)


def _room(rng: random.Random) -> list[list[str]]:
    """The texts that each place of a room can show."""
    places = [f"{kind} {i + 1}" for kind in rng.sample(FURNITURE, 9) for i in range(rng.randint(3, 5))]
    room = []
    for place in places:
        things = [f"a {rng.choice(THINGS)} {rng.randint(1, 3)}" for _ in range(rng.randint(4, 8))]
        texts = []
        if rng.random() < 0.5:
            texts.append(f"You arrive at {place}. The {place} is closed.")
            texts.append(f"You open the {place}. The {place} is open. In it, you see {', and '.join(things)}.")
        else:
            texts.append(f"You arrive at {place}. On the {place}, you see {', '.join(things)}.")
        thing = things[0].removeprefix("a ")
        texts.append(f"You pick up the {thing} from the {place}.")
        texts.append(f"You move the {thing} to the {place}. On the {place}, you see {', '.join(things[1:])}.")
        room.append(texts)
    return room


class _Columns:
    """Collects episodes and makes a StepBatch of them."""

    def __init__(self):
        self.observation, self.valid, self.reward, self.sizes = [], [], [], []
        self.group, self.success, self.final = [], [], []

    def add(self, group: int, seen: list[str], success: bool, valid: list[bool]) -> None:
        """An episode from its observations, the last of which comes after the last action."""
        self.group.append(group)
        self.success.append(success)
        self.final.append(seen[-1])
        self.sizes.append(len(seen) - 1)
        self.observation += seen[:-1]
        self.valid += valid
        self.reward += [0.0] * (len(seen) - 2) + [10.0 * success]

    def batch(self) -> StepBatch:
        n, valid = len(self.observation), np.array(self.valid)
        return StepBatch(
            episode=np.repeat(np.arange(len(self.sizes)), self.sizes),
            step=np.concatenate([np.arange(size) for size in self.sizes]),
            observation=_objects(self.observation),
            action=_objects(["go"] * n),
            reward=np.array(self.reward),
            penalty=np.where(valid, 0.0, 0.1),
            format_valid=valid,
            admissible=np.ones(n, bool),
            episode_group=np.array(self.group),
            episode_return=10.0 * np.array(self.success),
            environment_return=10.0 * np.array(self.success),
            success=np.array(self.success),
            dropped=np.zeros(len(self.sizes), bool),
            final_observation=_objects(self.final),
        )


def _objects(values: list[str]) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out
