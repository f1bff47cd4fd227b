"""The environments' data: there, counted, of one version, and playable: a game of each split is replayed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from progpo_trl.doctor.findings import OK, PROBLEM, WARNING, Case, Finding
from progpo_trl.settings_values import said_of

_LARGE = 200_000_000  # bytes of a product file that takes minutes to read


def check_engine(case: Case) -> Iterator[Finding]:
    """A generated game, which needs no data."""
    from progpo_trl.environments.alfworld import GeneratedAlfworldTasks

    tasks = GeneratedAlfworldTasks("easy")
    task = tasks.task_ids("valid_unseen")[0]
    yield _replayed("engine", tasks, tasks.games.game(task), task)


def check_alfworld(case: Case) -> Iterator[Finding]:
    """$ALFWORLD_DATA, or the games that the recipe names."""
    needed = case.needs("alfworld")
    options = _options(case) if needed else {}
    place = options.get("games") or os.environ.get("ALFWORLD_DATA")
    if not place:
        if needed or case.recipe is None:
            advice = "pip install 'progpo_trl[alfworld]', alfworld-download, then set ALFWORLD_DATA"
            yield Finding(PROBLEM if needed else WARNING, "ALFWorld", "ALFWORLD_DATA is not set", advice)
        return
    from progpo_trl.environments.alfworld import AlfworldTasks, GameFileError

    options["games"] = place
    try:
        tasks = AlfworldTasks(**options)
    except (GameFileError, OSError, ImportError) as error:
        advice = "check the path, or download the games again (alfworld-download)"
        yield Finding(PROBLEM if needed else WARNING, "ALFWorld", said_of(place, error), advice)
        return
    summary = tasks.data_summary()
    counts = {split: part["total"] for split, part in summary.items() if split != "skipped" and part["total"]}
    yield Finding(OK, "ALFWorld", f"{place}: " + ", ".join(f"{n} games of {split}" for split, n in counts.items()))
    damaged = summary["skipped"].get("damaged file", 0)
    if damaged:
        yield Finding(WARNING, "ALFWorld", f"{damaged} damaged game files are left out", "download the games again")
    versions = {split: tasks.library.raw(tasks.task_ids(split)[0]).version for split in counts}
    if len(set(versions.values())) > 1:
        said = ", ".join(f"{split} {version}" for split, version in versions.items())
        yield Finding(
            WARNING, "ALFWorld", f"the splits are of different text versions: {said}", "train and evaluate on one"
        )
    else:
        yield Finding(OK, "ALFWorld", f"text version {next(iter(versions.values()))}")
    for split in counts:
        task = tasks.task_ids(split)[0]
        yield _replayed("ALFWorld", tasks, tasks.library.game(task), task)
    yield from _splits(case, "ALFWorld", tasks) if needed else ()


def _replayed(what: str, tasks, game, task: str) -> Finding:
    from progpo_trl.environments.alfworld.expert import walkthrough

    environment = tasks.make()
    environment.reset(task)
    commands, won = walkthrough(game), False
    for command in commands:
        won = environment.step(command).success
    text = f"{task}: the walkthrough of {len(commands)} commands {'wins' if won else 'does not win'}"
    return Finding(OK if won else PROBLEM, what, text, "" if won else "report it: the engine plays this game wrongly")


def check_webshop(case: Case) -> Iterator[Finding]:
    """$WEBSHOP_DATA, or the data that the recipe names."""
    needed = case.needs("webshop")
    options = _options(case) if needed else {}
    place = options.get("data") or os.environ.get("WEBSHOP_DATA")
    if not place:
        if needed or case.recipe is None:
            advice = "set WEBSHOP_DATA to the folder with items_shuffle_1000.json (docs/webshop.md)"
            yield Finding(PROBLEM if needed else WARNING, "WebShop", "WEBSHOP_DATA is not set", advice)
        return
    from progpo_trl.environments.webshop.errors import ShopFileError
    from progpo_trl.environments.webshop.files import find_files
    from progpo_trl.environments.webshop.tasks import WebshopTasks, find_data

    status = PROBLEM if needed else WARNING
    try:
        size = options.get("size")
        files = find_files(find_data(place), size=None if size is None else str(size))
        if files.items.stat().st_size > _LARGE and not options.get("store"):
            text = f"{files.items} is large: every process would read it into memory"
            yield Finding(
                WARNING, "WebShop", text, "make a store once with `progpo webshop index`, and set environment.store"
            )
            return
        tasks = WebshopTasks(**{**options, "data": place})
    except (ShopFileError, OSError, ImportError) as error:
        yield Finding(status, "WebShop", said_of(place, error), "check the folder (docs/webshop.md lists the files)")
        return
    counts = {split: len(ids) for split, ids in tasks.splits.items()}
    said = ", ".join(f"{n} goals of {split}" for split, n in counts.items())
    yield Finding(OK, "WebShop", f"{place}: {len(tasks.catalogue)} products, {said}")
    yield _bought(tasks)
    yield from _splits(case, "WebShop", tasks) if needed else ()


def _bought(tasks) -> Finding:
    """Whether the index finds anything, and a purchase is scored."""
    from progpo_trl.environments.webshop.baselines import evaluate_baseline, oracle

    first = next(int(indices[0]) for indices in tasks.splits.values() if len(indices))
    found = tasks.catalogue.search(tasks.catalogue.goals[first].instruction)
    if not found:
        return Finding(PROBLEM, "WebShop", "the index finds nothing for the first goal", "make the store again")
    score = evaluate_baseline(oracle, tasks, [first]).score
    if score < 0.5:
        text = f"the oracle buys the first goal's product with score {score:.2f} only"
        return Finding(WARNING, "WebShop", text, "check the data: progpo verify webshop")
    return Finding(
        OK, "WebShop", f"the index finds {len(found)} products for the first goal; bought with score {score:.2f}"
    )


def _options(case: Case) -> dict[str, Any]:
    section: Mapping[str, Any] = case.environment
    return {k: v for k, v in section.items() if k not in ("name", "split", "eval_split") and v is not None}


def _splits(case: Case, what: str, tasks) -> Iterator[Finding]:
    """The recipe's splits have tasks, and enough for one generation."""
    groups = case.settings.get("groups_per_generation") or 1
    for key, default in (("split", "train"), ("eval_split", None)):
        split = case.environment.get(key, default)
        if split is None:
            continue
        try:
            n = len(tasks.task_ids(split))
        except KeyError as error:
            yield Finding(PROBLEM, what, f"environment.{key}: {error.args[0]}", "name a split that is there")
            continue
        if key == "split" and n < groups:
            text = f"{n} tasks in {split} cannot fill a generation of {groups} groups"
            yield Finding(PROBLEM, what, text, "add tasks, or lower groups_per_generation")


def place_of(path: str) -> Path:
    """The nearest folder that exists at or above `path`."""
    place = Path(os.path.abspath(Path(path).expanduser()))
    while not place.exists():
        place = place.parent
    return place
