"""Parse and show lists of ranks: `0-3,5`, `all`, `2`, `[0, 1]`."""

import re
from collections.abc import Sequence
from typing import Any

from shoal.errors import ClusterConfigError
from shoal.problems import shown
from shoal.rank_ranges import runs_of, show_run

__all__ = ["parse_rank_config", "show_ranks"]

_RANKS = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")
_MAX_RANKS = 1_048_576
_MAX_SHOWN = 10


def parse_rank_config(
    rank_config: str | int | Sequence[str | int],
    available_ranks: Sequence[int] | None = None,
    rank_type: str | None = None,
) -> list[int]:
    """Read a list of ranks.

    Args:
        rank_config: A rank, a text of ranks and ranges separated by commas, `all`, or a list of
            these.
        available_ranks: The ranks that exist; None to allow any rank.
        rank_type: The kind of rank, for messages: `node` for example.

    Returns:
        The ranks in ascending order, without duplicates; empty for an empty text.

    Raises:
        ClusterConfigError: The format is wrong, or a rank does not exist.
    """
    what = f"{rank_type} rank" if rank_type else "rank"
    ranks: set[int] = set()
    listed: list[Any] = rank_config if isinstance(rank_config, list) else [rank_config]
    if all(type(rank) is int and rank >= 0 for rank in listed):
        ranks.update(listed)  # fast path: lists of thousands of nodes are checked repeatedly
    else:
        for part in _parts(rank_config, available_ranks):
            ranks |= _part(part, available_ranks, what)
    if available_ranks is not None:
        # Searching a list for every rank is slow; a range is fast without making a set.
        known = available_ranks if isinstance(available_ranks, range) else set(available_ranks)
        if unknown := sorted(_outside(ranks, known)):
            raise ClusterConfigError(
                f"{what} {unknown[0]} does not exist; expected {what}s among "
                f"{show_ranks(available_ranks)}"
            )
    return sorted(ranks)


def _outside(ranks: set[int], known: range | set[int]) -> list[int]:
    if isinstance(known, range) and known.step == 1 and ranks:
        low, high = min(ranks), max(ranks)
        if known.start <= low and high < known.stop:
            return []
    return [rank for rank in ranks if rank not in known]


def _parts(config: object, available: Sequence[int] | None) -> list[str | int]:
    if isinstance(config, str):
        return [part.strip() for part in config.split(",") if part.strip()]
    if isinstance(config, int) and not isinstance(config, bool):
        return [config]
    if isinstance(config, Sequence):
        return [part for entry in config for part in _parts(entry, available)]
    raise _invalid(config, available)


def _part(part: str | int, available: Sequence[int] | None, what: str) -> set[int]:
    if isinstance(part, str) and part.lower() == "all":
        if available is None:
            raise ClusterConfigError(f"'all' needs to know which {what}s exist: expected numbers")
        if len(available) > _MAX_RANKS:
            raise ClusterConfigError(
                f"'all' would be {len(available)} {what}s; at most {_MAX_RANKS}"
            )
        return set(available)
    match = _RANKS.fullmatch(str(part))
    if match is None:
        raise _invalid(part, available)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ClusterConfigError(
            f"Invalid rank format {part!r}: a range must not end below its start, "
            f"expected {last}-{first}"
        )
    if last - first >= _MAX_RANKS:
        raise ClusterConfigError(f"Invalid rank format {part!r}: more than {_MAX_RANKS} ranks")
    return set(range(first, last + 1))


def _invalid(part: object, available: Sequence[int] | None) -> ClusterConfigError:
    expected = "expected ranks and ranges such as 0-3,5"
    if available is not None:
        expected += ", or all"
    return ClusterConfigError(f"Invalid rank format {shown(part)}: {expected}")


def show_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text, `0-3, 7`; of many ranges, leave out the middle."""
    is_run = isinstance(ranks, range) and bool(ranks)  # which may be too long for `len`
    texts = list(map(show_run, [(ranks[0], ranks[-1])] if is_run else runs_of(sorted(ranks))))
    if len(texts) > _MAX_SHOWN:
        texts = [*texts[: _MAX_SHOWN - 2], "…", texts[-1]]
    return ", ".join(texts) or "none"
