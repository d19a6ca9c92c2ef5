"""`CommMapper`: which ranks of two groups exchange rows of one batch, and how many."""

from typing import Any

from shoal.errors import ShoalValueError
from shoal.integers import as_int

__all__ = ["CommMapper"]


class CommMapper:
    """Maps the blocks of one group's ranks to the blocks of another group's.

    A batch has `batch_size` rows. Rank r of the S sources owns the rows from `r * batch_size / S`
    to `(r + 1) * batch_size / S`, and destinations own blocks in the same way. Two ranks exchange
    the overlap of their blocks.
    """

    @staticmethod
    def build_channel_key(src_rank: int, dst_rank: int, extra: str) -> str:
        """Return `"<src_rank>_<dst_rank>_<extra>"`."""
        return f"{src_rank}_{dst_rank}_{extra}"

    @staticmethod
    def get_dst_ranks(
        batch_size: int, src_world_size: int, dst_world_size: int, src_rank: int
    ) -> list[tuple[int, int]]:
        """Return the destinations of one source's rows.

        Args:
            batch_size: Rows of all ranks together.
            src_world_size: Number of sources.
            dst_world_size: Number of destinations.
            src_rank: The source.

        Returns:
            (destination rank, rows) by ascending rank, without pairs that exchange nothing.

        Raises:
            ShoalValueError: `batch_size` is negative or not divisible by both sizes, or the rank
                does not exist.
        """
        rows, sources, destinations = _checked(batch_size, src_world_size, dst_world_size)
        return _overlaps(rows, sources, destinations, src_rank, "src_rank")

    @staticmethod
    def get_src_ranks(
        batch_size: int, src_world_size: int, dst_world_size: int, dst_rank: int
    ) -> list[tuple[int, int]]:
        """Return the sources of one destination's rows, as (source rank, rows).

        Arguments and errors are those of `get_dst_ranks`, with `dst_rank` the destination.
        """
        rows, sources, destinations = _checked(batch_size, src_world_size, dst_world_size)
        return _overlaps(rows, destinations, sources, dst_rank, "dst_rank")

    @staticmethod
    def decoupled_get_batch_size(
        batch_size: int, src_world_size: int, dst_world_size: int, queue_size: int = 0
    ) -> list[int]:
        """Return the rows of each piece that one rank exchanges with any ranks of another group.

        A piece has `batch_size / max(src_world_size, dst_world_size)` rows. A rank of the larger
        group has one piece. A rank of the smaller group has `dst_world_size / src_world_size`
        pieces, or `queue_size` where that is positive.

        Args:
            batch_size: Rows of all ranks together.
            src_world_size: Size of the caller's own group, whether it sends or receives.
            dst_world_size: Size of the other group.
            queue_size: Number of pieces on the smaller side; 0 or less for all.

        Raises:
            ShoalValueError: `batch_size` is negative or not divisible by the larger size;
                `queue_size` is too large; or no `queue_size` is given and the larger group is not
                a multiple of the smaller one, so that whole pieces would leave rows out.
        """
        src_world_size = _world_size("src_world_size", src_world_size)
        dst_world_size = _world_size("dst_world_size", dst_world_size)
        wanted = as_int(queue_size)
        if wanted is None:
            raise ShoalValueError(f"queue_size ({queue_size!r}) must be an integer.")
        larger = max(src_world_size, dst_world_size)
        rows = _row_count(batch_size)
        if rows % larger:
            raise ShoalValueError(
                f"batch_size ({rows}) must be divisible by the larger of src_world_size "
                f"({src_world_size}) and dst_world_size ({dst_world_size})."
            )
        if src_world_size >= dst_world_size:
            return [rows // larger]
        pieces = dst_world_size // src_world_size
        if wanted > pieces:
            raise ShoalValueError(
                f"queue_size {wanted} should be less than (dst_world_size {dst_world_size} // "
                f"src_world_size {src_world_size}) or equal to it, which is {pieces}"
            )
        if wanted <= 0 and dst_world_size % src_world_size:
            raise ShoalValueError(
                f"dst_world_size ({dst_world_size}) must be divisible by src_world_size "
                f"({src_world_size}) in decoupled mode: {pieces} pieces of {rows // larger} rows "
                f"are not a rank's share of batch_size ({rows}); change a world size, or say with "
                "a queue size how many pieces a rank has"
            )
        return [rows // larger] * (wanted if wanted > 0 else pieces)


def _checked(batch_size: int, src_world_size: int, dst_world_size: int) -> list[int]:
    found = [_row_count(batch_size)]
    for name, size in (("src_world_size", src_world_size), ("dst_world_size", dst_world_size)):
        found.append(_world_size(name, size))
        if found[0] % found[-1]:
            raise ShoalValueError(f"batch_size ({found[0]}) must be divisible by {name} ({size}).")
    return found


def _overlaps(
    rows: int, own_world_size: int, peer_world_size: int, own_rank: Any, name: str
) -> list[tuple[int, int]]:
    rank = as_int(own_rank, 0, own_world_size - 1)
    if rank is None:
        raise ShoalValueError(f"{name} ({own_rank!r}) must be in [0, {own_world_size}).")
    if not rows:
        return []
    own, peer = rows // own_world_size, rows // peer_world_size
    start, end = rank * own, (rank + 1) * own
    return [
        (other, min(end, (other + 1) * peer) - max(start, other * peer))
        for other in range(start // peer, (end - 1) // peer + 1)
    ]


def _row_count(batch_size: int) -> int:
    rows = as_int(batch_size)
    if rows is None:
        raise ShoalValueError(f"batch_size ({batch_size!r}) must be an integer.")
    if rows < 0:
        raise ShoalValueError(f"batch_size ({rows}) must be 0 or more.")
    return rows


def _world_size(name: str, size: Any) -> int:
    checked = as_int(size, 1)
    if checked is None:
        raise ShoalValueError(f"{name} ({size!r}) must be 1 or more, and an integer.")
    return checked
