"""`NodeMemory`: the shared memory through which the workers of a node send to each other.

There is one session for each node and job. The first worker that needs it makes it and tells the
manager of workers; the others join it. No actor takes part: a message is one operation on a queue.
`UnreadPayloads` counts the payloads of a broadcast, which lie beside the queues.
"""

import contextlib
import logging
import os
import shutil
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from shoal.collective.directory import Directory
from shoal.collective.mailbox import MOST_MESSAGES
from shoal.context import describe_self, memory_folder
from shoal.errors import ChannelEmpty, ChannelNotFoundError, ShoalError
from shoal.fork import ChildStage, in_child
from shoal.process import ProcessId, is_running
from shoal.queues.order import Direct
from shoal.queues.settings import ChannelSettings
from shoal.queues.shared import SharedQueues
from shoal.shm import Queue, Session, joined
from shoal.shm.location import memory_id
from shoal.shm.shared_files import PayloadRef, PayloadWriter

__all__ = ["MOST_BYTES", "NodeMemory", "UnreadPayloads"]

MOST_BYTES = 64 * 1024 * 1024
"""Sends between two workers wait while this many bytes or more are sent but not received.

A message of any size is sent while there are fewer. Otherwise two workers that each send a small
and then a large message before they receive would wait for each other.
"""
_LEAST_FREE = 256 * 1024**2
"""With fewer free bytes than this, the session chooses its folder and its bound itself."""

_log = logging.getLogger("shoal")


class NodeMemory:
    """This process's part in the session of its node.

    Args:
        directory: Where the session's token is registered.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._queues: SharedQueues | None = None
        self._payloads: PayloadWriter | None = None
        self.direct: dict[Any, Any] = {}
        """The queues that can be used directly, by key."""

    def queues(self) -> SharedQueues:
        """Return the queues of the node; the first call joins its session."""
        with self._lock:
            if self._queues is None:
                settings = ChannelSettings(
                    "messages",
                    maxsize=MOST_MESSAGES,
                    capacity=MOST_MESSAGES,
                    key_bytes=MOST_BYTES,
                    is_internal=True,
                )
                direct: Direct = {"put": self.direct, "get": self.direct}
                self._queues = SharedQueues(settings, self._join(), direct, keeps=False)
            return self._queues

    def join(self) -> None:
        """Join the session; called before other workers can find this one and send to it.

        The session ends with the last process in it. If a sender ended before its receiver joined,
        its messages could be lost with the session.
        """
        try:
            self.queues()
        except ShoalError as error:
            _log.warning(
                "%s: cannot join its node's memory for messages: %s", describe_self(), error
            )

    def session(self) -> Session:
        """Return the session of the node; the first call joins it."""
        self.queues()
        return self._joined()

    def payloads(self) -> PayloadWriter:
        """Return the writer of payloads that several receivers read or no queue can hold."""
        self.queues()
        with self._lock:
            if self._payloads is None:
                self._payloads = PayloadWriter(self._joined().token)
            return self._payloads

    def forget(self, key: str, reader: ProcessId) -> None:
        """Free the messages that were sent to a process that has died.

        Args:
            key: The queue of the messages.
            reader: The process.
        """
        self.queues()
        with self._lock:
            session, payloads = self._joined(), self._payloads
        queue = Queue(session, key, parcels=True)  # nothing is decoded
        with contextlib.suppress(ChannelEmpty):
            while True:
                queue.get_nowait()
        if payloads is not None:
            payloads.forget(reader)

    def close(self) -> None:
        """Leave the session; the last worker of this process in it closes it."""
        with self._lock:
            payloads, self._payloads = self._payloads, None
            session, self._session, self._queues = self._session, None, None
        if payloads is not None:
            payloads.close()
        with _sharing:
            _sessions.pop(self, None)
            if session is not None and session not in _sessions.values():
                with contextlib.suppress(ShoalError):
                    session.close()

    def _joined(self) -> Session:
        return self._session or self._join()

    def _join(self) -> Session:
        with _sharing:
            self._session = _sessions[self] = self._found()
            return self._session

    def _found(self) -> Session:
        memory = memory_id()
        gone: str | None = None
        token = self._directory.session(memory)
        while True:
            if token is not None and token != gone:
                try:
                    return joined(token)
                except ChannelNotFoundError:
                    gone = token  # all its processes have left it
            made = Session.create(max_bytes=_bound(), overfill=True)
            token = self._directory.offer_session(memory, made.token, gone)
            if token == made.token:
                return made
            made.close()


# The ranks of a local cluster are one process, which has one session.
_sessions: "weakref.WeakKeyDictionary[NodeMemory, Session]" = weakref.WeakKeyDictionary()
_sharing = threading.Lock()


def _renew() -> None:
    global _sharing  # noqa: PLW0603  (another thread of the parent may have held it)
    _sharing = threading.Lock()


in_child(ChildStage.RENEW, _renew)


def _bound() -> int | None:
    """Return the bytes of all messages of a node: half of what is free, whatever a message has."""
    free = shutil.disk_usage(memory_folder()).free
    return free // 2 if free >= _LEAST_FREE else None


class UnreadPayloads:
    """The unopened payloads of one queue or one broadcast.

    Each queue and each broadcast has its own bound: a receiver that waits for a payload of one may
    not have reached the other yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._payloads: list[tuple[int, list[tuple[str, ProcessId]]]] = []

    def add(
        self, size: int, references: Sequence[PayloadRef], readers: Sequence[ProcessId]
    ) -> None:
        """Add a payload of `size` bytes, with the reference of each reader."""
        links = [(ref[0], reader) for ref, reader in zip(references, readers, strict=True)]
        with self._lock:
            self._payloads.append((size, links))

    def nbytes(self) -> int:
        """Return the total bytes of the payloads that a living reader has not opened."""
        with self._lock:
            left = [(size, _left(links)) for size, links in self._payloads]
            self._payloads = [(size, links) for size, links in left if links]
            return sum(size for size, _ in self._payloads)

    def readers(self, excess: int) -> set[ProcessId]:
        """Return the living readers that have to open payloads so that `excess` bytes are free.

        They open them in the order in which they were written, so the oldest payloads count.
        """
        found: set[ProcessId] = set()
        with self._lock:
            for size, links in self._payloads:
                if excess <= 0:
                    break
                left = {reader for _, reader in _left(links)}
                found |= left
                excess -= size if left else 0
        return found


def _left(links: list[tuple[str, ProcessId]]) -> list[tuple[str, ProcessId]]:
    return [
        (path, reader) for path, reader in links if os.path.lexists(path) and is_running(reader)
    ]
