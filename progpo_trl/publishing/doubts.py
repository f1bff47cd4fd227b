"""What a card warns of before its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from progpo_trl.publishing.evaluations import SMALL_PANEL, Content, during_training, panel_names
from progpo_trl.publishing.repeat import asked_otherwise, environment_otherwise
from progpo_trl.publishing.run_summary import around_doubts, measured_games


def doubts(
    contents: list[Content],
    settings: Mapping[str, Any],
    *,
    weights: str | None,
    step: int | None,
    adapter: bool,
    around: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """What a reader must know about the evaluations before their numbers.

    settings: of the recipe; weights: the hash of the published weights, None when it was not taken; step: the update
    after which they are, None when it is not known; around: the run's summary.json, where the weights are its last.
    """
    if not contents and around and measured_games(around):
        yield from around_doubts(around)
    elif not contents:
        yield "This model was not evaluated: nothing is known of how well it plays."
    for content in contents:
        name = panel_names(content)
        measured = content["agent"].get("adapter_sha256" if adapter else "weights_sha256")
        if during_training(content):
            at = content["agent"]["step"]
            if at != step:
                yield f"Evaluated ({name}) during training, after update {at}; the published weights may be others."
        elif measured is None or weights is None:
            yield f"It is not known of which weights the evaluation ({name}) is."
        elif measured != weights:
            yield f"The evaluation ({name}) is of other weights than the published ones: hashes differ."
        yield from _other_conditions(content, settings, name)
        for panel in content["panels"]:
            if panel["games"] < SMALL_PANEL:
                yield f"Only {panel['games']} games of {panel['split']} were evaluated: the intervals are wide."
            if panel["split"] == "train":
                yield "The evaluation is on training games."
        for part in content["results"]:
            if part["lost"]:
                yield f"{part['lost']} plays of {part['split']} were lost to environment errors and are left out."


def _other_conditions(content: Content, settings: Mapping[str, Any], name: str) -> Iterator[str]:
    other = {} if during_training(content) else environment_otherwise(content, settings)
    if other:
        said = ", ".join(f"{key} {was!r} trained, {now!r} evaluated" for key, (was, now) in other.items())
        yield f"The evaluation ({name}) is on other data than the recipe's: {said}."
    if differ := asked_otherwise(content, settings):
        said = ", ".join(f"{key} {was!r} trained, {now!r} evaluated" for key, (was, now) in differ.items())
        yield f"The evaluation ({name}) asked the model otherwise than its training: {said}."
