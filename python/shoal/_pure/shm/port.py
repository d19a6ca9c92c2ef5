"""`ShmPort`: the fast path of a channel's puts and gets, here in Python for the pure core."""

import math
import time
from typing import Any, Final, NoReturn, Self, final

from shoal._pure.shm.queue import ShmQueue
from shoal.errors import ShoalTimeoutError, ShoalTypeError

__all__ = ["ShmPort"]

_TURN_S: Final = 10
"""Maximum seconds that a get waits in the queue before it takes the slow path."""

_DEFAULT: Final = str(b"default_queue", "ascii")
"""Default of `key`: means the port's own key, and shows in signatures as that key is usually named.

A separate object, so that `is` distinguishes it from an equal key that a caller gave."""


@final
class ShmPort:
    """The queues of a channel by key: a fast path for puts and gets; see `_rust.pyi`."""

    __slots__ = ("_default", "_other", "_queues")
    __module__ = "shoal.shm"
    _queues: dict[Any, ShmQueue]
    _default: Any
    _other: Any

    def __new__(cls, queues: dict[Any, ShmQueue], default: Any, other: Any) -> Self:
        """Create a port for queues that the caller may add and remove at any time."""
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
            except Exception as error:  # noqa: BLE001  (`explain` decides what to raise)
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
        except Exception as error:  # noqa: BLE001  (`explain` decides what to raise)
            failed = error
        # Outside of the handler, so that the raised error has no context.
        raise self._other.explain(failed)

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'shoal.shm.ShmPort' object")

    def _key(self, key: Any) -> Any:
        return self._default if key is _DEFAULT else key

    def _queue(self, key: Any) -> ShmQueue | None:
        """Return the queue of a key; None if the key has to take the slow path."""
        try:
            queue = self._queues.get(key)
        except Exception:  # noqa: BLE001  (the key is not hashable; the slow path says so)
            return None
        return queue if isinstance(queue, ShmQueue) else None

    def _offered(self, item: Any, weight: Any, key: Any) -> bool:
        """Try to put an object; return whether it is in the queue. The slow path raises errors."""
        queue = self._queue(key)
        if queue is None:
            return False
        try:
            queue.put_nowait(item, weight)
        except Exception:  # noqa: BLE001  (nothing was put; the slow path tries again)
            return False
        return True


def _is_usual(timeout: Any) -> bool:
    """Whether a timeout is None or valid seconds."""
    if timeout is None:
        return True
    # The comparison is False for NaN.
    return type(timeout) in (int, float) and 0 <= timeout <= math.inf
