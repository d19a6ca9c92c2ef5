"""The frames of the lane: headers of fixed lengths, little-endian, and the bytes that follow them.

The same as in the Rust crate `shoal-lane`, whose page explains them.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Self

from shoal.refusals import Refusal

__all__ = [
    "HELLO",
    "ITEM",
    "LEASE",
    "MOST_LEASES",
    "NEVER",
    "POLICIES",
    "REPLY",
    "REQUEST",
    "WELCOME",
    "FailedError",
    "InvalidError",
    "Item",
    "Op",
    "Reply",
    "Request",
    "Status",
    "leases_of",
    "packed_leases",
    "packed_refusal",
    "refusal_of",
]

HELLO: Final = struct.Struct("<16s?7x")
"""A stream, and whether requests were sent on an earlier connection of it."""
WELCOME: Final = struct.Struct("<??6xQQ")
"""Whether the stream is unknown, whether a reply follows, the epoch, and what is done."""
REQUEST: Final = struct.Struct("<BBBBIIIQQQQQQ")
REPLY: Final = struct.Struct("<B3xIQQ")
ITEM: Final = struct.Struct("<QQIB?2x")
LEASE: Final = struct.Struct("<16sQ")
"""A holder, and the number of its first lease."""
_REFUSAL: Final = struct.Struct("<B7xQQQ")

NEVER: Final = 2**64 - 1
"""The deadline of a request that waits without limit."""
_ANY: Final = 2**64 - 1
"""A bound that the client does not ask for."""
_WAITS: Final = 1
_LONGEST_KEY: Final = 65_535
_LONGEST_BODY: Final = 4096
_LARGEST_PAYLOAD: Final = 2**40
_HOLDER: Final = 16

MOST_LEASES: Final = 1024
"""Maximum number of leases that one request renews or ends."""

POLICIES: Final = ("block", "drop_oldest", "keep_latest", "error")

_REFUSALS: Final = ("messages", "backlog", "bytes", "memory", "weight", "empty")


class InvalidError(Exception):
    """Bytes that are not a frame of the lane."""


class FailedError(Exception):
    """A request was not carried out; the connection goes on.

    Args:
        status: What the server says.
        body: Why.
    """

    def __init__(self, status: "Status", body: bytes) -> None:
        super().__init__()
        self.status = status
        self.body = body


class Op(IntEnum):
    """The operation of a request."""

    PUT = 1
    TAKE = 2
    KEEP = 3
    GIVE_BACK = 4
    LEASE = 5
    RENEW = 6
    SETTLE = 7


class Status(IntEnum):
    """The outcome of a request."""

    DONE = 0
    FULL = 1
    TIMEOUT = 2
    CLOSED = 3
    MEMORY = 4
    TOO_LARGE = 5
    INVALID = 6
    FAILED = 7


class Request(NamedTuple):
    """The header of a request. Its key and its payload follow.

    Attributes:
        op: The operation.
        seq: Its number in its stream, from 1.
        policy: The index of a put's policy in `POLICIES`.
        waits: Whether it waits for room or for items.
        kind: The format of the payload; of a take, 1 if `amount` is a weight; of the end of leases,
            1 if their messages go back.
        sender: The process that puts, as its users know it.
        left: Number of requests of the same exchange that follow.
        key_length: Length of the key in bytes.
        length: Length of the payload in bytes.
        amount: The weight of a message; of a take, the number or the weight of the messages; for
            leases, the take.
        deadline: Microseconds since the welcome of the connection, or `NEVER`; 0 without a wait.
        maxsize: The bound that the queue must have in messages; None for any.
        max_bytes: The bound that it must have in bytes; None for any.
    """

    op: Op
    seq: int
    policy: int = 0
    waits: bool = False
    kind: int = 0
    sender: int = 0
    left: int = 0
    key_length: int = 0
    length: int = 0
    amount: int = 0
    deadline: int = 0
    maxsize: int | None = None
    max_bytes: int | None = None

    def packed(self) -> bytes:
        """Return its bytes."""
        return REQUEST.pack(
            *(self.op, self.policy, self.waits, self.kind, self.sender, self.left, self.key_length),
            *(self.length, self.seq, self.amount, self.deadline),
            *(_ANY if bound is None else bound for bound in (self.maxsize, self.max_bytes)),
        )

    @classmethod
    def of(cls, data: bytes | bytearray) -> Self:
        """Read one.

        Raises:
            InvalidError: The bytes are none.
        """
        op, policy, flags, kind, sender, left, key_length, length, seq, *rest = REQUEST.unpack(data)
        amount, deadline, maxsize, max_bytes = rest
        if (
            not Op.PUT <= op <= Op.SETTLE
            or policy >= len(POLICIES)
            or key_length > _LONGEST_KEY
            or length > _LARGEST_PAYLOAD
            or not 1 <= seq < _ANY
        ):
            raise InvalidError(f"expected a request, got the bytes {bytes(data).hex()}")
        return cls(
            *(Op(op), seq, policy, bool(flags & _WAITS), kind, sender, left, key_length, length),
            *(amount, deadline),
            *(None if bound == _ANY else bound for bound in (maxsize, max_bytes)),
        )


class Reply(NamedTuple):
    """The header of a reply: a request has an outcome, and all before it are done. The body follows.

    Attributes:
        status: The outcome.
        seq: The request.
        items: Number of items in the body.
        length: Length of the body in bytes.
    """

    status: Status
    seq: int
    items: int = 0
    length: int = 0

    def packed(self) -> bytes:
        """Return its bytes."""
        return REPLY.pack(self.status, self.items, self.length, self.seq)

    @classmethod
    def of(cls, data: bytes | bytearray) -> Self:
        """Read one.

        Raises:
            InvalidError: The bytes are none.
        """
        status, count, length, seq = REPLY.unpack(data)
        if status > Status.FAILED or (status != Status.DONE and length > _LONGEST_BODY):
            raise InvalidError(f"status={status} of a reply with {length} bytes")
        return cls(Status(status), seq, count, length)


class Item(NamedTuple):
    """The header of an item in the reply to a take. Its payload follows.

    Attributes:
        length: Length of the payload in bytes.
        weight: Weight of the message.
        sender: The process that put it.
        kind: The format of the payload.
        redelivered: Whether it was delivered before.
    """

    length: int
    weight: int
    sender: int
    kind: int
    redelivered: bool

    @classmethod
    def of(cls, data: bytes | bytearray) -> Self:
        """Read one."""
        return cls(*ITEM.unpack(data))


def packed_refusal(refusal: Refusal) -> bytes:
    """Return the body of a reply for a request that had to wait; `locked` is shown as empty."""
    kind, held, bound, length = refusal
    if kind not in _REFUSALS:
        kind, held, bound, length = "empty", 0, 0, 0
    # A closed queue is told so; these have no bound.
    if kind == "empty":
        held = bound = length = 0
    return _REFUSAL.pack(_REFUSALS.index(kind), held, bound, length)


def refusal_of(data: bytes | bytearray) -> Refusal:
    """Read the body of a reply for a request that had to wait.

    Raises:
        InvalidError: The bytes are none.
    """
    if len(data) != _REFUSAL.size or data[0] >= len(_REFUSALS):
        raise InvalidError(f"expected a reason, got the bytes {bytes(data).hex()}")
    kind, held, bound, length = _REFUSAL.unpack(data)
    return Refusal(_REFUSALS[kind], held, bound, length)


def packed_leases(holder: bytes, numbers: Sequence[int]) -> bytes:
    """Return the payload of a request to renew or to end leases."""
    return struct.pack(f"<{_HOLDER}s{len(numbers)}Q", holder, *numbers)


def leases_of(data: bytes | bytearray) -> tuple[bytes, list[int]]:
    """Read the holder and the numbers of a request to renew or to end leases.

    Raises:
        InvalidError: The bytes are none.
    """
    count, rest = divmod(len(data) - _HOLDER, 8)
    if rest or not 0 <= count <= MOST_LEASES:
        raise InvalidError(f"leases in {len(data)} bytes")
    holder, *numbers = struct.unpack(f"<{_HOLDER}s{count}Q", data)
    return holder, numbers
