"""The queues of a channel by key."""

import math
import time
from typing import Any, Final, NoReturn, Self, final

from shoal._pure.shm.queue import ShmQueue
from shoal.errors import ShoalTimeoutError, ShoalTypeError

__all__ = ["ShmPort"]

_TURN_S: Final = 10
"""A get waits so long in the queue; then the other object may look whether that is still the way."""

_DEFAULT: Final = str(b"default_queue", "ascii")
"""Stands for the key of the port, as the signature shows it: an object of its own, so that it is
told from an equal key that was given."""


@final
class ShmPort:
    """The queues of a channel by key: puts and gets with no Python code on the way."""

    __slots__ = ("_default", "_other", "_queues")
    __module__ = "shoal.shm"
    _queues: dict[Any, ShmQueue]
    _default: Any
    _other: Any

    def __new__(cls, queues: dict[Any, ShmQueue], default: Any, other: Any) -> Self:
        """Make a port of queues that the caller adds and removes at any time."""
        if not isinstance(queues, dict):
            raise ShoalTypeError(f"queues={queues!r}: expected a dict")
        self = object.__new__(cls)
        self._queues = queues
        self._default = default
        self._other = other
        return self

    def put(
        self,
        item: Any,
        weight: int = 0,
        key: Any = _DEFAULT,
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Any = None,
    ) -> Any:
        """Append an object, waiting for room."""
        key = self._key(key)
        usual = async_op is False and queue_name is None and _is_usual(timeout)
        if usual and self._offered(item, weight, key):
            return None
        return self._other.put(item, weight, key, async_op, timeout, queue_name)

    def put_nowait(
        self, item: Any, weight: int = 0, key: Any = _DEFAULT, *, queue_name: Any = None
    ) -> Any:
        """Append an object if there is room now."""
        key = self._key(key)
        if queue_name is None and self._offered(item, weight, key):
            return None
        return self._other.put_nowait(item, weight, key, queue_name)

    def get(
        self,
        key: Any = _DEFAULT,
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Any = None,
        lease: bool = False,
    ) -> Any:
        """Take the first object, waiting for one."""
        key = self._key(key)
        waited = 0.0
        queue = None
        if async_op is False and queue_name is None and lease is False and _is_usual(timeout):
            queue = self._queue(key)
        if queue is not None:
            begun = time.monotonic()
            try:
                return queue.get(_TURN_S if timeout is None else min(timeout, _TURN_S))
            except ShoalTimeoutError:
                waited = time.monotonic() - begun
                failed: Exception | None = None
            except Exception as error:  # noqa: BLE001  (the other knows what to make of it)
                failed = error
            if failed is not None:
                raise self._other.explain(failed)
        return self._other.get(key, async_op, timeout, queue_name, lease, waited)

    def get_nowait(
        self, key: Any = _DEFAULT, *, queue_name: Any = None, lease: bool = False
    ) -> Any:
        """Take the first object if there is one now."""
        key = self._key(key)
        queue = self._queue(key) if queue_name is None and lease is False else None
        if queue is None:
            return self._other.get_nowait(key, queue_name, lease)
        try:
            return queue.get_nowait()
        except Exception as error:  # noqa: BLE001  (the other knows what to make of it)
            failed = error
        # Outside of the handler, so that what is raised has no context.
        raise self._other.explain(failed)

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'shoal.shm.ShmPort' object")

    def _key(self, key: Any) -> Any:
        return self._default if key is _DEFAULT else key

    def _queue(self, key: Any) -> ShmQueue | None:
        """Return the queue of a key; None where there is none by this way."""
        try:
            queue = self._queues.get(key)
        except Exception:  # noqa: BLE001  (it is not hashable; the other says so)
            return None
        return queue if isinstance(queue, ShmQueue) else None

    def _offered(self, item: Any, weight: Any, key: Any) -> bool:
        """Return whether an object is in the queue now; the other finds out why not."""
        queue = self._queue(key)
        if queue is None:
            return False
        try:
            queue.put_nowait(item, weight)
        except Exception:  # noqa: BLE001  (nothing was put, so that the other can do it again)
            return False
        return True


def _is_usual(timeout: Any) -> bool:
    """Whether a timeout can be none but seconds."""
    if timeout is None:
        return True
    # What is no number is not less than anything either.
    return type(timeout) in (int, float) and 0 <= timeout <= math.inf
