"""`RoutedCalls`: the public methods `send_to` and `recv_from` of `Worker`."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from shoal.collective import CollectiveGroupOptions
from shoal.work import AsyncRouteWork
from shoal.worker.routing.receive import recv_from
from shoal.worker.routing.send import send_to
from shoal.worker.routing.state import RoutingState

__all__ = ["RoutedCalls"]


class RoutedCalls:
    """`send_to` and `recv_from`, as a base class of `Worker`."""

    _group_name: str
    _rank: int
    _world_size: int

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
        return send_to(
            self._routing,
            group_name,
            channel,
            data,
            route_key=route_key,
            mode=mode,
            tag=tag,
            async_op=async_op,
            batch_size=batch_size,
            split_fn=split_fn,
            enable_p2p=enable_p2p,
            options=options,
            decoupled_mode=decoupled_mode,
            send_queue_size=send_queue_size,
            timeout=timeout,
        )

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
        return recv_from(
            self._routing,
            group_name,
            channel,
            route_key=route_key,
            tag=tag,
            async_op=async_op,
            batch_size=batch_size,
            merge_fn=merge_fn,
            infer_batch_size_fn=infer_batch_size_fn,
            enable_p2p=enable_p2p,
            options=options,
            decoupled_mode=decoupled_mode,
            recv_queue_size=recv_queue_size,
            timeout=timeout,
        )

    @cached_property
    def _routing(self) -> RoutingState:
        return RoutingState(self, self._group_name, self._rank, self._world_size)
