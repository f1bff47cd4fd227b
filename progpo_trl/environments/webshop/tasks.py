"""WebShop as the trainer's `environment=`: `WebshopTasks` for the official files, `GeneratedWebshopTasks` without."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from tqdm import tqdm

from progpo_trl.environments.base import TaskSet, hash_texts
from progpo_trl.environments.webshop.catalogue import Catalogue, build_catalogue, open_shop
from progpo_trl.environments.webshop.environment import MAX_STEPS, WebshopEnvironment
from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.files import ShopFiles, find_files, read_products
from progpo_trl.environments.webshop.generate import generate_records
from progpo_trl.environments.webshop.products import parse_product
from progpo_trl.environments.webshop.splits import GoalIds, TaskIds, split_goals
from progpo_trl.environments.webshop.store import generated_source, open_files_store, open_store

MODES = ("compat", "strict")


class ShopTasks(TaskSet):
    """The goals of a catalogue as tasks; what the two task sets below share.

    ids: names the goals; max_steps: actions an episode may take (15 in the papers); success_reward: reward of a
    purchase with score 1.0 (10 in the papers); partial: pay the score itself instead; mode: "compat", as the original
    in all, or "strict", which mends its goals that cannot be reached and its wrong options that pass; split_by:
    "goal", as published, or "product" (see `split_goals`).

    The splits are train, dev and test. An episode that was cut off bought nothing: its score is 0.
    """

    prompt_template = "webshop"
    fallback_characters = 20
    unreported: ClassVar[dict[str, float]] = {"score": 0.0, "bought": 0.0}
    eval_split = "dev"

    def __init__(
        self,
        ids: GoalIds,
        *,
        max_steps: int = MAX_STEPS,
        success_reward: float = 10.0,
        partial: bool = False,
        mode: str = "compat",
        split_by: str = "goal",
    ):
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self.ids = ids
        self.max_steps, self.success_reward, self.partial, self.mode = max_steps, success_reward, partial, mode
        self.split_by = split_by
        self.splits = split_goals(ids.catalogue.goals, split_by)
        self.make()  # a wrong number shows now, not when the training starts

    @property
    def catalogue(self) -> Catalogue:
        """The shop that all episodes share."""
        return self.ids.catalogue

    def task_ids(self, split: str = "train") -> Sequence[str]:
        """Ids of a split: train, dev or test, in the order of the goals. KeyError when it has no goals."""
        indices = self.splits.get(split)
        if indices is None or not len(indices):
            available = [name for name, found in self.splits.items() if len(found)]
            raise KeyError(f"no goals of split {split!r}; there are {', '.join(available)}")
        return TaskIds(self.ids, indices)

    def make(self) -> WebshopEnvironment:
        """A new environment; all share the catalogue."""
        return WebshopEnvironment(
            self.ids,
            max_steps=self.max_steps,
            success_reward=self.success_reward,
            partial=self.partial,
            strict=self.mode == "strict",
        )

    def task_type(self, task_id: str) -> str:
        """The category of the target: beauty, electronics, fashion, garden or grocery in the official files."""
        return self.catalogue.product(int(self.catalogue.goals.positions[self.ids.goal(task_id)])).category

    def data_summary(self) -> dict[str, Any]:
        """How many products there are, and goals of which split and category; what was left out, by reason."""
        counts: dict[str, Any] = {"products": len(self.catalogue)}
        for split, indices in self.splits.items():
            targets = Counter(self.catalogue.goals.positions[indices].tolist())
            by_type: Counter[str] = Counter()
            for position, goals in targets.items():
                by_type[self.catalogue.product(position).category] += goals
            counts[split] = {"total": len(indices), **dict(sorted(by_type.items()))}
        return counts | {"skipped": self.catalogue.skipped}

    def data_hash(self, task_ids: Sequence[str]) -> str:
        """Of these goals and, since all of them can be found, of all products with their prices.

        The same for a catalogue in memory and its store. It takes a minute for a million products.
        """
        goals = (self.catalogue.goals[self.ids.goal(task_id)] for task_id in task_ids)
        asked = (
            json.dumps([g.product.asin, g.instruction, g.attributes, g.options, g.price_upper], ensure_ascii=False)
            for g in goals
        )
        return hash_texts(chain(asked, [self._shop_hash]))

    @cached_property
    def _shop_hash(self) -> str:
        shown = tqdm(self.catalogue.products, "Hashing products", disable=None, leave=False, delay=2)
        products = (repr([getattr(p, f.name) for f in fields(p)]) for p in shown)
        return hash_texts(chain(map(repr, self.catalogue.prices.tolist()), products))


class WebshopTasks(ShopTasks):
    """The goals of the official product files.

    data: folder with items_shuffle_1000.json or items_shuffle.json, items_ins_v2_1000.json or items_ins_v2.json,
    title_nouns_1000.json or title_nouns.json and, for human goals, items_human_ins.json, each plain or .gz; None takes
    $WEBSHOP_DATA. size: "1000" or "all", None for what is there (see `find_files`); human_goals: the goals that people
    wrote instead of the synthetic ones; seed: draws the prices of products with a price range and the price limits
    of the goals; on_error: "raise" stops at a damaged record, "skip" leaves it out with a warning (and gives other
    goals than the whole file); store: a memory-mapped catalogue that `progpo webshop index` made of the same files
    and seed, for sets that are too large to be read into every process. The other options are those of `ShopTasks`.

    Ids are like "goal-00017-B07XYZ1234" or "human-00017-B07XYZ1234"; another seed than 0 joins the name, as its
    goals are others ("goal-seed3-00017-..").

    Raises FileNotFoundError when no data is named, ShopFileError when it cannot be used.
    """

    name = "webshop"

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        size: str | int | None = None,
        human_goals: bool = False,
        max_steps: int = MAX_STEPS,
        success_reward: float = 10.0,
        partial: bool = False,
        mode: str = "compat",
        split_by: str = "goal",
        seed: int = 0,
        on_error: str = "raise",
        store: str | Path | None = None,
    ):
        files = find_files(find_data(data), size=None if size is None else str(size), human=human_goals)
        if store is None:
            catalogue = open_shop(load_catalogue, (files, seed, human_goals, on_error))
        else:
            catalogue = open_shop(open_files_store, (_path(store), files, seed, human_goals, on_error))
        if not len(catalogue.goals):
            raise ShopFileError(str(files.human or files.attributes), "asks for none of the products: no goals")
        prefix = ("human" if human_goals else "goal") + (f"-seed{seed}" if seed else "")
        super().__init__(
            GoalIds(catalogue, prefix),
            max_steps=max_steps,
            success_reward=success_reward,
            partial=partial,
            mode=mode,
            split_by=split_by,
        )


class GeneratedWebshopTasks(ShopTasks):
    """The goals of a generated shop: no files, no downloads.

    products: how many; level: of the generator (see `generate`); shop_seed: other shops of the same kind; store: a
    memory-mapped catalogue that `progpo webshop index --generated` made of the same three. The other options are
    those of `ShopTasks`.

    Ids name the shop, so that one id never means two goals: "full-1000-0-00017-G000000004" is goal 17 of the shop of
    level full with 1,000 products and seed 0. The prompt of the level tiny is the tiny policy's.
    """

    name = "webshop_generated"

    def __init__(
        self,
        products: int = 1_000,
        *,
        level: str = "full",
        shop_seed: int = 0,
        max_steps: int = MAX_STEPS,
        success_reward: float = 10.0,
        partial: bool = False,
        mode: str = "compat",
        split_by: str = "goal",
        store: str | Path | None = None,
    ):
        if store is None:
            catalogue = open_shop(generate_catalogue, (products, shop_seed, level))
        else:
            catalogue = open_shop(open_generated_store, (_path(store), products, shop_seed, level))
        super().__init__(
            GoalIds(catalogue, f"{level}-{products}-{shop_seed}"),
            max_steps=max_steps,
            success_reward=success_reward,
            partial=partial,
            mode=mode,
            split_by=split_by,
        )
        if level == "tiny":
            self.prompt_template = "tiny"


def open_generated_store(path: str, products: int, shop_seed: int, level: str) -> Catalogue:
    """The generated catalogue in the store at `path`; ShopFileError when the store holds another."""
    return open_store(path, generated_source(products, shop_seed, level), seed=shop_seed)


def _path(store: str | Path) -> str:
    return os.path.abspath(os.path.expandvars(os.path.expanduser(store)))


def find_data(data: str | Path | None) -> Path:
    """The folder of the official files: `data`, or $WEBSHOP_DATA. FileNotFoundError when neither is given."""
    place = data if data is not None else os.environ.get("WEBSHOP_DATA")
    if not place:
        raise FileNotFoundError(
            "no WebShop data: set WEBSHOP_DATA or give the folder with items_shuffle_1000.json and the files beside "
            "it, which the setup script of the WebShop repository downloads. A generated shop (environment "
            "webshop_generated) needs no download."
        )
    return Path(os.path.expandvars(os.path.expanduser(place)))


def load_catalogue(files: ShopFiles, seed: int = 0, human_goals: bool = False, on_error: str = "raise") -> Catalogue:
    """The catalogue of a set of official files, in memory. Errors as in `read_products`."""
    skipped: Counter[str] = Counter()
    products = list(read_products(files, on_error=on_error, skipped=skipped))
    origin = (load_catalogue, (files, seed, human_goals, on_error))
    return _built(files.items, products, seed, human_goals, origin, skipped)


def generate_catalogue(products: int, shop_seed: int = 0, level: str = "full") -> Catalogue:
    """A generated catalogue, in memory."""
    made = (parse_product(p.item, p.instruction, p.nouns) for p in generate_records(products, shop_seed, level))
    return build_catalogue(made, seed=shop_seed, origin=(generate_catalogue, (products, shop_seed, level)))


def _built(source, products, seed, human_goals, origin, skipped) -> Catalogue:
    try:
        return build_catalogue(products, seed=seed, human_goals=human_goals, origin=origin, skipped=skipped)
    except ValueError as error:
        raise ShopFileError(str(source), str(error)) from None
