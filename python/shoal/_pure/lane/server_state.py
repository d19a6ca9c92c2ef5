"""`ServerState`: what all connections of a server use: streams, leases and queues.

The streams of requests outlive their connections.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from shoal._pure.lane.frames import Reply, Status
from shoal._pure.lane.wire import Wire
from shoal._pure.shm.queue import ShmQueue
from shoal._pure.shm.session import ShmSession
from shoal.errors import ShoalError

__all__ = ["ForgottenError", "Record", "ServerState", "TakenError"]

_LEASE_S: Final = 12.0
"""Seconds that a lease is kept after its holder was heard of."""
_MANY: Final = 1024
"""Maximum number of queues that stay open."""


@dataclass
class Record:
    """The state of a stream at its server.

    Attributes:
        done: All requests up to this one are carried out, or have failed with `failed`.
        failed: The failure of the last request and its body, until the client sends the next one.
        lent: The number of the last take and its messages, until the client has confirmed them.
    """

    done: int = 0
    failed: tuple[Reply, bytes] | None = None
    lent: tuple[int, list[Any]] | None = None

    def fail(self, seq: int, last: int, status: Status, body: bytes) -> Reply:
        """Note that a request failed, and with it those of its exchange that follow."""
        self.done = last
        reply = Reply(status, seq, 0, len(body))
        self.failed = reply, body
        return reply


@dataclass
class _Stream:
    record: Record | None = field(default_factory=Record)
    """None while a connection has it."""
    wire: Wire | None = None
    """The last connection that came for it. No other one gets it any more."""
    ends: float = float("inf")


class ForgottenError(Exception):
    """The server does not know a stream on which requests were sent."""


class TakenError(Exception):
    """A later connection came for a stream, or the thread of an earlier one does not end."""


class ServerState:
    """The state that all connections of a server use.

    Args:
        session: The session.

    Attributes:
        epoch: A random number of this server.
        ends: Whether the server ends.
        lent: Number of messages that clients have, or will have: neither in a queue, nor confirmed.
        leases: The ends and the messages of the leases, by holder and number.
    """

    def __init__(self, session: ShmSession) -> None:
        self._session = session
        self.epoch = int.from_bytes(os.urandom(8), "little") or 1
        self.ends = False
        self.lent = 0
        self.leases: dict[tuple[bytes, int], tuple[float, Any]] = {}
        self._streams: dict[bytes, _Stream] = {}
        self._queues: dict[bytes, ShmQueue] = {}
        self._changed = threading.Condition()

    def lend(self, count: int) -> None:
        """Count some more messages as lent, or with a negative number some less."""
        with self._changed:
            self.lent += count

    def end(self, messages: Iterable[Any], *, acknowledged: bool) -> None:
        """Confirm lent messages, or return them to their queue."""
        for message in messages:
            # It fails if this process was taken for dead: then the message is delivered again.
            with contextlib.suppress(ShoalError, sqlite3.Error):
                if acknowledged:
                    message.ack()
                else:
                    message.give_back()
            self.lend(-1)

    def add_leases(self, holder: bytes, first: int, messages: list[Any]) -> None:
        """Make lent messages leases with the numbers from `first` on."""
        ends = time.monotonic() + _LEASE_S
        with self._changed:
            for number, message in enumerate(messages, first):
                self.leases[holder, number] = ends, message

    def renew_leases(self, holder: bytes, numbers: Iterable[int]) -> None:
        """Keep leases for longer, if they have not ended."""
        ends = time.monotonic() + _LEASE_S
        with self._changed:
            for number in numbers:
                if (holder, number) in self.leases:
                    self.leases[holder, number] = ends, self.leases[holder, number][1]

    def end_leases(self, holder: bytes, numbers: Iterable[int], *, acknowledged: bool) -> None:
        """End leases; ignore those that have ended."""
        with self._changed:
            found = [self.leases.pop((holder, number), None) for number in numbers]
        self.end([lease[1] for lease in found if lease is not None], acknowledged=acknowledged)

    def take_stream(self, stream: bytes, wire: Wire, deadline: float, *, again: bool) -> Record:
        """Take the record of a stream for a connection, from the connection that has it.

        Args:
            stream: The stream.
            wire: The connection.
            deadline: When to give up, by `time.monotonic`.
            again: Whether requests were sent on an earlier connection.

        Raises:
            ForgottenError: Requests were sent, and the stream is not known.
            TakenError: It cannot be had.
        """
        with self._changed:
            if again and stream not in self._streams:
                raise ForgottenError
            entry = self._streams.setdefault(stream, _Stream())
            if entry.wire is not None:
                entry.wire.shut()
            entry.wire = wire
            self._changed.wait_for(
                lambda: entry.record is not None or entry.wire is not wire,
                deadline - time.monotonic(),
            )
            if entry.record is None or entry.wire is not wire:
                raise TakenError
            record, entry.record, entry.ends = entry.record, None, float("inf")
            return record

    def return_stream(self, stream: bytes, record: Record, remembered_s: float) -> None:
        """Return the record of a stream whose connection has ended."""
        with self._changed:
            entry = self._streams[stream]
            entry.record, entry.ends = record, time.monotonic() + remembered_s
            self._changed.notify_all()

    def expire(self, *, everything: bool = False) -> None:
        """Forget the streams whose clients did not come back, and leases that were not renewed.

        Their messages go back.
        """
        now, back = time.monotonic(), list[Any]()
        with self._changed:
            for stream, entry in list(self._streams.items()):
                if everything or entry.ends <= now:
                    del self._streams[stream]
                    if entry.record is not None and entry.record.lent is not None:
                        back += entry.record.lent[1]
            for name, (ends, message) in list(self.leases.items()):
                if everything or ends <= now:
                    del self.leases[name]
                    back.append(message)
        self.end(back, acknowledged=False)

    def queue(self, key: bytes, maxsize: int | None, max_bytes: int | None) -> ShmQueue:
        """Return the queue of a key.

        Raises:
            ChannelExistsError: It has other bounds.
        """
        queue = self._queues.get(key)
        if (
            queue is None
            or maxsize not in (None, queue.maxsize)
            or max_bytes not in (None, queue.max_bytes)
        ):
            queue = ShmQueue(self._session, key, maxsize, max_bytes, "the queue", parcels=True)
            if len(self._queues) >= _MANY:
                self._queues.clear()
            self._queues[key] = queue
        return queue

    def forget_queue(self, key: bytes) -> None:
        """Do not keep a queue open, which is closed."""
        self._queues.pop(key, None)
