"""A helper for tests of log lines: act once a line was logged, not after some seconds."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.processes import until


@contextlib.contextmanager
def once_logged(
    caplog: pytest.LogCaptureFixture, text: str, act: Callable[..., Any], *args: Any, **kwargs: Any
) -> Iterator[None]:
    """Run `act` in a thread as soon as a line with `text` was logged; it has run at the end."""

    def watch() -> None:
        until(lambda: text in caplog.text)
        act(*args, **kwargs)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()
