"""Watches asynchronous sends and receives: fails those with dead peers or passed deadlines.

A blocking call checks this by itself. Operations that were started with `async_op=True` have no
thread: one task on the process's event loop checks all of them, as long as there are any.
"""

import asyncio
import logging
import threading
import weakref
from typing import Protocol

from shoal.fork import ChildStage, in_child
from shoal.loop import submit

__all__ = ["Watched", "attend"]

_LOOK_S = 0.5
_log = logging.getLogger("shoal")


class Watched(Protocol):
    """An object with pending asynchronous operations."""

    def look(self) -> bool:
        """Fail operations that cannot complete; return whether any operation is left."""


class _Watchdog:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attended: set[Watched] = set()
        self._runs = False

    def attend(self, thing: Watched) -> None:
        with self._lock:
            self._attended.add(thing)
            starts, self._runs = not self._runs, True
        if starts:
            submit(self._go_round())

    async def _go_round(self) -> None:
        loop = asyncio.get_running_loop()
        failed: weakref.WeakSet[Watched] = weakref.WeakSet()  # each is logged once
        while True:
            await asyncio.sleep(_LOOK_S)
            for thing in list(self._attended):
                # Before the look, so that an operation that begins during it is attended again.
                self._attended.discard(thing)
                try:
                    # In a thread, because a look may call another node.
                    look = loop.run_in_executor(None, thing.look)
                except RuntimeError:
                    return  # the interpreter ends
                try:
                    goes_on = await look
                except Exception as error:  # noqa: BLE001  (the others are looked at all the same)
                    if thing not in failed:
                        _log.warning("checking the peers of pending messages failed: %r", error)
                    failed.add(thing)
                    goes_on = True
                if goes_on:
                    self._attended.add(thing)
            with self._lock:
                if not self._attended:
                    self._runs = False
                    return


_watchdog = _Watchdog()


def attend(thing: Watched) -> None:
    """Call the `look` of an object about twice a second until it returns False."""
    _watchdog.attend(thing)


def _begin_again() -> None:
    global _watchdog  # noqa: PLW0603  (a forked child has operations of its own)
    _watchdog = _Watchdog()


in_child(ChildStage.RENEW, _begin_again)
