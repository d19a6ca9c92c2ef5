"""The background event loop of a process: one daemon thread, started on first use."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shoal.fork import ChildStage, in_child
from shoal.process import per_process

__all__ = ["in_event_loop", "soon", "submit"]

_T = TypeVar("_T")
_lock = threading.Lock()


@per_process  # a forked child has no loop thread
def _start() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="shoal-loop", daemon=True).start()
    return loop


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        return _start()


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def soon(function: Callable[[], Any]) -> None:
    """Call a function on the loop; takes no lock, so a finalizer may call this."""
    _start().call_soon_threadsafe(function)


def submit(work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
    """Run a coroutine on the loop; cancelling the future cancels the coroutine."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


def _unlock() -> None:
    global _lock  # noqa: PLW0603  (a thread of the parent may have held it during the fork)
    _lock = threading.Lock()


in_child(ChildStage.RENEW, _unlock)
