"""Waiting in asyncio: one doorbell a process and session, for all loops and tasks.

Who waits registers first, asks for the bell, tries once more, and then waits. The bell wakes all
who are registered, in every loop, and each tries again: a wake-up is nobody's own, so that a task
that is cancelled takes none away from the others. Loops without `add_reader` are not supported.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from typing import Literal, Protocol

from shoal.errors import ChannelClosed
from shoal.fork import ChildStage, in_child

__all__ = ["Bells", "Rung", "bells_of", "silence"]

_TICK_S = 1.0
"""How often all try again without a bell: who should have rung it may have died."""


class Rung(Protocol):
    """What a queue offers to those who wait."""

    def fileno(self) -> int:
        """Return the bell's descriptor."""

    def clear_bell(self) -> None:
        """Make it unreadable again."""

    def arm(self, side: Literal["get", "put"]) -> None:
        """Ask to be rung."""


class _OfLoop:
    """Who waits in one loop, and the loop's own descriptor of the bell.

    A descriptor of its own can stay with the loop until the loop has let go of it, whenever the
    session closes.
    """

    def __init__(self, bell: int) -> None:
        self.waiters: dict[asyncio.Future[None], None] = {}  # in the order of their coming
        self.descriptor = os.dup(bell)
        self.tick: asyncio.TimerHandle | None = None
        weakref.finalize(self, os.close, self.descriptor)

    def wake(self) -> None:
        """Let all of this loop try again."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class Bells:
    """The bell of this process in one session."""

    def __init__(self) -> None:
        # A session that is dropped, or a signal, may come in on the thread that has it, hence the R.
        self._lock = threading.RLock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = (
            weakref.WeakKeyDictionary()
        )
        self._armed: set[tuple[bytes, str]] = set()

    def register(self, queue: Rung) -> "asyncio.Future[None]":
        """Return what is done when the bell has rung, or some time has passed."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        with self._lock:
            of_loop = self._loops.get(loop)
            if of_loop is None:
                of_loop = self._loops[loop] = _OfLoop(queue.fileno())
            if not of_loop.waiters:
                loop.add_reader(of_loop.descriptor, self._rang, queue)
                of_loop.tick = loop.call_later(_TICK_S, self._tick, weakref.ref(loop))
            of_loop.waiters[waiter] = None
        return waiter

    def leave(self, waiter: "asyncio.Future[None]") -> None:
        """Wait no more."""
        loop = waiter.get_loop()
        with self._lock:
            of_loop = self._loops.get(loop)
            if of_loop is None:
                return
            of_loop.waiters.pop(waiter, None)
            if not of_loop.waiters:
                self._let_go(loop, of_loop)

    def arm(self, queue: Rung, key: bytes, side: Literal["get", "put"]) -> None:
        """Ask for the bell, unless somebody of this process has since it last rang."""
        with self._lock:
            if (key, side) not in self._armed:
                # Before anybody else may think that it is done.
                queue.arm(side)
                self._armed.add((key, side))

    def wake_all(self) -> None:
        """Let all try again, in every loop."""
        with self._lock:
            self._armed.clear()
            loops = list(self._loops.items())
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop, of_loop in loops:
            if loop is here:
                of_loop.wake()
            elif not loop.is_closed():
                try:
                    loop.call_soon_threadsafe(of_loop.wake)
                except RuntimeError:
                    continue  # it was closed meanwhile, and nobody waits in it

    def _rang(self, queue: Rung) -> None:
        with contextlib.suppress(ChannelClosed):  # those who wait find that out themselves
            queue.clear_bell()
        self.wake_all()

    def _tick(self, reference: "weakref.ref[asyncio.AbstractEventLoop]") -> None:
        loop = reference()
        with self._lock:
            self._armed.clear()
            of_loop = None if loop is None else self._loops.get(loop)
        if loop is not None and of_loop is not None and of_loop.waiters:
            of_loop.tick = loop.call_later(_TICK_S, self._tick, reference)
            of_loop.wake()

    @staticmethod
    def _let_go(loop: asyncio.AbstractEventLoop, of_loop: _OfLoop) -> None:
        if not loop.is_closed():
            loop.remove_reader(of_loop.descriptor)
        if of_loop.tick is not None:
            of_loop.tick.cancel()
            of_loop.tick = None  # it knows the loop, which may come to its end


_of_sessions: dict[str, Bells] = {}


def bells_of(token: str) -> Bells:
    """Return the bell of this process in a session."""
    bells = _of_sessions.get(token)
    return _of_sessions.setdefault(token, Bells()) if bells is None else bells


def silence(token: str) -> None:
    """Let all who wait in a session find that it was closed."""
    bells = _of_sessions.pop(token, None)
    if bells is not None:
        bells.wake_all()


# A child has another bell, and none of its parent's loops runs in it.
in_child(ChildStage.FORGET, _of_sessions.clear)
