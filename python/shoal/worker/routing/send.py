"""`SendTo.send_to`: cut a batch and send each piece to its rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal.collective import CollectiveGroupOptions
from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.futures import done
from shoal.work import AsyncRouteWork, AsyncWork
from shoal.worker.routing import (
    CommMapper,
    build_send_plan,
    decoupled_build_send_plan,
    normalize_route_tag,
    split_batch,
)
from shoal.worker.routing.batches import count_rows, has_rows
from shoal.worker.routing.keys import RouteKey
from shoal.worker.routing.route_queues import RouteQueues, queues_of, started
from shoal.worker.routing.state import Routed, RoutingState
from shoal.worker.routing.unanswered import UnansweredMessage, UnansweredMessages

__all__ = ["SendTo"]

Split = Callable[[Any, list[int]], Sequence[Any]]


@dataclass
class _Piece:
    """A piece of a batch.

    Attributes:
        item: The item to send.
        key: The route's key.
        rank: The receiver; None for any.
        settle: Called with `sent=` when it is known whether the piece was sent.
    """

    item: Any
    key: RouteKey
    rank: int | None
    settle: Callable[..., None] | None = None


class SendTo(Routed):
    """`Worker.send_to`."""

    def send_to(
        self,
        group_name: str,
        channel: Any,
        data: Any,
        *,
        route_key: Any = None,
        mode: str | None = None,
        tag: str | None = None,
        async_op: bool = False,
        batch_size: int | None = None,
        split_fn: Callable[[Any, list[int]], Sequence[Any]] | None = None,
        enable_p2p: bool = False,
        options: CollectiveGroupOptions | None = None,
        decoupled_mode: bool = False,
        send_queue_size: int = 0,
        timeout: float | None = None,
    ) -> AsyncRouteWork | None:
        """Send this rank's rows of a batch to the ranks of another group that own them.

        The batch is the rows of all ranks of this group, in rank order. In fixed mode each rank of
        the other group receives its block of the batch. In decoupled mode pieces of equal size go
        to any ranks or, if this worker has messages to answer, to the ranks that sent them.

        Args:
            group_name: The other group.
            channel: The channel for the pieces, which get keys of their own; None with
                `enable_p2p`.
            data: Tensor, array, list, or a dict of them, whose first dimension counts rows.
            route_key: Separates parallel streams of one tag.
            mode: In fixed mode the receiver's tag is then `<mode>_<tag>`. In decoupled mode it
                is sent with a first message, and must not contain an underscore.
            tag: The kind of message; None for `default`.
            async_op: Return a work at once; `data` must not change until the work is done.
            batch_size: Rows of all ranks together; None to count those of `data`.
            split_fn: Called with the data and the rows of each piece; returns the pieces.
            enable_p2p: Use `send` to each rank instead of the channel.
            options: Options of `send`.
            decoupled_mode: See above; needs `self.batch_router`, a dict: `{}` in a worker that
                asks, `{tag: []}` in one that answers. A received message stays in it until its
                answer is sent.
            send_queue_size: Number of pieces that a rank of the smaller group sends in decoupled
                mode; 0 for the size of the larger group divided by that of the smaller one.
            timeout: Seconds for all pieces together; None for the default of `Channel.put` or
                `send`.

        Returns:
            None; with `async_op` a work whose result is None.

        Raises:
            ShoalValueError: The rows cannot be divided evenly among the ranks, the group
                is unknown, or arguments contradict each other. Nothing was sent.
            ShoalTimeoutError: There was no room in time. A note says how many pieces were sent.
        """
        state = self._routing
        with state.call("send_to", group_name):
            queues = queues_of(
                state,
                group_name,
                channel,
                timeout,
                options,
                operation="put",
                enable_p2p=enable_p2p,
                decoupled_mode=decoupled_mode,
            )
            cut = _Cut(state, group_name, data, batch_size, split_fn)
            if decoupled_mode:
                unanswered = UnansweredMessages(state.batch_router(), state.router_lock, route_key)
                pieces = _decoupled(cut, unanswered, route_key, mode, tag, send_queue_size)
            else:
                pieces = _fixed(cut, route_key, _joined_tag(mode, tag))
            if async_op:
                works = [_start(queues, piece) for piece in pieces]
                return AsyncRouteWork(works or [AsyncWork(done(None))], lambda _: None)
            _send_all(queues, pieces)
            return None


def _send_all(queues: RouteQueues, pieces: list[_Piece]) -> None:
    sent = 0
    try:
        for piece in pieces:
            queues.put(piece.item, piece.key, piece.rank, async_op=False)
            if piece.settle is not None:
                piece.settle(sent=True)
            sent += 1
    except BaseException as error:
        for piece in pieces[sent:]:
            if piece.settle is not None:
                piece.settle(sent=False)
        if sent:
            error.add_note(f"{sent} of the {len(pieces)} pieces of this batch were sent before")
        raise


def _start(queues: RouteQueues, piece: _Piece) -> AsyncWork:
    work = started(queues.put, piece.item, piece.key, piece.rank)
    settle = piece.settle
    if settle is not None:
        work.future.add_done_callback(
            lambda ended: settle(sent=not ended.cancelled() and ended.exception() is None)
        )
    return work


def _joined_tag(mode: str | None, tag: str | None) -> str:
    """Return the tag of fixed mode: `<mode>_<tag>` with a mode.

    Without a mode the result is the tag alone; without a tag it is `<mode>_default`, because no tag
    means `default` everywhere else. It never contains the text `None`.
    """
    tag = normalize_route_tag(tag)
    return f"{mode}_{tag}" if mode else tag


class _Cut:
    """Cuts the data of this rank into pieces, without leaving rows out.

    Args:
        state: The sender.
        peer: The receiving group.
        data: The rows of this rank.
        batch_size: Rows of all ranks together; None to count those of `data`.
        split_fn: Used instead of `split_batch`.
    """

    def __init__(
        self,
        state: RoutingState,
        peer: str,
        data: Any,
        batch_size: int | None,
        split_fn: Split | None,
    ) -> None:
        self.state = state
        self.peer = peer
        self.peer_world_size = state.peer_world_size(peer)
        self._data = data
        self._batch_size = batch_size
        self._split_fn = split_fn

    def total(self, pieces: int | None = None) -> int:
        """Return the rows of all ranks together.

        Args:
            pieces: The number of pieces in decoupled mode; None in fixed mode.
        """
        if self._batch_size is not None:
            return self._batch_size
        try:
            rows = count_rows(self._data)
        except ShoalValueError as error:
            raise ShoalValueError(f"{error}; or pass batch_size=") from None
        if pieces is None:
            return rows * self.state.world_size
        if rows % pieces:
            raise ShoalValueError(
                f"{rows} rows cannot be cut into {pieces} pieces of one size: a rank of "
                f"{self.state.group!r} ({self.state.world_size} ranks) sends {pieces} pieces to "
                f"{self.peer!r} ({self.peer_world_size} ranks)"
            )
        return rows // pieces * max(self.state.world_size, self.peer_world_size)

    def pieces(self, sizes: list[int]) -> Sequence[Any]:
        """Cut the data into pieces of these sizes."""
        if self._split_fn is not None:
            shards = self._split_fn(self._data, sizes)
            given: Any = shards  # typed, but it comes from a user
            if not hasattr(given, "__len__"):
                raise ShoalTypeError(
                    f"split_fn returned a {type(given).__name__}: expected a list of pieces"
                )
            if len(shards) != len(sizes):
                raise ShoalValueError(
                    f"split_fn returned {len(shards)} pieces for the sizes {sizes}: expected one "
                    "for each size"
                )
            return shards
        self._check_all_rows(sizes)
        return split_batch(self._data, sizes)

    def _check_all_rows(self, sizes: list[int]) -> None:
        if not has_rows(self._data):
            return  # every piece is a copy of it
        rows = count_rows(self._data)
        if rows != sum(sizes):
            raise ShoalValueError(
                f"batch_size={self._batch_size} is {sum(sizes)} rows for rank {self.state.rank} of "
                f"{self.state.group!r} ({self.state.world_size} ranks) to send to {self.peer!r} "
                f"({self.peer_world_size} ranks) in pieces of {sizes}, and its data has {rows}; "
                "batch_size counts the rows of all ranks together: correct it or leave it out"
            )


def _fixed(cut: _Cut, route_key: Any, tag: str) -> list[_Piece]:
    state = cut.state
    plan = build_send_plan(
        src_group_name=state.group,
        dst_group_name=cut.peer,
        src_rank=state.rank,
        src_world_size=state.world_size,
        dst_world_size=cut.peer_world_size,
        tag=tag,
        route_key=route_key,
        batch_size=cut.total(),
    )
    shards = cut.pieces([entry.batch_size for entry in plan.entries])
    return [
        _Piece(shard, entry.key, entry.peer_rank)
        for shard, entry in zip(shards, plan.entries, strict=True)
    ]


def _decoupled(
    cut: _Cut,
    unanswered: UnansweredMessages,
    route_key: Any,
    mode: str | None,
    tag: str | None,
    queue_size: int,
) -> list[_Piece]:
    state, worlds = cut.state, (cut.state.world_size, cut.peer_world_size)
    tag = normalize_route_tag(tag)
    # The number of pieces does not depend on the batch size: any valid one will do here.
    pieces = len(CommMapper.decoupled_get_batch_size(max(worlds), *worlds, queue_size))
    answered = unanswered.open(tag) if unanswered.answers(tag) else None
    plan = decoupled_build_send_plan(
        src_group_name=state.group,
        dst_group_name=cut.peer,
        src_rank=state.rank,
        src_world_size=state.world_size,
        dst_world_size=cut.peer_world_size,
        tag=tag,
        route_key=route_key,
        batch_size=cut.total(pieces),
        mode=mode,
        tag_batch_router=answered,
        send_queue_size=queue_size,
    )
    shards = cut.pieces([entry.batch_size for entry in plan.entries])
    used: list[UnansweredMessage | None] = [None] * pieces
    if answered is not None:
        used = [*answered[:pieces]]
        unanswered.reserve(answered[:pieces])
    return [
        _Piece(
            {"batch_index": str(entry.batch_index), "batch": shard},
            entry.key,
            entry.key[6],
            None if question is None else partial(unanswered.settle, tag, question),
        )
        for shard, entry, question in zip(shards, plan.entries, used, strict=True)
    ]
