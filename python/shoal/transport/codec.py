"""Objects to payloads and back. What arrives is exclusive to the receiver, and writable."""

from typing import Any

from shoal.errors import TransportError
from shoal.pickling import dumps, loads
from shoal.transport.wire import Payload

__all__ = ["decode", "encode"]


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
    head, buffers = dumps(obj)
    return Payload(note, head, *buffers)


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
        return loads(payload.head, buffers)
    except Exception as error:
        raise TransportError(
            f"{where}: the message cannot be rebuilt here: {type(error).__name__}: {error}"
        ) from error
