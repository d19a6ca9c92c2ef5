"""A helper for tests with several threads: begin a call, and have its result or its error later."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from shoal.futures import fulfil


def in_thread(function: Callable[..., Any], *args: Any, **options: Any) -> "Future[Any]":
    """Begin a call in a thread of its own; return its future."""
    future: Future[Any] = Future()
    call = partial(function, *args, **options)
    threading.Thread(target=fulfil, args=(future, call), daemon=True).start()
    return future
