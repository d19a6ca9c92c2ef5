"""Objects to payloads and back.

Pickle protocol 5 with its buffers out of band, so that numpy arrays and CPU tensors are not
copied into the pickle. What pickle cannot handle goes to cloudpickle, in buffers of its own.
What arrives is exclusive to the receiver, and writable.
"""

import io
import pickle
import sys
import types
from typing import Any

from ray import ObjectRef, cloudpickle
from ray.actor import ActorHandle

from shoal.errors import ShoalValueError, TransportError
from shoal.transport.tensors import reduce_tensor
from shoal.transport.wire import Payload

__all__ = ["decode", "encode"]

_SMALL = 4096
"""Writable buffers below this size are cheaper inside the pickle than beside it."""


_OF_RAY = (ObjectRef, ActorHandle)
"""What only Ray's cloudpickle sends with its owner, so that it can be used and lives on."""

_PLAIN = (bytes, str, int, float, bool, type(None))
"""What needs none of the care below."""


class _NeedsCloudpickle(Exception):  # noqa: N818  (a signal within this module, no error)
    """Something in the object is for cloudpickle only."""


def _reduce_buffers(obj: Any) -> Any:
    """Return the reduction of a tensor or a read-only array, or None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(obj) is numpy.ndarray:
        if obj.flags.writeable or obj.dtype.hasobject:
            return None
        # Pickle would keep the copy that arrives read-only, which protects nobody.
        return obj.copy().__reduce_ex__(5)
    return reduce_tensor(obj)


def _travels_by_value(module: str | None) -> bool:
    if module is None or module == "__main__":
        return True
    registered = cloudpickle.list_registry_pickle_by_value()
    return any(module == name or module.startswith(f"{name}.") for name in registered)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce_buffers(obj)
        if reduced is not None:
            return reduced
        # A class or a function of the script that runs would be pickled as a name in `__main__`,
        # which is another module where the message arrives.
        if isinstance(obj, (type, types.FunctionType)) and _travels_by_value(obj.__module__):
            raise _NeedsCloudpickle
        if isinstance(obj, _OF_RAY):
            raise _NeedsCloudpickle
        return NotImplemented


class _ByValuePickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce_buffers(obj)
        if reduced is not None:
            return reduced
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]  # Ray's copy has no types


def _pickle_with(pickler: Any, obj: Any, note: Any) -> Payload:
    beside: list[pickle.PickleBuffer] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        # A read-only buffer inside the pickle would arrive as immutable bytes.
        if view.nbytes < _SMALL and not view.readonly:
            return True
        beside.append(buffer)
        return False

    out = io.BytesIO()
    pickler(out, protocol=5, buffer_callback=stays_inside).dump(obj)
    return Payload(note, out.getvalue(), *beside)


def encode(obj: Any, note: Any = None) -> Payload:
    """Encode an object.

    The payload refers to the memory of the object's arrays and tensors, which must not change
    until it has been handed to Ray. What Ray's object references and actor handles in it stand for
    lives from now on as long as this process: nobody tells when the receiver is done with it.

    Args:
        obj: Any object that pickle or cloudpickle can handle.
        note: Travels in the open with the payload.

    Raises:
        ShoalValueError: The object cannot be pickled.
    """
    if type(obj) in _PLAIN:
        return Payload(note, pickle.dumps(obj, protocol=5))
    try:
        return _pickle_with(_Pickler, obj, note)
    except (_NeedsCloudpickle, pickle.PicklingError, AttributeError, TypeError):
        # Start afresh: what the failed attempt wrote is no message.
        pass
    try:
        return _pickle_with(_ByValuePickler, obj, note)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ShoalValueError(
            f"an object of type {type(obj).__qualname__} cannot be sent: {error}"
        ) from error


def decode(payload: Payload, where: str) -> Any:
    """Rebuild an object.

    Args:
        payload: What `encode` made, possibly in another process.
        where: Names the message in an error: its key and its sender.

    Raises:
        TransportError: The object cannot be rebuilt in this process.
    """
    buffers = [part if isinstance(part, bytearray) else bytearray(part) for part in payload.buffers]
    try:
        return pickle.loads(payload.head, buffers=buffers)
    except Exception as error:
        raise TransportError(
            f"{where}: the message cannot be rebuilt here: {type(error).__name__}: {error}"
        ) from error
