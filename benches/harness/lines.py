"""The messages of a row, the interface `Line` of what carries them, and the line of `shoal.shm`."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from shoal import shm
from shoal.errors import ShoalTimeoutError

__all__ = ["Line", "Load", "Rival", "Shoal", "in_a_loop"]

FILLING = 7.0


@dataclass(frozen=True)
class Load:
    """The messages of a row.

    Attributes:
        kind: `bytes`, `dict` (of five plain values) or `array`.
        size: Bytes of a message.
        depth: Number of messages that the line has room for.
    """

    kind: str
    size: int = 64
    depth: int = 1024

    @property
    def kept(self) -> bool:
        """Whether the receiver keeps the messages, as a consumer of small ones does."""
        return self.kind != "array"

    def make(self, number: int, arrays: str) -> Any:
        """Return the message with a number; arrays are the same for all numbers."""
        if self.kind == "bytes":
            return b"%0*d" % (self.size, number)
        if self.kind == "dict":
            return {"a": number, "b": number + 0.5, "c": str(number), "d": None, "e": True}
        return _array(self.size // 4, arrays)

    def check(self, message: Any, number: int) -> None:
        """Raise if a message is not the one with that number."""
        if self.kind == "array":
            right = len(message) == self.size // 4 and message[0] == message[-1] == FILLING
        else:
            right = message == self.make(number, "")
        if not right:
            raise ValueError(f"not message {number}: {message!r}")


@lru_cache(maxsize=1)
def _array(length: int, arrays: str) -> Any:
    if arrays == "numpy":
        return np.full(length, FILLING, dtype=np.float32)
    torch = import_module("torch")
    torch.set_num_threads(1)
    return torch.full((length,), FILLING)


def in_a_loop(put: Callable[[Any], object]) -> Callable[[list[Any]], None]:
    """Return a function that calls another one with each item of a list."""

    def put_all(messages: list[Any]) -> None:
        for message in messages:
            put(message)

    return put_all


class Line:
    """A queue between two processes: made by the conductor, pickled, opened at both ends.

    Attributes:
        name: Its name as a contender.
        arrays: The kind of arrays that it carries: `numpy` if it pickles them, `torch` if it
            supports tensors.
        can: Its abilities besides put and get: `many`, `await`, `wait`.
    """

    name: ClassVar[str]
    arrays: ClassVar[str] = "numpy"
    can: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, load: Load) -> None:
        self.load = load

    def putter(self) -> Callable[[Any], object]:
        """Open the sending end: a function that puts, waiting for room."""
        raise NotImplementedError

    def streamer(self) -> Callable[[list[Any]], None]:
        """Open the sending end: a function that puts messages in a loop, one in each call."""
        return in_a_loop(self.putter())

    def getter(self) -> Callable[[], Any]:
        """Open the receiving end: a function that gets, waiting for a message."""
        raise NotImplementedError

    def many_putter(self) -> Callable[[list[Any]], object]:
        """Open the sending end: a function that puts many messages in one call."""
        raise NotImplementedError

    def many_getter(self) -> Callable[[int], list[Any]]:
        """Open the receiving end: a function that gets up to a number of messages in one call."""
        raise NotImplementedError

    def awaiter(self) -> Callable[[], Awaitable[Any]]:
        """Open the receiving end: a coroutine function that gets a message."""
        raise NotImplementedError

    def waiter(self) -> Callable[[float], None]:
        """Open the receiving end: a function that waits some seconds in vain for a message."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove what the line left, once the processes have ended."""


class Rival(Line):
    """A queue of another package.

    Attributes:
        module: The module to import.
    """

    module: ClassVar[str]

    @classmethod
    def missing(cls) -> bool:
        """Whether the package is not installed."""
        return find_spec(cls.module) is None

    @classmethod
    def package(cls) -> Any:
        """Import the package."""
        return import_module(cls.module)


class Shoal(Line):
    """A queue of `shoal.shm`."""

    name = "shoal.shm"
    arrays = "torch"
    can = frozenset({"many", "await", "wait"})

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._session = shm.Session.create()
        self.token = self._session.token

    def __getstate__(self) -> dict[str, Any]:
        return {"load": self.load, "token": self.token}

    def queue(self, key: Any = "bench") -> Any:
        """Return a queue of the session, in the process that calls."""
        self._session = shm.Session.attach(self.token)
        return self._session.queue(key, maxsize=self.load.depth)

    def putter(self):
        return self.queue().put

    def getter(self):
        return self.queue().get

    def many_putter(self):
        return self.queue().put_many

    def many_getter(self):
        return self.queue().get_many

    def awaiter(self):
        return self.queue().aget

    def waiter(self):
        queue = self.queue()

        def wait(seconds: float) -> None:
            start = time.monotonic()
            try:
                queue.get(timeout=seconds)
            except ShoalTimeoutError:
                if time.monotonic() - start >= seconds:
                    return
            raise RuntimeError("a message came, or the wait ended early")

        return wait

    def close(self):
        self._session.close()
