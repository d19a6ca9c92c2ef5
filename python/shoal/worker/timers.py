"""Named timers of a worker: seconds by tag, added up until they are read."""

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from shoal.errors import ShoalValueError

__all__ = ["Timers", "timer"]

F = TypeVar("F", bound=Callable[..., Any])


class Timers:
    """Seconds by tag."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def measure(self, tag: str | None, *, depth: int = 1) -> Any:
        """Time a `with` block.

        Args:
            tag: The timer's name; None for the name of the calling function.
            depth: Number of calls between this one and that function.
        """
        name = sys._getframe(depth).f_code.co_name if tag is None else tag  # noqa: SLF001  (the documented way to the caller's name)
        return self._measure(name)

    @contextmanager
    def _measure(self, tag: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(tag, time.perf_counter() - start)

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
            raise ShoalValueError(f"no timer {tag!r} was used since the last time; known: {known}")
        return self.seconds.pop(tag)

    def pop_all(self) -> dict[str, float]:
        """Return all timers and remove them."""
        taken, self.seconds = self.seconds, {}
        return taken


def timer(tag: str | Callable[..., Any] | None = None, trace: bool = True) -> Any:
    """Time each call of a worker's method, sync or async; bare, called, or with a tag.

    Args:
        tag: The timer's name; by default the method's.
        trace: Kept for existing callers; there is no tracer yet.
    """
    del trace
    if callable(tag):
        return _timed(tag, tag.__name__)
    name = tag
    return lambda function: _timed(function, name or function.__name__)


def _timed(function: F, tag: str) -> F:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def timed_coroutine(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.worker_timer(tag):
                return await function(self, *args, **kwargs)

        return timed_coroutine  # type: ignore[return-value]  # same signature as the function

    @functools.wraps(function)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.worker_timer(tag):
            return function(self, *args, **kwargs)

    return timed  # type: ignore[return-value]  # same signature as the function
