"""The one error that reading games raises."""

from __future__ import annotations


class GameFileError(ValueError):
    """A game file is missing, damaged or of a kind that is not supported.

    source: the file (and the line, for shards); problem: what is wrong with it, in words. Picklable.
    """

    def __init__(self, source: str, problem: str):
        super().__init__(source, problem)
        self.source = str(source)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.source}: {self.problem}"
