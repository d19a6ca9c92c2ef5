"""What lies in a queue between two workers: the object itself, or an envelope around more.

Almost every message is the object that was sent, as it is. Everything else is a tuple that begins
with a mark: a tensor of `send_tensor`, an object with a piggyback payload, a payload that lies
beside the queue. An object that looks like such a tuple travels in an envelope itself.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shoal.errors import ShoalValueError, TransportError
from shoal.pickling import tensor_facts

__all__ = [
    "BESIDE",
    "BUFFERS",
    "FRAMES",
    "LANE",
    "PLAIN",
    "Accept",
    "Facts",
    "Received",
    "check_contiguous",
    "envelope",
    "expects_object",
    "expects_tensor",
    "fill",
    "is_envelope",
    "is_tensor",
    "nbytes_of",
    "open_message",
    "sendable",
    "special",
    "special_of",
    "tensor_in",
    "tensor_message",
    "tensors_of",
]

_MARK = "\0shoal"
_OBJECT, _PAIR, _TENSOR = "object", "pair", "tensor"
BESIDE = "beside"
"""The kind of an envelope whose object is a shared payload, or came beside the queue."""
BUFFERS = "buffers"
"""The kind of an envelope that is a pickle, whose buffers came with the frame that announced it."""
FRAMES = "frames"
"""The kind of an envelope after which the messages are announced by frames of `torch`."""
LANE = "lane"
"""The kind of an envelope whose tensors come through a lane of their own."""

PLAIN = frozenset({bytes, bytearray, str, int, float, bool, complex, type(None)})
"""Types whose objects need no look before they are sent."""

_FILLED_BY_ONE = 4 * 1024 * 1024
"""Copy tensors of at most this many bytes in one thread."""

_MOST_PARTS = 4096
"""Estimate the size of containers with at most this many parts; larger ones are encoded first."""

Facts = tuple[tuple[int, ...], str, str]
"""Shape, dtype and device type of a tensor."""
Accept = Callable[["Received", str], None]
"""Raises when the receiver does not expect such a message, which then stays where it is."""


class Received(NamedTuple):
    """A message as its receiver sees it.

    Attributes:
        value: The object, or the tensor of `send_tensor`.
        piggyback: What came beside it; None for nothing.
        tensor: Shape, dtype and device type of a tensor of `send_tensor`; None for an object.
    """

    value: Any
    piggyback: Any = None
    tensor: Facts | None = None

    def result(self) -> Any:
        """Return what `recv` returns."""
        return self.value if self.piggyback is None else (self.value, self.piggyback)


def envelope(value: Any, piggyback: Any = None) -> Any:
    """Return the message of an object: the object itself, where nothing stands against it."""
    if piggyback is not None:
        return (_MARK, _PAIR, value, piggyback)
    if type(value) is tuple and is_envelope(value):
        return (_MARK, _OBJECT, value)
    return value


def tensor_message(tensor: Any) -> Any:
    """Return the message of a tensor that is sent to `recv_tensor`."""
    return (_MARK, _TENSOR, tensor)


def special(kind: str, *parts: Any) -> Any:
    """Return an envelope of one of the kinds that this module names."""
    return (_MARK, kind, *parts)


def tensor_in(message: Any) -> Any:
    """Return the tensor of a message of `send_tensor`, None for another message."""
    return message[2] if is_envelope(message) and message[1] == _TENSOR else None


def is_envelope(message: Any) -> bool:
    """Whether a message is more than an object."""
    return (
        type(message) is tuple
        and len(message) > 0
        and type(message[0]) is str
        and (message[0] == _MARK)
    )


def special_of(message: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return the kind and the parts of an envelope that has to be fetched first, else None."""
    if is_envelope(message) and message[1] in (BESIDE, BUFFERS, FRAMES, LANE):
        return message[1], message[2:]
    return None


def open_message(message: Any) -> Received:
    """Look into a message that is complete."""
    if not is_envelope(message):
        return Received(message)
    kind = message[1]
    if kind == _PAIR:
        return Received(message[2], message[3])
    if kind == _TENSOR:
        return Received(message[2], tensor=tensor_facts(message[2]))
    return Received(message[2])


# What the receiver expects.


def expects_object(received: Received, where: str) -> None:
    """Raise where a message is one of `send_tensor`."""
    if received.tensor is not None:
        raise TransportError(
            f"{where}: it was sent with send_tensor ({_show(received.tensor)}) and received with "
            "recv; call recv_tensor"
        )


def expects_tensor(tensor: Any) -> Accept:
    """Return what raises where a message does not fit into a tensor."""
    wanted = tensor_facts(tensor)

    def accept(received: Received, where: str) -> None:
        if received.tensor is None:
            raise TransportError(
                f"{where}: it was sent with send and received with recv_tensor; call recv"
            )
        if received.tensor != wanted:
            raise TransportError(
                f"{where}: sent is a tensor of {_show(received.tensor)}, recv_tensor was given one "
                f"of {_show(wanted)}; both must agree"
            )

    return accept


# What can be sent.


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor; torch is not loaded to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def sendable(value: Any) -> Any:
    """Check tensors that are sent as such, and give a tuple of tensors the type it arrives with.

    Raises:
        ShoalValueError: A tensor is not contiguous.
    """
    tensors = tensors_of(value)
    for tensor in tensors:
        check_contiguous(tensor)
    if type(value) is tuple and len(tensors) == len(value):
        return list(value)
    return value


def tensors_of(value: Any) -> Sequence[Any]:
    """Return the tensors of a tensor, or of a list, tuple or dict of nothing else; else nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    tensor_type = getattr(torch, "Tensor", ())
    kind = type(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return (value,) if isinstance(value, tensor_type) else ()
    parts = value.values() if kind is dict else value
    for part in parts:
        if not isinstance(part, tensor_type):
            return ()
    return tuple(parts)


def fill(into: Any, tensor: Any) -> None:
    """Copy the values of a tensor into another one of the same shape, dtype and device type."""
    small = tensor.nbytes <= _FILLED_BY_ONE
    plain = into.is_contiguous() and not into.is_conj() and not into.is_neg()
    if not small or into.device.type != "cpu" or not plain:
        into.copy_(tensor)
        return
    # torch would wake threads for it, which takes longer than the copy.
    torch = sys.modules["torch"]
    target, source = (one.reshape(-1).view(torch.uint8).numpy() for one in (into, tensor))
    target[:] = source


def check_contiguous(tensor: Any) -> None:
    """Raise where a tensor's values do not lie in one piece.

    Raises:
        ShoalValueError: They do not.
    """
    if not tensor.is_contiguous():
        raise ShoalValueError(
            f"a tensor of shape {tuple(tensor.shape)} must be contiguous when using P2P "
            "communication: send tensor.contiguous()"
        )


def nbytes_of(message: Any, depth: int = 4) -> int | None:
    """Return about how many bytes a message takes; None where only encoding it would tell."""
    kind = type(message)
    if kind in (int, float, bool, type(None)):
        return 16
    if kind in (bytes, bytearray, str):
        return len(message)
    nbytes = getattr(message, "nbytes", None)
    if type(nbytes) is int and (is_tensor(message) or kind.__module__ == "numpy"):
        return nbytes
    if depth == 0 or kind not in (list, tuple, dict) or len(message) > _MOST_PARTS:
        return None
    total = 16 * len(message)
    for part in message.values() if kind is dict else message:
        found = nbytes_of(part, depth - 1)
        if found is None:
            return None
        total += found
    return total


def _show(facts: Facts) -> str:
    shape, dtype, device = facts
    return f"shape {shape}, {dtype}, on {device}"
