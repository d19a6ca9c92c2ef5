"""Keeps the asynchronous puts of this process to one queue in order, and batches them into calls.

`turns` does the same for asynchronous gets.
"""

import asyncio
import concurrent.futures
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shoal.deadline import Deadline
from shoal.futures import Asking, fail, fulfil
from shoal.loop import submit
from shoal.transport.client import HostLostError, HostSilentError
from shoal.transport.queues import Outcome

__all__ = ["PutSequence"]

_MOST_MESSAGES = 256
_MOST_BYTES = 4 * 1024 * 1024

Future = concurrent.futures.Future[Any]
PutMany = Callable[[list[tuple[int, Any]]], Coroutine[Any, Any, tuple[Outcome, int]]]
PutOne = Callable[[Any, int, Deadline], Coroutine[Any, Any, Outcome]]


@dataclass(eq=False)
class _Put:
    weight: int
    payload: Any
    size: int
    deadline: Deadline
    then: Callable[[Outcome], None]
    future: Future = field(default_factory=concurrent.futures.Future)
    # For a put made by a call to an actor; the lock of its sequence guards these three fields.
    sent: bool = False
    unwanted: bool = False
    stop: Callable[[], Any] | None = None

    def end(self, outcome: Outcome) -> None:
        fulfil(self.future, lambda: self.then(outcome))

    def drop(self) -> None:
        """Mark it as cancelled: the message is not in the queue."""
        if isinstance(self.future, Asking):
            self.future.end()
        else:
            self.future.cancel()


class PutSequence:
    """The asynchronous puts of this process to one queue.

    Puts that arrive while a call is under way go together in the next call. When the queue is
    full, the first put waits for room alone, and the others wait behind it. The next call then
    takes at most twice as many messages as there was room for, because refused messages travel in
    vain.

    Args:
        put_many: Puts as many messages as there is room for; returns their number.
        put_one: Puts one message, waiting for room.
        translate: Turns an error into the one that callers see.
        look: Given if puts are calls to an actor: raises `HostSilentError` if that actor does not
            answer at all. A put whose call is under way may already have happened there, so
            cancelling its future is only a request: it cancels the task of `put_one`, which must
            then find out whether the message was put, and raise `CancelledError` only if it was
            not.
    """

    def __init__(
        self,
        put_many: PutMany,
        put_one: PutOne,
        translate: Callable[[BaseException], BaseException],
        look: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._put_many = put_many
        self._put_one = put_one
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

    def add(
        self,
        weight: int,
        payload: Any,
        size: int,
        deadline: Deadline,
        then: Callable[[Outcome], None],
        future: Future | None = None,
    ) -> Future:
        """Put a message after all messages that were added before.

        Args:
            weight: Its weight.
            payload: The message.
            size: Its size in bytes.
            deadline: The deadline of the wait for room.
            then: Raises the error that an outcome stands for.
            future: The put's future, for a caller whose payload refers to it; None to create one.
        """
        put = _Put(weight, payload, size, deadline, then)
        if future is not None:
            put.future = future
        if self._look is not None:
            put.future = Asking(partial(self._ask, put))
        with self._lock:
            self._waiting.append(put)
            start, self._running = not self._running, True
        if start:
            submit(self._pump())
        if not math.isinf(deadline.timeout):
            # A put may expire while an earlier put with a later deadline is still waiting.
            timer = submit(self._time_out(put))
            # The timer refers to the message, so it must not outlive the put by hours.
            put.future.add_done_callback(lambda _: timer.cancel())
        return put.future

    def _ask(self, put: _Put) -> None:
        """Cancel a put that was not sent; tell one that was sent to stop waiting."""
        with self._lock:
            put.unwanted = True
            sent, stop = put.sent, put.stop
        if not sent:
            put.drop()
        elif stop is not None:
            stop()

    async def _time_out(self, put: _Put) -> None:
        await asyncio.sleep(put.deadline.remaining)
        self._give_up(put)
        if self._look is None or put not in self._together:
            return
        # The call that carries the put has one deadline for all its puts, which may be later.
        try:
            await self._look()
        except HostSilentError as error:
            fail(put.future, self._translate(error))
        except HostLostError:
            pass  # the call itself fails with the same error

    def _give_up(self, put: _Put) -> None:
        with self._lock:
            if put not in self._waiting:
                return
            self._waiting.remove(put)
        put.end(Outcome.TIMEOUT)

    async def _pump(self) -> None:
        while batch := self._next_batch():
            try:
                accepted = 0
                if len(batch) > 1:
                    accepted = await self._put_together(batch)
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
                    await self._put_alone(alone)
                    if not rest:
                        self._most = max(self._most, 2)
            except Exception as error:  # noqa: BLE001  (an error is the result of these puts)
                for put in batch:
                    fail(put.future, self._translate(error))

    def _next_batch(self) -> list[_Put]:
        batch: list[_Put] = []
        overdue: list[_Put] = []
        size = 0
        with self._lock:
            while self._waiting and len(batch) < min(self._most, _MOST_MESSAGES):
                put = self._waiting[0]
                if put.unwanted or put.future.done():
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
            put.end(Outcome.TIMEOUT)
        return batch

    def _put_back(self, puts: list[_Put]) -> None:
        """Return puts that found no room to the front of the waiting ones."""
        with self._lock:
            for put in puts:
                put.sent = False
            unwanted = [put for put in puts if put.unwanted]
            self._waiting.extendleft(put for put in reversed(puts) if not put.unwanted)
        for put in unwanted:
            put.drop()

    async def _put_together(self, batch: list[_Put]) -> int:
        self._together = batch
        try:
            outcome, accepted = await self._put_many([(put.weight, put.payload) for put in batch])
        finally:
            self._together = []
        for put in batch[:accepted]:
            put.end(Outcome.OK if outcome is Outcome.CLOSED else outcome)
        return accepted

    async def _put_alone(self, put: _Put) -> None:
        task = asyncio.ensure_future(self._put_one(put.payload, put.weight, put.deadline))
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        if self._look is not None:
            with self._lock:
                put.stop = stop
                if put.unwanted or put.future.done():
                    task.cancel()  # before it starts
        else:
            put.future.add_done_callback(lambda done: stop() if done.cancelled() else None)
        try:
            put.end(await task)
        except asyncio.CancelledError:
            put.drop()
