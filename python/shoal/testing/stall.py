"""`StallMonitor`: ends waits that can never end, because all that could end them wait as well."""

import threading
import time
import weakref
from dataclasses import dataclass, field

from shoal.deadline import LongWait
from shoal.errors import ShoalTimeoutError
from shoal.loop import in_event_loop
from shoal.testing import timing

__all__ = ["StallMonitor", "StalledError"]

_ENOUGH = 2
"""Number of times that a wait looks in vain, after the last event, until it counts as stalled."""

# Threads that only serve the waits of ranks, and never begin anything by themselves.
_SERVANTS = ("shoal-", "asyncio_")
_USERS = "shoal-then"


class StalledError(ShoalTimeoutError):
    """All ranks of a local cluster wait for each other, and nothing can end their waits."""


@dataclass
class _Wait:
    """The present wait of a thread.

    Attributes:
        wait: The wait, as long as it goes on: it refers to what is waited for, and so to its result.
        ticks: When it looked in vain, by the monotonic clock; the last ones only.
        in_loop: Whether it waits in an event loop, where other tasks may run.
        sentence: A sentence that says what it waits for. Its own thread writes it, because it names that thread's rank.
    """

    wait: weakref.ref[LongWait]
    in_loop: bool
    ticks: list[float] = field(default_factory=list)
    sentence: str = ""


class StallMonitor:
    """Observes the waits of the ranks and of the test, and raises in those that can never end.

    A stall is certain: every rank that runs a call waits, the test waits as well, and each wait
    has looked in vain several times since the last event. An event is the begin of a wait, or the
    begin or the end of a call, each moment in which a thread runs that was started since the
    monitor was made and serves neither ranks nor shoal, and each moment before an expected event.
    """

    interval = timing.TIMING.interval_s

    def __init__(self) -> None:
        self._lock = threading.RLock()  # taken again if what is freed meanwhile waits at its end
        self._driver = threading.get_ident()
        self._known = set(threading.enumerate())
        self._running: dict[int, int] = {}
        self._waits: dict[int, _Wait] = {}
        self._stalled: dict[int, str] = {}
        self._threads: set[threading.Thread] = set()
        self._last_event = time.monotonic()
        self._expected = 0.0

    def add_thread(self, thread: threading.Thread) -> None:
        """Add a thread of a rank, which has started."""
        with self._lock:
            self._threads.add(thread)

    def begin_call(self) -> None:
        """Note that the current thread runs a call of its rank."""
        with self._lock:
            me = threading.get_ident()
            self._running[me] = self._running.get(me, 0) + 1
            self._last_event = time.monotonic()

    def end_call(self) -> None:
        """Note that a call of the current thread has ended."""
        with self._lock:
            me = threading.get_ident()
            self._running[me] -= 1
            if not self._running[me]:
                del self._running[me]
                self._waits.pop(me, None)
                self._stalled.pop(me, None)
            self._last_event = time.monotonic()

    def submitted(self) -> None:
        """Note that a call was handed to a rank, which begins it when its turn comes."""
        with self._lock:
            self._last_event = time.monotonic()

    def expect(self, seconds: float) -> None:
        """Note that something happens within some seconds, though no thread works on it."""
        with self._lock:
            self._expected = max(self._expected, time.monotonic() + seconds)

    def tick(self, wait: LongWait) -> None:
        """Note that a wait of the current thread has looked in vain, and raise if it is stalled.

        Raises:
            StalledError: The wait can never end.
        """
        if wait.deadline.timeout <= timing.TIMING.slice_s:
            return
        me, now = threading.get_ident(), time.monotonic()
        held: list[
            LongWait | None
        ] = []  # freed after the lock: what they refer to may wait at its end
        with self._lock:
            if me not in self._running and me != self._driver:
                return
            found = self._waits.get(me)
            if found is None or found.wait() is not wait:
                self._stalled.pop(me, None)
                found = self._waits[me] = _Wait(weakref.ref(wait), in_event_loop())
                self._last_event = now
            found.sentence = wait.describe()
            found.ticks = [*found.ticks[-_ENOUGH:], now]
            if now < self._expected or self._has_other_threads():
                self._last_event = now
            elif not self._stalled:
                self._find_stall(now, held)
            text = self._stalled.pop(me, None)
            if text is None:
                return
            self._waits.pop(me, None)
        del held  # which the error would keep
        raise StalledError(text)

    def _find_stall(self, now: float, held: list[LongWait | None]) -> None:
        if self._driver not in self._waits or now - self._last_event < timing.TIMING.quiet_s:
            return  # the test goes on, and may end a wait
        members = [*self._running, self._driver]
        for found in map(self._waits.get, members):
            wait = None if found is None or found.in_loop else found.wait()
            held.append(wait)
            if found is None or wait is None or wait.deadline.remaining <= timing.TIMING.soon_s:
                return
            if sum(tick > self._last_event for tick in found.ticks) < _ENOUGH:
                return
            if wait.is_work and now - self._last_event < timing.TIMING.work_s:
                return
        ranks = list(self._running) or [self._driver]
        sentences = sorted({self._waits[thread].sentence for thread in ranks})
        text = (
            f"stalled: {len(ranks)} of {len(ranks)} wait, and nothing in this local cluster can "
            "end that:\n" + "\n".join(f"  {sentence}" for sentence in sentences)
        )
        self._stalled = dict.fromkeys(ranks, text)

    def _has_other_threads(self) -> bool:
        """Whether a thread runs that may end a wait, such as one that the test has started."""
        for thread in threading.enumerate():
            if thread in self._known or thread in self._threads or thread.ident == self._driver:
                continue
            if thread.name.startswith(_SERVANTS) and not thread.name.startswith(_USERS):
                continue
            return True
        return False
