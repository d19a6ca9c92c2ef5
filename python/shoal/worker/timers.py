"""Named timers of a worker: seconds by tag, added up until they are read, and spans in the trace."""

import functools
import inspect
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from shoal.errors import ShoalValueError
from shoal.hardware import AcceleratorUtil
from shoal.tracing import Tracer
from shoal.worker.identity import accelerator_type

__all__ = ["Timers", "timer"]

F = TypeVar("F", bound=Callable[..., Any])


class Timers:
    """Seconds by tag.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self.clock = clock

    def measure(self, tag: str | None, *, depth: int = 1, cat: str | None = None) -> "_Block":
        """Time a `with` block.

        Args:
            tag: The timer's name; None for the name of the calling function.
            depth: Number of calls between this one and that function.
            cat: The category of the block's span in the trace; None for no span.
        """
        name = sys._getframe(depth).f_code.co_name if tag is None else tag  # noqa: SLF001  (the documented way to the caller's name)
        return _Block(self, name, cat)

    def add(self, tag: str, seconds: float) -> None:
        """Add to a timer."""
        self.seconds[tag] = self.seconds.get(tag, 0.0) + seconds

    def pop(self, tag: str) -> float:
        """Return a timer's seconds and remove it.

        Raises:
            ShoalValueError: There is no such timer.
        """
        if tag not in self.seconds:
            known = ", ".join(sorted(self.seconds)) or "none"
            raise ShoalValueError(
                f"Timer '{tag}' has not been recorded. Timers since they were last taken: {known}"
            )
        return self.seconds.pop(tag)

    def pop_all(self) -> dict[str, float]:
        """Return all timers and remove them."""
        taken, self.seconds = self.seconds, {}
        return taken


class _Block(AbstractContextManager[None]):
    """A timed `with` block. The writing of its span is not part of its time."""

    def __init__(self, timers: Timers, tag: str, cat: str | None) -> None:
        self._timers = timers
        self._tag = tag
        self._span = None if cat is None else Tracer.trace_span(tag, cat)
        self._start = 0.0

    def __enter__(self) -> None:
        if self._span is not None:
            self._span.__enter__()
        self._start = self._timers.clock()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timers.add(self._tag, self._timers.clock() - self._start)
        if self._span is not None:
            self._span.__exit__(kind, error, traceback)


def timer(tag: str | Callable[..., Any] | None = None, trace: bool = True) -> Any:
    """Time each call of a worker's method, sync or async; bare, called, or with a tag.

    A call is also a range for the job's profiler, while that records.

    Args:
        tag: The timer's name; by default the method's.
        trace: Whether each call is a span in the trace of the job.
    """
    if callable(tag):
        return _timed(tag, tag.__name__, trace)
    name = tag
    return lambda function: _timed(function, name or function.__name__, trace)


def _timed(function: F, tag: str, trace: bool) -> F:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def timed_coroutine(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.worker_timer(tag, trace), _profiled(tag):
                return await function(self, *args, **kwargs)

        return timed_coroutine  # type: ignore[return-value]  # same signature as the function

    @functools.wraps(function)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.worker_timer(tag, trace), _profiled(tag):
            return function(self, *args, **kwargs)

    return timed  # type: ignore[return-value]  # same signature as the function


def _profiled(tag: str) -> AbstractContextManager[None]:
    return AcceleratorUtil.profiling_range(accelerator_type(), tag)
