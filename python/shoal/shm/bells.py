"""Lets asyncio tasks wait for queues: one doorbell for each process and session.

A task registers as a waiter, asks queues to ring the bell, tries its operation once more, and then
waits. The bell wakes all waiters in every loop, and each tries again. So no wake-up belongs to one
task, and a cancelled task does not take one away from the others. Loops without `add_reader` are
not supported.
"""

import asyncio
import contextlib
import os
import threading
import weakref
from typing import Literal, Protocol

from shoal.errors import ChannelClosed
from shoal.fork import ChildStage, in_child
from shoal.shm import timing

__all__ = ["Bells", "Rung", "bells_of", "silence"]


class Rung(Protocol):
    """The part of a queue that the bell needs."""

    def fileno(self) -> int:
        """Return the bell's descriptor."""

    def clear_bell(self) -> None:
        """Make the descriptor unreadable again."""

    def arm(self, side: Literal["get", "put"]) -> None:
        """Ask the next process that puts or gets here to ring the bell."""


class _OfLoop:
    """The waiters of one loop, and the loop's own descriptor of the bell.

    The descriptor is a duplicate, so that it stays valid until the loop has removed its reader,
    even if the session is closed before.
    """

    def __init__(self, descriptor: int) -> None:
        self.waiters: dict[asyncio.Future[None], None] = {}  # a dict, as an ordered set
        self.descriptor = descriptor
        self.tick: asyncio.TimerHandle | None = None
        weakref.finalize(self, os.close, self.descriptor)

    def wake(self) -> None:
        """Make all waiters of this loop try again."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


def _copy_of(queue: Rung) -> int:
    """Return a duplicate of the bell's descriptor.

    Raises:
        ChannelClosed: The session is closed in this process.
    """
    try:
        return os.dup(queue.fileno())
    except OSError:
        queue.fileno()  # raises if another thread has closed the session meanwhile
        raise


class Bells:
    """The bell of this process in one session."""

    def __init__(self) -> None:
        # Reentrant: a session that is dropped, or a signal, may interrupt the thread that holds it.
        self._lock = threading.RLock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = (
            weakref.WeakKeyDictionary()
        )
        self._armed: set[tuple[bytes, str]] = set()

    def register(self, queue: Rung) -> "asyncio.Future[None]":
        """Add a waiter: a future that is done when the bell has rung or the tick has passed."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        with self._lock:
            of_loop = self._loops.get(loop)
            if of_loop is None:
                of_loop = self._loops[loop] = _OfLoop(_copy_of(queue))
            if not of_loop.waiters:
                loop.add_reader(of_loop.descriptor, self._rang, queue)
                of_loop.tick = loop.call_later(timing.TIMING.tick_s, self._tick, weakref.ref(loop))
            of_loop.waiters[waiter] = None
        return waiter

    def leave(self, waiter: "asyncio.Future[None]") -> None:
        """Remove a waiter."""
        loop = waiter.get_loop()
        with self._lock:
            of_loop = self._loops.get(loop)
            if of_loop is None:
                return
            of_loop.waiters.pop(waiter, None)
            if not of_loop.waiters:
                self._detach(loop, of_loop)

    def arm(self, queue: Rung, key: bytes, side: Literal["get", "put"]) -> None:
        """Ask a queue to ring the bell, unless this process has asked since it last rang."""
        with self._lock:
            if (key, side) not in self._armed:
                # Arm first: another waiter relies on the queue being armed once it is recorded.
                queue.arm(side)
                self._armed.add((key, side))

    def wake_all(self) -> None:
        """Make all waiters try again, in every loop."""
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
                    continue  # the loop was closed meanwhile, so no task waits in it

    def _rang(self, queue: Rung) -> None:
        with contextlib.suppress(ChannelClosed):  # the waiters notice that themselves
            queue.clear_bell()
        self.wake_all()

    def _tick(self, reference: "weakref.ref[asyncio.AbstractEventLoop]") -> None:
        loop = reference()
        with self._lock:
            self._armed.clear()
            of_loop = None if loop is None else self._loops.get(loop)
        if loop is not None and of_loop is not None and of_loop.waiters:
            of_loop.tick = loop.call_later(timing.TIMING.tick_s, self._tick, reference)
            of_loop.wake()

    @staticmethod
    def _detach(loop: asyncio.AbstractEventLoop, of_loop: _OfLoop) -> None:
        if not loop.is_closed():
            loop.remove_reader(of_loop.descriptor)
        if of_loop.tick is not None:
            of_loop.tick.cancel()
            of_loop.tick = None  # it refers to the loop and would keep it alive


_of_sessions: dict[str, Bells] = {}


def bells_of(token: str) -> Bells:
    """Return the bell of this process in a session."""
    bells = _of_sessions.get(token)
    return _of_sessions.setdefault(token, Bells()) if bells is None else bells


def silence(token: str) -> None:
    """Wake all waiters of a closed session, so that they notice that it was closed."""
    bells = _of_sessions.pop(token, None)
    if bells is not None:
        bells.wake_all()


# A forked child gets a bell of its own, and runs none of its parent's loops.
in_child(ChildStage.FORGET, _of_sessions.clear)
