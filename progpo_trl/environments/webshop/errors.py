"""The one error that reading a shop's files raises."""

from __future__ import annotations


class ShopFileError(ValueError):
    """A file of the catalogue is missing, damaged, or does not fit the others.

    source: the file (and the record or line in it); problem: what is wrong with it, in words. Picklable.
    """

    def __init__(self, source: str, problem: str):
        super().__init__(source, problem)
        self.source = str(source)
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.source}: {self.problem}"
