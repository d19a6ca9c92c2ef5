"""`Tracer`: marks what a program does, and writes the marks of a whole job into one file."""

import contextlib
import functools
import inspect
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, TypeVar

from ray.exceptions import RayError

from shoal.errors import ShoalError
from shoal.fork import ChildStage, in_child
from shoal.manager.base import Manager
from shoal.process import own_process
from shoal.tracing import recording, timing
from shoal.tracing.chrome import to_chrome
from shoal.tracing.clock import Reading, node_clock, own_clock
from shoal.tracing.sending import node_folder, remove_folder, sweep
from shoal.tracing.tracks import Tracks

__all__ = ["InProcess", "Summary", "Tracer", "finish", "finish_here"]

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("shoal")


class Summary(NamedTuple):
    """The result of a trace.

    Attributes:
        path: The file of the events.
        events: Number of events that this job wrote.
        dropped: Number of events that are missing.
    """

    path: str
    events: int
    dropped: int


class Tracer(Manager):
    """Marks spans of time, which appear as bars in the trace of the job.

    The class methods mark, in any process of a job whose configuration has
    `cluster.tracer.enable: true`. Elsewhere they do nothing, which takes 0.1 microseconds. They
    never wait for another process and never raise. An instance writes the file; a job has one, on
    node 0.

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
        self._folder: Path | None = None
        self._clock = own_clock()
        if token:
            with contextlib.suppress(OSError):  # the senders on this node have the same problem
                self._folder = node_folder(token)
                self._clock = node_clock(self._folder)
        self._positions: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        self._events = 0

    # --- the manager ---

    def record(self, event: dict[str, Any]) -> None:
        """Write an event.

        Raises:
            TypeError: JSON cannot hold a value; nothing is written.
            ValueError: The file is closed.
        """
        self._write((json.dumps(event) + "\n").encode())

    def collect(self, source: str, start: int, end: int, data: bytes, dropped: int = 0) -> int:
        """Write the lines between two positions of a source, unless they are there already.

        Args:
            source: The process that made the events.
            start: The position of the first line.
            end: The position behind the last line.
            data: The lines.
            dropped: Number of events that the source has dropped so far.

        Returns:
            The position of the next line to send; -1 after the file was closed.
        """
        at = self._positions.get(source, start)
        self._dropped[source] = max(dropped, self._dropped.get(source, 0))
        if at != start:
            return at
        if not self.write_line(data):
            return -1
        self._positions[source] = end
        return end

    def write_line(self, line: bytes) -> bool:
        """Write an event that is JSON already; return whether the file was open."""
        try:
            self._write(line)
        except ValueError:
            return False
        return True

    def _write(self, lines: bytes) -> None:
        with self._lock:
            if self._file.closed:
                raise ValueError("I/O operation on closed file")
            self._file.write(lines)
            self._file.flush()
            self._events += lines.count(b"\n")

    def get_clock(self) -> Reading:
        """Read the clock that the times of the file are on."""
        return Reading(own_process().host, self._clock.base, self._clock.now())

    def get_token(self) -> str:
        """Return the name of the job's trace."""
        return self._token

    def get_path(self) -> str:
        """Return the absolute path of the file, on node 0."""
        return self._path

    def finalize(self) -> str:
        """Close the file and return its absolute path. Idempotent."""
        with self._lock:
            self._file.close()
        return self._path

    def finish(self) -> Summary:
        """Write the events that remain on node 0, and close the file. Idempotent."""
        if self._folder is not None:
            sweep(self._folder, self)
            remove_folder(self._folder)
            self._folder = None
        return Summary(self.finalize(), self._events, sum(self._dropped.values()))

    def export(self) -> str:
        """Write the trace for Perfetto beside the file, and return its path."""
        return to_chrome(self._path)

    # --- marks ---

    @classmethod
    def _get(cls) -> Any:
        """Return what takes the events of this process; None if it is not traced."""
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
        pid, is_written = cls._pid(), False
        try:
            if _generation != recording.generation:
                _start_over()
            name = str(name)
            if phase == "B":
                cls._label(sink, pid)
                tid = _tracks.begin(pid, name)
            else:
                tid = _tracks.end(pid, name)
            if tid is None:
                return
            event: dict[str, Any] = {"name": name, "cat": cat, "ph": phase}
            event |= {"ts": recording.now_us(), "pid": pid, "tid": tid}
            if args is not None:
                event["args"] = args
            is_written = sink.record(event) is not False
        except Exception as error:  # noqa: BLE001  (tracing must not change the traced program)
            _tell_once(name, error)
        if phase == "B" and not is_written:
            _tracks.refuse(pid, name)  # its end is left out as well

    @classmethod
    def _label(cls, sink: Any, pid: str) -> None:
        # A process has one name; in a local cluster it has one for each worker.
        if cls._labeled and (pid in _labels or not _labels):
            return
        if not cls._labeled:
            _labels.clear()
        Tracer._labeled = True
        _labels.add(pid)
        label = {"name": "process_name", "ph": "M", "ts": recording.now_us(), "pid": pid}
        sink.record(label | {"tid": "main", "args": {"name": pid}})

    @classmethod
    def trace_span(
        cls, name: str, cat: str = "default", args: dict[str, Any] | None = None
    ) -> "contextlib.AbstractContextManager[None]":
        """Mark a `with` block, also if it raises; see `trace_begin` for the arguments."""
        return _Span(cls, name, cat, args)

    @classmethod
    def trace_func(cls, func_or_cat: Any = None, cat: str = "default") -> Any:
        """Mark each call of a function or coroutine function, under its name.

        It is used as `@Tracer.trace_func`, with parentheses, or with a category:
        `@Tracer.trace_func("io")`, `@Tracer.trace_func(cat="io")`.
        """
        if callable(func_or_cat):
            return cls._traced(func_or_cat, cat)
        chosen = cat if func_or_cat is None else func_or_cat
        return lambda function: cls._traced(function, chosen)

    @classmethod
    def _traced(cls, function: F, cat: str) -> F:
        name = function.__name__
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def traced_coroutine(*args: Any, **kwargs: Any) -> Any:
                with _Span(cls, name, cat, None):
                    return await function(*args, **kwargs)

            return traced_coroutine  # type: ignore[return-value]  # same signature as the function

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            if cls._get() is None:
                return function(*args, **kwargs)
            with _Span(cls, name, cat, None):
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
        return self._tracer.write_line(recording.as_line(event))


class _Span(contextlib.AbstractContextManager[None]):
    """A span of a `with` block; its end is written if its begin was."""

    __slots__ = ("_args", "_cat", "_has_begun", "_name", "_tracer")

    def __init__(
        self, tracer: type[Tracer], name: str, cat: str, args: dict[str, Any] | None
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._cat = cat
        self._args = args
        self._has_begun = False

    def __enter__(self) -> None:
        if self._tracer._get() is not None:  # noqa: SLF001  (two halves of one class)
            self._has_begun = True
            self._tracer.trace_begin(self._name, self._cat, self._args)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._has_begun:
            self._tracer.trace_end(self._name, self._cat)


_tracks = Tracks()
_labels: set[str] = set()
_generation = 0
_told = False


def _tell_once(name: str, error: Exception) -> None:
    global _told  # noqa: PLW0603  (one line for a process)
    if not _told:
        _told = True
        _log.warning(
            "the event %r is missing in the trace, and so may be later ones: %s: %s",
            name, type(error).__name__, error,
        )  # fmt: skip


def _start_over() -> None:
    """Forget the open spans and the names of an earlier trace, or of the parent in a child."""
    global _tracks, _generation
    _tracks, _generation = Tracks(), recording.generation
    _labels.clear()
    Tracer._labeled = False  # noqa: SLF001  (two halves of one class)


in_child(ChildStage.FORGET, _start_over)
recording.connect_by(lambda: Tracer.get_proxy(timeout=timing.TIMING.send_s))


def _keep_previous(path: Path) -> None:
    """Rename the file of an earlier job to the first free name."""
    if not path.exists() or not path.stat().st_size:
        return
    number = 1
    while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(kept)


def finish(*, several_nodes: bool = False) -> str | None:
    """End the trace of the job, in the process that launched it; nothing if it is not traced.

    Args:
        several_nodes: Whether the job has more than one node.

    Returns:
        The file for Perfetto, on node 0; None if it could not be made.
    """
    # A driver without marks has no thread that sends, and none can start when the interpreter ends.
    if Tracer._unavailable or not recording.is_on():  # noqa: SLF001  (two halves of one class)
        return None
    recording.settle(several_nodes=several_nodes)
    recording.flush()
    path = ""
    try:
        summary = Tracer.get_proxy(timeout=timing.TIMING.finish_s).finish()
        path = summary.path
        made: str = Tracer.get_proxy(timeout=timing.TIMING.export_s).export()
    except (ShoalError, RayError, OSError) as error:
        how = f"; run `shoal trace {path}` on node 0" if path else ""
        _log.warning("the trace has no file for Perfetto: %s%s", error, how)
        return None
    _report(summary, made)
    return made


def finish_here(tracer: Tracer) -> str:
    """End the trace of a job whose tracer is in this process; return the file for Perfetto."""
    summary = tracer.finish()
    made = tracer.export()
    _report(summary, made)
    return made


def _report(summary: Summary, made: str) -> None:
    if summary.dropped:
        _log.warning("%d events are missing in the trace %s", summary.dropped, summary.path)
    _log.info(
        "trace: %d events in %s; open %s at https://ui.perfetto.dev",
        summary.events, summary.path, made,
    )  # fmt: skip
