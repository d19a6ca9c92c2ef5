"""`Exchange`: a worker's send, recv and broadcast, checked and handed to inboxes and outboxes."""

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from shoal._backend import WorkerAddress
from shoal.collective.broadcast import Broadcasts
from shoal.collective.broadcast_plan import expand, own_group, source
from shoal.collective.inbox import Inbox
from shoal.collective.message import (
    Accept,
    Received,
    check_memory,
    envelope,
    expects_object,
    expects_tensor,
    fill,
    flat,
    is_tensor,
    sendable,
    tensor_message,
)
from shoal.collective.options import CollectiveGroupOptions
from shoal.collective.outbox import LOOK_S, SLICE_S, Outbox
from shoal.collective.peer_routes import PeerRoutes
from shoal.collective.peers import peer_address
from shoal.collective.tensors.receives import NOT_HERE
from shoal.deadline import Deadline
from shoal.errors import ChannelDecodeError, ShoalTypeError, ShoalValueError
from shoal.fork import ChildStage, in_child
from shoal.integers import as_int
from shoal.process import forked_error
from shoal.work import AsyncWork

__all__ = ["Exchange", "Ranks"]

_AT_ONCE_S = SLICE_S - 0.1
"""Seconds to wait before the first look at the sender; the core may have waited 0.1 s before."""

Ranks = int | list[int] | tuple[int, ...]
"""A rank, or a path of ranks to a worker below another."""


class Exchange:
    """Sends, receives and broadcasts of one worker, kept apart from those of its other exchanges.

    Sends are buffered until a receiver has 16 messages or 64 MiB to receive, and then wait; the last
    message is buffered whatever its size. Messages between two workers arrive in the order in which
    they were sent, including asynchronous ones. A received object belongs to the receiver alone and
    can be written to; a tensor of an accelerator arrives on the receiver's current device of that
    type.

    Args:
        routes: The way to other workers.
        kind: Identifies this exchange; the other workers use the same text.
        label: Prefix of its operations in errors and log lines: empty, or ends with a space.
        direct: Filled with what the core may use directly for sends and for receives; see
            `WorkerBase`.
    """

    def __init__(
        self,
        routes: PeerRoutes,
        kind: str,
        label: str = "",
        *,
        direct: tuple[dict[str, dict[Any, Any]], dict[str, dict[Any, Any]]] | None = None,
    ) -> None:
        self._routes = routes
        self._kind = kind
        self._label = label
        self._name = routes.name
        self._broadcasts = Broadcasts(routes, kind, label)
        # By group and rank as callers give them, so that a message costs one look-up.
        self._outboxes: dict[tuple[str, Any], Outbox] = {}
        self._inboxes: dict[tuple[str, Any], Inbox] = {}
        self._direct_sends, self._direct_receives = direct or ({}, {})
        self._parents: tuple[Any, ...] = ()
        _made.add(self)

    def send(
        self,
        object: Any,  # noqa: A002  (part of the API)
        dst_group_name: str,
        dst_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        piggyback_payload: Any = None,
        *,
        timeout: float | None = None,
    ) -> AsyncWork | None:
        """Send an object, with or without tensors in it.

        Args:
            object: Anything that can be pickled. A tuple of tensors, or an empty one, arrives as a list.
            dst_group_name: The receiver's group.
            dst_rank: Its rank; a list is a path to a worker below another.
            async_op: Return an `AsyncWork` at once; arrays and tensors must not change until it is
                done.
            options: Options of the accelerators' libraries; both ends pass the same.
            piggyback_payload: A second object that arrives with the first one.
            timeout: Seconds to wait for the receiver to exist and for room; None for the default.

        Raises:
            ShoalTimeoutError: The receiver did not register, or did not make room, in time.
            PeerLostError: The receiver died.
            ShoalValueError: The object cannot be pickled.
        """
        try:
            outbox = self._outboxes[dst_group_name, dst_rank]
        except (KeyError, TypeError):
            outbox = self._outbox(dst_group_name, dst_rank)
        if options is not None:
            _check_options(options)
            outbox.heed(options)
        if type(object) is tuple or piggyback_payload is not None:
            message = envelope(sendable(object), piggyback_payload)
        else:
            message = object
        if not async_op:
            if not outbox.offer(message, LOOK_S if timeout is None else 0.0):
                outbox.send(message, Deadline(timeout))
            return None
        return self._started(outbox, message, timeout)

    def recv(
        self,
        src_group_name: str,
        src_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receive an object that another worker sent with `send`.

        Returns:
            The object; a pair of it and the piggyback payload if the sender gave one; an
            `AsyncWork` with `async_op`.

        Raises:
            ShoalTimeoutError: No message came in time.
            PeerLostError: The sender died and left no message.
            TransportError: The message was sent with `send_tensor`; it stays where it is. Or it
                cannot be rebuilt in this process; then it is lost.
        """
        if options is not None:
            _check_options(options)
        try:
            inbox = self._inboxes[src_group_name, src_rank]
        except (KeyError, TypeError):
            inbox = self._inbox(src_group_name, src_rank)
        if async_op:
            return self._awaited(inbox, expects_object, Received.result, timeout)
        deadline = None if timeout is None else Deadline(timeout)
        found = inbox.at_once(
            _AT_ONCE_S if deadline is None else min(_AT_ONCE_S, deadline.remaining)
        )
        if found is not NOT_HERE:
            return found
        return inbox.recv(expects_object, deadline or Deadline(None)).result()

    def keep(
        self, taken: tuple[Any, ...] | ChannelDecodeError, src_group_name: str, src_rank: Ranks
    ) -> None:
        """Keep what the core took from the queue of another worker for its next receive."""
        inbox = self._inboxes[src_group_name, src_rank]
        if isinstance(taken, ChannelDecodeError):
            inbox.put_aside(taken)
        else:
            inbox.keep(taken)

    def send_tensor(
        self,
        tensor: Any,
        dst_group_name: str,
        dst_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncWork | None:
        """Send a tensor to a worker that calls `recv_tensor`; otherwise the same as `send`.

        Raises:
            ShoalValueError: It is sparse, nested, quantized or on the device `meta`.
        """
        _check_options(options)
        if not is_tensor(tensor):
            raise ShoalTypeError(
                f"send_tensor: expected a torch tensor, got {type(tensor).__name__}; "
                "send takes any object"
            )
        tensor = flat(tensor)
        try:
            outbox = self._outboxes[dst_group_name, dst_rank]
        except (KeyError, TypeError):
            outbox = self._outbox(dst_group_name, dst_rank)
        outbox.heed(options)
        message = tensor_message(tensor)
        if not async_op:
            if not outbox.offer(message, LOOK_S if timeout is None else 0.0):
                outbox.send(message, Deadline(timeout))
            return None
        return self._started(outbox, message, timeout)

    def recv_tensor(
        self,
        tensor: Any,
        src_group_name: str,
        src_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncWork | None:
        """Receive into a tensor one that was sent with `send_tensor`; otherwise same as `recv`.

        Raises:
            TransportError: The sent tensor has another shape, dtype or device type, or it was
                sent with `send`; `tensor` is untouched and the message stays where it is.
        """
        _check_options(options)
        if not is_tensor(tensor):
            raise ShoalTypeError(
                f"recv_tensor: expected a torch tensor, got {type(tensor).__name__}; recv returns "
                "any object"
            )
        try:
            inbox = self._inboxes[src_group_name, src_rank]
        except (KeyError, TypeError):
            inbox = self._inbox(src_group_name, src_rank)
        into = tensor.detach()
        check_memory(into)

        def copy(received: Received) -> None:
            fill(into, received.value)

        if async_op:
            work: AsyncWork = self._awaited(inbox, expects_tensor(tensor), copy, timeout, into)
            return work
        deadline = Deadline(timeout)
        found = inbox.at_once(min(_AT_ONCE_S, deadline.remaining))
        if found is not NOT_HERE:
            inbox.put_aside(Received(found))  # no tensor of `send_tensor`: it stays
        copy(inbox.recv(expects_tensor(tensor), deadline, into))
        return None

    def broadcast(
        self,
        object: Any = None,  # noqa: A002  (part of the API)
        groups: Sequence[Any] | None = None,
        src: tuple[str, Any] | None = None,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
        ranks: Sequence[int] | None = None,
    ) -> Any:
        """Give one worker's object to all members; every member calls this with the same groups.

        Args:
            object: The object, at the source; other members leave it out.
            groups: List of (group name, ranks) that names the members, where ranks is an integer,
                a tuple (a path to a worker below another) or a list of those. A list of integers
                is the older form and means `ranks`.
            src: The source, as (group name, rank); None for the first one that `groups` names.
            async_op: Return an `AsyncWork` at once.
            options: Options of the accelerators' libraries.
            timeout: Seconds to wait for the others; None for the default.
            ranks: The members within the caller's own group, the source first.

        Returns:
            The object, which at the source is the one it passed; an `AsyncWork` with `async_op`.

        Raises:
            ShoalValueError: The caller is not a member, or `groups` names no worker.
            ShoalTypeError: `groups` is of another form.
            ShoalTimeoutError: The others did not take part in time.
            PeerLostError: One of them died.
        """
        if ranks is None and groups and as_int(groups[0]) is not None:
            groups, ranks = None, groups
        me = self._routes.info.address
        members = expand(groups) if ranks is None else own_group(me, ranks)
        root = source(src, members)
        return self.broadcast_among(members, root, object, async_op, options, timeout)

    def broadcast_among(
        self,
        members: Sequence[WorkerAddress],
        root: WorkerAddress,
        value: Any,
        async_op: bool,
        options: CollectiveGroupOptions | None,
        timeout: float | None,
    ) -> Any:
        """Give the object of `root` to all `members`; otherwise the same as `broadcast`."""
        _check_options(options)
        self._check_fork()
        me = self._routes.info.address
        if me not in members:
            names = ", ".join(member.get_name() for member in members)
            raise ShoalValueError(f"broadcast: {me.get_name()} is not a member; members: {names}")
        return self._broadcasts.among(members, root, value, async_op, timeout, options)

    def close(self) -> None:
        """Release resources held for other workers."""
        if self._parents:
            return  # in a forked child: the parent closes it
        for inbox in self._inboxes.values():
            inbox.close()
        for outbox in self._outboxes.values():
            outbox.close()
        self._broadcasts.close()

    # How it works.

    def _outbox(self, group: str, rank: Ranks) -> Outbox:
        self._check_fork()
        peer = peer_address(group, rank)
        key = (group, tuple(rank) if isinstance(rank, Iterable) else rank)
        found = self._outboxes.get(key)
        if found is None:
            made = Outbox(
                self._routes, self._kind, peer, f"{self._label}send to",
                over_links=self._routes.sends_over_links,
                direct=(self._direct_sends.setdefault(group, {}), key[1]),
            )  # fmt: skip
            found = self._outboxes.setdefault(key, made)  # another thread may have made it
        return found

    def _inbox(self, group: str, rank: Ranks) -> Inbox:
        self._check_fork()
        peer = peer_address(group, rank)
        key = (group, tuple(rank) if isinstance(rank, Iterable) else rank)
        found = self._inboxes.get(key)
        if found is None:
            direct = (self._direct_receives.setdefault(group, {}), key[1])
            made = Inbox(self._routes, self._kind, peer, f"{self._label}recv from", direct=direct)
            found = self._inboxes.setdefault(key, made)
        return found

    def leave_to_parent(self) -> None:
        """Make every call raise in a forked child: the messages belong to its parent."""
        # Kept, because destroying objects on which threads of the parent wait may hang here.
        self._parents = (os.getppid(), self._outboxes, self._inboxes)
        self._outboxes, self._inboxes = {}, {}  # the fast paths of `send` and `recv` miss
        self._direct_sends.clear()
        self._direct_receives.clear()

    def _check_fork(self) -> None:
        if self._parents:
            does, action = f"is the worker {self._name}", "send or receive in its name"
            raise forked_error(self._parents[0], does, action, "launch a worker")

    def _started(self, outbox: Outbox, message: Any, timeout: float | None) -> AsyncWork:
        deadline, peer = Deadline(timeout), outbox.peer.get_name()
        future = outbox.start_send(message, deadline)
        work = AsyncWork(future, f"{self._label}send from {self._name} to {peer}")
        work.operation, work.peers, work.deadline = "send", (peer,), deadline
        return work

    def _awaited(
        self,
        inbox: Inbox,
        accept: Accept,
        then: Callable[[Received], Any],
        timeout: float | None,
        into: Any = None,
    ) -> Any:
        deadline, peer = Deadline(timeout), inbox.peer.get_name()
        receive = inbox.start_recv(accept, then, deadline, into)
        what = f"{self._label}recv from {peer} at {self._name}"
        work = AsyncWork(receive, what, partial(inbox.give_back, receive))
        work.operation, work.peers, work.deadline = "recv", (peer,), deadline
        return work


def _after_fork() -> None:
    for exchange in _made:
        exchange.leave_to_parent()


_made: "weakref.WeakSet[Exchange]" = weakref.WeakSet()
in_child(ChildStage.FORGET, _after_fork)


def _check_options(options: Any) -> None:
    if options is not None and not isinstance(options, CollectiveGroupOptions):
        raise ShoalTypeError(f"options={options!r}: expected CollectiveGroupOptions or None")
