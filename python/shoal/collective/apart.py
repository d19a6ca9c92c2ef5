"""Threads for waits that cannot be made in the caller's thread, kept for a while for the next.

To start a thread for each message would cost more than the message; to keep one for each peer would
cost a thread for each peer.
"""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from shoal.fork import ChildStage, in_child

__all__ = ["run_apart"]

_IDLE_S = 5.0
"""How long a thread waits for more before it ends."""


class _Waiter:
    """A thread that runs one function after the other."""

    def __init__(self, idle: "list[_Waiter]") -> None:
        self._idle = idle
        self._functions: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run(self, function: Callable[[], None]) -> None:
        self._functions.put(function)

    def start(self, function: Callable[[], None]) -> None:
        self.run(function)
        threading.Thread(target=self._work, name="shoal-apart", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                function = self._functions.get(timeout=_IDLE_S)
            except Empty:
                try:
                    self._idle.remove(self)
                except ValueError:
                    continue  # it is given a function at this moment
                return
            function()
            del function  # what it refers to must not live as long as this thread
            self._idle.append(self)


_idle: list[_Waiter] = []


def run_apart(function: Callable[[], None]) -> None:
    """Run a function that raises nothing in a thread other than the caller's, at once."""
    try:
        waiter = _idle.pop()
    except IndexError:
        _Waiter(_idle).start(function)
    else:
        waiter.run(function)


def _forget_threads() -> None:
    _idle.clear()


in_child(ChildStage.RENEW, _forget_threads)
