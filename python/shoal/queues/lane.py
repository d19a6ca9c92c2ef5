"""`Lane`: a channel's queues on another node, used from the calling thread over TCP.

The channel's actor listens beside the memory that stores the items, and its threads put into it and
take from it without its interpreter. `LaneAddress` comes from the actor over Ray, with a key that
only processes of the job get. The connections are encrypted if those of Ray are, with its files.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal import _backend
from shoal.context import env_var
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelExistsError,
    PeerLostError,
    ShoalError,
    ShoalTimeoutError,
    ShoalValueError,
    TransportError,
)
from shoal.fork import reset_in_child
from shoal.loop import in_event_loop, submit
from shoal.queues import timing
from shoal.queues.protocol import NOTHING, ItemLease, Leased, Taken, Want, leased, set_done
from shoal.queues.settings import ChannelSettings
from shoal.queues.shared import QueueWait, take_in_time, take_now, with_whole_timeout
from shoal.queues.usage import StatePageUse
from shoal.reused_threads import result_from_thread, run_in_thread
from shoal.shm import Session
from shoal.shm.keys import canonical
from shoal.shm.refusals import timeout_error

if TYPE_CHECKING:
    from shoal._backend import LaneCancel, LaneClient, LaneMessage, LaneQueue, LaneServer

__all__ = ["HeldLeases", "Lane", "LaneAddress", "listen"]

_MANY = 1024
"""Maximum number of queues that are kept; then all are made again when they are used."""

_KEY_BYTES = 32
_LAST_PORT = 65_535

_TLS_VARIABLES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")

_HINT = (
    "Is the port blocked? SHOAL_LANE_PORTS=20000-20100 makes channels listen on these ports alone"
)


def _hinted(why: str) -> str:
    """Return a reason, with advice if the port may be blocked; others name what was refused."""
    return f"{why}. {_HINT}" if "could not be reached" in why else why


class LaneAddress(NamedTuple):
    """Where the server of a session is reached.

    Attributes:
        ip: Its IP address.
        port: Its port.
        key: The secret with which both sides prove that they belong to the job.
    """

    ip: str
    port: int
    key: bytes

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


def listen(session: Session, ip: str) -> "tuple[LaneServer, LaneAddress]":
    """Let processes of other nodes use a session.

    Args:
        session: The session.
        ip: An IP address of this node.

    Raises:
        ShoalValueError: `SHOAL_LANE_PORTS` does not name ports.
        TransportError: The address is not one of this machine, no port is free, or Ray encrypts and
            a variable or a file for that cannot be used.
    """
    key, tls = os.urandom(_KEY_BYTES), _tls()
    ports, name = _ports()
    for port in ports:
        try:
            server = _backend.LaneServer(session, ip, key, tls, port)
        except TransportError as error:
            if port != ports[-1]:
                continue
            if name:
                raise TransportError(f"{name}: no server can use these ports: {error}") from None
            raise
        return server, LaneAddress(*server.address, key)
    raise AssertionError  # there is a port


def _ports() -> tuple[range, str]:
    """Return the ports to listen on, and the variable that says so; 0 is any port.

    Raises:
        ShoalValueError: The variable does not name ports.
    """
    text, name = env_var("LANE_PORTS")
    if not text:
        return range(1), ""
    first, _, last = text.partition("-")
    try:
        ports = range(int(first), int(last or first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports[0] < 1 or ports[-1] > _LAST_PORT:
        raise ShoalValueError(
            f"{name}={text!r}: expected ports from 1 to {_LAST_PORT}, as 20000-20100"
        )
    return ports, f"{name}={text}"


def _tls() -> tuple[str, str, str] | None:
    """Return the files with which Ray encrypts: certificate, key and CA; None if it does not."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    certificate, key, ca = (os.environ.get(name, "") for name in _TLS_VARIABLES)
    missing = [name for name in _TLS_VARIABLES if not os.environ.get(name)]
    if missing:
        text = f"RAY_USE_TLS is set, but not {', '.join(missing)}: expected the path of a PEM file"
        raise TransportError(text)
    return certificate, key, ca


class _NodeDeadError(Exception):
    """Ray has declared the node of a server dead; ends the wait of a call.

    Not an `OSError`: the pure core would take it for one of its own.
    """


class HeldLeases:
    """The leases of this process at one actor; renews them while there are any.

    Args:
        renew: Tells the actor that leases are still in use; returns those that have not ended.
    """

    def __init__(self, renew: Callable[[list[int]], Coroutine[Any, Any, list[int]]]) -> None:
        self._renew = renew
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Forget all leases: in a forked child they belong to the parent."""
        self._numbers: set[int] = set()
        self._lock = threading.Lock()
        self._renews = False

    def add(self, numbers: Iterable[int]) -> None:
        """Add leases that this process has taken, by number."""
        with self._lock:
            self._numbers.update(numbers)
            start, self._renews = not self._renews, True
        if start:
            submit(self._keep())

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove leases that have ended, by number."""
        with self._lock:
            self._numbers.difference_update(numbers)

    async def _keep(self) -> None:
        while numbers := await self._due():
            # An error must not end this loop while there are leases.
            with contextlib.suppress(Exception):
                kept = await self._renew(numbers)
                self.remove(set(numbers).difference(kept))

    async def _due(self) -> list[int]:
        await asyncio.sleep(timing.TIMING.renew_s)
        with self._lock:
            self._renews = bool(self._numbers)
            return list(self._numbers)


class _Server:
    """A server, the connections to it, its queues that were used, by key, and the leases from it."""

    def __init__(self, address: LaneAddress, is_dead: Callable[[str], bool]) -> None:
        self.address = address
        self.client: LaneClient = _backend.LaneClient(*address, _tls())
        self.queues: dict[bytes, LaneQueue] = {}
        self.held = HeldLeases(self._renew)
        self._is_dead = is_dead
        self._asks = threading.Lock()  # held during a question
        self._asks_again_at = 0.0
        self._node_is_dead = False  # for ever, once it is so: Ray takes nothing back

    def check_node(self) -> None:
        """End the wait of a call, if the server is not reached and Ray has declared its node dead.

        Raises:
            _NodeDeadError: It has.
        """
        if not self.client.is_connecting:
            return
        if self._node_is_dead:
            raise _NodeDeadError(f"{self.address}: Ray has declared this node dead")
        now = time.monotonic()
        if now >= self._asks_again_at and self._asks.acquire(blocking=False):
            self._asks_again_at = now + timing.TIMING.ask_s
            run_in_thread(self._ask_about_node)  # an answer may take long; a later check sees it

    def _ask_about_node(self) -> None:
        try:
            with contextlib.suppress(Exception):  # nothing is known then
                self._node_is_dead = self._is_dead(self.address.ip)
        finally:
            self._asks.release()

    async def _renew(self, numbers: list[int]) -> list[int]:
        try:
            await result_from_thread(partial(self.client.renew, numbers))
        except (ConnectionRefusedError, ConnectionResetError):
            return []  # it is gone, and its leases with it
        return numbers

    def taken(
        self, found: Leased, want: Want, lost: Callable[[LaneAddress, str], BaseException]
    ) -> Taken:
        """Return leased messages as the result of a get; their leases are renewed from now on.

        Args:
            found: The messages.
            want: What the caller gets: leases, or the items.
            lost: Returns the error of a call that was not answered.
        """
        messages, error = found
        numbers = [message.number for message in messages]
        self.held.add(numbers)

        def end(*, acknowledged: bool) -> None:
            try:
                # If the server is gone, its leases are, too.
                with contextlib.suppress(ShoalError, ConnectionRefusedError, ConnectionResetError):
                    self.client.end(numbers, acknowledged)
            finally:
                self.held.remove(numbers)

        give_back = partial(run_in_thread, partial(end, acknowledged=False))
        if want.lease:
            leases = [self._leased(message, lost) for message in messages]
            return Taken.of(leases, want, error, give_back=give_back)
        values = [message.value for message in messages]
        deliver = partial(_run_outside_of_loops, partial(end, acknowledged=True))
        return Taken.of(values, want, error, deliver, give_back)

    def _leased(
        self, message: "LaneMessage", lost: Callable[[LaneAddress, str], BaseException]
    ) -> ItemLease:
        def end(tell: Callable[[], None]) -> None:
            try:
                tell()
            except (ConnectionRefusedError, ConnectionResetError) as error:
                raise lost(self.address, str(error)) from None
            self.held.remove([message.number])

        ends = partial(end, message.give_back), partial(end, message.ack)
        return ItemLease(message.value, message.redelivered, *ends)


def _run_outside_of_loops(function: Callable[[], None]) -> None:
    """Run a function that may wait: in this thread, unless an event loop runs in it."""
    if in_event_loop():
        run_in_thread(function)
    else:
        function()


class _Call(NamedTuple):
    """One operation on the queue of a key.

    Attributes:
        operation: Its name.
        encoded: The canonical form of the key.
        shown: The name of the queue in messages.
        deadline: When it ends; None if it does not wait.
        takes: Whether it takes items.
        again: Whether it goes on at the next process of the actor if that is safe.
    """

    operation: str
    encoded: bytes
    shown: str
    deadline: Deadline | None
    takes: bool = False
    again: bool = True

    def __str__(self) -> str:
        return f"{self.operation}: {self.shown}"

    def late(self, deadline: Deadline, why: str) -> ShoalTimeoutError:
        """Return the error for a deadline that passed before the actor's process answered."""
        if self.takes:
            error = timeout_error(self.operation, self.shown, deadline.timeout, NOTHING)
            error.args = (f"{error}: {why}",)
            return error
        return ShoalTimeoutError(f"{self}: no connection within {deadline.timeout:g} s: {why}")


def _put_nothing(error: Exception) -> bool:
    """Whether a put that ended with an error certainly put nothing."""
    if isinstance(error, _NodeDeadError):
        return getattr(error, "done", None) == 0
    return isinstance(error, ConnectionRefusedError)


class Lane:
    """The way to the session of one actor of a channel.

    Args:
        settings: The channel.
        find: Asks the actor for its address. Raises the channel's errors, and `TimeoutError` with a
            reason at the deadline.
        lost: Returns the error of a call that was not answered, from the address and the reason.
        check_job: Raises an error if the job of this process has ended.
        is_dead: Says whether Ray has declared dead the node with an IP address; may take long.
    """

    def __init__(
        self,
        settings: ChannelSettings,
        find: Callable[[Deadline | None], LaneAddress],
        lost: Callable[[LaneAddress, str], BaseException],
        check_job: Callable[[], None],
        is_dead: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._find = find
        self._lost = lost
        self._check_job = check_job
        self._is_dead = is_dead
        self._server: _Server | None = None
        self._page_use = StatePageUse(settings, "")

    def put(
        self,
        key: Hashable,
        item: object,
        weight: int,
        deadline: Deadline | None,
        cancel: "LaneCancel | None" = None,
    ) -> None:
        """Put an item.

        Args:
            key: The key.
            item: The item.
            weight: Its weight.
            deadline: The deadline; None not to wait.
            cancel: Ends the put of an asynchronous call, which shows its wait itself.

        Raises:
            concurrent.futures.CancelledError: `cancel` ended it, and the item is not in the channel.
        """

        def put(queue: "LaneQueue", server: _Server) -> None:
            if deadline is None:
                queue.put_nowait(item, weight)
                return
            with self._wait("put", "room", queue, deadline, cancel) as wait:
                waiting = self._waiting(server, wait)
                queue.put(item, weight, deadline.remaining, waiting=waiting, cancel=cancel)

        self._use(self._call("put", key, deadline), put)

    def put_many(
        self, key: Hashable, items: Sequence[object], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""
        done = 0

        def put(queue: "LaneQueue", server: _Server) -> None:
            nonlocal done
            try:
                with self._wait("put_many", "room", queue, deadline) as wait:
                    left, waiting = deadline.remaining, self._waiting(server, wait)
                    queue.put_many(items[done:], weights[done:], left, waiting=waiting)
            except Exception as error:
                done += getattr(error, "done", 0)
                raise

        try:
            self._use(self._call("put_many", key, deadline), put)
        except Exception as error:
            set_done(error, done)
            raise

    def put_now(self, key: Hashable, items: Sequence[object], weights: Sequence[int]) -> int:
        """Put items in their order, until one fails; return how many are put."""
        done = 0

        def put(queue: "LaneQueue", server: _Server) -> None:
            nonlocal done
            waiting = self._waiting(server)
            try:
                queue.put_many(items[done:], weights[done:], 0, waiting=waiting)
            except Exception as error:
                done += getattr(error, "done", 0)
                if not isinstance(error, ShoalError):  # those are for a put of the next item alone
                    raise
            else:
                done = len(items)

        # A timeout: the actor starts again, or is not reached; no more was sent.
        with contextlib.suppress(ShoalTimeoutError):
            self._use(self._call("put_many", key, Deadline(0)), put)
        return done

    def take(
        self,
        key: Hashable,
        want: Want,
        deadline: Deadline | None,
        cancel: "LaneCancel | None" = None,
    ) -> Any:
        """Take items; a deadline of None means without waiting; `cancel` as for `put`."""
        found: Any = None

        def take_from(queue: "LaneQueue", server: _Server) -> Any:
            if deadline is None:
                return take_now(queue, want)
            with self._wait("get", "an item", queue, deadline, cancel) as wait:
                waiting = self._waiting(server, wait)
                return take_in_time(queue, want, deadline, waiting=waiting, cancel=cancel)

        def take(queue: "LaneQueue", server: _Server) -> None:
            nonlocal found
            if want.lease:
                messages = leased(partial(take_from, queue, server), want)
                found = server.taken(messages, want, self._lost).received()
            else:
                found = take_from(queue, server)

        call = self._call(want.operation, key, deadline, takes=True)
        self._use(call._replace(again=want.again), take)
        return found

    async def take_later(
        self, key: Hashable, want: Want, deadline: Deadline, cancel: "LaneCancel"
    ) -> Taken:
        """Take items in another thread; they are on lease until the result is delivered.

        Raises:
            asyncio.CancelledError: `cancel` ended it, also for other processes; it has taken nothing.
        """
        found = Taken(None)
        on_lease = want._replace(lease=True)

        def take(queue: "LaneQueue", server: _Server) -> None:
            nonlocal found
            waiting = self._waiting(server)
            take = partial(take_in_time, queue, on_lease, deadline, waiting=waiting, cancel=cancel)
            found = server.taken(leased(take, want), want, self._lost)

        call = self._call(want.operation, key, deadline, takes=True)
        await result_from_thread(partial(self._use, call, take))
        return found

    @staticmethod
    def new_cancel() -> "LaneCancel":
        """Return an object that ends an operation."""
        return _backend.LaneCancel()

    def _wait(
        self,
        operation: str,
        awaited: str,
        queue: "LaneQueue",
        deadline: Deadline,
        cancel: "LaneCancel | None" = None,
    ) -> contextlib.AbstractContextManager[QueueWait | None]:
        wait = QueueWait(operation, awaited, queue, deadline, self._settings.page_name)
        return wait if cancel is None else contextlib.nullcontext()

    def _waiting(self, server: _Server, wait: QueueWait | None = None) -> Callable[[], None]:
        """Return what a call does while it waits: it ends with the job or the node, and shows that."""

        def waiting() -> None:
            self._check_job()
            server.check_node()
            if wait is not None:
                wait()

        return waiting

    def _call(
        self, operation: str, key: Hashable, deadline: Deadline | None, *, takes: bool = False
    ) -> _Call:
        encoded = canonical(key)  # before `repr`, which may fail for a key that this refuses
        return _Call(operation, encoded, self._settings.shown(key), deadline, takes)

    def _use(self, call: _Call, use: "Callable[[LaneQueue, _Server], None]") -> None:
        """Use the queue of a key; find the actor again if its former process has ended."""
        self._page_use.show("get" if call.takes else "put")
        server = self._reached(call)
        while why := self._attempt(call, server, use):
            server = self._reached(call, why, server.address)

    def _reached(self, call: _Call, why: str = "", refused: LaneAddress | None = None) -> _Server:
        """Return the server of the actor; `why` says why its former one refused the call."""
        self._check_job()
        server = self._server or self._connected(call, why)
        if server.address == refused:
            raise TransportError(f"{call}: its actor answers over Ray, but {_hinted(why)}")
        return server

    def _attempt(
        self, call: _Call, server: _Server, use: "Callable[[LaneQueue, _Server], None]"
    ) -> str:
        """Use a queue once; return why its server did nothing, an empty string if it is done."""
        deadline = call.deadline
        queue = server.queues.get(call.encoded) or self._opened(server, call, bound=True)
        try:
            try:
                use(queue, server)
            except ChannelExistsError:  # the key was given a bound of its own
                use(self._opened(server, call, bound=False), server)
        except (ConnectionRefusedError, ConnectionResetError, _NodeDeadError) as error:
            self._forget(server)
            # A take that was not answered has taken nothing.
            takes_again = call.takes and deadline is not None
            if not call.again:  # whatever became of the actor, what the call waits for has gone
                raise PeerLostError(f"{call}: {error}") from None
            if not takes_again and not _put_nothing(error):
                raise self._lost(server.address, str(error)) from None
            if deadline is not None and deadline.expired:
                raise call.late(
                    deadline, str(error) if call.takes else _hinted(str(error))
                ) from None
            return str(error)
        except ChannelClosed:
            self._check_job()
            raise
        except ShoalTimeoutError as error:
            if deadline is None:
                raise
            raise with_whole_timeout(error, call.operation, queue.name, deadline) from None
        return ""

    def _connected(self, call: _Call, why: str) -> _Server:
        """Find the actor; `why` says what became of its former server, if this call used one."""
        if not call.again:  # another thread has lost the process that has what it waits for
            raise PeerLostError(f"{call}: the process that was asked has gone")
        try:
            address = self._find(call.deadline)
        except PeerLostError as error:
            if why:
                error.args = (f"{error}: {why}",)
            raise
        except TimeoutError as error:
            if call.deadline is None:
                raise
            raise call.late(call.deadline, str(error)) from None
        try:
            self._server = server = _Server(address, self._is_dead)
        except TransportError as error:
            text = f"{call}: no encrypted connection to {address}: {error}"
            raise TransportError(text) from None
        return server

    def _forget(self, server: _Server) -> None:
        if self._server is server:  # another thread may have found the next process
            self._server = None

    def _opened(self, server: _Server, call: _Call, *, bound: bool) -> "LaneQueue":
        settings = self._settings
        if len(server.queues) >= _MANY:
            server.queues.clear()
        queue = _backend.LaneQueue(
            server.client,
            call.encoded,
            settings.maxsize if bound else None,
            settings.key_bytes or None,
            settings.policy,
            call.shown,
        )
        server.queues[call.encoded] = queue
        return queue
