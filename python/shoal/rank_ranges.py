"""Runs of consecutive ranks, and how they are written: `0-3`, `8`."""

import itertools
from collections.abc import Iterable, Iterator

__all__ = ["runs_of", "show_run"]


def runs_of(ranks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last rank of each run, in the order of the ranks."""
    for _, run in itertools.groupby(enumerate(ranks), lambda place: place[1] - place[0]):
        found = [rank for _, rank in run]
        yield found[0], found[-1]


def show_run(run: tuple[int, int]) -> str:
    """Write a run: `0-3`; a run of one rank as the rank."""
    first, last = run
    return f"{first}" if first == last else f"{first}-{last}"
