"""Format of the messages in a queue between two workers: plain objects and envelopes.

Almost every message is the sent object itself. Any other message is an envelope, which is a tuple
that begins with a mark: for a tensor of `send_tensor`, an object with a piggyback payload, or a
payload that lies beside the queue. An object that looks like an envelope travels inside one.
"""

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shoal.errors import ShoalValueError, TransportError
from shoal.pickling import is_tensor, nbytes_of, tensor_facts

__all__ = [
    "BESIDE",
    "BUFFERS",
    "CARRIER",
    "FRAMES",
    "Accept",
    "Facts",
    "Received",
    "check_memory",
    "count_write",
    "envelope",
    "expects_object",
    "expects_tensor",
    "fill",
    "flat",
    "is_envelope",
    "is_tensor",
    "nbytes_of",
    "open_message",
    "outlives_sender",
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
"""Kind of an envelope whose object is a shared payload, or came beside the queue."""
BUFFERS = "buffers"
"""Kind of an envelope with a pickle, whose buffers came with the frame that announced it."""
FRAMES = "frames"
"""Kind of an envelope after which frames of `torch` announce the messages."""
CARRIER = "carrier"
"""Kind of an envelope whose tensors come through a carrier."""

_FILLED_BY_ONE = 4 * 1024 * 1024
"""Copy tensors of at most this many bytes in one thread."""

Facts = tuple[tuple[int, ...], str, str]
"""Shape, dtype and device type of a tensor."""
Accept = Callable[["Received", str], None]
"""Raises if the receiver does not expect the message, which then stays where it is."""


class Received(NamedTuple):
    """A message as its receiver sees it.

    Attributes:
        value: The object, or the tensor of `send_tensor`.
        piggyback: The piggyback payload; None if there is none.
        tensor: Shape, dtype and device type of a tensor of `send_tensor`; None for an object.
    """

    value: Any
    piggyback: Any = None
    tensor: Facts | None = None

    def result(self) -> Any:
        """Return the result of `recv`."""
        return self.value if self.piggyback is None else (self.value, self.piggyback)


def envelope(value: Any, piggyback: Any = None) -> Any:
    """Return the message for an object: the object itself, unless it needs an envelope."""
    if piggyback is not None:
        return (_MARK, _PAIR, value, piggyback)
    if type(value) is tuple and is_envelope(value):
        return (_MARK, _OBJECT, value)
    return value


def tensor_message(tensor: Any) -> Any:
    """Return the message for a tensor that is sent to `recv_tensor`."""
    return (_MARK, _TENSOR, tensor)


def special(kind: str, *parts: Any) -> Any:
    """Return an envelope of one of the kinds that this module names."""
    return (_MARK, kind, *parts)


def tensor_in(message: Any) -> Any:
    """Return the tensor of a message of `send_tensor`; None for any other message."""
    return message[2] if is_envelope(message) and message[1] == _TENSOR else None


def is_envelope(message: Any) -> bool:
    """Whether a message is an envelope, not a plain object."""
    return (
        type(message) is tuple
        and len(message) > 0
        and type(message[0]) is str
        and (message[0] == _MARK)
    )


def special_of(message: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return the kind and parts of an envelope whose object must be fetched first, else None."""
    if is_envelope(message) and message[1] in (BESIDE, BUFFERS, FRAMES, CARRIER):
        return message[1], message[2:]
    return None


def outlives_sender(message: Any) -> bool:
    """Whether a message can be completed after its sender has died: no part is still to be sent."""
    found = special_of(message)
    return found is None or found[0] in (BESIDE, BUFFERS)


def open_message(message: Any) -> Received:
    """Return the contents of a complete message."""
    if not is_envelope(message):
        return Received(message)
    kind = message[1]
    if kind == _PAIR:
        return Received(message[2], message[3])
    if kind == _TENSOR:
        return Received(message[2], tensor=tensor_facts(message[2]))
    return Received(message[2])


# Checks by the receiver.


def expects_object(received: Received, where: str) -> None:
    """Raise if a message was sent with `send_tensor`."""
    if received.tensor is not None:
        raise TransportError(
            f"{where}: it was sent with send_tensor ({_show(received.tensor)}) and received with "
            "recv; call recv_tensor"
        )


def expects_tensor(tensor: Any) -> Accept:
    """Return a function that raises if a message does not fit into a tensor."""
    wanted = tensor_facts(tensor)

    def accept(received: Received, where: str) -> None:
        if received.tensor is None:
            raise TransportError(
                f"{where}: it was sent with send and received with recv_tensor; call recv"
            )
        if received.tensor != wanted:
            raise TransportError(
                f"{where}: a tensor of {_show(received.tensor)} was sent, but recv_tensor was given "
                f"one of {_show(wanted)}; both must agree"
            )

    return accept


# Objects to send.


def sendable(value: Any) -> Any:
    """Turn a tuple of tensors into the list it arrives as."""
    if type(value) is tuple and len(tensors_of(value)) == len(value):
        return list(value)
    return value


def tensors_of(value: Any) -> Sequence[Any]:
    """Return a tensor, or those of a list, tuple or dict of tensors alone, as a tuple; else ()."""
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
    """Copy a received tensor into one of the same facts, unless it was received into that one.

    For torch this is a write, which autograd and the deltas of weights notice.
    """
    if tensor is not into:
        if tensor.nbytes > _FILLED_BY_ONE or not (_is_plain(into) and _is_plain(tensor)):
            into.copy_(tensor)
            return
        # torch would wake threads for it, which takes longer than the copy.
        ctypes.memmove(into.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    count_write(into)


def count_write(tensor: Any) -> None:
    """Let torch count a write to a tensor of which it does not know."""
    sys.modules["torch"].autograd.graph.increment_version(tensor)


def _is_plain(tensor: Any) -> bool:
    """Whether the bytes from `data_ptr()` on are the tensor's values."""
    return (
        type(tensor) is sys.modules["torch"].Tensor  # a subclass may have its values elsewhere
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def check_memory(into: Any) -> None:
    """Check that a tensor to receive into has memory for all its values.

    Raises:
        ShoalValueError: Its storage was freed or made smaller.
    """
    torch = sys.modules["torch"]
    if type(into) is torch.Tensor and into.layout is torch.strided and into.is_contiguous():
        needed = into.storage_offset() * into.itemsize + into.nbytes
        there = into.untyped_storage().nbytes()
        if into.nbytes and there < needed:
            raise ShoalValueError(
                f"recv_tensor: the storage of the tensor was freed or made smaller: it has {there} "
                f"bytes, and the tensor needs {needed}"
            )


def flat(tensor: Any) -> Any:
    """Return a tensor's values as a dense contiguous tensor, for `send_tensor`.

    Raises:
        ShoalValueError: It has other parts than values of its dtype.
    """
    kind = _odd_kind(tensor)
    if kind:
        raise ShoalValueError(
            f"send_tensor: a {kind} tensor of {str(tensor.dtype).removeprefix('torch.')} is not "
            "only values in memory: use send and recv, which take any tensor"
        )
    return tensor.detach().contiguous()


def _odd_kind(tensor: Any) -> str:
    """Return what is special about a tensor that is not dense values in memory, else ""."""
    layout = tensor.layout
    if layout is not sys.modules["torch"].strided:
        return str(layout).removeprefix("torch.")
    if tensor.is_nested:
        return "nested"
    if tensor.is_quantized:
        return "quantized"
    return "meta" if tensor.is_meta else ""


def _show(facts: Facts) -> str:
    shape, dtype, device = facts
    return f"shape {shape}, {dtype}, on {device}"
