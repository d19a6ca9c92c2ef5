"""Runs the asynchronous gets of this process on one queue one after the other.

Ray may run two calls of one caller in any order, so the second is made after the first has
answered: the first future then holds the older message. `sequence` does the same for puts.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from shoal.deadline import Deadline
from shoal.futures import Future, start

__all__ = ["Turns"]

_T = TypeVar("_T")


class Turns:
    """Orders the asynchronous operations of one client, separately for each queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, int] = {}
        self._turns: dict[Hashable, asyncio.Lock] = {}

    def busy(self, name: Hashable) -> bool:
        """Whether operations on a queue are under way."""
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
            turn = self._turns.setdefault(name, asyncio.Lock())
            try:
                async with asyncio.timeout(deadline.remaining_or_none()):
                    await turn.acquire()
            except TimeoutError:
                raise too_late() from None
            try:
                return await work()
            finally:
                turn.release()

        def leave(_: Future) -> None:
            with self._lock:
                self._waiting[name] -= 1
                if not self._waiting[name]:
                    del self._waiting[name]
                    self._turns.pop(name, None)

        with self._lock:
            self._waiting[name] = self._waiting.get(name, 0) + 1
            future = start(in_turn(), finish, refuse, future)
        future.add_done_callback(leave)
        return future
