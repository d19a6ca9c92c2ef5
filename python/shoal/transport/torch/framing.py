"""The layout of the messages of a pair: one control message, then the tensors in further messages.

The control message gives the size of everything that follows, so the receiver never posts a buffer
that is smaller than the incoming message: gloo would end the process. Layout, little endian::

    magic "sT01" | tensors: u32 | bytes of the head: u64 | inline: u8 | head | tensors, if inline

The head is the byte sizes of the tensors, u64 each, and the caller's frame. A control message has
at most `CONTROL_BYTES`. A head that does not fit follows in a message of its own; the tensors are
in the control message if they fit.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from shoal.errors import TransportError

__all__ = [
    "CONTROL_BYTES",
    "MAX_FRAME_BYTES",
    "MAX_TENSORS",
    "Control",
    "Part",
    "pack_control",
    "pack_head",
    "parts",
    "unpack_control",
    "unpack_head",
]

CONTROL_BYTES = 4096
MAX_FRAME_BYTES = 16 * 2**20
MAX_TENSORS = 2**20
SMALL_BYTES = 64 * 2**10
"""Neighbouring tensors that are smaller than this travel together."""
PACK_BYTES = 2**20
"""Maximum number of bytes of such tensors in one message."""
PART_BYTES = 2**30
"""Maximum number of bytes of one message; larger tensors travel in several."""

_MAGIC = b"sT01"
_PREFIX = struct.Struct("<4sIQB")


class Control(NamedTuple):
    """A control message.

    Attributes:
        tensors: The number of tensors.
        head_bytes: The size of the head.
        inline: Whether the tensors are in this message.
        body: The bytes after the fixed fields: the head unless it did not fit, then the tensors
            if they are inline.
    """

    tensors: int
    head_bytes: int
    inline: bool
    body: bytes

    @property
    def has_head(self) -> bool:
        """Whether the head is in the body; otherwise it follows in a message of its own."""
        return _PREFIX.size + self.head_bytes <= CONTROL_BYTES


class Part(NamedTuple):
    """One message with bytes of tensors.

    Attributes:
        first: The index of its first tensor.
        tensors: The number of its tensors. Several are whole tensors; one may be a piece of one.
        offset: The offset of its first byte within its first tensor, in bytes.
        size: Its size in bytes.
    """

    first: int
    tensors: int
    offset: int
    size: int


def pack_head(sizes: Sequence[int], frame: bytes) -> bytes:
    """Return the head of a message."""
    return struct.pack(f"<{len(sizes)}Q", *sizes) + frame


def unpack_head(head: bytes, tensors: int) -> tuple[tuple[int, ...], bytes]:
    """Return the tensors' sizes and the frame of a head that `unpack_control` has checked."""
    return struct.unpack_from(f"<{tensors}Q", head), head[8 * tensors :]


def pack_control(tensors: int, head: bytes, total: int) -> tuple[bytearray, bool, bool]:
    """Return the control message of a head.

    Args:
        tensors: The number of tensors.
        head: The head.
        total: The size of all tensors in bytes.

    Returns:
        The message; whether the head is in it; whether the tensors are inline, so that the caller
        has to append them.
    """
    space = CONTROL_BYTES - _PREFIX.size - len(head)
    inline = 0 < total <= space
    control = bytearray(_PREFIX.pack(_MAGIC, tensors, len(head), inline))
    if space >= 0:
        control += head
    return control, space >= 0, inline


def unpack_control(buffer: bytes | bytearray) -> Control:
    """Return the control message in a buffer of `CONTROL_BYTES`.

    Raises:
        TransportError: The buffer does not hold a control message.
    """
    magic, tensors, head_bytes, inline = _PREFIX.unpack_from(buffer)
    possible = (
        magic == _MAGIC
        and tensors <= MAX_TENSORS
        and 8 * tensors <= head_bytes <= 8 * tensors + MAX_FRAME_BYTES
        and inline in (0, 1)
        and not (inline and _PREFIX.size + head_bytes > CONTROL_BYTES)
    )
    if not possible:
        raise TransportError(f"not a control message: {bytes(buffer[: _PREFIX.size])!r}")
    return Control(tensors, head_bytes, bool(inline), bytes(buffer[_PREFIX.size :]))


def parts(sizes: Sequence[int]) -> list[Part]:
    """Return the messages for tensors of given sizes; the same for the sender and the receiver."""
    found: list[Part] = []
    first, total = 0, 0  # the current run of small tensors
    for index, size in enumerate(sizes):
        if size < SMALL_BYTES and total + size <= PACK_BYTES:
            total += size
            continue
        if total:
            found.append(Part(first, index - first, 0, total))
        first, total = index, size
        if size >= SMALL_BYTES:
            found += [
                Part(index, 1, offset, min(PART_BYTES, size - offset))
                for offset in range(0, size, PART_BYTES)
            ]
            first, total = index + 1, 0
    if total:
        found.append(Part(first, len(sizes) - first, 0, total))
    return found
