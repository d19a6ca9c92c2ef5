"""`ShmSession`: a session of the pure core, the public class."""

import sqlite3
import weakref
from typing import Final, Self

from shoal._pure.shm import folders
from shoal._pure.shm.checks import flag, text_or_none, whole
from shoal._pure.shm.member import Member, member_of, own_folders, stay_silent
from shoal.errors import ChannelClosed, ShoalTypeError, ShoalValueError

__all__ = ["ShmSession", "joined", "shm_gc"]

_BACKLOG: Final = 65_535
_OWN: Final = {
    "dir": None, "max_bytes": None, "memory_policy": "block", "spill_dir": None,
    "backlog": _BACKLOG, "overfill": False,
}  # fmt: skip
"""The defaults of the arguments that do not go with a token."""
_LARGEST_PID: Final = 2**31 - 1
_STATS: Final = """
    SELECT (SELECT coalesce(sum(count), 0) FROM queues) AS messages,
    (SELECT count(*) FROM messages) AS descriptors_in_use,
    (SELECT coalesce(sum(size), 0) FROM messages) AS bytes_in_use,
    used AS bytes_reserved, max_bytes,
    (SELECT count(*) FROM participants) AS participants, (SELECT count(*) FROM queues) AS queues,
    lost AS lost_messages, recovered, dropped AS dropped_messages FROM session
"""


class ShmSession:
    """Memory that the processes of one user on one node share; see `_rust.pyi`."""

    __module__ = "shoal.shm"
    _member: Member
    _finalizer: "weakref.finalize[..., Self]"

    def __new__(
        cls,
        token: str | None = None,
        *,
        dir: str | None = None,  # noqa: A002  (as in tempfile)
        max_bytes: int | None = None,
        memory_policy: str = "block",
        spill_dir: str | None = None,
        backlog: int = _BACKLOG,
        overfill: bool = False,
    ) -> Self:
        """Create a session, or attach to one."""
        text_or_none(token, "token")
        text_or_none(dir, "dir")
        text_or_none(spill_dir, "spill_dir")
        if not isinstance(memory_policy, str):
            raise ShoalTypeError(f"memory_policy={memory_policy!r}: expected a str")
        flag(overfill, "overfill")
        given = (dir, max_bytes, memory_policy, spill_dir, backlog, overfill)
        if token is None:
            folder = folders.create(*given, own_folders())
        else:
            for (name, default), value in zip(_OWN.items(), given, strict=True):
                if value != default:
                    raise ShoalValueError(f"{name} with a token: the session has its own")
            folder = folders.checked_token(token)
        self = object.__new__(cls)
        self._member = member_of(folder)
        self._finalizer = weakref.finalize(self, self._member.let_go)
        self._finalizer.atexit = False
        try:
            self._member.join("attach")
        except BaseException:
            self.close()
            raise
        return self

    @property
    def token(self) -> str:
        """The argument with which another process attaches: the session folder's absolute path."""
        return str(self._member.folder)

    @property
    def closed(self) -> bool:
        """Whether this object was closed."""
        return not self._finalizer.alive

    @property
    def sealed(self) -> bool:
        """Whether any process called `close_queues`."""
        member = self._checked("sealed")
        row = member.read("sealed", lambda db: db.execute("SELECT sealed FROM session").fetchone())
        return bool(row[0])

    def close_queues(self) -> None:
        """Close all queues in all processes, existing and future ones: they refuse further puts."""

        def seal(db: sqlite3.Connection) -> None:
            db.execute("UPDATE session SET sealed = 1")
            db.execute("UPDATE queues SET closed = 1")

        self._checked("close_queues").write("close_queues", seal)

    def keep(self) -> None:
        """Keep the session's files when this process leaves as the last participant."""
        self._checked("keep").keeps = True

    def spare(self, pid: int) -> None:
        """Keep the session for ten seconds even if all participants die, while `pid` is alive."""
        whole(pid, "pid", 1, _LARGEST_PID)
        folders.spare(self._checked("spare").folder, pid)

    def remove(self) -> None:
        """Remove the session's files, so that no process can join it any more."""
        member = self._checked("remove")
        folders.remove(member.folder, member.spill)

    def trim(self) -> None:
        """Do nothing: this core keeps no memory that no message uses."""
        self._checked("trim")

    def stats(self) -> dict[str, int]:
        """Return how the session is used."""
        return dict(self._checked("stats").write("stats", lambda db: db.execute(_STATS).fetchone()))

    def sweep(self) -> dict[str, int]:
        """Clean up after dead processes now, not only when a call waits."""
        return self._checked("sweep").sweep()

    def close(self) -> None:
        """Close this object; the process leaves the session with its last object. Idempotent."""
        # Detached and called here, because a finalizer does nothing while the interpreter ends.
        if self._finalizer.detach() is not None:
            self._member.let_go()

    def _checked(self, op: str) -> Member:
        if self.closed:
            stay_silent()
            raise ChannelClosed(f"{op}: the session is closed in this process")
        return self._member


def joined(session: ShmSession, op: str) -> Member:
    """Return the `Member` of a session, which must be open."""
    return session._checked(op)  # noqa: SLF001  (one class in two files)


def shm_gc(dir: str | None = None) -> list[str]:  # noqa: A002  (as in tempfile)
    """Remove this user's sessions of this backend whose participants are all dead."""
    return folders.collect(text_or_none(dir, "dir"), own_folders())
