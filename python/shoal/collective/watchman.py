"""Looks after asynchronous sends and receives: whether their peers live, and their deadlines.

A call that waits looks by itself. What was started with `async_op=True` has no thread: one task on
the process's event loop looks at all of it, as long as there is any.
"""

import asyncio
import logging
import threading
import weakref
from typing import Protocol

from shoal.fork import ChildStage, in_child
from shoal.loop import submit

__all__ = ["Attended", "attend"]

_LOOK_S = 0.5
_log = logging.getLogger("shoal")


class Attended(Protocol):
    """Something with asynchronous operations under way."""

    def look(self) -> bool:
        """Fail what cannot come to an end by itself; return whether any operation is left."""


class _Watchman:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attended: set[Attended] = set()
        self._runs = False

    def attend(self, thing: Attended) -> None:
        with self._lock:
            self._attended.add(thing)
            starts, self._runs = not self._runs, True
        if starts:
            submit(self._go_round())

    async def _go_round(self) -> None:
        loop = asyncio.get_running_loop()
        failed: weakref.WeakSet[Attended] = weakref.WeakSet()  # one line for each
        while True:
            await asyncio.sleep(_LOOK_S)
            for thing in list(self._attended):
                # Before the look: what begins during it is attended to again.
                self._attended.discard(thing)
                try:
                    # In a thread: to look may take a call to another node.
                    look = loop.run_in_executor(None, thing.look)
                except RuntimeError:
                    return  # the interpreter ends
                try:
                    goes_on = await look
                except Exception as error:  # noqa: BLE001  (the others are looked at all the same)
                    if thing not in failed:
                        _log.warning("a look at the peers of messages under way failed: %r", error)
                    failed.add(thing)
                    goes_on = True
                if goes_on:
                    self._attended.add(thing)
            with self._lock:
                if not self._attended:
                    self._runs = False
                    return


_watchman = _Watchman()


def attend(thing: Attended) -> None:
    """Have something looked at about twice a second until its `look` returns False."""
    _watchman.attend(thing)


def _begin_again() -> None:
    global _watchman  # noqa: PLW0603  (a forked child has operations of its own)
    _watchman = _Watchman()


in_child(ChildStage.RENEW, _begin_again)
