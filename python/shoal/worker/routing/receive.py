"""`RecvFrom.recv_from`: take the items of a batch, check them and join them."""

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shoal.collective import CollectiveGroupOptions
from shoal.errors import ShoalValueError
from shoal.futures import done
from shoal.loop import soon
from shoal.work import AsyncChannelWork, AsyncRouteWork, AsyncWork
from shoal.worker.routing import (
    build_recv_plan,
    decoupled_build_recv_plan,
    merge_batches,
    normalize_route_tag,
    split_channel_message,
    validate_batch_size,
)
from shoal.worker.routing.batches import count_rows
from shoal.worker.routing.kept_items import KeptItems, TakenItem
from shoal.worker.routing.keys import RouteKey
from shoal.worker.routing.route_queues import RouteQueues, queues_of, started
from shoal.worker.routing.state import Routed, RoutingState
from shoal.worker.routing.unanswered import UnansweredMessages

__all__ = ["RecvFrom"]

Join = Callable[[list[Any]], Any]
Infer = Callable[[Any], int]


@dataclass
class _Expected:
    """An item that a call will take.

    Attributes:
        key: The route's key.
        rank: The sender; None for any.
        rows: Its number of rows; None if unknown.
    """

    key: RouteKey
    rank: int | None
    rows: int | None


class RecvFrom(Routed):
    """`Worker.recv_from`."""

    def recv_from(
        self,
        group_name: str,
        channel: Any,
        *,
        route_key: Any = None,
        tag: str | None = None,
        async_op: bool = False,
        batch_size: int | None = None,
        merge_fn: Callable[[list[Any]], Any] | None = None,
        infer_batch_size_fn: Callable[[Any], int] | None = None,
        enable_p2p: bool = False,
        options: CollectiveGroupOptions | None = None,
        decoupled_mode: bool = False,
        recv_queue_size: int = 0,
        timeout: float | None = None,
    ) -> Any:
        """Receive this rank's rows of a batch that another group sends with `send_to`.

        If a call fails or is cancelled, the items that it has taken are kept for the next call, in
        their order. First messages of decoupled mode, which any rank may take, go back to the
        channel.

        Args:
            group_name: The other group.
            channel: The channel for the pieces; None with `enable_p2p`.
            route_key: The sender's route key.
            tag: The sender's tag; `<mode>_<tag>` if the sender has a mode in fixed mode.
            async_op: Return a work at once.
            batch_size: Rows of all ranks together, to check the size of each piece. None to take
                one piece of any size from each sender.
            merge_fn: Called with the list of pieces, even of one; None for `merge_batches`.
            infer_batch_size_fn: Counts the rows of a piece.
            enable_p2p: Use `recv` from each rank instead of the channel. Messages then arrive in
                the order of the sends; a message with another tag or route key is an error.
            options: Options of `recv`.
            decoupled_mode: If `self.batch_router` has the tag, take messages of any ranks and
                record there which to answer. Otherwise take the answers to this rank's own
                messages, in the order of those messages.
            recv_queue_size: Number of pieces that a rank of the smaller group takes in decoupled
                mode; 0 for the size of the larger group divided by that of the smaller one.
            timeout: Seconds for all pieces together; None for the default of `Channel.get` or
                `recv`.

        Returns:
            The batch, or None if no rows belong to this rank; with `async_op` a work. The thread
            that waits joins the pieces.

        Raises:
            ShoalValueError: A piece has a wrong number of rows, pieces cannot be joined, the group
                is unknown, or arguments contradict each other.
            ShoalTimeoutError: A piece did not arrive in time.
        """
        state = self._routing
        with state.call("recv_from", group_name):
            queues = queues_of(
                state,
                group_name,
                channel,
                timeout,
                options,
                operation="get",
                enable_p2p=enable_p2p,
                decoupled_mode=decoupled_mode,
            )
            merge = _Merge(merge_fn, infer_batch_size_fn or count_rows)
            plan = {
                "src_group_name": group_name,
                "dst_group_name": state.group,
                "tag": tag,
                "route_key": route_key,
                "batch_size": batch_size,
            }
            join: Join
            if decoupled_mode:
                unanswered = UnansweredMessages(state.batch_router(), state.router_lock, route_key)
                answers = unanswered.answers(normalize_route_tag(tag))
                expected = _decoupled(
                    state, group_name, plan, recv_queue_size, None if answers else state.rank
                )
                record = partial(unanswered.record, tag=tag) if answers else None
                join = partial(_join_decoupled, merge, expected, record)
            else:
                expected = _fixed(state, group_name, plan)
                join = partial(_join_fixed, merge, expected, queues)

            def finish(values: list[Any]) -> Any:
                with state.call("recv_from", group_name):
                    return join(values)

            if async_op:
                return _start(queues, expected, finish, state.kept)
            return _receive(queues, expected, finish, state.kept)


def _fixed(state: RoutingState, group: str, plan: dict[str, Any]) -> list[_Expected]:
    entries = build_recv_plan(
        **plan,
        dst_rank=state.rank,
        src_world_size=state.peer_world_size(group),
        dst_world_size=state.world_size,
    ).entries
    return [_Expected(entry.key, entry.peer_rank, entry.batch_size) for entry in entries]


def _decoupled(
    state: RoutingState, group: str, plan: dict[str, Any], queue_size: int, rank: int | None
) -> list[_Expected]:
    entries = decoupled_build_recv_plan(
        **plan,
        recv_rank=rank,
        src_world_size=state.world_size,
        dst_world_size=state.peer_world_size(group),
        recv_queue_size=queue_size,
    ).entries
    return [_Expected(entry.key, None, entry.batch_size) for entry in entries]


# Joining.


@dataclass
class _Merge:
    """The caller's functions, or the default ones, to join items and to count their rows."""

    merge_fn: Join | None
    infer_batch_size_fn: Infer

    def __call__(self, batches: list[Any]) -> Any:
        if self.merge_fn is not None:
            return self.merge_fn(batches)
        return batches[0] if len(batches) == 1 else merge_batches(batches)

    def check(self, batch: Any, rows: int | None, sender: str) -> None:
        """Check the number of rows of an item."""
        try:
            validate_batch_size(batch, rows, self.infer_batch_size_fn)
        except ShoalValueError as error:
            raise ShoalValueError(f"{sender}: {error}") from error

    def rows(self, batch: Any) -> int | None:
        """Return the number of rows of an item; None if it has none."""
        try:
            return self.infer_batch_size_fn(batch)
        except ShoalValueError:
            return None


def _join_fixed(
    merge: _Merge, expected: Sequence[_Expected], queues: RouteQueues, values: list[Any]
) -> Any:
    if not values:
        return None
    batches = [queues.opened(value, e.key) for value, e in zip(values, expected, strict=True)]
    for batch, one in zip(batches, expected, strict=True):
        merge.check(batch, one.rows, f"from {one.key[1]}:{one.rank}")
    return merge(batches)


def _join_decoupled(
    merge: _Merge,
    expected: Sequence[_Expected],
    record: Callable[[Sequence[str]], None] | None,
    values: list[Any],
) -> Any:
    """Join first messages in order of arrival, and answers in the order of their questions."""
    messages = [_index_and_batch(value) for value in values]
    for (index, batch), one in zip(messages, expected, strict=True):
        merge.check(batch, one.rows, f"the message {index!r}")
    if record is None:
        messages.sort(key=lambda message: split_channel_message(message[0])[1])
    else:
        _check_equal_rows(merge, messages)
    merged = merge([batch for _, batch in messages])
    if record is not None:
        record([index for index, _ in messages])
    return merged


def _index_and_batch(value: Any) -> tuple[str, Any]:
    if isinstance(value, dict) and value.keys() == {"batch_index", "batch"}:
        index = value["batch_index"]
        split_channel_message(index)
        return index, value["batch"]
    raise ShoalValueError(
        f"expected a message of decoupled mode, a dict of batch_index and batch, got a "
        f"{type(value).__name__}; both ends must use decoupled_mode=True"
    )


def _check_equal_rows(merge: _Merge, messages: Sequence[tuple[str, Any]]) -> None:
    """Check that messages have equally many rows: answers are cut into pieces of one size."""
    rows = {index: merge.rows(batch) for index, batch in messages}
    if None not in rows.values() and len(set(rows.values())) > 1:
        shown = ", ".join(f"{index!r} has {count}" for index, count in rows.items())
        raise ShoalValueError(
            f"messages of decoupled mode that are received together must have the same number of "
            f"rows, so that the answer can be cut: {shown}"
        )


# Receiving.


def _receive(
    queues: RouteQueues, expected: Sequence[_Expected], finish: Join, kept: KeptItems
) -> Any:
    items: list[TakenItem] = []
    try:
        for one in expected:
            held = kept.take(queues.queue_id(one.key, one.rank))
            items.append(held or queues.get(one.key, one.rank, async_op=False))
        result = finish([item.value for item in items])
    except BaseException as error:
        for item, one in zip(items, expected, strict=False):
            _put_back(item, one, kept)
        if items:
            error.add_note(_KEPT)
        raise
    for item in items:
        item.received()
    return result


_KEPT = (
    "the items that were taken are not lost: the next recv_from of the same group, tag and "
    "route_key gets them"
)


def _put_back(item: TakenItem, one: _Expected, kept: KeptItems) -> None:
    """Keep an item for the next call, or give it back to the channel if any rank may take it."""
    if one.rank is None and one.key[6] is None and item.lease is not None:
        item.lease.give_back()
    else:
        kept.keep(item)


def _start(
    queues: RouteQueues, expected: Sequence[_Expected], finish: Join, kept: KeptItems
) -> AsyncRouteWork:
    if not expected:
        return AsyncRouteWork([AsyncWork(done(None))], lambda _: finish([]))
    return _Arrivals([_Arrival(queues, one, kept) for one in expected], finish)


class _Arrival:
    """An item that an asynchronous call has taken, or waits for.

    Args:
        queues: The queues from which it is taken.
        expected: The item.
        kept: The items that earlier calls took; this item may be among them.
    """

    def __init__(self, queues: RouteQueues, expected: _Expected, kept: KeptItems) -> None:
        self._kept = kept
        self._queues = queues
        self._shared = expected.rank is None and expected.key[6] is None
        self._queue_id = queues.queue_id(expected.key, expected.rank)
        self._number = kept.next_number()
        self._held = kept.take(self._queue_id)
        if self._held is None:
            self.work = started(queues.get, expected.key, expected.rank)
        else:
            self.work = AsyncWork(done(self._held.value), "an item that was taken before")

    def received(self) -> None:
        """Acknowledge the item, since the caller has it."""
        self.work.result()
        if self._held is not None:
            self._held.received()

    def put_back(self) -> None:
        """Keep the item for the next call, or stop waiting for it."""
        future = self.work.future
        if future.cancel() or future.cancelled():
            return
        if not future.done():
            # Too late to cancel: the operation is completing right now.
            future.add_done_callback(lambda _: soon(self.put_back))
        elif future.exception() is not None:
            self.work.seen = True
        elif self._held is not None:
            self._kept.keep(self._held)
        elif self._shared and isinstance(self.work, AsyncChannelWork):
            self.work.abandon()
        else:
            value = self.work.result()
            self._kept.keep(TakenItem(self._queue_id, self._number, value, None, self._queues))


class _Arrivals(AsyncRouteWork):
    """The items of an asynchronous `recv_from`; the first wait joins them, in its thread.

    Args:
        arrivals: The items.
        finish: Joins their values.
    """

    def __init__(self, arrivals: list[_Arrival], finish: Join) -> None:
        self._arrivals = arrivals
        self._finish = finish
        self._unclaimed = [True]
        super().__init__([arrival.work for arrival in arrivals], finish)

    def finalize(self) -> Any:
        """Join the items; if that fails, keep them for the next call."""
        try:
            values = self.future.result()
        except BaseException:
            self._put_back()
            del self  # as in `AsyncWork.result`
            raise
        if not self._claim():
            raise concurrent.futures.CancelledError(f"{self.what}: the call was given up")
        try:
            result = self._finish(values)
        except BaseException as error:
            _put_all_back(self._arrivals)
            error.add_note(_KEPT)
            del self
            raise
        for arrival in self._arrivals:
            arrival.received()
        return result

    async def async_wait(self) -> Any:
        """Wait in an event loop; an error or a cancellation loses no item."""
        try:
            return await super().async_wait()
        except BaseException:
            self._put_back()
            del self
            raise

    def abandon(self) -> None:
        """Stop waiting, and keep the items that have arrived."""
        self.future.cancel()
        self._put_back()

    def _claim(self) -> bool:
        """Return True to the first caller only, which then returns or keeps the items."""
        try:
            return self._unclaimed.pop()  # no lock: a finalizer calls this
        except IndexError:
            return False

    def _put_back(self) -> None:
        if self._claim():
            _put_all_back(self._arrivals)

    def __del__(self) -> None:
        if getattr(self, "_unclaimed", None) and self._claim():
            soon(partial(_put_all_back, self._arrivals))
        super().__del__()


def _put_all_back(arrivals: Sequence[_Arrival]) -> None:
    for arrival in arrivals:
        arrival.put_back()
