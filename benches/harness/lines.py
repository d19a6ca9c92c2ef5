"""Messages, and the line that they are sent through: a queue of `shoal.shm`, or of a rival."""

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

__all__ = ["Line", "Load", "Rival", "Shoal"]

FILLING = 7.0


@dataclass(frozen=True)
class Load:
    """The messages of a row.

    Attributes:
        kind: `bytes`, `dict` (of five plain values) or `array`.
        size: Of a message, in bytes.
        depth: How many messages the line has to have room for.
    """

    kind: str
    size: int = 64
    depth: int = 1024

    @property
    def kept(self) -> bool:
        """Whether the receiver keeps them, as a consumer of small messages does."""
        return self.kind != "array"

    def make(self, number: int, arrays: str) -> Any:
        """Return a message, different for each number; but an array is one and the same."""
        if self.kind == "bytes":
            return b"%0*d" % (self.size, number)
        if self.kind == "dict":
            return {"a": number, "b": number + 0.5, "c": str(number), "d": None, "e": True}
        return _array(self.size // 4, arrays)

    def check(self, message: Any, number: int) -> None:
        """Raise if a message is not the one of that number."""
        if self.kind == "array":
            right = len(message) == self.size // 4 and message[0] == message[-1] == FILLING
        else:
            right = message == self.make(number, "")
        if not right:
            raise ValueError(f"message {number} is another: {message!r}")


@lru_cache(maxsize=1)
def _array(length: int, arrays: str) -> Any:
    if arrays == "numpy":
        return np.full(length, FILLING, dtype=np.float32)
    torch = import_module("torch")
    torch.set_num_threads(1)
    return torch.full((length,), FILLING)


class Line:
    """A queue from one process to another: made by the conductor, pickled, opened at both ends.

    Attributes:
        name: Its name as a contender.
        arrays: Whose arrays go through it: `numpy` where it pickles them, `torch` where it knows
            tensors.
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

    def getter(self) -> Callable[[], Any]:
        """Open the receiving end: a function that gets, waiting for a message."""
        raise NotImplementedError

    def many_putter(self) -> Callable[[list[Any]], object]:
        """Open the sending end for many messages by one call."""
        raise NotImplementedError

    def many_getter(self) -> Callable[[int], list[Any]]:
        """Open the receiving end for up to so many messages by one call."""
        raise NotImplementedError

    def awaiter(self) -> Callable[[], Awaitable[Any]]:
        """Open the receiving end for a loop of asyncio."""
        raise NotImplementedError

    def waiter(self) -> Callable[[float], None]:
        """Open the receiving end to wait so many seconds for what does not come."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove what it left, once the processes have ended."""


class Rival(Line):
    """A queue of another package.

    Attributes:
        module: The module to import.
    """

    module: ClassVar[str]

    @classmethod
    def missing(cls) -> bool:
        """Whether it is not installed."""
        return find_spec(cls.module) is None

    @classmethod
    def package(cls) -> Any:
        """Import it."""
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
