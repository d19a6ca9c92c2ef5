"""Calls into other people's libraries that may hang: drivers, cameras, the network."""

import threading
from collections.abc import Callable
from typing import TypeVar

from shoal.errors import ShoalTimeoutError

__all__ = ["within"]

T = TypeVar("T")


def within(seconds: float, what: str, function: Callable[[], T]) -> T:
    """Call a function and give up on it after some time.

    It runs in a thread of its own, which a hanging call keeps: nothing can end it, but it keeps no
    program from ending.

    Raises:
        ShoalTimeoutError: It did not return in time; names `what`.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(function())
        except BaseException as error:  # noqa: BLE001  (raised again where somebody waits)
            failed.append(error)

    thread = threading.Thread(target=run, name=f"shoal: {what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise ShoalTimeoutError(f"{what} did not answer within {seconds:g} s")
    return done[0]
