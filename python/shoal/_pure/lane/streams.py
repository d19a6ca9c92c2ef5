"""The streams of requests, which outlive their connections, and the leases of a server."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shoal._pure.lane.frames import Reply, Status
from shoal._pure.lane.wire import Wire
from shoal.errors import ShoalError

__all__ = ["ForgottenError", "Leases", "Lent", "Record", "Streams", "TakenError"]


class Lent:
    """Counts the messages that clients have, or will have: neither in a queue, nor confirmed."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count some more, or with a negative number some less."""
        with self._lock:
            self.count += count

    def end(self, messages: Iterable[Any], *, acknowledged: bool) -> None:
        """Confirm messages, or return them to their queue."""
        for message in messages:
            # It fails if this process was taken for dead: then the message is delivered again.
            with contextlib.suppress(ShoalError, sqlite3.Error):
                if acknowledged:
                    message.ack()
                else:
                    message.give_back()
            self.add(-1)


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
    ends: float = float("inf")
    came: int = 0
    """Number of connections that came for it. The last one gets it."""
    waiting: int = 0


class ForgottenError(Exception):
    """The server does not know a stream on which requests were sent."""


class TakenError(Exception):
    """A later connection came for a stream, or the thread of an earlier one does not end."""


class Streams:
    """All streams of a server.

    Args:
        lent: Counts what they lend.
    """

    def __init__(self, lent: Lent) -> None:
        self._all: dict[bytes, _Stream] = {}
        self._changed = threading.Condition()
        self._lent = lent

    def take(self, stream: bytes, wire: Wire, deadline: float, *, again: bool) -> Record:
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
            if again and stream not in self._all:
                raise ForgottenError
            entry = self._all.setdefault(stream, _Stream())
            entry.came += 1
            entry.waiting += 1
            ticket = entry.came
            try:
                while True:
                    is_last = entry.came == ticket
                    if is_last and entry.record is not None:
                        record, entry.record = entry.record, None
                        entry.wire, entry.ends = wire, float("inf")
                        return record
                    left = deadline - time.monotonic()
                    if not is_last or left <= 0:
                        raise TakenError
                    if entry.wire is not None:
                        entry.wire.shut()
                    self._changed.wait(left)
            finally:
                entry.waiting -= 1

    def give_back(self, stream: bytes, record: Record, remembered_s: float) -> None:
        """Return the record of a stream whose connection has ended."""
        with self._changed:
            entry = self._all[stream]
            entry.record, entry.wire = record, None
            entry.ends = time.monotonic() + remembered_s
            self._changed.notify_all()

    def forget(self, *, everything: bool = False) -> None:
        """Forget the streams whose clients did not come back; what they were lent goes back."""
        now = time.monotonic()
        with self._changed:
            gone = [
                stream
                for stream, entry in self._all.items()
                if everything or (entry.ends <= now and not entry.waiting)
            ]
            entries = [self._all.pop(stream) for stream in gone]
        for entry in entries:
            if entry.record is not None and entry.record.lent is not None:
                self._lent.end(entry.record.lent[1], acknowledged=False)


class Leases:
    """The leases of a server, by holder and number.

    Args:
        lent: Counts their messages.
        kept_s: Seconds that a lease is kept after its holder was heard of.
    """

    def __init__(self, lent: Lent, kept_s: float) -> None:
        self._lent = lent
        self._kept_s = kept_s
        self._all: dict[tuple[bytes, int], tuple[float, Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, holder: bytes, first: int, messages: list[Any]) -> None:
        """Add leases with the numbers from `first` on."""
        ends = time.monotonic() + self._kept_s
        with self._lock:
            for number, message in enumerate(messages, first):
                self._all[holder, number] = ends, message

    def renew(self, holder: bytes, numbers: Iterable[int]) -> None:
        """Keep leases for longer, if they have not ended."""
        ends = time.monotonic() + self._kept_s
        with self._lock:
            for number in numbers:
                if (holder, number) in self._all:
                    self._all[holder, number] = ends, self._all[holder, number][1]

    def end(self, holder: bytes, numbers: Iterable[int], *, acknowledged: bool) -> None:
        """End leases; ignore those that have ended."""
        with self._lock:
            found = [self._all.pop((holder, number), None) for number in numbers]
        messages = [lease[1] for lease in found if lease is not None]
        self._lent.end(messages, acknowledged=acknowledged)

    def expire(self, *, everything: bool = False) -> None:
        """End the leases that were not renewed in time; their messages go back."""
        now = time.monotonic()
        with self._lock:
            over = [name for name, (ends, _) in self._all.items() if everything or ends <= now]
            messages = [self._all.pop(name)[1] for name in over]
        self._lent.end(messages, acknowledged=False)
