"""`Tracer`: marks what a program does, and writes the marks of a whole job into one file."""

import contextlib
import functools
import inspect
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import ray
from ray.exceptions import RayError

from shoal.errors import ShoalError
from shoal.fork import ChildStage, in_child
from shoal.manager.base import Manager
from shoal.process import own_process
from shoal.tracing import recording, timing
from shoal.tracing.chrome import to_chrome
from shoal.tracing.clock import OFFSET, Reading
from shoal.tracing.sending import folder_of, send_rest
from shoal.tracing.tracks import Tracks

__all__ = ["InProcess", "Tracer", "begin", "finish"]

F = TypeVar("F", bound=Callable[..., Any])

_NO_SPAN = contextlib.nullcontext()
_TS = re.compile(rb'"ts": (\d+)')
_log = logging.getLogger("shoal")


@dataclass
class _Source:
    """The events that the manager has got from one process.

    Attributes:
        end: The position after the last line.
        last_us: The time of the last line.
        dropped: Number of events that the process has dropped so far.
    """

    end: int
    last_us: int = 0
    dropped: int = 0

    def on_clock(self, lines: bytes, shift_us: int) -> bytes:
        """Return lines with the time of the trace, which never goes back."""

        def shifted(found: re.Match[bytes]) -> bytes:
            # A new comparison of the clocks must not put an end before its begin.
            self.last_us = max(self.last_us, int(found[1]) + shift_us)
            return b'"ts": %d' % self.last_us

        # Quotes within a name are escaped, so the first match is the event's own time.
        return b"".join(_TS.sub(shifted, line, count=1) for line in lines.splitlines(keepends=True))


class Tracer(Manager):
    """Marks spans of time, which appear as bars in the trace of the job.

    The class methods mark, in any process of a job whose configuration has
    `cluster.tracer.enable: true`. Elsewhere they do nothing, which takes less than a microsecond.
    They never wait for another process and never raise. An instance writes the file; a job has one,
    on node 0.

    Args:
        output_file: The file for the events. It is made absolute, its folders are made, and events
            are appended to it.
        token: The name of the job's trace; empty if there is no job.
        fresh: Whether to begin a new file; a file that exists is kept under another name, such as
            `trace.1.jsonl`.

    Example:
        >>> with Tracer.trace_span("step", cat="runner", args={"step": 3}):
        ...     pass
    """

    MANAGER_NAME: ClassVar[str] = "Tracer"
    # Its calls write one file, one after the other.
    MAX_CALLS: ClassVar[int] = 1

    _unavailable: ClassVar[bool] = False
    """Whether this process marks nothing."""
    _labeled: ClassVar[bool] = False
    """Whether this process has written its name into the trace."""

    def __init__(self, output_file: str, *, token: str = "", fresh: bool = False) -> None:
        path = Path(output_file).absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            _keep_previous(path)
        self._path = str(path)
        self._token = token
        self._lock = threading.Lock()
        self._file = path.open("ab")
        self._sources: dict[str, _Source] = {}
        self._events = 0

    # --- the manager ---

    def record(self, event: dict[str, Any]) -> None:
        """Write an event.

        Raises:
            TypeError: JSON cannot hold a value; nothing is written.
            ValueError: The file is closed.
        """
        if not self.write((json.dumps(event) + "\n").encode()):
            raise ValueError("I/O operation on closed file")

    def write(self, lines: bytes) -> bool:
        """Write events that are JSON already; return whether the file was open."""
        with self._lock:
            if self._file.closed:
                return False
            self._file.write(lines)
            self._file.flush()
            self._events += lines.count(b"\n")
        return True

    def collect(self, source: str, start: int, lines: bytes, shift_us: int, dropped: int) -> bool:
        """Write the lines of a source, without those that are there already.

        A sender that died may have sent more than it noted.

        Args:
            source: The process that made the events.
            start: The position of the first line.
            lines: The lines.
            shift_us: Microseconds to add to the times of the lines for the time of the trace.
            dropped: Number of events that the source has dropped so far.

        Returns:
            Whether the file was open.
        """
        known = self._sources.setdefault(source, _Source(start))
        new = known.on_clock(lines[max(0, known.end - start) :], shift_us)
        # A call of a process that waited no longer may come after those of the next one.
        known.end = max(known.end, start + len(lines))
        known.dropped = max(known.dropped, dropped)
        return self.write(new)

    def get_clock(self) -> Reading:
        """Read the clock that the times of the file are on."""
        return Reading(own_process().host, OFFSET, recording.now_us() * 1000)

    def get_token(self) -> str:
        """Return the name of the job's trace."""
        return self._token

    def finalize(self) -> str:
        """Close the file and return its absolute path. Idempotent."""
        with self._lock:
            self._file.close()
        return self._path

    def finish(self) -> tuple[str, int]:
        """Write the events that remain on node 0, close the file, and make one for Perfetto.

        Idempotent.

        Returns:
            What was written, and the number of events that are missing.
        """
        if self._token:
            send_rest(folder_of(self._token), self)
        made = to_chrome(self.finalize())
        dropped = sum(source.dropped for source in self._sources.values())
        return (
            f"{self._events} events in {self._path}; open {made} at https://ui.perfetto.dev",
            dropped,
        )

    # --- marks ---

    @classmethod
    def _get(cls) -> Any:
        """Return the object that takes the events of this process; None if it is not traced."""
        return None if cls._unavailable else recording.sink()

    @staticmethod
    def _pid() -> str:
        """Return the name of this process: its worker, or `driver`."""
        return recording.own_label()

    @classmethod
    def trace_begin(
        cls, name: str, cat: str = "default", args: dict[str, Any] | None = None
    ) -> None:
        """Begin a span.

        Args:
            name: The name of the span.
            cat: Its category, which viewers can select by.
            args: Values to show with it; those that JSON does not have are shown as text.
        """
        sink = cls._get()
        if sink is not None:
            cls._mark(sink, "B", name, cat, args)

    @classmethod
    def trace_end(cls, name: str, cat: str = "default") -> None:
        """End the span of that name which began last; see `trace_begin`."""
        sink = cls._get()
        if sink is not None:
            cls._mark(sink, "E", name, cat, None)

    @classmethod
    def _mark(cls, sink: Any, phase: str, name: str, cat: str, args: dict[str, Any] | None) -> None:
        global _marks, _is_marking  # noqa: PLW0603  (a process has one trace)
        with _lock:
            # A handler of a signal, or a destructor, may have interrupted a mark of this thread.
            if _is_marking:
                return
            try:
                _is_marking = True
                if _marks.sink is not sink:
                    _marks = _Marks(sink)
                if phase == "B":
                    _marks.begin(cls._pid(), str(name), cat, args)
                else:
                    _marks.end(cls._pid(), str(name), cat)
            except Exception as error:  # noqa: BLE001  (tracing must not change the traced program)
                _marks.tell_once(name, error)
            finally:
                _is_marking = False

    @classmethod
    def trace_span(
        cls, name: str, cat: str = "default", args: dict[str, Any] | None = None
    ) -> "contextlib.AbstractContextManager[None]":
        """Mark a `with` block, also if it raises; see `trace_begin` for the arguments."""
        sink = cls._get()
        return _NO_SPAN if sink is None else cls._span(sink, name, cat, args)

    @classmethod
    @contextlib.contextmanager
    def _span(cls, sink: Any, name: str, cat: str, args: dict[str, Any] | None) -> Iterator[None]:
        cls._mark(sink, "B", name, cat, args)
        try:
            yield
        finally:
            if cls._get() is sink:  # else the trace has ended, or another one began
                cls._mark(sink, "E", name, cat, None)

    @classmethod
    def trace_func(cls, func_or_cat: Any = None, cat: str = "default") -> Any:
        """Mark each call of a function or coroutine function, under its name.

        It is used as `@Tracer.trace_func`, with parentheses, or with a category:
        `@Tracer.trace_func("io")`, `@Tracer.trace_func(cat="io")`.
        """
        if callable(func_or_cat) or isinstance(func_or_cat, classmethod):
            return cls._decorated(func_or_cat, cat)
        chosen = cat if func_or_cat is None else func_or_cat
        return lambda function: cls._decorated(function, chosen)

    @classmethod
    def _decorated(cls, function: Any, cat: str) -> Any:
        if isinstance(function, (classmethod, staticmethod)):
            return type(function)(cls._traced(function.__func__, cat))
        return cls._traced(function, cat)

    @classmethod
    def _traced(cls, function: F, cat: str) -> F:
        name = getattr(function, "__name__", type(function).__name__)  # a `partial` has none
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def traced_coroutine(*args: Any, **kwargs: Any) -> Any:
                with cls.trace_span(name, cat):
                    return await function(*args, **kwargs)

            return traced_coroutine  # type: ignore[return-value]  # same signature as the function

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with cls.trace_span(name, cat):
                return function(*args, **kwargs)

        return traced  # type: ignore[return-value]  # same signature as the function


class InProcess:
    """Passes the events of this process to a `Tracer` in it.

    Args:
        tracer: The tracer.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def record(self, event: dict[str, Any]) -> bool:
        """Write an event; return whether the file was open."""
        return self._tracer.write(recording.as_line(event))


class _Marks:
    """The open spans of one trace in this process. Only one thread may use it at a time."""

    def __init__(self, sink: Any) -> None:
        self.sink = sink
        self._tracks = Tracks()
        # A process has one name; in a local cluster it has one for each worker.
        self._labels: set[str] = set()
        self._has_told = False

    def begin(self, pid: str, name: str, cat: str, args: dict[str, Any] | None) -> None:
        """Write the begin of a span, and the name of the process before its first one."""
        if pid not in self._labels or not Tracer._labeled:  # noqa: SLF001  (two halves of one class)
            Tracer._labeled = True  # noqa: SLF001  (two halves of one class)
            self._labels.add(pid)
            label = {"name": "process_name", "ph": "M", "ts": recording.now_us(), "pid": pid}
            self.sink.record(label | {"tid": "main", "args": {"name": pid}})
        row = self._tracks.row(pid)
        span = row.begin(name)
        event = _event("B", pid, row.tid, name, cat)
        if args is not None:
            event["args"] = args
        span.is_written = self.sink.record(event) is not False

    def end(self, pid: str, name: str, cat: str) -> None:
        """Write the end of a span, unless its begin was not written."""
        tid = self._tracks.end(pid, name)
        if tid is not None:
            self.sink.record(_event("E", pid, tid, name, cat))

    def tell_once(self, name: str, error: Exception) -> None:
        """Log the first event that could not be written."""
        if not self._has_told:
            self._has_told = True
            _log.warning(
                "the event %r is missing in the trace, and so may be later ones: %s: %s",
                name, type(error).__name__, error,
            )  # fmt: skip


def _event(phase: str, pid: str, tid: str, name: str, cat: str) -> dict[str, Any]:
    ts = recording.now_us()
    return {"name": name, "cat": cat, "ph": phase, "ts": ts, "pid": pid, "tid": tid}


_lock = threading.RLock()
_is_marking = False
_marks = _Marks(None)


def _renew() -> None:
    """Let a forked child mark, also if another thread of its parent was marking."""
    global _lock, _is_marking
    _lock, _is_marking = threading.RLock(), False


in_child(ChildStage.RENEW, _renew)


def _connect() -> Any:
    if not ray.is_initialized():
        return None
    return Tracer.get_proxy(timeout=timing.TIMING.send_s)


def begin(token: str) -> None:
    """Trace this process from now on; nothing changes if the token is empty."""
    sink = recording.sink()
    if token and not (isinstance(sink, recording.Recorder) and sink.token == token):
        recording.use(recording.Recorder(token, _connect))


begin(os.environ.get(recording.TOKEN_VARIABLE, ""))


def _keep_previous(path: Path) -> None:
    """Rename the file of an earlier job to the first free name."""
    if not path.exists() or not path.stat().st_size:
        return
    number = 1
    while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(kept)


def finish(tracer: Tracer | None = None, *, several_nodes: bool = False) -> None:
    """End the trace of the job, in the process that launched it.

    Args:
        tracer: The tracer if it is in this process; None for the job's actor.
        several_nodes: Whether the job has more than one node.
    """
    recording.settle(several_nodes=several_nodes)
    try:
        manager = tracer or Tracer.get_proxy(timeout=timing.TIMING.finish_s)
        written, dropped = manager.finish()
    except (ShoalError, RayError, OSError) as error:
        _log.warning(
            "the trace has no file for Perfetto: %s; run `shoal trace FILE` on node 0 with the file "
            "of cluster.tracer.output_file",
            error,
        )
        return
    if dropped:
        _log.warning("%d events are missing in the trace", dropped)
    _log.info("trace: %s", written)
