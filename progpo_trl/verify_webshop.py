"""`progpo verify webshop --data DIR`: hold our WebShop engine to recordings of the original.

A recording is a JSON file, plain or .gz, whose name begins with one of

    traces*         [{"goal": index, "obs0": text, "av0": available, "steps": [[action, observation, reward, done,
                    available], ..]}, ..], available {"has_search_bar": bool, "clickables": [..]}
    reward_cases*   [[goal index, bought asin, {option: value}, reward, {part: value}], ..]
    lucene_top50*   {query: [[asin, score], ..]}

Goals and prices are those drawn with the seed in the name ("traces_seed0.json.gz"; 0 without one).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from progpo_trl.environments.webshop.catalogue import Catalogue
from progpo_trl.environments.webshop.errors import ShopFileError
from progpo_trl.environments.webshop.files import ShopFiles, find_files, read_json
from progpo_trl.environments.webshop.reward import score_purchase
from progpo_trl.environments.webshop.session import Session
from progpo_trl.environments.webshop.tasks import find_data, load_catalogue

_NUMBER = (int, float)


@dataclass(frozen=True, slots=True)
class ShopDifference:
    """Where ours first left a recording. where: file and place in it; field: what differs."""

    where: str
    field: str
    recorded: Any
    ours: Any

    def __str__(self) -> str:
        lines = [f"first difference: {self.where}, {self.field}"]
        return "\n".join([*lines, f"  recorded: {self.recorded!r}", f"  ours:     {self.ours!r}"])


@dataclass(slots=True)
class Tally:
    """Recordings of one kind: how many are identical, how many there are."""

    identical: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.identical}/{self.total}"


@dataclass(frozen=True, slots=True)
class ShopReport:
    """Tallies by kind of recording, and the first difference or None."""

    traces: Tally
    rewards: Tally
    searches: Tally
    first: ShopDifference | None

    def __str__(self) -> str:
        return f"traces {self.traces}, rewards {self.rewards}, searches {self.searches}"


def verify_webshop(data: str | Path) -> ShopReport:
    """Replay all recordings in the folder `data` with the shop's files there, or else those in $WEBSHOP_DATA.

    Any subset of the three kinds will do. Raises ShopFileError when there are none, when one is empty, damaged or of
    another form, or names a goal or product that the shop does not have; and for the shop's files.
    """
    folder = Path(data)
    if not folder.is_dir():
        raise ShopFileError(str(folder), "there is no such folder")
    found = [(kind, path) for kind in _KINDS for path in _recordings(folder, kind)]
    if not found:
        raise ShopFileError(str(folder), f"has no recordings: {', '.join(f'{k}*.json[.gz]' for k in _KINDS)}")
    files = _shop_files(folder)
    tallies = {kind: Tally() for kind in _KINDS}
    catalogues: dict[int, Catalogue] = {}
    first = None
    for kind, path in found:
        number = re.search(r"seed(\d{1,9})", path.name)
        seed = int(number[1]) if number else 0
        if seed not in catalogues:
            catalogues[seed] = load_catalogue(files, seed)
        cases = read_json(path)
        if not isinstance(cases, dict if kind == "lucene_top50" else list) or not cases:
            raise ShopFileError(str(path), "holds no recordings of its kind")
        bar = tqdm(_KINDS[kind](catalogues[seed], cases, str(path)), kind, len(cases), disable=None, leave=False)
        for difference in bar:
            tallies[kind].total += 1
            tallies[kind].identical += difference is None
            first = first or difference
    return ShopReport(tallies["traces"], tallies["reward_cases"], tallies["lucene_top50"], first)


def _recordings(folder: Path, kind: str) -> list[Path]:
    return sorted(path for ending in (".json", ".json.gz") for path in folder.glob(f"{kind}*{ending}"))


def _shop_files(folder: Path) -> ShopFiles:
    try:
        return find_files(folder)
    except ShopFileError as missing:
        try:
            return find_files(find_data(None))
        except FileNotFoundError:
            raise missing from None


def _traces(catalogue: Catalogue, traces: list, source: str) -> Iterator[ShopDifference | None]:
    for number, trace in enumerate(traces, start=1):
        where = f"{source}, trace {number}"
        _expect(isinstance(trace, dict), where, "is not an object")
        goal, steps = trace.get("goal"), trace.get("steps")
        _expect_goal(catalogue, goal, where)
        begins = isinstance(trace.get("obs0"), str) and isinstance(trace.get("av0"), dict)
        _expect(begins and isinstance(steps, list) and steps, where, "has no 'obs0', 'av0' or list of 'steps'")
        for step in steps:
            shape = (str, str, _NUMBER, bool, dict)
            _expect(_has_shape(step, shape), where, "has a step other than [action, text, reward, done, available]")
        yield _replay(catalogue, goal, trace, f"{where} (goal {goal})")


def _replay(catalogue: Catalogue, goal: int, trace: dict[str, Any], where: str) -> ShopDifference | None:
    session = Session(catalogue, goal)
    recorded = {"observation": trace["obs0"], "available": trace["av0"]}
    difference = _compare(f"{where}, reset", recorded, _state(session))
    for number, (action, text, reward, done, available) in enumerate(trace["steps"], start=1):
        if difference:
            break
        bought = session.step(action)
        recorded = {"observation": text, "available": available, "reward": reward, "done": done}
        ours = _state(session) | {"reward": bought.score if bought else 0.0, "done": bought is not None}
        difference = _compare(f"{where}, step {number}, {action!r}", recorded, ours)
    return difference


def _state(session: Session) -> dict[str, Any]:
    available = {"has_search_bar": session.has_search_bar, "clickables": list(session.clickables())}
    return {"observation": session.observation(), "available": available}


def _rewards(catalogue: Catalogue, cases: list, source: str) -> Iterator[ShopDifference | None]:
    for number, case in enumerate(cases, start=1):
        where = f"{source}, case {number}"
        shape = (int, str, dict, _NUMBER, dict)
        _expect(_has_shape(case, shape), where, "is not [goal, asin, options, reward, parts]")
        goal, asin, options, reward, parts = case
        _expect_goal(catalogue, goal, where)
        position = _position(catalogue, asin, where)
        _expect(all(isinstance(value, str) for value in options.values()), where, "has an option that is not text")
        product, price = catalogue.product(position), catalogue.price(position)
        ours = score_purchase(product, price, options, catalogue.goals[goal])
        # The recording leaves parts out that do not apply, or says null.
        recorded = {name: value for name, value in parts.items() if value is not None}
        where = f"{where} (goal {goal}, bought {asin})"
        yield _compare(where, {"reward": reward, "parts": recorded}, {"reward": ours.score, "parts": ours.parts()})


def _searches(catalogue: Catalogue, searches: dict, source: str) -> Iterator[ShopDifference | None]:
    for query, hits in searches.items():
        where = f"{source}, query {query!r}"
        well_formed = isinstance(hits, list) and all(_has_shape(hit, (str, _NUMBER)) for hit in hits)
        _expect(well_formed, where, "is not a list of [asin, score]")
        for asin, _ in hits:
            _position(catalogue, asin, where)
        ours = [catalogue.product(position).asin for position in catalogue.search(query)]
        yield _compare(where, {"hits": [asin for asin, _ in hits]}, {"hits": ours})


_KINDS: dict[str, Callable[[Catalogue, Any, str], Iterator[ShopDifference | None]]] = {
    "traces": _traces,
    "reward_cases": _rewards,
    "lucene_top50": _searches,
}


def _compare(where: str, recorded: dict[str, Any], ours: dict[str, Any]) -> ShopDifference | None:
    for field, value in recorded.items():
        if value != ours[field]:
            return ShopDifference(where, field, value, ours[field])
    return None


def _has_shape(value: Any, kinds: tuple) -> bool:
    if not isinstance(value, list) or len(value) != len(kinds):
        return False
    return all(isinstance(v, k) and (k is bool or not isinstance(v, bool)) for v, k in zip(value, kinds, strict=True))


def _expect(holds: Any, where: str, problem: str) -> None:
    if not holds:
        raise ShopFileError(where, problem)


def _expect_goal(catalogue: Catalogue, goal: Any, where: str) -> None:
    known = isinstance(goal, int) and not isinstance(goal, bool) and 0 <= goal < len(catalogue.goals)
    _expect(known, where, f"its goal {goal!r} is none of the shop's {len(catalogue.goals)}")


def _position(catalogue: Catalogue, asin: str, where: str) -> int:
    try:
        return catalogue.position(asin)
    except KeyError:
        raise ShopFileError(where, f"its product {asin!r} is not in the shop") from None


def add_arguments(commands: argparse._SubParsersAction) -> None:
    """Add `webshop` to the sub-commands of `progpo verify`."""
    parser = commands.add_parser(
        "webshop",
        help="replay recordings of the original WebShop",
        description="Replay recorded episodes, rewards and searches of the original WebShop in our engine and compare "
        "everything. The last line is `traces A/A, rewards B/B, searches C/C`. Exit status: 0 all identical, 1 a "
        "difference (the first is shown), 2 a file cannot be used.",
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="DIR",
        help="the recordings (traces*, reward_cases*, lucene_top50*: .json or .json.gz) and the shop's files; without "
        "these $WEBSHOP_DATA has them",
    )
    parser.set_defaults(verify=_run)


def _run(args: argparse.Namespace) -> int:
    try:
        report = verify_webshop(args.data)
    except ShopFileError as error:
        print(f"progpo verify: {error}", file=sys.stderr)
        return 2
    if report.first:
        print(report.first)
    print(report)
    return 1 if report.first else 0
