"""Waits for other workers: log lines for long ones, and an end for those that cannot succeed.

`PeerWait` is the wait of a call that blocks: its log lines and the error at its deadline name the
cycle of waits that it is part of. `attend` is for operations that were started with
`async_op=True`, which have no thread that could check anything: one task on the process's event
loop checks all of them, as long as there are any, and fails those with dead peers or passed
deadlines.
"""

import asyncio
import itertools
import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from shoal.collective.directory import Directory
from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError
from shoal.fork import ChildStage, in_child
from shoal.loop import submit

__all__ = ["PeerWait", "Watched", "attend"]

_NOTE_AFTER_S = 1.0
"""Seconds after which a wait is recorded, so that log lines of other waits can name it."""

_LOOK_S = 0.5
"""Seconds between two checks of the asynchronous operations."""

_LAST_LOOK_S = 0.5
"""Seconds before its deadline at which a wait looks for a cycle: the others in it may end first."""

_log = logging.getLogger("shoal")
_numbers = itertools.count()


class PeerWait(LongWait):
    """A worker's wait for others; logs it when it is long, and names the cycle it is part of.

    Args:
        directory: Where the wait is recorded.
        waiter: The address of the worker that waits.
        operation: What waits: `send`, `recv` or `broadcast`.
        peers: The addresses of the workers it waits for.
        describe: Makes the sentence that names the waiter, the operation and the peers.
        deadline: The deadline of the wait.
        on: What the page shows beside the operation.
    """

    def __init__(
        self,
        directory: Directory,
        waiter: str,
        operation: str,
        peers: Sequence[str],
        describe: Callable[[], str],
        deadline: Deadline,
        on: str = "",
    ) -> None:
        self._directory = directory
        self._waiter = waiter
        self._awaited = tuple(peers)
        self._sentence = describe
        self._number: int | None = None
        self._begun = deadline.elapsed
        self._cycle: str | None = None
        super().__init__(
            self._with_cycle, deadline, operation=operation, on=on, peers=lambda: self._awaited
        )

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        raised = error[1] if error else None
        try:
            if isinstance(raised, ShoalTimeoutError) and self.deadline.expired:
                cycle = self._find_cycle() if self._cycle is None else self._cycle
                if cycle not in str(raised):  # a wait within this one may have added it
                    raised.args = (f"{raised}{cycle}",)
        finally:
            self._end()

    def waits_for(self, peers: Sequence[str]) -> None:
        """Set the workers it waits for now, if some of those before need not be waited for."""
        if tuple(peers) != self._awaited:
            self._awaited = tuple(peers)
            self._end()  # the next tick records the new ones
            self.hide()

    def step(self, at_most: float = math.inf) -> float:
        """Seconds to wait before `tick` is called again: also when the wait is to be recorded."""
        if self._number is None:
            left = _NOTE_AFTER_S - (self.deadline.elapsed - self._begun)
            at_most = min(at_most, max(0.0, left))
        elif self._cycle is None:
            at_most = min(at_most, max(0.0, self.deadline.remaining - _LAST_LOOK_S))
        return super().step(at_most)

    def tick(self) -> None:
        """Record a wait that has become long, and log the line that is due, if any."""
        is_noted = self._number is not None
        if not is_noted and self.deadline.elapsed - self._begun >= _NOTE_AFTER_S:
            self._number = next(_numbers)
            self._directory.note_wait(self._waiter, self._number, self._awaited)
        elif is_noted and self._cycle is None and self.deadline.remaining <= _LAST_LOOK_S:
            self._cycle = self._find_cycle()
        super().tick()

    def _end(self) -> None:
        """Remove the record of this wait, so that log lines no longer name it."""
        if self._number is not None:
            self._directory.end_wait(self._waiter, self._number)
            self._number = self._cycle = None

    def _with_cycle(self) -> str:
        return self._sentence() + self._find_cycle()

    def _find_cycle(self) -> str:
        """Return the part of a sentence that names the cycle of this wait; empty for no cycle."""
        if self._number is None:
            return ""
        cycle = self._directory.wait_cycle(self._waiter, self._number)
        if not cycle:
            return ""
        chain = ", which waits for ".join([*cycle, self._waiter])
        return f" (a cycle: {self._waiter} waits for {chain})"


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
        while self._goes_on():
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

    def _goes_on(self) -> bool:
        with self._lock:
            self._runs = bool(self._attended)
            return self._runs


_watchdog = _Watchdog()


def attend(thing: Watched) -> None:
    """Call the `look` of an object about twice a second until it returns False."""
    _watchdog.attend(thing)


def _begin_again() -> None:
    global _watchdog  # noqa: PLW0603  (a forked child has operations of its own)
    _watchdog = _Watchdog()


in_child(ChildStage.RENEW, _begin_again)
