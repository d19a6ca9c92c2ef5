"""Time limit for calls into third-party libraries that may hang: drivers, cameras, the network."""

import threading
from collections.abc import Callable
from typing import TypeVar

from shoal.errors import ShoalTimeoutError

__all__ = ["within"]

T = TypeVar("T")


def within(seconds: float, what: str, function: Callable[[], T]) -> T:
    """Call a function, and stop waiting for it after `seconds`.

    The function runs in its own daemon thread. A call that hangs cannot be ended and occupies its
    thread for ever, but it does not keep the program from exiting.

    Raises:
        ShoalTimeoutError: The function did not return in time; the message names `what`.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(function())
        except BaseException as error:  # noqa: BLE001  (raised again in the caller's thread)
            failed.append(error)

    thread = threading.Thread(target=run, name=f"shoal: {what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise ShoalTimeoutError(f"{what} did not answer within {seconds:g} s")
    return done[0]
