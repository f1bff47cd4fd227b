"""One HTML file with a run in it, which works from a disk without any server."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from progpo_trl import atomic
from progpo_trl.viewer.document import as_json, document
from progpo_trl.viewer.groups import Group, groups_of
from progpo_trl.viewer.page import page
from progpo_trl.viewer.records import for_page
from progpo_trl.viewer.sources import RunFolder, Source

LONGEST = 2_000_000  # characters of a text; of a longer one the page says how much is missing
_CHUNK = 128 * 1024  # bytes of JSON before compression; a group is never divided


def export(
    run: RunFolder,
    path: Path,
    *,
    max_episodes: int,
    last_generations: int | None = None,
    on_episode: Callable[[], object] = lambda: None,
) -> list[str]:
    """Write the page of a run, whose indexes are up to date, to `path`; returns what was left out, in words.

    max_episodes: of each source, the newest whole groups; at least one group. last_generations: of the training.
    The texts are in gzip streams of a few groups each, which the page unpacks when it shows them.
    """
    notices, kept = [], []
    for source in run.sources:
        groups = groups_of(source.index, run.gate)
        chosen = _chosen(source, groups, max_episodes, last_generations)
        rows = [row for group in chosen for row in group.rows]
        kept.append(sorted(rows))
        if len(rows) < len(source.index.rows):
            what = f"{source.name}: this file holds {len(rows):,} of {len(source.index.rows):,} episodes"
            if source.kind == "training" and chosen:
                what += f", of updates {chosen[0].section} to {chosen[-1].section}; the learning curves are of all"
            notices.append(
                f"{what} (--max-episodes {max_episodes}"
                + (f", --last-generations {last_generations})." if last_generations else ").")
            )
    content = document(run, kept, notices)
    before, after = page(run.name, exported=True)
    with atomic.replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        file.write(before)
        places = []
        for number, (source, of) in enumerate(zip(content["sources"], run.sources, strict=True)):
            place: dict[str, str] = {}
            for name, rows, packed in _chunks(of, source, f"texts-{number}", on_episode):
                file.write(f'<script type="text/plain" id="{name}">{packed}</script>\n')
                place |= dict.fromkeys(map(str, rows), name)
            places.append(place)
        content["chunks"] = places
        file.write(f'<script type="application/json" id="run">{as_json(content)}</script>\n')
        file.write(after)
    return notices


def _chosen(source: Source, groups: list[Group], most: int, last: int | None) -> list[Group]:
    """The newest groups that hold at most `most` episodes, in their order."""
    if last is not None and source.kind == "training":
        sections = sorted({group.section for group in groups})[-last:]
        groups = [group for group in groups if group.section in sections]
    chosen, n = [], 0
    for group in reversed(groups) if source.kind == "training" else groups:
        n += len(group.rows)
        if chosen and n > most:
            break
        chosen.append(group)
    return chosen[::-1] if source.kind == "training" else chosen


def _chunks(source: Source, content: dict[str, Any], prefix: str, on_episode) -> Iterator[tuple[str, list[int], str]]:
    """(name, places of its episodes in the document, packed records) of the texts of a source."""
    ids = content["rows"]["id"]
    rows: list[int] = []
    records: list[str] = []
    size = count = 0
    for members in content["groups"]["rows"]:
        for place in members:
            record = json.dumps(for_page(source.index.record(ids[place]), LONGEST), allow_nan=False)
            rows.append(place)
            records.append(f'"{place}":{record}')
            size += len(record)
            on_episode()
        if size >= _CHUNK:
            yield f"{prefix}-{count}", rows, _packed(records)
            rows, records, size, count = [], [], 0, count + 1
    if rows:
        yield f"{prefix}-{count}", rows, _packed(records)


def _packed(records: list[str]) -> str:
    data = "{" + ",".join(records) + "}"
    return base64.b64encode(gzip.compress(data.encode("ascii"), 6, mtime=0)).decode("ascii")
