"""`progpo verify`: hold an installation and its data to recordings of the reference software.

`progpo verify alfworld --games PATH --transcripts FILE` replays recorded games of the real ALFWorld engine in ours and
compares every word: feedback, admissible commands, won, score and done, of the reset and of each step.
`progpo verify webshop --data DIR` does the same for the original WebShop (see `verify_webshop`).
`progpo verify estimators FILE` holds the advantage estimators to numbers of the public reference implementations.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from progpo_trl import verify_webshop
from progpo_trl.environments.alfworld import AlfworldTasks, GameFileError

# What a recorded reset and a recorded step state, with the type of each.
_RESET = {"feedback": str, "admissible": list, "won": bool}
_STEP = {"command": str, **_RESET, "score": int, "done": bool}
_OPENERS = {".gz": gzip.open, ".xz": lzma.open}


class TranscriptError(ValueError):
    """A file of transcripts is missing, damaged, or names a game that is not there."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay first left its recording. step: 0 for the reset, else counted from 1; field: e.g. "feedback"."""

    game: str
    step: int
    command: str
    field: str
    recorded: Any
    ours: Any

    def __str__(self) -> str:
        at = "reset" if self.step == 0 else f"step {self.step}, {self.command!r}"
        lines = [f"first difference: game {self.game}, {at}, {self.field}"]
        if self.field == "admissible":
            recorded, ours = set(self.recorded), set(self.ours)
            lines.append(f"  only recorded: {sorted(recorded - ours)}")
            lines.append(f"  only ours:     {sorted(ours - recorded)}")
            if recorded == ours:
                lines.append("  the same commands in another order or number")
        lines.append(f"  recorded: {self.recorded!r}")
        lines.append(f"  ours:     {self.ours!r}")
        if self.field == "done" and not self.recorded:
            lines.append("  (was it recorded with another step limit? see --max-steps)")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    """identical: games replayed without a difference; games: all of them; steps: steps compared; first: or None."""

    identical: int
    games: int
    steps: int
    first: Difference | None

    def __str__(self) -> str:
        return f"identical: {self.identical}/{self.games} games, {self.steps} steps"


def verify_alfworld(games: str | Path, transcripts: str | Path, *, max_steps: int = 50) -> Report:
    """Replay the recorded games of `transcripts` with the game files under `games`.

    games: as for `AlfworldTasks`; transcripts: a .jsonl, .jsonl.gz or .jsonl.xz file, one game a line: {"game": id,
    "reset": {"feedback", "admissible", "won"}, "steps": [{"command", "feedback", "admissible", "won", "score",
    "done"}, ..]}; max_steps: the step limit of the recording. A game is compared up to its first difference.

    Raises TranscriptError for a file that cannot be used, GameFileError for games that cannot.
    """
    recordings = list(_read_transcripts(Path(transcripts)))
    if not recordings:
        raise TranscriptError(f"{transcripts}: holds no transcripts")
    environment = AlfworldTasks(games, max_steps=max_steps).make()
    identical = steps = 0
    first = None
    for number, recording in enumerate(tqdm(recordings, desc="Replaying", unit="game", disable=None, leave=False)):
        try:
            difference, compared = _replay(environment, recording)
        except KeyError:
            message = f"{transcripts}, line {number + 1}: its game {recording['game']!r} is not in {games}"
            raise TranscriptError(message + _elsewhere(games)) from None
        steps += compared
        identical += difference is None
        first = first or difference
    return Report(identical, len(recordings), steps, first)


def _elsewhere(games: str | Path) -> str:
    """Where shards lie that a folder one or two too high was named for."""
    below = sorted({path.parent for path in Path(games).glob("**/*.jsonl.xz")} - {Path(games)})
    return f"; there are shards of games in {below[0]}: give that" if below else ""


def _replay(environment, recording: dict[str, Any]) -> tuple[Difference | None, int]:
    """Play one recording: (its first difference or None, steps compared)."""
    game = recording["game"]
    observation = environment.reset(game)
    # The contract's Observation says nothing of winning; no game starts won unless its recording says so, too.
    ours = {"feedback": observation.text, "admissible": list(observation.admissible), "won": bool(environment.score)}
    difference = _compare(game, 0, recording["reset"], ours, _RESET)
    if difference:
        return difference, 0
    for number, step in enumerate(recording["steps"], start=1):
        result = environment.step(step["command"])
        ours = {
            "feedback": result.text,
            "admissible": list(result.admissible),
            "won": result.success,
            "score": environment.score,
            "done": result.done,
        }
        difference = _compare(game, number, step, ours, _STEP)
        if difference:
            return difference, number
    return None, len(recording["steps"])


def _compare(game: str, step: int, recorded: dict, ours: dict, fields: dict[str, type]) -> Difference | None:
    for name in fields:
        if name != "command" and recorded[name] != ours[name]:
            return Difference(game, step, recorded.get("command", ""), name, recorded[name], ours[name])
    return None


def _read_transcripts(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with _OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _check(json.loads(line), f"{path}, line {number}")
    except FileNotFoundError:
        raise TranscriptError(f"{path}: there is no such file") from None
    except TranscriptError:
        raise
    except (OSError, EOFError, lzma.LZMAError, zlib.error, ValueError, RecursionError) as error:
        raise TranscriptError(f"{path}: cannot be read as JSON lines: {error or type(error).__name__}") from None


def _check(recording: Any, where: str) -> dict[str, Any]:
    """The recording itself, once its shape is known to be right."""

    def expect(value: Any, fields: dict[str, type], what: str) -> None:
        if not isinstance(value, dict):
            raise TranscriptError(f"{where}: {what} is not an object")
        for name, kind in fields.items():
            if not isinstance(value.get(name), kind):
                raise TranscriptError(f"{where}: {what} needs {name!r} of type {kind.__name__}")
        if not all(isinstance(command, str) for command in value.get("admissible", ())):
            raise TranscriptError(f"{where}: {what} has an admissible command that is not text")

    expect(recording, {"game": str, "reset": dict, "steps": list}, "the transcript")
    expect(recording["reset"], _RESET, "its reset")
    for number, step in enumerate(recording["steps"], start=1):
        expect(step, _STEP, f"its step {number}")
    return recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of `progpo verify` to its parser."""
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    alfworld = commands.add_parser(
        "alfworld",
        help="replay recorded games of the real ALFWorld engine",
        description="Replay recorded games of the real ALFWorld engine in ours and compare every word. Exit status: "
        "0 all identical, 1 a difference (the first is shown), 2 a file cannot be used.",
    )
    alfworld.add_argument(
        "--games",
        required=True,
        metavar="PATH",
        help="the games: $ALFWORLD_DATA, its json_2.1.1, a folder of *.jsonl.xz shards, or one shard",
    )
    alfworld.add_argument(
        "--transcripts", required=True, metavar="FILE", help="the recordings: .jsonl, .jsonl.gz or .jsonl.xz"
    )
    alfworld.add_argument(
        "--max-steps",
        type=_positive,
        default=50,
        metavar="N",
        help="step limit of the recording (default: %(default)s)",
    )
    estimators = commands.add_parser(
        "estimators",
        help="run the cases of a golden file through the advantage estimators",
        description="Run every case of a golden file through the advantage estimators and compare with its numbers "
        "(rtol 1e-4, atol 1e-5 or the case's own). The last line is `passed: N/N, worst difference X`, X the largest "
        "|ours - expected| / max(1, |expected|). Exit status: 0 all passed, 1 a case failed, 2 the file is no use.",
    )
    verify_webshop.add_arguments(commands)
    estimators.add_argument("file", metavar="FILE", help="the golden file: JSON with batches and cases")
    estimators.set_defaults(verify=_run_estimators)
    alfworld.set_defaults(verify=_run_alfworld)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed; returns the exit status."""
    from progpo_trl.verify_estimators import GoldenError

    try:
        return args.verify(args)
    except (TranscriptError, GameFileError, GoldenError) as error:
        print(f"progpo verify: {error}", file=sys.stderr)
        return 2


def _run_alfworld(args: argparse.Namespace) -> int:
    report = verify_alfworld(args.games, args.transcripts, max_steps=args.max_steps)
    if report.first:
        print(report.first)
    print(report)
    return 1 if report.first else 0


def _run_estimators(args: argparse.Namespace) -> int:
    from progpo_trl.verify_estimators import verify_estimators

    results = verify_estimators(args.file)
    failed = [result for result in results if not result.passed]
    for result in failed:
        print(f"failed: {result.name}: {result.worst.quantity} differs by {result.worst.difference:.3g}")
    worst = max(result.worst.difference for result in results)
    print(f"passed: {len(results) - len(failed)}/{len(results)}, worst difference {worst:.3g}")
    return 1 if failed else 0
