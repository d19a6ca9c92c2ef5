"""Plans of decoupled mode: any receiver takes any item, and the item says where to answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import ShoalValueError
from shoal.worker.routing.comm_mapper import CommMapper
from shoal.worker.routing.keys import RouteKey, build_route_channel_key, normalize_route_tag
from shoal.worker.routing.plans import RoutePlan

__all__ = [
    "DecoupledRouteEntry",
    "_build_channel_message",
    "decoupled_build_recv_plan",
    "decoupled_build_send_plan",
    "split_channel_message",
]


@dataclass(frozen=True)
class DecoupledRouteEntry:
    """One message of a plan of decoupled mode.

    Attributes:
        batch_size: Its number of rows; None if unknown.
        key: The channel key.
        batch_index: The index that is sent with a message; None in the plan of a receiver.
    """

    batch_size: int | None
    key: RouteKey
    batch_index: str | None


def _build_channel_message(
    send_rank: int, batch_idx: int, mode: str | None, tag: str | None
) -> str:
    """Return the index of a message: `"<send_rank>_<batch_idx>_<mode>_<tag>"`.

    A missing mode is written as `None`, a missing tag as `default`: the tag of the message's key.

    Raises:
        ShoalValueError: The mode contains an underscore, so that its end would be ambiguous.
    """
    if mode is not None and "_" in str(mode):
        raise ShoalValueError(
            f"mode={mode!r}: expected no underscore, which ends the mode in the index of a message "
            "of decoupled mode; a tag may hold some"
        )
    return f"{send_rank}_{batch_idx}_{mode or None}_{normalize_route_tag(tag)}"


def split_channel_message(channel_message: str) -> tuple[int, int, str, str]:
    """Split an index into sender's rank, number of the piece, mode (or `"None"`) and tag.

    Raises:
        ShoalValueError: The text is not an index.
    """
    parts = channel_message.split("_", 3)
    expected = 'expected "<send_rank>_<batch_idx>_<mode>_<tag>"'
    if len(parts) < 4:  # noqa: PLR2004  (the four parts of the text)
        raise ShoalValueError(
            f"not enough values to unpack from the index {channel_message!r}: {expected}, got {len(parts)}"
        )
    rank, index, mode, tag = parts
    try:
        return int(rank), int(index), mode, tag
    except ValueError as error:
        raise ShoalValueError(f"the index {channel_message!r}: {error}; {expected}") from None


def tag_of_message(channel_message: str, tag: Any) -> Any:
    """Return the tag of an index; that of the call, which need not be a text, if they are equal."""
    recorded = split_channel_message(channel_message)[3]
    tag = normalize_route_tag(tag)
    return tag if f"{tag}" == recorded else recorded


def decoupled_build_send_plan(
    *,
    src_group_name: str,
    dst_group_name: str,
    src_rank: int,
    src_world_size: int,
    dst_world_size: int,
    tag: str | None,
    route_key: Any = None,
    batch_size: int,
    mode: str | None = None,
    tag_batch_router: Sequence[str] | None = None,
    send_queue_size: int = 0,
) -> RoutePlan:
    """Plan what one rank sends: first messages, for any receiver, or answers to received ones.

    An answer carries the index of the message that it answers, goes to the rank that sent that
    message, and has its tag and mode.

    Args:
        src_group_name: The sending group.
        dst_group_name: The receiving group.
        src_rank: The sender.
        src_world_size: Size of the sending group.
        dst_world_size: Size of the receiving group.
        tag: The kind of message.
        route_key: Separates parallel streams of one kind.
        batch_size: Rows of all ranks together.
        mode: Part of the index of a first message, and used for nothing else. For answers it must
            not contradict the recorded mode.
        tag_batch_router: Indices of the messages to answer, oldest first; the plan takes as many
            as it has pieces. None for first messages.
        send_queue_size: Number of pieces, where the sending group is the smaller one.

    Raises:
        ShoalValueError: Same as `CommMapper.decoupled_get_batch_size`; or there are fewer messages
            to answer than pieces; or `mode` differs from the recorded one.
    """
    sizes = CommMapper.decoupled_get_batch_size(
        batch_size, src_world_size, dst_world_size, send_queue_size
    )
    names = (src_group_name, dst_group_name)
    entries: list[DecoupledRouteEntry] = []
    dst_rank: int | None = None
    if tag_batch_router is None:
        key = build_route_channel_key(*names, None, None, tag, route_key)
        for number, rows in enumerate(sizes):
            index = _build_channel_message(src_rank, number, mode, tag)
            entries.append(DecoupledRouteEntry(rows, key, index))
    else:
        _check_answerable(len(sizes), len(tag_batch_router), tag, sizes[0])
        for rows, index in zip(sizes, tag_batch_router, strict=False):
            dst_rank, _, recorded_mode, _ = split_channel_message(index)
            if mode and recorded_mode not in (str(mode), "None"):
                raise ShoalValueError(
                    f"mode={mode!r}: the message {index!r} that is answered has the mode "
                    f"{recorded_mode!r}; pass that one, or none"
                )
            own_tag = tag_of_message(index, tag)
            key = build_route_channel_key(*names, None, dst_rank, own_tag, route_key)
            entries.append(DecoupledRouteEntry(rows, key, index))
    worlds = (src_world_size, dst_world_size)
    return RoutePlan(*names, None, dst_rank, *worlds, normalize_route_tag(tag), route_key, entries)


def decoupled_build_recv_plan(
    *,
    src_group_name: str,
    dst_group_name: str,
    recv_rank: int | None,
    src_world_size: int,
    dst_world_size: int,
    tag: str | None,
    route_key: Any = None,
    batch_size: int | None,
    recv_queue_size: int = 0,
) -> RoutePlan:
    """Plan what one rank receives: first messages that any rank may take, or its own answers.

    Args:
        src_group_name: The sending group.
        dst_group_name: The receiving group.
        recv_rank: The receiver of answers; None for first messages.
        src_world_size: Size of the receiver's own group.
        dst_world_size: Size of the other group, the senders'.
        tag: The kind of message.
        route_key: Separates parallel streams of one kind.
        batch_size: Rows of all ranks together; None if unknown: the entries then have no sizes.
        recv_queue_size: Number of pieces, where the receiving group is the smaller one.

    Raises:
        ShoalValueError: Same as `CommMapper.decoupled_get_batch_size`.
    """
    known = batch_size is not None
    rows = batch_size if batch_size is not None else max(src_world_size, dst_world_size)
    sizes = CommMapper.decoupled_get_batch_size(
        rows, src_world_size, dst_world_size, recv_queue_size
    )
    names = (src_group_name, dst_group_name)
    key = build_route_channel_key(*names, None, recv_rank, tag, route_key)
    entries = [DecoupledRouteEntry(size if known else None, key, None) for size in sizes]
    worlds = (src_world_size, dst_world_size)
    return RoutePlan(*names, None, None, *worlds, normalize_route_tag(tag), route_key, entries)


def _check_answerable(pieces: int, recorded: int, tag: str | None, rows: int) -> None:
    if recorded < pieces:
        raise ShoalValueError(
            f"{pieces} pieces of {rows} rows are planned, and {recorded} messages of the tag "
            f"{normalize_route_tag(tag)!r} were received and not answered yet; receive first, or "
            "pass send_queue_size with the number of answers"
        )
