"""`Session`: a shared-memory session of this process, which leaves it when it ends.

Also finds the session that this process already has for a token, and removes dead sessions.
"""

import weakref
from collections.abc import Hashable
from typing import Any, Self, TypeVar

from shoal._backend import ShmSession, shm_gc
from shoal.shm.bells import silence
from shoal.shm.queue import Queue

__all__ = ["Session", "gc", "joined"]


class Session(ShmSession):
    """Memory with queues that processes of one user on one node share.

    `create` makes a session, and `attach` joins it in another process by its token. A pickle of a
    session, or of one of its queues, attaches the process that loads it, unless that process is in
    the session already. A forked child can use the session that it inherits.

    The last process that closes the session removes it, with everything in it. A process that ends
    without being killed closes its sessions.
    """

    @classmethod
    def create(
        cls,
        dir: str | None = None,  # noqa: A002  (as in tempfile)
        max_bytes: int | None = None,
        *,
        memory_policy: str = "block",
        spill_dir: str | None = None,
        backlog: int = 65535,
        overfill: bool = False,
    ) -> Self:
        """Make a session, and remove sessions that crashed processes of this user left behind.

        Args:
            dir: The folder of the session. None for `SHOAL_SHM_DIR`, else `/dev/shm`; the
                temporary folder if `/dev/shm` does not exist or is too small.
            max_bytes: Maximum number of bytes of all messages; None for a quarter of the free
                space of the folder, at most 4 GiB.
            memory_policy: The behaviour of a put when `max_bytes` is used up: `block` until there
                is room, `error` to raise `ChannelMemoryError`, `spill` to use a disk.
            spill_dir: The folder for messages that `spill` moves to disk; None for the temporary
                folder.
            backlog: Maximum number of messages of a queue without `maxsize`.
            overfill: Whether a queue takes any message while it holds less than its own
                `max_bytes`, which the last one may exceed.

        Raises:
            ShoalValueError: An argument is invalid.
            ChannelMemoryError: The folder has no room for the session.
        """
        made = cls(
            None,
            dir=dir,
            max_bytes=max_bytes,
            memory_policy=memory_policy,
            spill_dir=spill_dir,
            backlog=backlog,
            overfill=overfill,
        )
        return _kept(made)

    @classmethod
    def attach(cls, token: str) -> Self:
        """Join a session.

        Args:
            token: `Session.token` of a process in the session.

        Raises:
            ShoalValueError: `token` is not a session's token.
            ChannelNotFoundError: The session was closed, or is on another node.
            ChannelError: The session belongs to another user, or was made by another backend or
                another version.
        """
        # For the core, None means a new session.
        return _kept(cls(token or ""))

    def queue(
        self, key: Hashable, maxsize: int | None = None, max_bytes: int | None = None
    ) -> Queue:
        """Open the queue of a key; create it if it does not exist. See `Queue`."""
        return Queue(self, key, maxsize, max_bytes)

    def close(self) -> None:
        """Leave the session. Idempotent.

        Calls that wait in other threads and tasks of this process end with `ChannelClosed`.
        Received arrays stay valid. Leased messages that were not acknowledged are delivered again,
        to other processes, once this process has dropped the leases and the arrays of the messages.
        """
        if not self.closed:
            token = self.token
            super().close()
            silence(token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<shm.Session {self.token}{', closed' if self.closed else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return joined, (self.token,)


def gc(dir: str | None = None) -> list[str]:  # noqa: A002  (as in tempfile)
    """Remove the sessions of this user and backend of which no process is alive.

    A stopped process counts as alive. `Session.create` does the same in the folder of the new
    session.

    Args:
        dir: The folder to search; None for the folders in which sessions are made by default.

    Returns:
        The folders that were removed.
    """
    return shm_gc(dir)


S = TypeVar("S", bound=Session)

_open: weakref.WeakSet[Session] = weakref.WeakSet()


def _kept(session: S) -> S:
    """Remember a session of this process, for `joined`."""
    _open.add(session)
    # With this object the process may leave the session. If it joins again, it has another bell.
    weakref.finalize(session, silence, session.token).atexit = False
    return session


def joined(token: str) -> Session:
    """Return the session of a token: this process's session object, or a newly attached one."""
    for session in list(_open):
        if session.token == token and not session.closed:
            return session
    return Session.attach(token)
