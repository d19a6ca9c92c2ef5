"""Chooses the row of each span: spans of one row never overlap except by nesting.

The spans of a thread outside of coroutines have the row of the thread, `main` for the main thread.
A coroutine that has a span open while another one has, on the same thread, gets a row of its own:
`main 2`. Rows are used again, so their number is that of the spans that were open side by side.
"""

import asyncio
import itertools
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OpenSpan", "Row", "Tracks"]

# Maximum number of open spans of one row; more are begins whose end never comes.
_MAX_OPEN = 1000
# Number of rows from which on those of threads and tasks that have ended are forgotten.
_FEW = 16
# Name of the thread in which Ray runs the coroutines of an actor.
_RAY_LOOP = "AsyncIO Thread"


@dataclass(slots=True, eq=False)
class OpenSpan:
    """A span that has not ended.

    Attributes:
        name: Its name.
        is_written: Whether its begin was written.
    """

    name: str
    is_written: bool = False


@dataclass(slots=True)
class Row:
    """The open spans of one thread or task.

    Attributes:
        thread: Name of the thread.
        number: Number of the row among those of the thread, from 1.
        spans: The spans, the innermost one last.
    """

    thread: str
    number: int
    spans: list[OpenSpan] = field(default_factory=list)

    @property
    def tid(self) -> str:
        """The name of the row."""
        return self.thread if self.number == 1 else f"{self.thread} {self.number}"

    def begin(self, name: str) -> OpenSpan:
        """Open a span."""
        if len(self.spans) == _MAX_OPEN:
            del self.spans[0]
        self.spans.append(OpenSpan(name))
        return self.spans[-1]


class Tracks:
    """The rows of all threads and tasks of a process. Only one thread may use it at a time."""

    def __init__(self) -> None:
        # By process, and by thread or task.
        self._rows: dict[str, dict[Any, Row]] = defaultdict(dict)
        self._sweep_at = _FEW

    def row(self, pid: str) -> Row:
        """Return the row of the caller."""
        rows, owner = self._rows[pid], _owner()
        row = rows.get(owner)
        if row is None:
            if len(rows) >= self._sweep_at:  # of some, another thread or task may end the spans yet
                rows = self._rows[pid] = {o: rows[o] for o in rows if not _has_ended(o)}
                self._sweep_at = max(_FEW, 2 * len(rows))
            thread = _thread_name(pid)
            taken = {other.number for other in rows.values() if other.thread == thread}
            number = next(n for n in itertools.count(1) if n not in taken)
            row = rows[owner] = Row(thread, number)
        return row

    def end(self, pid: str, name: str) -> str | None:
        """Close a span; return its row, None if its begin was not written.

        The caller's own innermost span of this name ends; if it has none, one of another thread or
        task, since a span may end elsewhere than it began.
        """
        rows, own = self._rows[pid], _owner()
        for owner in itertools.chain([own] if own in rows else [], rows):
            row = rows[owner]
            for span in reversed(row.spans):
                if span.name == name:
                    row.spans.remove(span)
                    if not row.spans:
                        del rows[owner]
                    return row.tid if span.is_written else None
        return rows[own].tid if own in rows else _thread_name(pid)


def _owner() -> Any:
    """Return the running task, or the thread outside of tasks."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return threading.current_thread() if task is None else task


def _has_ended(owner: Any) -> bool:
    return not owner.is_alive() if isinstance(owner, threading.Thread) else bool(owner.done())


def _thread_name(pid: str) -> str:
    thread = threading.current_thread()
    # In a local cluster, the thread of a worker has the worker's name.
    if thread is threading.main_thread() or thread.name == pid:
        return "main"
    return "main" if thread.name.startswith(_RAY_LOOP) else thread.name
