"""The shared memory through which the workers of a node send to each other.

One session for each node and job. The first worker that needs it makes it and tells the manager of
workers; the others join it. There is no actor for it: a message is one operation on a queue.
"""

import contextlib
import logging
import threading
from typing import Any

from shoal.channel.facts import Facts
from shoal.channel.shared import SharedQueues
from shoal.collective.directory import Directory
from shoal.collective.mailbox import MOST_MESSAGES
from shoal.context import describe_self
from shoal.errors import ChannelEmpty, ChannelNotFoundError, ShoalError
from shoal.process import ProcessId
from shoal.shm import Queue, Session, joined
from shoal.shm.location import memory_id
from shoal.shm.payloads import PayloadWriter

__all__ = ["MOST_BYTES", "NodeMemory"]

MOST_BYTES = 64 * 1024 * 1024
"""Bytes between two workers that are sent and not received; further sends wait."""

_ENVELOPE = 1024 * 1024
"""Room beside the bytes of a message of `MOST_BYTES`: its description."""


_log = logging.getLogger("shoal")


class NodeMemory:
    """This process's part in the session of its node.

    Args:
        directory: Where the session is known.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._queues: SharedQueues | None = None
        self._payloads: PayloadWriter | None = None
        self.direct: dict[Any, Any] = {}
        """The queues that may be used at once, by key."""

    def queues(self) -> SharedQueues:
        """Return the queues of the node, joining its session at the first call."""
        with self._lock:
            if self._queues is None:
                facts = Facts(
                    "messages",
                    maxsize=MOST_MESSAGES,
                    capacity=MOST_MESSAGES,
                    key_bytes=MOST_BYTES + _ENVELOPE,
                )
                self._queues = SharedQueues(facts, self._join(), self.direct, keeps=False)
            return self._queues

    def join(self) -> None:
        """Join the session before others know of this worker, which send to it from then on.

        The session ends with the last process in it, and with it what a sender has sent that ended
        before its receiver joined.
        """
        try:
            self.queues()
        except ShoalError as error:
            _log.warning("%s: its node's memory for messages: %s", describe_self(), error)

    def session(self) -> Session:
        """Return the session of the node, joining it at the first call."""
        self.queues()
        return self._joined()

    def payloads(self) -> PayloadWriter:
        """Return what writes payloads that several receivers read, or that fit into no queue."""
        self.queues()
        with self._lock:
            if self._payloads is None:
                self._payloads = PayloadWriter(self._joined().token)
            return self._payloads

    def forget(self, key: str, reader: ProcessId) -> None:
        """Free what was sent to a process that has died.

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
        """Leave the session."""
        with self._lock:
            payloads, self._payloads = self._payloads, None
            session, self._session, self._queues = self._session, None, None
        if payloads is not None:
            payloads.close()
        if session is not None:
            with contextlib.suppress(ShoalError):
                session.close()

    def _joined(self) -> Session:
        if self._session is None:
            self._session = self._join()
        return self._session

    def _join(self) -> Session:
        memory = memory_id()
        gone: str | None = None
        token = self._directory.session(memory)
        while True:
            if token is not None and token != gone:
                try:
                    self._session = joined(token)
                except ChannelNotFoundError:
                    gone = token  # all that were in it have left
                else:
                    return self._session
            made = Session.create()
            token = self._directory.offer_session(memory, made.token, gone)
            if token == made.token:
                self._session = made
                return made
            made.close()
