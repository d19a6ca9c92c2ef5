"""Lists of ranks as people write them: `0-3,5`, `all`, `2`, `[0, 1]`."""

import re
from collections.abc import Sequence

from shoal.errors import ClusterConfigError

__all__ = ["parse_rank_config"]

_RANKS = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")
_MAX_RANKS = 1_048_576


def parse_rank_config(
    rank_config: str | int | Sequence[str | int],
    available_ranks: Sequence[int] | None = None,
    rank_type: str | None = None,
) -> list[int]:
    """Read a list of ranks.

    Args:
        rank_config: A rank, a text of ranks and ranges separated by commas, `all`, or a list of
            these.
        available_ranks: The ranks that exist; None when any may.
        rank_type: What the ranks count, for messages.

    Returns:
        The ranks in ascending order, each once; an empty text has none.

    Raises:
        ClusterConfigError: It is not written like that, or a rank does not exist.
    """
    what = f"{rank_type} rank" if rank_type else "rank"
    ranks: set[int] = set()
    for part in _parts(rank_config):
        ranks |= _part(part, available_ranks, what)
    if available_ranks is not None and (unknown := sorted(ranks - set(available_ranks))):
        raise ClusterConfigError(
            f"{what} {unknown[0]} does not exist; expected {what}s among {_show(available_ranks)}"
        )
    return sorted(ranks)


def _parts(config: object) -> list[str | int]:
    if isinstance(config, str):
        return [part.strip() for part in config.split(",") if part.strip()]
    if isinstance(config, int) and not isinstance(config, bool):
        return [config]
    if isinstance(config, Sequence):
        return [part for entry in config for part in _parts(entry)]
    raise _invalid(config)


def _part(part: str | int, available: Sequence[int] | None, what: str) -> set[int]:
    if isinstance(part, str) and part.lower() == "all":
        if available is None:
            raise ClusterConfigError(f"'all' needs to know which {what}s exist: expected numbers")
        return set(available)
    match = _RANKS.fullmatch(str(part))
    if match is None:
        raise _invalid(part)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ClusterConfigError(
            f"Invalid rank format {part!r}: a range must not end below its start, "
            f"expected {last}-{first}"
        )
    if last - first >= _MAX_RANKS:
        raise ClusterConfigError(f"Invalid rank format {part!r}: more than {_MAX_RANKS} ranks")
    return set(range(first, last + 1))


def _invalid(part: object) -> ClusterConfigError:
    return ClusterConfigError(
        f"Invalid rank format {part!r}: expected ranks and ranges such as 0-3,5, or all"
    )


def _show(ranks: Sequence[int]) -> str:
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks)) or "none"
