"""`Outbox`: sends from one worker to another, in the order of the calls."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from shoal.deadline import Deadline, expect_event
from shoal.errors import (
    ChannelClosed,
    ChannelMemoryError,
    PeerLostError,
    ShoalError,
    ShoalTimeoutError,
    TransportError,
)
from shoal.futures import AskingBy, fail, fulfil
from shoal.manager import WorkerInfo
from shoal.queues.protocol import Future
from shoal.reused_threads import run_in_thread
from shoal.shm import Parcel
from shoal.transport.choice import Watch

__all__ = ["LOOK_S", "SLICE_S", "Outbox", "encoded", "size_of"]

SLICE_S = 0.8
"""Seconds to wait between checks that the peer lives; the second check sees a death, within 2 s."""

LOOK_S = 0.1
"""Seconds after which a send checks again that its receiver lives."""

_NOT_NOW = (ShoalTimeoutError, ChannelMemoryError, ChannelClosed)


class _Sending:
    """An asynchronous send.

    Attributes:
        message: The message.
        deadline: Deadline of its wait for room.
        not_before: The time, by the monotonic clock, at which its way over an emulated link ends;
            None if it has not begun.
        future: Completes when the message is sent; `cancel` only asks for a cancellation.
    """

    def __init__(
        self,
        message: Any,
        deadline: Deadline,
        translate: Callable[[BaseException, Deadline], BaseException],
        not_before: float | None = None,
    ) -> None:
        self.message = message
        self.deadline = deadline
        self.not_before = not_before
        self._translate = translate
        self.future = AskingBy(self._cancel)
        self._inner: Future | None = None
        self._error: BaseException | None = None
        self._unwanted = False

    def begin(self) -> bool:
        """Make the send uncancellable; return whether it is still wanted."""
        if self._unwanted or self.future.done():
            return False
        return self.future.set_running_or_notify_cancel()

    def follow(self, inner: Future) -> None:
        """Complete the send when a put to the queue completes."""
        self._inner = inner
        inner.add_done_callback(self._move)

    def give_up(self, error: BaseException) -> None:
        """Fail the send, unless the message is sent already."""
        self._error = error
        if self._inner is None:
            fail(self.future, error)
        else:
            self._inner.cancel()

    def _cancel(self) -> None:
        self._unwanted = True
        if self._inner is not None:
            self._inner.cancel()
        elif not self.future.running():
            self.future.end()

    def _move(self, inner: Future) -> None:
        error = self._error if inner.cancelled() else inner.exception()
        if error is not None:
            fail(self.future, self._translate(error, self.deadline))
        elif inner.cancelled():
            self.future.end()
        else:
            fulfil(self.future, lambda: None)
        self.message = None


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
    ) -> None:
        self._routes = routes
        self._kind = kind
        self.peer = peer
        self._what = f"{what} {peer.get_name()}"
        self._operation = operation
        self._over_links = over_links
        self._delays = over_links  # until it is known whether a link leads to the receiver
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._one_at_a_time = threading.Lock()  # for sends of more than one step
        self._info: WorkerInfo | None = None
        self._route: Route | None = None
        self._queue: ShmQueue | None = None
        self._look_at = 0.0
        self._has_carriers = routes.has_carriers
        self._tensor_sends = TensorSends(routes, peer)
        # Asynchronous sends: those that complete with a put to the queue, and those that wait for
        # a thread, because the receiver is not known yet or they take more than one put.
        self._putting: set[_Sending] = set()
        self._backlog: deque[_Sending] = deque()
        self._drains = False

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
        if queue is None or self._putting or self._drains or monotonic() > self._look_at:
            return False
        if self._has_carriers and has_tensors(message):
            return False
        try:
            queue.put(message, 0, seconds)
        except _NOT_NOW:
            return False  # `send` raises the error
        return True

    def send(self, message: Any, deadline: Deadline) -> None:
        """Send a message; wait for the receiver to exist and for room."""
        if self._drains or self._delays:
            self._send_behind(message, deadline)
            return
        self._send_in_slices(message, deadline)

    def _send_behind(self, message: Any, deadline: Deadline) -> None:
        """Send after the asynchronous sends that were started before, and wait for it."""
        future = self.start_send(message, deadline)
        try:
            with self.waiting(deadline) as wait:
                while True:
                    try:
                        future.exception(wait.step(SLICE_S))
                    except TimeoutError:
                        wait.tick()
                    else:
                        break
        except BaseException:
            future.cancel()
            raise
        future.result()

    def start_send(
        self, message: Any, deadline: Deadline, not_before: float | None = None
    ) -> Future:
        """Start an asynchronous send, which comes after those that were started before.

        Args:
            message: The message.
            deadline: The deadline of the send.
            not_before: When a message that is booked on an emulated link arrives.
        """
        if self._delays:
            message = encoded(message)
        with self._at_once_or_later() as found:
            route = found
            if route is not None and not self._tensor_sends.needed_for(message, route):
                message = Parcel.of(message)  # the caller may change the object from now on
            else:
                route = None
            sending = _Sending(message, deadline, self._translated, not_before)
            starts = False
            with self._lock:
                if not self._drains and route is not None:
                    self._putting.add(sending)
                else:
                    self._backlog.append(sending)
                    self._more.notify()
                    route = None
                    starts, self._drains = not self._drains, True
            if route is not None:
                sending.future.add_done_callback(lambda _: self._putting.discard(sending))
                try:
                    sending.follow(route.queues.start_put(route.key, message, 0, deadline))
                except ShoalError as error:
                    fail(sending.future, self._translated(error, deadline))
        if starts:
            run_in_thread(self._drain)
        attend(self)
        return sending.future

    @contextlib.contextmanager
    def _at_once_or_later(self) -> Iterator[Route | None]:
        """Yield the route if a send can start now, None if it has to wait.

        A send has to wait if its receiver has died and must be found again. Between nodes it also
        waits while another thread sends: a message and its announcement belong together.
        """
        info, route = self._info, self._route
        if info is None or route is None or self._delays:
            yield None
            return
        if monotonic() > self._look_at:
            if self._routes.peers.is_dead(info):
                yield None
                return
            self._look_at = monotonic() + LOOK_S
        if route.name == "shm":
            yield route
        elif self._one_at_a_time.acquire(blocking=False):
            try:
                yield route
            finally:
                self._one_at_a_time.release()
        else:
            yield None

    def look(self) -> bool:
        """Fail the asynchronous sends whose deadline has passed or whose receiver has died.

        Returns:
            Whether any send is left.
        """
        with self._lock:
            # Also those behind a send with a later deadline.
            late = [sending for sending in self._backlog if sending.deadline.expired]
            for sending in late:
                self._backlog.remove(sending)
        for sending in late:
            if sending.begin():
                fail(sending.future, self._too_late(sending.deadline))
        pending = list(self._putting)
        info = self._info
        if pending and info is not None and self._routes.peers.is_dead(info):
            self._look_at = 0.0
            for sending in pending:
                sending.give_up(self._dead(info, sending.deadline))
            self._forget(info)
        return bool(self._putting or self._backlog)

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

    def close(self) -> None:
        """Release resources held for the receiver; messages on an emulated link are lost."""
        if self._over_links:
            with self._lock:
                on_their_way = tuple(self._backlog)
                self._backlog.clear()
            for sending in on_their_way:
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
        while True:
            info, route = self.info(deadline), self._route
            if route is not None:
                return info, route
            # Another thread has just found a successor.

    def _put_in_slices(self, message: Any, receiver: WorkerInfo, deadline: Deadline) -> None:
        """Put a message into the queue to one process of the receiver; wait for room."""
        with self.waiting(deadline) as wait:
            while True:
                info, route = self._reach(deadline)
                if info.process != receiver.process:
                    # Earlier messages are lost, so the receiver's successor must not get this one.
                    raise self._dead(receiver, deadline)
                if route.name == "lane":
                    self._put_far(route, message, deadline, wait)
                    return
                try:
                    route.queues.put(route.key, message, 0, Deadline(wait.step(SLICE_S)))
                except ShoalTimeoutError:
                    if deadline.expired:
                        raise self._too_late(deadline) from None
                    self._look_at = 0.0
                    wait.tick()
                except (ChannelMemoryError, ChannelClosed) as error:
                    raise self._translated(error, deadline) from None
                else:
                    if not self._delays:
                        self._queue = route.direct.get(route.key)
                    return

    def _put_far(self, route: Route, message: Any, deadline: Deadline, wait: PeerWait) -> None:
        """Put a message into the queue on another node; look after the receiver meanwhile."""
        while True:
            try:
                route.queues.put(route.key, message, 0, Deadline(wait.step(SLICE_S)))
            except ShoalTimeoutError:
                if deadline.expired:
                    raise self._too_late(deadline) from None
                wait.tick()
                self._look_at = 0.0
                self.info(deadline)  # raises where the receiver has died
            except ShoalError as error:
                raise self._translated(error, deadline) from error
            else:
                return

    def _watch(self, info: WorkerInfo, deadline: Deadline) -> Watch:
        """Return the function with which a waiting transport checks if the receiver has died."""

        def watch() -> BaseException | None:
            if self._routes.peers.is_dead(info):
                return self._dead(info, deadline)
            return None

        return watch

    def _drain(self) -> None:
        """Send the messages of the backlog in order; the thread ends when there are none."""
        while (sending := self._next_sending()) is not None:
            if sending.begin():
                message, sending.message = sending.message, None

                def send(message: Any = message, deadline: Deadline = sending.deadline) -> None:
                    self._send_in_slices(message, deadline)

                fulfil(sending.future, send)
            elif not sending.future.done():
                sending.future.end()

    def _next_sending(self) -> _Sending | None:
        """Take the first message from the backlog once it has come over its emulated link, if any."""
        while True:
            with self._lock:
                if not self._backlog:
                    self._drains = False
                    return None
                first = self._backlog[0]
                due = first.not_before is not None and first.not_before <= monotonic()
                if due or not self._delays or first.future.done():
                    return self._backlog.popleft()
                backlog = tuple(self._backlog)
            self._book(backlog)
            left = (first.not_before or 0.0) - monotonic()
            if left > 0 and not first.future.done():
                expect_event(left)
                with self._lock:
                    if len(self._backlog) == len(backlog):  # a further message is booked at once
                        self._more.wait(min(left, LOOK_S))

    def _book(self, backlog: Sequence[_Sending]) -> None:
        """Book the messages that are not booked yet on the emulated link."""
        try:
            info = self.info(backlog[0].deadline)  # which notices that the receiver has died
        except BaseException as error:  # noqa: BLE001  (it is the result of the send)
            fail(backlog[0].future, error)
            return
        for sending in backlog:
            if sending.not_before is None and not sending.future.done():
                try:
                    seconds = self._seconds_to(info, sending.message)
                except BaseException as error:  # noqa: BLE001  (it is the result of the send)
                    fail(sending.future, error)
                else:
                    sending.not_before = monotonic() + seconds

    def _seconds_to(self, info: WorkerInfo, message: Any) -> float:
        """Book a message on the link to the receiver; return the seconds until it arrives."""
        link = self._routes.link(self._routes.info, info)
        return 0.0 if link is None else self._routes.seconds([link], size_of(message) or 0)[0]

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
