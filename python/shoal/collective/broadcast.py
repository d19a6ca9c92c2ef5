"""Broadcasts: one worker's object to many, written once on each node."""

import contextlib
import hashlib
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, sleep
from typing import Any

from shoal._backend import WorkerAddress
from shoal._ray import timed_out
from shoal.collective.broadcast_plan import Edges, direct_edges, edges_of
from shoal.collective.inbox import Inbox
from shoal.collective.message import (
    BESIDE,
    Received,
    envelope,
    expects_object,
    nbytes_of,
    sendable,
    special,
)
from shoal.collective.node_memory import MOST_BYTES, UnreadPayloads
from shoal.collective.options import CollectiveGroupOptions
from shoal.collective.outbox import Outbox, encoded, size_of
from shoal.collective.peer_routes import PeerRoutes
from shoal.collective.pending_receive import PendingReceive
from shoal.collective.waits import PeerWait
from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalError, ShoalTimeoutError
from shoal.futures import AskingBy, done, fail, fulfil
from shoal.manager import WorkerInfo
from shoal.net_emulation import Link
from shoal.pickling import dumps
from shoal.process import ProcessId
from shoal.queues.order import Order, Sent
from shoal.queues.protocol import Future
from shoal.reused_threads import result_from_thread
from shoal.shm import Parcel
from shoal.shm.shared_files import PayloadRef, withdraw
from shoal.transport.choice import IPC, forced_transport
from shoal.work import AsyncWork

__all__ = ["Broadcasts"]

_log = logging.getLogger("shoal")

_ONCE_FROM = 256 * 1024
"""Minimum bytes of a payload that is written once and mapped by the members of the node; for a
smaller one a copy in each member's queue costs less."""

_BY_DEVICE_FROM = 2 * 1024**2
"""Minimum bytes of tensors on a device that each member of the node copies there by itself; fewer
bytes arrive sooner through the CPU's memory (on an H100, for four members)."""

_POLL_S = 0.01

_KEY = "broadcasts"
"""The key of all broadcasts in the order of a series."""


Begun = tuple[Future, Callable[[], None] | None]
"""A broadcast that has begun: its future, and what gives back its object where it is not used."""


class Broadcasts:
    """The broadcasts that one worker takes part in.

    Args:
        routes: The way to other workers.
        kind: Keeps them apart from the broadcasts of the worker's other exchanges.
        label: Prefix of the broadcasts in errors and log lines.
    """

    def __init__(self, routes: PeerRoutes, kind: str, label: str = "") -> None:
        self._routes = routes
        self._kind = kind
        self._label = label
        self._known: dict[tuple[Any, ...], _Series] = {}

    def among(
        self,
        members: Sequence[WorkerAddress],
        root: WorkerAddress,
        value: Any,
        async_op: bool,
        timeout: float | None,
        options: CollectiveGroupOptions | None,
    ) -> Any:
        """Take part in a broadcast from `root` to `members`, of which this worker is one."""
        names = tuple(sorted(member.get_name() for member in members))
        ring = options is not None and options.use_ring_broadcast
        key = (root.get_name(), names, ring)
        series = self._known.get(key)
        if series is None:
            made = _Series(self._routes, self._kind, self._label, list(members), root, ring)
            series = self._known.setdefault(key, made)  # another thread may have made it
        if options is not None:
            series.options = options
        if root == self._routes.info.address:
            series.given += 1
            # At doubling distances: a mistake is made in each call, and a look costs time.
            if series.given > 1 and series.given & (series.given - 1) == 0:
                known = list(self._known)  # another thread may add one
                series.look_for_others([source for source, *more in known if more == [names, ring]])
        deadline = Deadline(timeout)
        if async_op:
            return series.start(value, deadline)
        return series.run(value, deadline)

    def close(self) -> None:
        """Release resources held for other members."""
        for series in self._known.values():
            series.close()


class _Series:
    """The broadcasts among the same members from the same source, one after another."""

    def __init__(
        self,
        routes: PeerRoutes,
        kind: str,
        label: str,
        members: list[WorkerAddress],
        root: WorkerAddress,
        ring: bool,
    ) -> None:
        self._routes = routes
        self._me = routes.info.address
        self._members = members
        self._root = root
        self._ring = ring
        self.options: CollectiveGroupOptions | None = None
        """Options of the accelerators' libraries, applied when the members are found."""
        self._kind_from = partial(_kind_from, kind, ring, members)
        self._kind = self._kind_from(root)
        self.given = 0
        """Number of broadcasts of which this worker is the source."""
        self._label = label
        self._what = f"{label}broadcast from {root.get_name()}"
        self._edges: Edges | None = None
        self._inbox: Inbox | None = None
        self._near: list[Outbox] = []
        self._far: list[Outbox] = []
        self._links: dict[WorkerAddress, Link] = {}
        self._written = UnreadPayloads()
        self._lock = threading.Lock()
        # Asynchronous broadcasts that have not begun: in a thread, because the members are not all
        # known or have no room.
        self._order = Order({})

    def look_for_others(self, sources: Sequence[str]) -> None:
        """Log a warning if another member has sent an object as the source of a broadcast.

        An object may be early, but not so one from a source that this worker never names.

        Args:
            sources: The sources that calls of this worker have named.
        """
        peers, me = self._routes.peers, self._me.get_name()
        names = [member.get_name() for member in self._members]
        for member, name in zip(self._members, names, strict=True):
            info = peers.found(member)
            if name in sources or info is None:
                continue
            route = self._routes.incoming(self._kind_from(member), info)
            if route.name == "shm" and route.queues.qsize(route.key):
                _log.warning(
                    f"{me}: broadcast among {', '.join(names)}: {me} takes itself for the source, and "
                    f"{name} has sent an object as the source too, which no call of {me} has named. "
                    "All members must name the same source: give src, or name the groups in the same "
                    "order"
                )

    def run(self, value: Any, deadline: Deadline) -> Any:
        """Take part in the next broadcast, and return its object."""
        if self._order.waits(_KEY, "put"):
            return _result_of(self.start(value, deadline))
        return self._run(value, deadline)

    def _run(self, value: Any, deadline: Deadline) -> Any:
        self._prepare(deadline)
        if self._inbox is None:
            self._give(value, deadline)
            return value
        received = self._inbox.recv(expects_object, deadline)
        self._give(received.value, deadline)
        return received.value

    def start(self, value: Any, deadline: Deadline) -> AsyncWork:
        """Take part in the next broadcast in the background."""
        waits = self._order.waits(_KEY, "put")
        if waits or self._edges is None or self._passes_on or self._may_wait(value):
            return self._work(self._later(value, deadline, timed=waits), deadline)
        future, give_back = self._begin(value, deadline)
        return self._work(future, deadline, give_back)

    def _later(self, value: Any, deadline: Deadline, *, timed: bool) -> Future:
        """Take part in a broadcast after those that have not begun; return its future."""

        def late(_: Any) -> BaseException:
            return timed_out(self._what, "the members, for whom earlier ones wait,", deadline)

        start = Sent(deadline, late)
        begun: Future | None = None
        unwanted = False

        async def served(_: Sent) -> None:
            if start.send():
                begin = partial(self._begin_in_thread, value, deadline)
                found, give_back = await result_from_thread(begin)
                if unwanted and not found.cancel() and give_back is not None:
                    give_back()
                    future.end()
                start.succeed(found)

        def follow(ended: Future) -> None:
            nonlocal begun
            if ended.cancelled():
                future.end()
            elif (error := ended.exception()) is not None:
                fail(future, error)
            else:
                begun = ended.result()
                begun.add_done_callback(partial(_move, future))
                if unwanted:
                    begun.cancel()

        def cancel() -> None:
            nonlocal unwanted
            unwanted = True
            if start.withdraw():
                start.cancel()
            elif begun is not None:  # else it is about to begin, and keeps its turn until then
                begun.cancel()

        future = AskingBy(cancel)
        self._order.park(_KEY, "put", start, served, timed=timed)
        start.add_done_callback(follow)
        return future

    def _begin_in_thread(self, value: Any, deadline: Deadline) -> Begun:
        self._prepare(deadline)
        if self._passes_on:  # in order, and before the caller gets the object
            return done(self._run(value, deadline)), None
        return self._begin(value, deadline)

    def _work(
        self, future: Future, deadline: Deadline, give_back: Callable[[], None] | None = None
    ) -> AsyncWork:
        work = AsyncWork(future, self._what, give_back)
        work.operation, work.deadline = "broadcast", deadline
        source = self._root if self._inbox is None else self._inbox.peer
        if source != self._me:
            work.peers = (source.get_name(),)
        return work

    @property
    def _passes_on(self) -> bool:
        """Whether this member passes on to others the objects that it receives."""
        return self._inbox is not None and bool(self._near or self._far)

    def _may_wait(self, value: Any) -> bool:
        """Whether starting to send a value may have to wait until members take earlier ones."""
        if self._inbox is not None or not self._near[1:]:
            return False
        nbytes = nbytes_of(value)
        return (nbytes is None or nbytes >= _ONCE_FROM) and self._written.nbytes() > 0

    def close(self) -> None:
        """Release resources held for other members."""
        for box in (*self._near, *self._far):
            box.close()
        if self._inbox is not None:
            self._inbox.close()

    # Finding the members.

    def _prepare(self, deadline: Deadline) -> None:
        """Find all members, and which of them this one receives from and sends to."""
        if self._edges is not None:
            return
        peers = self._routes.peers
        try:
            infos = [
                self._routes.info
                if member == self._me
                else peers.find(member, self._what, deadline)
                for member in self._members
            ]
        except ShoalTimeoutError as error:
            missing = [m.get_name() for m in self._members if peers.found(m) is None]
            absent = ", ".join(name for name in missing if name != self._me.get_name())
            raise ShoalTimeoutError(f"{error}; members that have not come: {absent}") from None
        apart = forced_transport() not in (None, "shm")
        edges = edges_of(self._me, self._root, infos, apart=apart, ring=self._ring)
        links = self._links_to(infos)
        if links:
            # A member that passed the object on would shorten the links of the others.
            edges = direct_edges(self._me, self._root, self._members)
        with self._lock:
            if self._edges is None:
                self._links = links
                self._near = [self._outbox(member) for member in edges.near]
                self._far = [self._outbox(member) for member in edges.far]
                if edges.parent is not None:
                    direct = edges.parent == self._root
                    what = f"{self._label}broadcast from" if direct else f"{self._what}: from"
                    self._inbox = Inbox(self._routes, self._kind, edges.parent, what, "broadcast")
                self._edges = edges

    def _links_to(self, infos: Sequence[WorkerInfo]) -> dict[WorkerAddress, Link]:
        """Return the emulated links from the source to other members; the same at all members."""
        root = next(info for info in infos if info.address == self._root)
        found = {info.address: self._routes.link(root, info) for info in infos if info is not root}
        return {member: link for member, link in found.items() if link is not None}

    def _outbox(self, member: WorkerAddress) -> Outbox:
        what, links = f"{self._what}: to", bool(self._links)
        outbox = Outbox(self._routes, self._kind, member, what, "broadcast", over_links=links)
        outbox.heed(self.options)
        return outbox

    # Sending.

    def _begin(self, value: Any, deadline: Deadline) -> Begun:
        if self._inbox is None:
            return self._started(value, deadline), None

        inbox = self._inbox
        receive: PendingReceive = inbox.start_recv(expects_object, _value, deadline)
        return receive, partial(inbox.give_back, receive)

    def _give(self, value: Any, deadline: Deadline) -> None:
        """Send to all members that receive from this one, then raise the first error, if any."""
        if self._links or self._copies_on_device(value, deadline):
            # At once: a late member delays no other.
            _result_of(self._work(self._started(value, deadline), deadline))
            return
        errors: list[BaseException] = []
        sends = self._messages(value, deadline, errors)
        for place, (outbox, message, reference) in enumerate(sends):
            before = None
            try:
                if not outbox.offer(message):
                    before = None if reference is None else outbox.puts()
                    outbox.send(message, deadline)
            except ShoalError as error:
                errors.append(error)
                _withdraw(reference)
            except BaseException:
                # Interrupted: the next members get nothing, and this one has the message already
                # unless its queue got none.
                is_unsent = before is not None and outbox.puts() == before
                for _, _, left in sends[place if is_unsent else place + 1 :]:
                    _withdraw(left)
                raise
        try:
            if errors:
                raise errors[0]
        finally:
            errors.clear()  # the frames of the errors, of which this is one, keep the object

    def _started(self, value: Any, deadline: Deadline) -> Future:
        """Start to send to those members; the future's result is the object."""
        errors: list[BaseException] = []
        if self._links:
            sends = self._over_links(envelope(sendable(value)), deadline)
        else:
            sends = [
                (outbox.start_send(message, deadline), reference)
                for outbox, message, reference in self._messages(value, deadline, errors)
            ]
        return _all_of(value, sends, errors)

    def _messages(
        self, value: Any, deadline: Deadline, errors: list[BaseException]
    ) -> list[tuple[Outbox, Any, PayloadRef | None]]:
        """Return the messages with their outboxes; other nodes come first, as they take longer.

        The error of a member that cannot be sent to is added to `errors`.
        """
        if not self._near and not self._far:
            return []
        message = envelope(sendable(value))
        sends: list[tuple[Outbox, Any, PayloadRef | None]] = [
            (outbox, message, None) for outbox in self._far
        ]
        if len(self._near) == 1 or self._copies_on_device(value, deadline):
            sends += [(outbox, message, None) for outbox in self._near]
        elif self._near:
            sends += self._to_node(message, deadline, errors)
        return sends

    def _copies_on_device(self, value: Any, deadline: Deadline) -> bool:
        """Whether several members of this node copy tensors from this one's device by themselves."""
        if not self._near[1:]:
            return False
        message = envelope(sendable(value))
        if (nbytes_of(message) or 0) < _BY_DEVICE_FROM:
            return False
        with contextlib.suppress(PeerLostError):  # the send to a dead member raises it
            return all(box.carrier_of(message, deadline) == IPC for box in self._near)
        return False

    def _over_links(
        self, message: Any, deadline: Deadline
    ) -> list[tuple[Future, PayloadRef | None]]:
        """Start to send to all members, of whom some are behind emulated links."""
        if not self._far:
            return []
        message, links = encoded(message), list(self._links.values())
        seconds = self._routes.seconds(links, size_of(message) or 0)
        left, now = dict(zip(self._links, seconds, strict=True)), monotonic()
        return [
            (box.start_send(message, deadline, now + left.get(box.peer, 0.0)), None)
            for box in self._far
        ]

    def _to_node(
        self, message: Any, deadline: Deadline, errors: list[BaseException]
    ) -> list[tuple[Outbox, Any, PayloadRef | None]]:
        """Write a message once for the members of this node."""
        nbytes = nbytes_of(message)
        if nbytes is None or nbytes < _ONCE_FROM:
            parcel = Parcel.of(message)
            if parcel.nbytes < _ONCE_FROM:
                return [(outbox, parcel, None) for outbox in self._near]
        head, buffers = dumps(message)
        size = len(head) + sum(buffer.nbytes for buffer in buffers)
        living: list[tuple[Outbox, ProcessId]] = []
        for outbox in self._near:
            try:
                living.append((outbox, outbox.info(deadline).process))
            except PeerLostError as error:
                errors.append(error)  # the other members still receive the message
        readers = [process for _, process in living]
        names = [(outbox.peer.get_name(), process) for outbox, process in living]
        self._wait_for_room(size, names, deadline)
        references = self._routes.memory.payloads().write(head, buffers, readers)
        self._written.add(size, references, readers)
        return [
            (outbox, special(BESIDE, reference), reference)
            for (outbox, _), reference in zip(living, references, strict=True)
        ]

    def _wait_for_room(
        self, size: int, names: list[tuple[str, ProcessId]], deadline: Deadline
    ) -> None:
        """Wait until the members have taken enough earlier payloads to make room for this one."""
        pause = _POLL_S / 50
        late: list[str] = []

        def describe() -> str:
            return f"{self._routes.name}: {self._what}: waits for {', '.join(late)} to take part"

        routes = self._routes
        with PeerWait(
            routes.directory, routes.name, "broadcast", late, describe, deadline, "sending"
        ) as wait:
            while (untaken := self._written.nbytes()) and untaken + size > MOST_BYTES:
                readers = self._written.readers(untaken + size - MOST_BYTES)
                late = [name for name, process in names if process in readers]
                if deadline.expired:
                    raise ShoalTimeoutError(
                        f"{describe()}: they took nothing within {deadline.timeout:g} s"
                    )
                wait.waits_for(late)
                wait.tick()
                sleep(min(pause, deadline.remaining))  # opening a payload sets no event
                pause = min(2 * pause, _POLL_S)


def _all_of(
    value: Any, sends: list[tuple[Future, PayloadRef | None]], errors: list[BaseException]
) -> Future:
    """Return the future of all sends of an object; to cancel it cancels those not sent yet."""
    future = AskingBy(lambda: [sent.cancel() for sent, _ in sends])
    left = itertools.count(len(sends) - 1, -1)

    def one_ended(_: Future) -> None:
        if next(left) > 0:
            return
        failed = [(sent, ref) for sent, ref in sends if sent.cancelled() or sent.exception()]
        sends.clear()  # each of them refers to this function, and so to the object
        for _, reference in failed:
            _withdraw(reference)
        if any(sent.cancelled() for sent, _ in failed):
            future.end()
        elif found := [*errors, *filter(None, (sent.exception() for sent, _ in failed))]:
            fail(future, found[0])
        else:
            fulfil(future, lambda: value)

    for sent, _ in sends or [(done(None), None)]:
        sent.add_done_callback(one_ended)
    return future


def _withdraw(reference: PayloadRef | None) -> None:
    if reference is not None:
        withdraw(reference)


def _result_of(work: AsyncWork) -> Any:
    """Wait for a broadcast; interrupted, it sends nothing more, and keeps no object."""
    try:
        return work.wait()
    except BaseException:
        work.abandon()
        del work  # as in `AsyncWork.result`
        raise


def _kind_from(
    kind: str, ring: bool, members: Sequence[WorkerAddress], source: WorkerAddress
) -> str:
    """Return the kind of the messages of broadcasts from a source."""
    names = sorted(member.get_name() for member in members)
    text = "\n".join([kind, source.get_name(), str(ring), *names])
    digest = hashlib.blake2s(text.encode(), digest_size=12).hexdigest()
    return f"broadcast {digest}"


def _move(outer: AskingBy, inner: Future) -> None:
    if inner.cancelled():
        outer.end()
    elif (error := inner.exception()) is not None:  # not raised here: its frames would keep both
        fail(outer, error)
    else:
        fulfil(outer, inner.result)


def _value(received: Received) -> Any:
    return received.value
