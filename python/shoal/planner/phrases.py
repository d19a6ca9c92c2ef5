"""Write ranks as ranges (`0-3, 8`) and counts with their noun (`2 nodes`)."""

from collections.abc import Iterable

from shoal.rank_ranges import runs_of, show_run

__all__ = ["count_of", "show_ranks"]

_MOST_RANGES = 8


def show_ranks(ranks: Iterable[int]) -> str:
    """Write ranks as ascending ranges; after eight ranges, only count the other ranks."""
    runs = list(runs_of(sorted(set(ranks))))
    shown = list(map(show_run, runs[:_MOST_RANGES]))
    if len(runs) > _MOST_RANGES:
        shown.append(f"and {sum(b - a + 1 for a, b in runs[_MOST_RANGES:])} more")
    return ", ".join(shown)


def count_of(number: int, singular: str, plural: str | None = None) -> str:
    """Return `1 node`, `2 nodes`, `1,024 nodes`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
