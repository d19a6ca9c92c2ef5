"""Threads for waits that cannot run in the caller's thread; idle threads are reused for a while.

Starting a thread for each message would cost more than the message, and keeping one for each peer
would cost a thread for each peer.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from shoal.fork import ChildStage, in_child
from shoal.futures import fulfil

__all__ = ["result_from_thread", "run_in_thread"]

_T = TypeVar("_T")

_IDLE_S = 5.0
"""Seconds that an idle thread waits for another function before it ends."""


class _Waiter:
    """A thread that runs one function after another."""

    def __init__(self, idle: "list[_Waiter]") -> None:
        self._idle = idle
        self._functions: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def run(self, function: Callable[[], object]) -> None:
        self._functions.put(function)

    def start(self, function: Callable[[], object]) -> None:
        self.run(function)
        threading.Thread(target=self._work, name="shoal-wait", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                function = self._functions.get(timeout=_IDLE_S)
            except Empty:
                try:
                    self._idle.remove(self)
                except ValueError:
                    continue  # `run_in_thread` has just taken this thread and is giving it a function
                return
            function()
            del function  # so that an idle thread does not keep alive what it refers to
            self._idle.append(self)


_idle: list[_Waiter] = []


def run_in_thread(function: Callable[[], object]) -> None:
    """Run a function in another thread at once; the function must not raise."""
    try:
        waiter = _idle.pop()
    except IndexError:
        _Waiter(_idle).start(function)
    else:
        waiter.run(function)


async def result_from_thread(function: Callable[[], _T]) -> _T:
    """Run a function in another thread at once; return its result.

    The default threads of an event loop are few: functions that wait there could wait for each other.
    """
    future: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def work() -> None:
        fulfil(future, function)

    run_in_thread(work)
    return await asyncio.wrap_future(future)


def _forget_threads() -> None:
    _idle.clear()


in_child(ChildStage.RENEW, _forget_threads)
