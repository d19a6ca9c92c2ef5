"""`Inbox`: receives from one worker, in the order of its sends."""

import asyncio
import bisect
import itertools
import math
import sys
import threading
from collections import deque
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from shoal._backend import ShmQueue, WorkerAddress
from shoal._ray import lost, timed_out
from shoal.collective.message import (
    BESIDE,
    Accept,
    Facts,
    Received,
    count_write,
    is_envelope,
    open_message,
    outlives_sender,
    special_of,
)
from shoal.collective.outbox import SLICE_S
from shoal.collective.peer_routes import PeerRoutes, Route
from shoal.collective.pending_receive import PendingReceive, Then
from shoal.collective.tensors.layout import fits
from shoal.collective.tensors.receives import NOT_HERE, Place, TensorReceives
from shoal.collective.waits import PeerWait, attend
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    PeerLostError,
    ShoalError,
    ShoalTimeoutError,
    TransportError,
)
from shoal.manager import WorkerInfo
from shoal.queues.order import NotYet, Order
from shoal.queues.protocol import ONE, Future
from shoal.queues.wait import result_of
from shoal.reused_threads import result_from_thread
from shoal.transport.choice import Watch

__all__ = ["Inbox"]

_LOOK_S = 0.5
"""Seconds for which a sender that was seen alive counts as alive."""
_NO_LIMIT = Deadline(math.inf)

_KEY = "receives"
"""The key of all receives in the order of an inbox."""


class Inbox:
    """The receives from one worker.

    If a receive is cancelled or expects another kind of message, the message that was taken from
    the queue for it is kept aside for the next receive. So is the error of one that cannot be read.

    Args:
        routes: The way to other workers.
        kind: Keeps point-to-point messages and those of each broadcast apart.
        peer: The sender.
        what: Name of the operation in errors and log lines, such as `recv from`.
        operation: The operation as the state page shows it.
        direct: Where the queue goes while the core may receive directly, and its key there.
    """

    def __init__(
        self,
        routes: PeerRoutes,
        kind: str,
        peer: WorkerAddress,
        what: str,
        operation: str = "recv",
        *,
        direct: tuple[dict[Any, Any], Any] | None = None,
    ) -> None:
        self._routes = routes
        self._kind = kind
        self.peer = peer
        self._what = f"{what} {peer.get_name()}"
        self._operation = operation
        self._where = f"{routes.name}: message from {peer.get_name()}"
        self._lock = threading.RLock()
        own: tuple[dict[Any, Any], Any] = ({}, None)
        self._direct, self._direct_key = direct or own
        self._route: Route | None = None
        self._queue: ShmQueue | None = None
        self._sender: WorkerInfo | None = None
        self._parts = TensorReceives(routes, peer)
        self._numbers = itertools.count()
        self._aside: list[tuple[int, Received | BaseException]] = []
        self._early: deque[Any] = deque()
        self._completes = False  # a message of `_early` that needs its sender no more
        self._announced = False
        self._lives_until = 0.0
        self._order = Order({})
        self._taking: Future | None = None
        """The get of the queue that is under way, or `_in_thread`; set under `_starts`."""
        self._in_thread = Future()  # stands for the wait of a thread, which no call can cancel
        self._starts = threading.RLock()
        self._alone = threading.Lock()  # held by the thread that takes in a blocking receive

    def at_once(self, seconds: float) -> Any:
        """Wait for an object with one operation on the queue.

        Args:
            seconds: How long to wait.

        Returns:
            The object; `NOT_HERE` if there is none, or the message is more than a plain object.
        """
        queue = self._queue
        if queue is None or self._is_behind():
            return NOT_HERE
        self._allow_direct(queue)
        try:
            message = queue.get(seconds)
        except (ShoalTimeoutError, ChannelClosed):
            return NOT_HERE  # `recv` raises the error
        except ChannelDecodeError as error:
            raise self._translated(error, _NO_LIMIT) from error
        if type(message) is not tuple or not is_envelope(message):
            return message
        self.keep(message)
        return NOT_HERE

    def _allow_direct(self, queue: ShmQueue) -> None:
        """Let the core do the receives that `at_once` would."""
        self._direct[self._direct_key] = queue
        # Looked at last: another thread stops direct receives after it has added what comes before.
        if self._is_behind() or self._queue is not queue:
            self._stop_direct()

    def _stop_direct(self) -> None:
        """Let all receives come through this object.

        Called before something is added that comes before the next message of the queue, because a
        signal may come between, and afterwards, because another thread may have allowed it again.
        """
        self._direct.pop(self._direct_key, None)

    def _is_behind(self) -> bool:
        """Whether something comes before the next message of the queue."""
        # In the order in which a message passes them, so that it is not missed between two.
        return bool(self._has_receives() or self._aside or self._early or self._parts.by_frames)

    def keep(self, message: Any) -> None:
        """Keep a message that was taken from the queue for the next receive."""
        if special_of(message) is None:
            self.put_aside(open_message(message))
        else:
            self._add([], [message])

    def put_aside(self, received: Received | BaseException) -> None:
        """Keep a message, or the error of one that is lost, for the next receive."""
        self._add([received], [])

    def _add(
        self, aside: list[Received | BaseException], early: list[Any], ends: bool = False
    ) -> None:
        """Add what was taken from the queue, by the get that is under way if it `ends` with that."""
        self._stop_direct()
        with self._lock:
            entries = [(next(self._numbers), one) for one in aside]
            # Python handles signals at calls, of which there is none here: it is added once.
            self._aside += entries
            self._early += early
            if ends:
                self._taking = None
        self._stop_direct()

    def recv(self, accept: Accept, deadline: Deadline, into: Any = None) -> Received:
        """Wait for the next message.

        Args:
            accept: Raises if the receiver does not expect the message, which then stays.
            deadline: Deadline of the receive.
            into: The tensor of `recv_tensor`, into which values may be received directly.
        """
        while not self._is_busy() and self._alone.acquire(blocking=False):
            try:
                if not self._aside:
                    found = self._take_from_queue(deadline)
                    if found is NOT_HERE:
                        continue  # the rest of the message has to be waited for in torch
                    self.put_aside(found)
                with self._lock:
                    if not self._aside:
                        continue  # a receive of another thread has it
                    return self._pop(accept, deadline)[1]
            finally:
                self._alone.release()
        return self._recv_behind(accept, deadline, into)

    def start_recv(
        self, accept: Accept, then: Then, deadline: Deadline, into: Any = None
    ) -> PendingReceive:
        """Start an asynchronous receive, which comes after those that were started before.

        Args:
            accept: Same as for `recv`.
            then: Makes the result from the message.
            deadline: Deadline of the receive.
            into: Same as for `recv`.

        Returns:
            The receive; `give_back` keeps its message for the next one if its result is not used.
        """
        receive = PendingReceive(self._first_kept, accept, then, deadline, self._too_late, into)
        if self._has_receives() or not self._ends_at_once(receive):
            self._order.park(_KEY, "get", receive, self._served, timed=False)
            self._stop_direct()
            receive.add_done_callback(self._left)
            attend(self)
        return receive

    def look(self) -> bool:
        """Fail the asynchronous receives whose deadline has passed or whose sender has died.

        Returns:
            Whether any receive is left.
        """
        found = self._order.first(_KEY, "get", sys.maxsize)
        receives: list[PendingReceive] = [receive for receive in found if not receive.sent]
        for receive in receives:
            if receive.deadline.expired:
                receive.expire()
        info = self._routes.peers.found(self.peer)
        for receive in receives:
            error = self._dead(receive.deadline, receive.seen, info)
            if error is not None and not self._last_words():
                receive.fail(partial(_itself, error))
        return bool(self._order.lines)

    def close(self) -> None:
        """Release resources held for the sender."""
        self._parts.close()

    # Taking from the queue.

    def _is_busy(self) -> bool:
        """Whether a receive has to be a pending one: others come first, or it has to wait in torch.

        A wait in torch runs in a separate thread. In the caller's thread it could not be
        interrupted, and a deadline that passes would end the connection and lose the data on it.
        """
        return self._has_receives() or bool(self._early) or self._parts.by_frames

    def _recv_behind(self, accept: Accept, deadline: Deadline, into: Any) -> Received:
        """Start an asynchronous receive and wait for it."""
        receive = self.start_recv(accept, _itself, deadline, into)
        try:
            received: Received = result_of(receive, self._waiting(deadline))
        except BaseException:
            self.give_back(receive)
            del receive  # as in `result_of`
            raise
        return received

    def _take_from_queue(self, deadline: Deadline) -> Any:
        """Take the next message in the caller's thread; `NOT_HERE` if its rest comes by torch."""
        seen: set[int] = set()
        with self._waiting(deadline) as wait:
            message = self._wait_for_message(deadline, seen, wait)
        special = special_of(message)
        if special is None:
            return open_message(message)
        if special[0] == BESIDE:
            return self._parts.complete(message, deadline, self._watch(deadline, seen), _nowhere)
        self.keep(message)
        return NOT_HERE

    def _take(self, receive: PendingReceive) -> Received:
        """Take the next message without a deadline; runs in a separate thread."""
        deadline, seen = Deadline(math.inf), receive.seen
        into = partial(self._place, receive)
        found: Any = NOT_HERE
        while found is NOT_HERE:
            self._completes = False
            found = self._next_frame(deadline, seen, into)
            if found is NOT_HERE:
                if not self._early:
                    self._early.append(self._wait_for_message(deadline, seen))
                self._announced = False
                watch = self._watch(deadline, seen)
                # Before the message leaves `_early`: `look` must find it until it is kept.
                self._completes = outlives_sender(self._early[0])
                found = self._parts.complete(self._early.popleft(), deadline, watch, into)
        received: Received = found
        return received

    def _place(self, receive: PendingReceive, facts: Facts) -> Any:
        """Claim a receive and return its tensor, if values of these facts fit into it, else None."""
        if not (fits(receive.into, facts) and receive.claim()):
            return None
        count_write(receive.into)  # now too: if the sender dies, a part may be written
        return receive.into

    def _wait_for_message(
        self, deadline: Deadline, seen: set[int], wait: PeerWait | None = None
    ) -> Any:
        """Wait for the next message of the queue."""
        failed: ShoalError | None = None
        while True:
            route = self._route or self._open(deadline)
            seconds = min(SLICE_S, deadline.remaining)
            if failed is not None:
                seconds = 0.0
            elif wait is not None:
                seconds = wait.step(seconds)
            try:
                return self._get(route, seconds)
            except ShoalTimeoutError:
                if failed is not None:
                    try:
                        raise failed from None
                    finally:
                        del failed  # the traceback has this frame: it would keep those of callers
                if wait is not None:
                    wait.tick()
                # A message may have come meanwhile, or before the sender died: one more look.
                failed = self._dead(deadline, seen)
                if failed is None and deadline.expired:
                    failed = self._too_late(deadline)
            except (ChannelDecodeError, ChannelClosed) as error:
                raise self._translated(error, deadline) from error

    def _next_frame(self, deadline: Deadline, seen: set[int], into: Place) -> Any:
        """Wait for the frame that announces the next message, if frames announce messages."""
        if self._announced or self._early or not self._parts.by_frames:
            return NOT_HERE
        found = self._parts.next(deadline, self._watch(deadline, seen), into)
        # The message it announces is in the queue, or on its way there.
        self._announced = found is NOT_HERE and self._parts.by_frames
        return found

    def _watch(self, deadline: Deadline, seen: set[int]) -> Watch:
        """Return the function with which a waiting transport checks if the sender has died."""
        peers = self._routes.peers
        info = peers.found(self.peer)

        def watch() -> BaseException | None:
            if info is None or not peers.is_dead(info):
                return None
            note = f"process {info.pid} ended"
            return lost(self._what, self.peer.get_name(), deadline, note)

        # Checked once in `_LOOK_S`, not for each message: it may take a call to another node.
        if info is not None and monotonic() > self._lives_until and not peers.is_dead(info):
            self._lives_until = monotonic() + _LOOK_S
        if info is not None and monotonic() <= self._lives_until:
            seen.add(info.pid)
        return watch

    def _get(self, route: Route, seconds: float) -> Any:
        queue = self._queue
        if queue is not None:
            return queue.get(seconds)
        return route.queues.take(route.key, ONE, Deadline(seconds))

    def _open(self, deadline: Deadline) -> Route:
        """Open the queue once the sender is known."""
        info = self._routes.peers.find(self.peer, self._what, deadline)
        route = self._routes.incoming(self._kind, info)
        route.queues.qsize(route.key)  # opens it
        self._queue = route.direct.get(route.key)
        self._sender = info
        self._route = route
        return route

    def _dead(
        self, deadline: Deadline, seen: set[int], info: WorkerInfo | None = None
    ) -> PeerLostError | None:
        """Return the error for a sender that has died; None where it lives or has a successor.

        Args:
            deadline: The deadline of the receive.
            seen: The processes that the receive saw alive.
            info: The record to check; None for the one that was found last.
        """
        peers = self._routes.peers
        error = peers.check(self.peer, self._what, deadline, seen, info)
        info = peers.found(self.peer)
        if info is not None and self._sender is not None and info.process != self._sender.process:
            self._route = self._queue = self._sender = None  # the successor may be on another node
            self._stop_direct()
            taking = self._taking
            if taking is not None:
                taking.cancel()
        return error

    def _last_words(self) -> bool:
        """Whether messages of a dead sender are left to receive."""
        route = self._route
        # In the order in which a message passes them, so that it is not missed between two.
        if route is not None and route.queues.qsize(route.key) > 0:
            return True
        early = tuple(self._early)  # other threads change it
        return any(map(outlives_sender, early)) or self._completes or bool(self._aside)

    # Asynchronous receives.

    def _has_receives(self) -> bool:
        """Whether asynchronous receives wait, or a message is taken for one that has ended."""
        return self._order.waits(_KEY, "get") or self._taking is not None

    def _ends_at_once(self, receive: PendingReceive) -> bool:
        """Give a receive, before which no other waits, a message that is there; False if none is."""
        try:
            if not self._aside:
                self._start_taking()
            receive.attempt()
        except NotYet:
            return False
        except ShoalError as error:
            receive.fail(partial(self._translated, error, receive.deadline))
        receive.conclude()
        return True

    def _first_kept(self, receive: PendingReceive) -> Received:
        """Take the first message that is kept, for a receive.

        In one step the receive gets it and becomes uncancellable: a message that is given back later
        would come after its successors.
        """
        with self._lock:
            if not self._aside:
                raise NotYet(None)
            if receive.is_given_up:
                raise CancelledError
            receive.taken = self._pop(receive.accept, receive.deadline)
            return receive.taken[1]

    def _pop(self, accept: Accept, deadline: Deadline) -> tuple[int, Received]:
        """Take the first of what is kept, which must be there; an error is raised."""
        number, kept = self._aside[0]
        if isinstance(kept, BaseException):
            del self._aside[0]
            error = self._translated(kept, deadline)
            if error is not kept:
                raise error from kept
            raise error
        accept(kept, self._where)
        del self._aside[0]
        return number, kept

    def _hand_out(self) -> None:
        """Give kept messages to waiting receives."""
        while self._aside and (waiting := self._order.first(_KEY, "get", 1)):
            try:
                waiting[0].attempt()
            except NotYet:
                return
            waiting[0].conclude()

    async def _served(self, receive: PendingReceive) -> None:
        """Take messages until a receive has one.

        If the receive ends before, the others wait all the same until the next message is here: it
        is kept for them.
        """
        while not receive.done():
            await self._take_next(receive)
            self._hand_out()

    async def _take_next(self, receive: PendingReceive) -> None:
        """Take the next message and keep it, or take the part of it that the queue has."""
        try:
            taking = self._start_taking(self._in_thread)
            if taking is self._in_thread:
                try:
                    await result_from_thread(partial(self._take_in_thread, receive))
                finally:
                    self._taking = None
                return
        except ShoalError as error:
            raise self._translated(error, receive.deadline) from None
        if taking is not None and not taking.done():
            with suppress(Exception):  # it is kept
                await asyncio.wrap_future(taking)
        if taking is not None:
            self._arrived(taking)

    def _start_taking(self, instead: Future | None = None) -> Future | None:
        """Start a get of the queue, unless one is under way.

        Args:
            instead: What is under way from now on if the sender has to be found first, or the wait
                needs a thread.

        Returns:
            What is under way.
        """
        with self._starts:
            route = self._route
            if (taking := self._taking) is not None:
                return taking
            if route is None or self._early or self._parts.by_frames:
                self._taking = instead
                return instead
            self._taking = taking = route.queues.start_take(route.key, ONE, _NO_LIMIT)
            self._stop_direct()
        taking.add_done_callback(self._arrived)  # without the lock: it may end receives
        return taking

    def _arrived(self, ended: Future) -> None:
        """Keep what a get of the queue took, and give it to the first receive.

        A signal may end this method, or come before the get has it as its callback. Then
        `_take_next` calls it.
        """
        with self._lock:
            if self._taking is not ended:
                return
            aside: list[Received | BaseException] = []
            early: list[Any] = []
            if ended.cancelled():
                pass
            elif (error := ended.exception()) is not None:
                aside.append(error)
            else:
                found = ended.result()
                found.deliver()  # again, if a signal came after it
                if special_of(found.value) is None:
                    aside.append(open_message(found.value))
                else:
                    early.append(found.value)
            self._add(
                aside, early, ends=True
            )  # the next get begins once this one's message is kept
        self._hand_out()

    def _take_in_thread(self, receive: PendingReceive) -> None:
        """Find the sender, and take a message of which the queue has a part."""
        try:
            if self._route is None:
                self._open(receive.deadline)
            if self._early or self._parts.by_frames:
                self.put_aside(self._take(receive))
        finally:
            self._completes = False

    def _left(self, _: Future) -> None:
        """Take no message for a receive that has ended, if no other one waits."""
        taking = self._taking
        if taking is not None and not self._order.waits(_KEY, "get"):
            taking.cancel()

    def give_back(self, receive: PendingReceive) -> None:
        """Keep a receive's message for the next receive, because its result is not used."""
        self._stop_direct()
        with self._lock:
            taken, receive.taken = receive.taken, None
            if taken is None:
                receive.is_given_up = True
                return
            bisect.insort(self._aside, taken, key=lambda entry: entry[0])
        self._stop_direct()
        self._hand_out()

    # Messages.

    def _waiting(self, deadline: Deadline) -> PeerWait:
        me, peer = self._routes.name, self.peer.get_name()

        def describe() -> str:
            return f"{me}: {self._what}: waits for {peer}"

        return PeerWait(self._routes.directory, me, self._operation, [peer], describe, deadline)

    def _too_late(self, deadline: Deadline) -> ShoalTimeoutError:
        return timed_out(self._what, self.peer.get_name(), deadline)

    def _translated(self, error: BaseException, deadline: Deadline) -> BaseException:
        if isinstance(error, ChannelDecodeError):
            return TransportError(f"{self._where}: {error}")
        if isinstance(error, ChannelClosed):
            return lost(self._what, "the memory of this node", deadline, error)
        return error


def _nowhere(_: Facts) -> None:
    """Return no tensor to receive into: only data that comes by torch could use one."""


def _itself(value: Any) -> Any:
    return value
