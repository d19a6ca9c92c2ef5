"""Sessions, and what becomes of them at the end of the process."""

import atexit
import contextlib
import importlib
import weakref
from collections.abc import Hashable
from typing import Any, Self, TypeVar

from shoal._backend import ShmSession, backend, shm_gc
from shoal.errors import ShoalError
from shoal.shm.bells import silence
from shoal.shm.queue import Queue

__all__ = ["Session", "gc", "joined"]


class Session(ShmSession):
    """Memory that processes of one user on one host share, with queues in it.

    `create` makes one and `attach` joins it in another process, with the token of the first. A
    pickle of a session, or of one of its queues, attaches where it is loaded, unless that process
    is in the session already. A child made by fork can use what it inherits.

    The last process that closes the session removes it, with all that is in it; the end of a
    process that is not killed closes it too.
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
    ) -> Self:
        """Make a session, and remove those of this user that crashed processes left.

        Args:
            dir: The folder to make it in; None for `SHOAL_SHM_DIR`, else `/dev/shm`, else, or
                where that is too small, the temporary folder.
            max_bytes: The most that all messages may take together; None for a quarter of what is
                free there, at most 4 GiB.
            memory_policy: What a put does where that is used up: `block` until there is room,
                `error` to raise `ChannelMemoryError`, `spill` to use a disk.
            spill_dir: Where `spill` puts what does not fit; None for the temporary folder.
            backlog: How many messages a queue without `maxsize` holds at most.

        Raises:
            ShoalValueError: An argument cannot be.
            ChannelMemoryError: There is no room for it.
        """
        made = cls(
            None,
            dir=dir,
            max_bytes=max_bytes,
            memory_policy=memory_policy,
            spill_dir=spill_dir,
            backlog=backlog,
        )
        return _kept(made)

    @classmethod
    def attach(cls, token: str) -> Self:
        """Join a session.

        Args:
            token: `Session.token` of a process that is in it.

        Raises:
            ShoalValueError: `token` is none.
            ChannelNotFoundError: The session was closed, or is on another host.
            ChannelError: It is another user's, another backend's or another version's.
        """
        # None would be a new session to the core.
        return _kept(cls(token or ""))

    def queue(
        self, key: Hashable, maxsize: int | None = None, max_bytes: int | None = None
    ) -> Queue:
        """Open the queue of a key, which is made where it does not exist; see `Queue`."""
        return Queue(self, key, maxsize, max_bytes)

    def close(self) -> None:
        """Leave the session; again is nothing.

        Calls that wait in other threads and tasks of this process end with `ChannelClosed`.
        Arrays that were received stay valid. What was leased and not acknowledged is delivered
        again, to others, once this process refers to no lease and no such array any more.
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
    """Remove the sessions of this user and backend in which nobody is alive any more.

    Whoever is stopped is alive. Each new session does it too, where it is made.

    Args:
        dir: The folder to look in; None for those in which sessions are made by default.

    Returns:
        The folders that were removed.
    """
    return shm_gc(dir)


S = TypeVar("S", bound=Session)

_open: weakref.WeakSet[Session] = weakref.WeakSet()


def _kept(session: S) -> S:
    """Note a session that this process has, to be closed at its end at the latest."""
    _open.add(session)
    # The process may leave with it, and has another bell when it comes back.
    weakref.finalize(session, silence, session.token).atexit = False
    return session


def joined(token: str) -> Session:
    """Return the session of a token: the one that this process has, or a new part in it."""
    for session in list(_open):
        if session.token == token and not session.closed:
            return session
    return Session.attach(token)


def _leave() -> None:
    for session in list(_open):
        with contextlib.suppress(ShoalError, OSError):
            session.close()


# The extension leaves by itself, and keeps daemon threads from telling that they were in a call.
if backend() == "pure":
    atexit.register(_leave)
    # What is registered last comes first.
    atexit.register(importlib.import_module("shoal._pure.shm.ending").begin)
