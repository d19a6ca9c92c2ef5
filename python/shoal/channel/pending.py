"""Keeps the pending asynchronous calls of this process on a channel's queues in order.

`PendingCalls` is a member of the queues: it says which keys have pending calls, and holds the
`PutSequence` of each key and the `Turns` of the gets.
"""

import asyncio
import concurrent.futures
import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from shoal.deadline import Deadline
from shoal.fork import reset_in_child
from shoal.futures import Asking, fail, start
from shoal.loop import submit
from shoal.queues.protocol import ActorLostError, ActorSilentError, Future
from shoal.queues.wait import named
from shoal.reused_threads import result_from_thread, run_in_thread

__all__ = ["PendingCalls", "PutSequence", "Turns"]

_T = TypeVar("_T")

_MOST_MESSAGES = 4096
"""Maximum number of messages that one call puts."""
_MOST_BYTES = 4 * 1024 * 1024
"""Maximum bytes of the messages that one call puts, unless one message alone has more."""


class Cancel(Protocol):
    """Ends a put from another thread."""

    def cancel(self) -> None:
        """End the put."""


PutMany = Callable[[list[tuple[int, Any]]], int]


class _Put(Asking):
    """A put of a sequence, and the future of it: thousands may wait, so it is one object."""

    def __init__(
        self,
        weight: int,
        payload: Any,
        size: int,
        deadline: Deadline,
        ask: "Callable[[_Put], None]",
    ) -> None:
        super().__init__()
        self.weight, self.payload, self.size, self.deadline = weight, payload, size, deadline
        self._ask = ask
        # The lock of its sequence guards these three fields.
        self.sent = False
        self.unwanted = False
        self.stop: Callable[[], Any] | None = None

    def ask(self) -> None:
        self._ask(self)

    def succeed(self) -> None:
        """End it: the message is in the queue."""
        self.payload = None
        # It has failed, if an actor that had not answered did so later.
        with contextlib.suppress(InvalidStateError):
            self.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended."""
        self.payload = None
        fail(self, named(error))

    def end(self) -> None:
        self.payload = None
        super().end()


class PutSequence:
    """The asynchronous puts of this process to one queue.

    A thread makes them, one call after the other. Puts that arrive while a call is under way go
    together in the next one. When the queue is full, the first put waits for room alone, and the
    others wait behind it. The next call then takes at most twice as many messages as there was room
    for, because refused messages travel in vain.

    Args:
        put_many: Puts as many messages as there is room for; returns their number.
        put_one: Puts one message, waiting for room, until a `Cancel` ends that. A put that is under way
            may already have happened elsewhere, so cancelling its future is only a request:
            `put_one` must then find out whether the message was put, and raise `CancelledError` only
            if it was not.
        new_cancel: Makes the `Cancel` of a put.
        translate: Turns an error into the one that callers see.
        look: Raises `ActorSilentError` if the actor does not answer at all.
        too_late: Makes the error of a put that found no room before its deadline, from the timeout.
    """

    def __init__(
        self,
        put_many: PutMany,
        put_one: Callable[[Any, int, Deadline, Any], None],
        new_cancel: Callable[[], Cancel],
        translate: Callable[[BaseException], BaseException],
        look: Callable[[], None],
        too_late: Callable[[float], BaseException],
    ) -> None:
        self._too_late = too_late
        self._put_many = put_many
        self._put_one = put_one
        self._new_cancel = new_cancel
        self._translate = translate
        self._look = look
        self._most = _MOST_MESSAGES
        self._together: list[_Put] = []
        self._lock = threading.Lock()
        self._waiting: deque[_Put] = deque()
        self._running = False

    @property
    def busy(self) -> bool:
        """Whether puts are still under way."""
        return self._running

    def add(self, weight: int, payload: Any, size: int, deadline: Deadline) -> Future:
        """Put a message after all messages that were added before.

        Args:
            weight: Its weight.
            payload: The message.
            size: Its size in bytes.
            deadline: The deadline of the wait for room.
        """
        put = _Put(weight, payload, size, deadline, self._ask)
        with self._lock:
            self._waiting.append(put)
            start, self._running = not self._running, True
        if start:
            run_in_thread(self._pump)
        if not math.isinf(deadline.timeout):
            # A put may expire while an earlier put with a later deadline is still waiting.
            timer = submit(self._time_out(put))
            # The timer refers to the message, so it must not outlive the put by hours.
            put.add_done_callback(lambda _: timer.cancel())
        return put

    def _ask(self, put: _Put) -> None:
        """Cancel a put that was not sent; tell one that was sent to stop waiting."""
        with self._lock:
            put.unwanted = True
            sent, stop = put.sent, put.stop
        if not sent:
            put.end()
        elif stop is not None:
            stop()

    async def _time_out(self, put: _Put) -> None:
        await asyncio.sleep(put.deadline.remaining)
        self._give_up(put)
        if put not in self._together:
            return
        # The call that carries the put has one deadline for all its puts, which may be later.
        try:
            await result_from_thread(self._look)
        except ActorSilentError as error:
            put.fail(self._translate(error))
        except ActorLostError:
            pass  # the call itself fails with the same error

    def _give_up(self, put: _Put) -> None:
        with self._lock:
            if put not in self._waiting:
                return
            self._waiting.remove(put)
        self._expire(put)

    def _expire(self, put: _Put) -> None:
        put.fail(self._too_late(put.deadline.timeout))

    def _pump(self) -> None:
        """Put the messages, in their order, until none is left."""
        while batch := self._next_batch():
            try:
                accepted = 0
                if len(batch) > 1:
                    accepted = self._put_together(batch)
                # While one put waits alone, the others wait in `_waiting`, where they can expire.
                alone = batch[0] if accepted == 0 else None
                rest = batch[max(accepted, 1) :]
                if accepted == len(batch):
                    self._most = max(self._most, 2 * accepted)
                elif rest:
                    self._most = max(1, 2 * accepted)
                self._put_back(rest)
                if alone is not None:
                    batch = [alone]
                    for put in rest:
                        if put.deadline.expired:  # its timer fired during the call
                            self._give_up(put)
                    self._put_alone(alone)
                    if not rest:
                        self._most = max(self._most, 2)
            except Exception as error:  # noqa: BLE001  (an error is the result of these puts)
                for put in batch:
                    put.fail(self._translate(error))

    def _next_batch(self) -> list[_Put]:
        batch: list[_Put] = []
        overdue: list[_Put] = []
        size = 0
        with self._lock:
            while self._waiting and len(batch) < min(self._most, _MOST_MESSAGES):
                put = self._waiting[0]
                if put.unwanted or put.done():
                    self._waiting.popleft()
                    continue
                if put.deadline.expired and put.deadline.timeout > 0:
                    # Its timer may have fired during a call.
                    overdue.append(self._waiting.popleft())
                    continue
                size += put.size
                if batch and size > _MOST_BYTES:
                    break
                batch.append(self._waiting.popleft())
            for put in batch:
                put.sent = True
            self._running = bool(batch)
        for put in overdue:
            self._expire(put)
        return batch

    def _put_back(self, puts: list[_Put]) -> None:
        """Return puts that found no room to the front of the waiting ones."""
        with self._lock:
            for put in puts:
                put.sent = False
            unwanted = [put for put in puts if put.unwanted]
            self._waiting.extendleft(put for put in reversed(puts) if not put.unwanted)
        for put in unwanted:
            put.end()

    def _put_together(self, batch: list[_Put]) -> int:
        self._together = batch
        try:
            accepted = self._put_many([(put.weight, put.payload) for put in batch])
        finally:
            self._together = []
        for put in batch[:accepted]:
            put.succeed()
        return accepted

    def _put_alone(self, put: _Put) -> None:
        cancel, payload = self._new_cancel(), put.payload  # its end in another thread drops it
        with self._lock:
            put.stop = cancel.cancel
            unwanted = put.unwanted or put.done()
        if unwanted:
            cancel.cancel()  # before it starts
        try:
            self._put_one(payload, put.weight, put.deadline, cancel)
        except concurrent.futures.CancelledError:
            put.end()
        else:
            put.succeed()


@dataclass
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Turns:
    """Runs the asynchronous gets of this process on one queue one after the other.

    The second asks after the first has an answer: the first future then holds the older message. A
    get that was cancelled keeps its turn until its coroutine has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, int] = {}
        self._turns: dict[Hashable, _Turn] = {}  # used on the loop only

    def busy(self, name: Hashable) -> bool:
        """Whether operations on a queue are under way that were not cancelled."""
        return name in self._waiting

    def start(
        self,
        name: Hashable,
        deadline: Deadline,
        work: Callable[[], Coroutine[Any, Any, _T]],
        finish: Callable[[_T], Any],
        too_late: Callable[[], BaseException],
        refuse: Callable[[_T], None] | None = None,
        future: Future | None = None,
    ) -> Future:
        """Start an operation; it runs after all operations on the same queue started before.

        Args:
            name: The queue.
            deadline: The operation's deadline, which includes the wait for its turn.
            work: Makes the operation's coroutine.
            finish: Turns the coroutine's result into the future's.
            too_late: Makes the error for a turn that did not come in time.
            refuse: Receives the coroutine's result if the future was cancelled.
            future: The operation's future, for an operation that refers to it; None to create one.
        """

        async def in_turn() -> _T:
            turn = self._turns.setdefault(name, _Turn())
            turn.users += 1
            try:
                try:
                    async with asyncio.timeout(deadline.remaining_or_none()):
                        await turn.lock.acquire()
                except TimeoutError:
                    raise too_late() from None
                try:
                    return await work()
                finally:
                    turn.lock.release()
            finally:
                turn.users -= 1
                if not turn.users:
                    del self._turns[name]

        def leave(_: Future) -> None:
            with self._lock:
                self._waiting[name] -= 1
                if not self._waiting[name]:
                    del self._waiting[name]

        with self._lock:
            self._waiting[name] = self._waiting.get(name, 0) + 1
            future = start(in_turn(), finish, refuse, future)
        future.add_done_callback(leave)
        return future


class PendingCalls:
    """The pending asynchronous calls of this process on some queues.

    A later call of the process on the same key must not overtake them, whichever way it goes.

    Attributes:
        gets: The order of the gets.
    """

    def __init__(self) -> None:
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Forget all calls: in a forked child they belong to the parent."""
        self._lock = threading.Lock()
        self.gets = Turns()
        self._puts: dict[Hashable, PutSequence] = {}

    def has_puts(self, key: Hashable) -> bool:
        """Whether asynchronous puts to a key are pending; they come first."""
        sequence = self._puts.get(key)
        return sequence is not None and sequence.busy

    def has_gets(self, key: Hashable) -> bool:
        """Whether asynchronous gets from a key are pending; they come first."""
        return self.gets.busy(key)

    def add_put(
        self,
        key: Hashable,
        make: Callable[[], PutSequence],
        add: Callable[[PutSequence], Future],
    ) -> Future:
        """Add a put to the sequence of its key.

        Args:
            key: The key.
            make: Makes the sequence if the key has none.
            add: Adds the put to the sequence, and returns its future.
        """
        with self._lock:
            for idle in [k for k, s in self._puts.items() if not s.busy and k != key]:
                del self._puts[idle]
            sequence = self._puts.get(key)
            if sequence is None:
                sequence = self._puts[key] = make()
            return add(sequence)
