"""`CallValue`: the arguments or the result of a call on a worker, on their way through Ray.

Ray's own serializer would send the whole storage of a tensor's view and lend arrays that cannot be
written; it turns a bytearray into bytes and a list that is held twice into two, and cannot rebuild
every dtype. Calls carry what `shoal.pickling` makes instead, as channels and messages do.
"""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.context import describe_self
from shoal.errors import CallDecodeError, ShoalValueError
from shoal.pickling import dumps, loads

__all__ = ["CallValue", "carries_unchanged", "kinds_of"]

_DIRECT = frozenset({type(None), bool, float, str, bytes})
"""Types that Ray carries unchanged; so are integers of 64 bits."""
_INTEGERS = range(-(2**63), 2**63)


class CallValue:
    """A value that Ray carries encoded; the thread that asks for it decodes it.

    Not the thread in which it arrives: that is often Ray's own, where torch has crashed.

    Args:
        value: The value.
        what: Names it in errors, such as `the arguments (int, list) of w.run`.
    """

    __slots__ = ("_arrived", "_value", "_what")

    def __init__(self, value: Any, what: str) -> None:
        self._value = value
        self._what = what
        self._arrived: tuple[bytes, list[bytearray]] | None = None

    def get(self) -> Any:
        """Return the value.

        Raises:
            CallDecodeError: It cannot be rebuilt in this process.
        """
        if self._arrived is None:
            return self._value
        try:
            self._value = loads(*self._arrived)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001  (its classes may raise anything, as in channels)
            raise CallDecodeError(
                f"{self._what} cannot be rebuilt in {describe_self()}: "
                f"{type(error).__name__}: {error}"
            ) from None
        self._arrived = None
        return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray calls this while it serializes the call, and so counts the references in the value.
        try:
            head, buffers = self._arrived or dumps(self._value)
        except ShoalValueError as error:
            raise ShoalValueError(
                f"{self._what} cannot be sent: {error.__cause__ or error}"
            ) from error
        return _arrived, (self._what, head, *map(pickle.PickleBuffer, buffers))


def _arrived(what: str, head: bytes, *buffers: Any) -> CallValue:
    arrived = CallValue(None, what)
    # Ray lends its memory; the receiver gets memory of its own, which can be written.
    arrived._arrived = head, [bytearray(buffer) for buffer in buffers]  # noqa: SLF001  (its constructor)
    return arrived


def carries_unchanged(value: Any) -> bool:
    """Whether Ray carries a value as it is, and faster than a `CallValue`."""
    kind = type(value)
    return kind in _DIRECT or (kind is int and value in _INTEGERS)


def kinds_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the types of arguments, for messages: `int, list, key=dict`."""
    kinds = [type(value).__qualname__ for value in args]
    return ", ".join(kinds + [f"{k}={type(value).__qualname__}" for k, value in kwargs.items()])
