"""`Outbox`: sends from one worker to another, in the order of the calls."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from typing import Any

from shoal._backend import ShmQueue, WorkerAddress
from shoal._ray import lost, timed_out
from shoal.collective.message import nbytes_of
from shoal.collective.options import CollectiveGroupOptions
from shoal.collective.peer_routes import PeerRoutes, Route
from shoal.collective.tensors.sends import TensorSends, has_tensors
from shoal.collective.waits import PeerWait, attend
from shoal.context import describe_self, memory_folder
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelMemoryError,
    PeerLostError,
    ShoalError,
    ShoalTimeoutError,
    TransportError,
)
from shoal.futures import Asking
from shoal.manager import WorkerInfo
from shoal.queues.order import Order, Sent
from shoal.queues.protocol import Future
from shoal.queues.wait import result_of
from shoal.reused_threads import result_from_thread
from shoal.shm import Parcel
from shoal.transport.choice import Watch

__all__ = ["LOOK_S", "SLICE_S", "Outbox", "encoded", "size_of"]

SLICE_S = 0.8
"""Seconds to wait between checks that the peer lives; the second check sees a death, within 2 s."""

LOOK_S = 0.1
"""Seconds after which a send checks again that its receiver lives."""

_KEY = "sends"
"""The key of all sends in the order of an outbox."""

Translate = Callable[[BaseException, Deadline], BaseException]


class _Sending(Sent, Asking):
    """An asynchronous send: one that waits for a thread, or a put to the queue that is under way.

    Args:
        message: The message, which it drops at its end.
        deadline: Deadline of its wait for room.
        too_late: Makes the error for that.
        not_before: The time at which its way over an emulated link ends; 0 if it is not booked.
    """

    def __init__(
        self,
        message: Any,
        deadline: Deadline,
        too_late: Callable[[Deadline], BaseException],
        not_before: float = 0.0,
    ) -> None:
        super().__init__(deadline, lambda _: too_late(deadline))
        self.message = message
        self.not_before = not_before
        self._put: Future | None = None
        self._lost: BaseException | None = None
        self.add_done_callback(_drop_message)

    def follow(self, put: Future, translate: Translate) -> None:
        """End when a put to the queue ends."""
        self.sent, self._put = True, put
        put.add_done_callback(partial(self._end_with, translate))

    def give_up(self, error: BaseException) -> None:
        """Fail the send, unless the message is sent already."""
        self._lost = error
        if (put := self._put) is not None:  # read once: another thread may forget it
            put.cancel()
        elif self.withdraw(lambda: error):
            self.fail(lambda: error)

    def ask(self) -> None:
        """Cancel a send that no thread has begun, or its put."""
        if (put := self._put) is not None:
            put.cancel()
        elif self.withdraw():
            self.end()

    def _end_with(self, translate: Translate, put: Future) -> None:
        self._put = None  # which refers to this, and so to what waits for this
        error = self._lost if put.cancelled() else put.exception()
        if error is not None:
            self.fail(lambda: translate(error, self.deadline))
        elif put.cancelled():
            self.end()
        else:
            self.succeed(None)


def _drop_message(ended: Any) -> None:
    ended.message = None


class Outbox:
    """The sends to one worker.

    Args:
        routes: The way to other workers.
        kind: Keeps point-to-point messages and those of each broadcast apart.
        peer: The receiver.
        what: Name of the operation in errors and log lines, such as `send to`.
        operation: The operation as the state page shows it.
        over_links: Whether messages may take an emulated link: then the thread of the asynchronous
            ones sends all of them, each when its time has come.
        direct: Where the entry for sends that the core may do directly goes, and its key there.
    """

    def __init__(
        self,
        routes: PeerRoutes,
        kind: str,
        peer: WorkerAddress,
        what: str,
        operation: str = "send",
        *,
        over_links: bool = False,
        direct: tuple[dict[Any, Any], Any] | None = None,
    ) -> None:
        self._routes = routes
        self._kind = kind
        self.peer = peer
        self._what = f"{what} {peer.get_name()}"
        self._operation = operation
        self._over_links = over_links
        own: tuple[dict[Any, Any], Any] = ({}, None)
        self._direct, self._direct_key = direct or own
        self._delays = over_links  # until it is known whether a link leads to the receiver
        self._one_at_a_time = threading.Lock()  # for sends of more than one step
        self._info: WorkerInfo | None = None
        self._route: Route | None = None
        self._queue: ShmQueue | None = None
        self._look_at = 0.0
        self._has_carriers = routes.has_carriers
        self._tensor_sends = TensorSends(routes, peer)
        # Asynchronous sends: those that end with a put to the queue, and those that wait for a
        # thread, because the receiver is not known yet or they take more than one put.
        self._putting: set[_Sending] = set()
        self._order = Order({})

    def heed(self, options: CollectiveGroupOptions | None) -> None:
        """Use options of the accelerators' libraries; only the first ones that are given count."""
        if self._tensor_sends.options is None:
            self._tensor_sends.options = options

    def offer(self, message: Any, seconds: float = 0.0) -> bool:
        """Send a message if that takes a single operation on a queue.

        Args:
            message: The message.
            seconds: How long to wait for room before `send` has to check the receiver.

        Returns:
            Whether the message is sent.
        """
        queue = self._queue
        if queue is None or self._putting or self._order.lines or not self._lives():
            return False
        if self._has_carriers and has_tensors(message):
            return False
        self._allow_direct(queue)
        if self._queue is not queue:  # another thread has found a successor meanwhile
            return False
        try:
            queue.put(message, 0, seconds)
        except (ShoalTimeoutError, ChannelMemoryError, ChannelClosed):
            return False  # `send` raises the error
        return True

    def _allow_direct(self, queue: ShmQueue) -> None:
        """Let the core do the sends that `offer` would, until the receiver has to be looked at."""
        self._direct[self._direct_key] = (queue, self._look_at, self._has_carriers)
        # Looked at last: another thread stops direct sends after it has added one that waits.
        if self._putting or self._order.lines or self._queue is not queue:
            self._stop_direct()

    def _stop_direct(self) -> None:
        self._direct.pop(self._direct_key, None)

    def send(self, message: Any, deadline: Deadline) -> None:
        """Send a message; wait for the receiver to exist and for room."""
        if self._delays or self._order.waits(_KEY, "put"):
            result_of(self.start_send(message, deadline), self.waiting(deadline))
        else:
            self._send_in_slices(message, deadline)

    def start_send(self, message: Any, deadline: Deadline, not_before: float = 0.0) -> Future:
        """Start an asynchronous send, which comes after those that were started before.

        Args:
            message: The message.
            deadline: The deadline of the send.
            not_before: When a message that is booked on an emulated link arrives.
        """
        self._stop_direct()  # and below, if another thread has allowed it meanwhile
        if self._delays:
            message = encoded(message)
            if self._info is not None and not not_before:
                not_before = self._arrival(self._info, message)
        waits = self._order.waits(_KEY, "put")
        with self._at_once_or_later() as route:
            at_once = route is not None and not self._tensor_sends.needed_for(message, route)
            if at_once:
                message = Parcel.of(message)  # the caller may change the object from now on
            sending = _Sending(message, deadline, self._too_late, not_before)
            if route is None or waits or not at_once:
                self._order.park(_KEY, "put", sending, self._served, timed=False)
            else:
                self._putting.add(sending)
                sending.add_done_callback(self._putting.discard)
                try:
                    put = route.queues.start_put(route.key, message, 0, deadline)
                    sending.follow(put, self._translated)
                except ShoalError as error:
                    sending.give_up(self._translated(error, deadline))
        self._stop_direct()
        attend(self)
        return sending

    @contextlib.contextmanager
    def _at_once_or_later(self) -> Iterator[Route | None]:
        """Yield the route if a send can start now, None if it has to wait.

        A send has to wait if its receiver has died and must be found again. Between nodes it also
        waits while another thread sends: a message and its announcement belong together.
        """
        route = self._route
        if route is None or self._delays or not self._lives():
            yield None
        elif route.name == "shm":
            yield route
        elif self._one_at_a_time.acquire(blocking=False):
            try:
                yield route
            finally:
                self._one_at_a_time.release()
        else:
            yield None

    def _lives(self) -> bool:
        """Whether the receiver is known and was seen alive lately; looks at it if it was not."""
        info = self._info
        if info is None:
            return False
        if monotonic() > self._look_at:
            if self._routes.peers.is_dead(info):
                return False
            self._look_at = monotonic() + LOOK_S
        return True

    def look(self) -> bool:
        """Fail the asynchronous sends whose deadline has passed or whose receiver has died.

        Returns:
            Whether any send is left.
        """
        waiting = self._order.first(_KEY, "put", sys.maxsize)
        for sending in waiting:
            if sending.deadline.expired:
                sending.expire()
        # Those that wait for the thread, which finds a successor: only if they are on their way.
        pending = [*list(self._putting), *(waiting if self._delays else ())]
        info = self._info
        if pending and info is not None and self._routes.peers.is_dead(info):
            self._look_at = 0.0
            self._stop_direct()
            for sending in pending:
                sending.give_up(self._dead(info, sending.deadline))
            self._forget(info)
        return bool(self._putting or self._order.lines)

    def info(self, deadline: Deadline) -> WorkerInfo:
        """Return the receiver's record, waiting for it to exist.

        Raises:
            PeerLostError: The receiver died.
            ShoalTimeoutError: The receiver did not register in time.
        """
        peers, info = self._routes.peers, self._info
        if info is not None and monotonic() < self._look_at:
            return info
        found = info or peers.find(self.peer, self._what, deadline)
        if peers.is_dead(found):
            self._forget(found)
            successor = peers.successor(found)
            if successor is None:
                raise self._dead(found, deadline)
            found = successor
        if found is not info:
            self._take(found)
        self._look_at = monotonic() + LOOK_S
        return found

    def carrier_of(self, message: Any, deadline: Deadline) -> str | None:
        """Return the name of the carrier that a message's tensors take; None if they take none."""
        if not self._has_carriers or not has_tensors(message):
            return None
        return self._tensor_sends.carrier_of(message, self.info(deadline))

    def puts(self) -> int | None:
        """Return how many messages the receiver's queue has got; None if that is not known."""
        route = self._route
        if route is None or route.name != "shm":
            return None
        with contextlib.suppress(ShoalError):  # the session may be closed
            return route.queues.counts(route.key).puts
        return None

    def close(self) -> None:
        """Release resources held for the receiver; messages on an emulated link are lost."""
        if self._over_links:
            for sending in self._order.first(_KEY, "put", sys.maxsize):
                sending.give_up(
                    TransportError(
                        f"{describe_self()}: {self._what}: the group was closed while the message "
                        "was on its way over a link of cluster.net_emulation"
                    )
                )
        self._tensor_sends.close()

    def waiting(self, deadline: Deadline) -> PeerWait:
        """Return the `PeerWait` that logs and records a wait for the receiver."""
        me, peer = self._routes.name, self.peer.get_name()

        def describe() -> str:
            return f"{me}: {self._what}: waits for {peer}"

        return PeerWait(
            self._routes.directory, me, self._operation, [peer], describe, deadline,
            "sending" if self._operation == "broadcast" else "",
        )  # fmt: skip

    # How it works.

    def _take(self, info: WorkerInfo) -> None:
        """Use the record of a receiver that was found, or that replaced a dead one."""
        self._route = self._queue = self._info = None
        self._stop_direct()
        self._tensor_sends.close()
        if self._over_links:
            self._delays = self._routes.link(self._routes.info, info) is not None
        self._route = self._routes.outgoing(self._kind, info)
        self._info = info  # last, so that after an error above the next send tries again

    def _forget(self, dead: WorkerInfo) -> None:
        """Free the memory of the messages that a dead receiver did not take."""
        route = self._route
        if route is not None and route.name == "shm":
            with contextlib.suppress(ShoalError):  # the session may be closed
                self._routes.memory.forget(route.key, dead.process)

    def _send_in_slices(self, message: Any, deadline: Deadline) -> None:
        info, route = self._reach(deadline)
        if route.name == "shm" and not self._tensor_sends.needed_for(message, route):
            self._put_in_slices(message, info, deadline)
            return
        if not self._one_at_a_time.acquire(timeout=min(deadline.remaining, threading.TIMEOUT_MAX)):
            raise self._too_late(deadline)
        try:
            self._send_in_steps(message, info, route, deadline)
        finally:
            self._one_at_a_time.release()

    def _send_in_steps(
        self, message: Any, info: WorkerInfo, route: Route, deadline: Deadline
    ) -> None:
        """Send a message that may take more than one put; the caller holds `_one_at_a_time`."""
        watch = self._watch(info, deadline)

        def put(part: Any) -> None:
            self._put_in_slices(part, info, deadline)

        try:
            if self._tensor_sends.needed_for(message, route):
                with self.waiting(deadline) as wait:
                    wait.show()
                    if self._tensor_sends.send(message, info, route, deadline, watch, put):
                        return
            put(message)
            self._tensor_sends.announce(watch)
        except BaseException:
            # Otherwise the receiver would match earlier announcements with later messages.
            self._tensor_sends.end_frames()
            raise

    def _reach(self, deadline: Deadline) -> tuple[WorkerInfo, Route]:
        info, route = self.info(deadline), self._route
        while route is None:  # another thread has just found a successor
            info, route = self.info(deadline), self._route
        return info, route

    def _put_in_slices(self, message: Any, receiver: WorkerInfo, deadline: Deadline) -> None:
        """Put a message into the queue to one process of the receiver; wait for room."""
        with self.waiting(deadline) as wait:
            while not self._put(message, receiver, deadline, wait.step(SLICE_S)):
                wait.tick()

    def _put(self, message: Any, receiver: WorkerInfo, deadline: Deadline, seconds: float) -> bool:
        """Put a message if there is room within some seconds and the receiver lives."""
        info, route = self._reach(deadline)
        if info.process != receiver.process:
            # Earlier messages are lost, so the receiver's successor must not get this one.
            raise self._dead(receiver, deadline)
        try:
            route.queues.put(route.key, message, 0, Deadline(seconds))
        except ShoalTimeoutError:
            if deadline.expired:
                raise self._too_late(deadline) from None
            self._look_at = 0.0
            return False
        except (ChannelMemoryError, ChannelClosed, PeerLostError) as error:
            raise self._translated(error, deadline) from None
        if not self._delays:
            self._queue = route.direct.get(route.key)
            if self._route is not route:  # another thread has found a successor meanwhile
                self._queue = None
        return True

    def _watch(self, info: WorkerInfo, deadline: Deadline) -> Watch:
        """Return the function with which a waiting transport checks if the receiver has died."""

        def watch() -> BaseException | None:
            if self._routes.peers.is_dead(info):
                return self._dead(info, deadline)
            return None

        return watch

    async def _served(self, _: _Sending) -> None:
        await result_from_thread(self._send_waiting)

    def _send_waiting(self) -> None:
        """Send the messages that wait, in their order, until none is left; runs in a thread."""
        while found := self._order.first(_KEY, "put", 1):
            first: _Sending = found[0]
            if self._delays:
                self._book(first)
            first.wait_until_due()  # a message that was booked on the link to a predecessor too
            if monotonic() >= first.not_before and first.send():
                first.do(partial(self._send_in_slices, first.message, first.deadline))

    def _book(self, first: _Sending) -> None:
        """Book messages that were sent before the receiver was known on the link to it, if any."""
        if first.not_before or first.done():
            return
        try:
            info = self.info(first.deadline)
            for sending in self._order.first(_KEY, "put", sys.maxsize) if self._delays else ():
                message = sending.message
                if not sending.not_before and not sending.done():
                    sending.not_before = self._arrival(info, message)
        except BaseException as error:  # noqa: BLE001  (it is the result of the send)
            first.give_up(error)

    def _arrival(self, info: WorkerInfo, message: Any) -> float:
        """Book a message on the link to the receiver; return when it arrives."""
        link = self._routes.link(self._routes.info, info)
        size = size_of(message) or 0
        return monotonic() + (0.0 if link is None else self._routes.seconds([link], size)[0])

    def _translated(self, error: BaseException, deadline: Deadline) -> BaseException:
        """Turn an error of a queue into one that names the send."""
        if isinstance(error, ShoalTimeoutError):
            return self._too_late(deadline)
        if isinstance(error, ChannelClosed):
            return lost(self._what, "the memory of its node", deadline, error)
        if isinstance(error, ChannelMemoryError):
            why = str(error).partition(": ")[2]
            return ChannelMemoryError(
                f"{describe_self()}: {self._what}: {why}; give {memory_folder()} more room, or name "
                "another folder in SHOAL_SHM_DIR"
            )
        if isinstance(error, PeerLostError) and self.peer.get_name() not in str(error):
            return lost(self._what, f"the mailbox of {self.peer.get_name()}", deadline, error)
        return error

    def _too_late(self, deadline: Deadline) -> ShoalTimeoutError:
        slow = ", or is behind a slow link of cluster.net_emulation"
        why = "takes nothing" + (slow if self._delays else "")
        return timed_out(self._what, f"{self.peer.get_name()}, which {why},", deadline)

    def _dead(self, info: WorkerInfo, deadline: Deadline) -> PeerLostError:
        note = f"process {info.pid} ended"
        return lost(self._what, self.peer.get_name(), deadline, note)


def encoded(message: Any) -> Any:
    """Return a message in the form in which it has a size: tensors as they are, or a parcel."""
    return message if type(message) is Parcel or has_tensors(message) else Parcel.of(message)


def size_of(message: Any) -> int | None:
    """Return the bytes of a message; None if only its pickle has a size."""
    return message.nbytes if type(message) is Parcel else nbytes_of(message)
