"""The routed calls of `Worker`, as a class of their own."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from shoal.collective import CollectiveGroupOptions
from shoal.work import AsyncRouteWork
from shoal.worker.routed.receive import recv_from
from shoal.worker.routed.send import send_to
from shoal.worker.routed.state import RoutingState

__all__ = ["RoutedCalls"]


class RoutedCalls:
    """`send_to` and `recv_from`; a base of `Worker`, which has what they need."""

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
        the other group receives its block of it. In decoupled mode pieces of one size go to any
        ranks, or, where this worker has messages to answer, to those that sent them.

        Args:
            group_name: The other group.
            channel: Carries the pieces, in keys of their own; None with `enable_p2p`.
            data: Tensor, array, list, or a dict of them, whose first dimension counts rows.
            route_key: Separates parallel streams of one tag.
            mode: In fixed mode the receiver's tag is then `<mode>_<tag>`. In decoupled mode it
                travels with a first message, and must hold no underscore.
            tag: The kind of message; None for `default`.
            async_op: Return a work at once; `data` must not change until it is done.
            batch_size: Rows of all ranks together; None to count those of `data`.
            split_fn: Called with the data and the rows of each piece; returns the pieces.
            enable_p2p: Use `send` to each rank instead of the channel.
            options: For `send`.
            decoupled_mode: See above; needs `self.batch_router`, a dict: `{}` in a worker that
                asks, `{tag: []}` in one that answers. A message that was received stays there
                until its answer was sent.
            send_queue_size: Pieces that a rank of the smaller group sends in decoupled mode; 0 for
                as many as the larger group has ranks for each of its own.
            timeout: Seconds for all pieces together; None for the default of `Channel.put` or
                `send`.

        Returns:
            None; with `async_op` a work whose result is None.

        Raises:
            ShoalValueError: The rows cannot be shared among the ranks without leaving some out,
                the group is not known, or arguments do not go together. Nothing was sent.
            ShoalTimeoutError: No room in time. A note says how many pieces were sent before.
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

        What a call has taken when it fails or is cancelled is kept for the next one, in its order.
        First messages of decoupled mode, which any rank may take, go back to the channel.

        Args:
            group_name: The other group.
            channel: Carries the pieces; None with `enable_p2p`.
            route_key: The sender's.
            tag: The sender's, `<mode>_<tag>` where it has a mode in fixed mode.
            async_op: Return a work at once.
            batch_size: Rows of all ranks together; each piece is checked. None takes one piece of
                each sender, whatever its size.
            merge_fn: Called with the list of pieces, also of one; None to join them.
            infer_batch_size_fn: Counts the rows of a piece.
            enable_p2p: Use `recv` from each rank instead of the channel. Messages then come in the
                order of the sends; one of another tag or route key is an error.
            options: For `recv`.
            decoupled_mode: Where `self.batch_router` has the tag, take any ranks' messages and
                record there whom to answer; else take the answers to this rank's own messages, in
                the order of those.
            recv_queue_size: Pieces that a rank of the smaller group takes in decoupled mode; 0 for
                as many as the larger group has ranks for each of its own.
            timeout: Seconds for all pieces together; None for the default of `Channel.get` or
                `recv`.

        Returns:
            The batch, None where no rows are this rank's; with `async_op` a work. Pieces are
            joined in the thread that waits.

        Raises:
            ShoalValueError: A piece has another number of rows, pieces do not fit each other, the
                group is not known, or arguments do not go together.
            ShoalTimeoutError: A piece did not come in time.
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
