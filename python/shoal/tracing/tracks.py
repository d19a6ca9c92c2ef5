"""Chooses the row of each span: spans of one row never overlap except by nesting.

The spans of a thread outside of coroutines have the row of the thread, `main` for the main thread.
A coroutine that has a span open while another one has, on the same thread, gets a row of its own:
`main 2`. Rows are used again, so their number is that of the spans that were open side by side.
"""

import asyncio
import heapq
import threading
from typing import Any

from shoal.tracing import timing

__all__ = ["Tracks"]

# Maximum number of open spans of one row; more are begins whose end never comes.
_MAX_OPEN = 1000
# Name of the thread in which Ray runs the coroutines of an actor.
_RAY_LOOP = "AsyncIO Thread"


class _Track:
    """The open spans of one thread or task.

    Attributes:
        owner: The task, or the thread.
        lane: Number of the row among those of its thread, from 1.
        tid: Name of the row.
        spans: Name of each open span, and whether its begin was written.
    """

    __slots__ = ("base", "lane", "owner", "spans", "tid")

    def __init__(self, owner: Any, base: tuple[str, str], lane: int) -> None:
        self.owner = owner
        self.base = base
        self.lane = lane
        self.tid = base[1] if lane == 1 else f"{base[1]} {lane}"
        self.spans: list[tuple[str, bool]] = []

    def has_ended(self) -> bool:
        if isinstance(self.owner, threading.Thread):
            return not self.owner.is_alive()
        return bool(self.owner.done())


class _Lanes:
    """The numbers of the rows of one thread name."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 1

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, lane: int) -> bool:
        """Release a number; return whether none is in use any more."""
        heapq.heappush(self._free, lane)
        return len(self._free) == self._next - 1


class Tracks:
    """The rows of all threads and tasks of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tracks: dict[tuple[str, Any], _Track] = {}
        self._lanes: dict[tuple[str, str], _Lanes] = {}
        self._sweep_at = 16

    def begin(self, pid: str, name: str) -> str | None:
        """Open a span in the row of the caller; return the row, None in an interrupted call."""
        if not self._lock.acquire(timeout=timing.TIMING.row_lock_s):
            return None
        try:
            owner = _owner()
            track = self._tracks.get((pid, owner))
            if track is None:
                track = self._add(pid, owner)
            if len(track.spans) >= _MAX_OPEN:
                del track.spans[: _MAX_OPEN // 2]
            track.spans.append((name, True))
            return track.tid
        finally:
            self._lock.release()

    def refuse(self, pid: str, name: str) -> None:
        """Note that the begin of the span that the caller opened last was dropped."""
        if not self._lock.acquire(timeout=timing.TIMING.row_lock_s):
            return
        try:
            track = self._tracks.get((pid, _owner()))
            if track is not None and track.spans and track.spans[-1][0] == name:
                track.spans[-1] = (name, False)
        finally:
            self._lock.release()

    def end(self, pid: str, name: str) -> str | None:
        """Close a span; return its row, None if its begin was dropped.

        The caller's own innermost span of this name ends; if it has none, one of another thread or
        task, since a span may end elsewhere than it began.
        """
        if not self._lock.acquire(timeout=timing.TIMING.row_lock_s):
            return None
        try:
            owner = _owner()
            own = self._tracks.get((pid, owner))
            found = own if own is not None and _index(own, name) is not None else None
            if found is None:
                found = next(
                    (
                        track
                        for (process, _), track in self._tracks.items()
                        if process == pid and _index(track, name) is not None
                    ),
                    None,
                )
            if found is None:
                return own.tid if own is not None else _thread_name(pid)
            _, written = found.spans.pop(_index(found, name) or 0)
            if not found.spans:
                self._drop(pid, found)
            return found.tid if written else None
        finally:
            self._lock.release()

    def _add(self, pid: str, owner: Any) -> _Track:
        if len(self._tracks) >= self._sweep_at:
            for (process, _), track in list(self._tracks.items()):
                if track.has_ended():
                    self._drop(process, track)
            self._sweep_at = max(16, 2 * len(self._tracks))
        base = (pid, _thread_name(pid))
        lane = self._lanes.setdefault(base, _Lanes()).take()
        track = self._tracks[(pid, owner)] = _Track(owner, base, lane)
        return track

    def _drop(self, pid: str, track: _Track) -> None:
        del self._tracks[(pid, track.owner)]
        if self._lanes[track.base].give_back(track.lane):
            del self._lanes[track.base]


def _index(track: _Track, name: str) -> int | None:
    for index in range(len(track.spans) - 1, -1, -1):
        if track.spans[index][0] == name:
            return index
    return None


def _owner() -> Any:
    """Return the running task, or the thread outside of tasks."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return threading.current_thread() if task is None else task


def _thread_name(pid: str) -> str:
    thread = threading.current_thread()
    # In a local cluster, the thread of a worker has the worker's name.
    if thread is threading.main_thread() or thread.name == pid:
        return "main"
    return "main" if thread.name.startswith(_RAY_LOOP) else thread.name
