"""The folders of sessions: chooses, creates, checks and removes them; which participants have died.

A folder is accessible to its owner only, and its name cannot be guessed.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
import time
import warnings
from pathlib import Path

from shoal._pure.shm.checks import whole
from shoal._pure.shm.tables import FORMAT, SCHEMA, access, connect, gone
from shoal.errors import ChannelError, ChannelMemoryError, ShoalValueError
from shoal.process import ProcessId, is_running, process_of

__all__ = [
    "TABLES", "bell_of", "checked_token", "collect", "create", "free_bytes", "is_dead",
    "participants", "remove", "spare",
]  # fmt: skip

TABLES = "pure.db"
_UNFINISHED = "pure.new"
_OF_RUST = "ctl"
_NAME = re.compile(r"shoal-(\d+)-[0-9a-f]{32}")
_TIGHT = 128 * 2**20
"""With fewer free bytes than this in `/dev/shm`, a session uses the temporary folder instead."""
_LARGEST_BACKLOG = 2**20
_POLICIES = ("block", "error", "spill")
_MOST_BYTES = 4 * 2**30
_SHARE = 4
"""A session has the fourth part of the free bytes by default, and not more than `_MOST_BYTES`."""
_SPARED = "spared"
"""File with the process for which a session is kept while all its participants are dead."""
_SPARED_S = 10.0
"""Seconds for which one call of `spare` keeps a session."""
_ATTEMPTS = 8
"""Maximum attempts to remove a folder in which another process creates files meanwhile."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BEING_MADE_S = 3600.0
"""Seconds for which a folder without participants counts as a session that is being created."""


def free_bytes(folder: Path) -> int:
    """Return the number of free bytes on the file system of a folder."""
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def create(
    wanted: str | None,
    max_bytes: int | None,
    policy: str,
    spill_dir: str | None,
    backlog: int,
    overfill: bool,
    own: set[Path],
) -> Path:
    """Create the folder of a session, with its tables, and `collect` dead sessions beside it."""
    if policy not in _POLICIES:
        raise ShoalValueError(f"memory_policy={policy!r}: expected one of {', '.join(_POLICIES)}")
    whole(backlog, "backlog", 1, _LARGEST_BACKLOG)
    if max_bytes is not None:
        whole(max_bytes, "max_bytes", 1)
    if spill_dir is not None and policy != "spill":
        raise ShoalValueError(f"spill_dir={spill_dir!r}: it needs memory_policy='spill'")
    parent = _folder_for(wanted, "dir")
    collect(str(parent), own)
    if max_bytes is None:
        max_bytes = max(1, min(_MOST_BYTES, free_bytes(parent) // _SHARE))
    folder = parent / f"shoal-{os.getuid()}-{secrets.token_hex(16)}"
    spill = None
    if policy == "spill":
        spill = _folder_for(spill_dir or tempfile.gettempdir(), "spill_dir") / folder.name
    facts = (FORMAT, max_bytes, backlog, policy, spill and str(spill), overfill)

    def fill() -> None:
        with contextlib.closing(connect(folder / _UNFINISHED, create=True)) as db:
            db.executescript(f"BEGIN;{SCHEMA}")
            names = "format, max_bytes, backlog, policy, spill, overfill"
            db.execute(f"INSERT INTO session ({names}) VALUES (?, ?, ?, ?, ?, ?)", facts)  # noqa: S608  (they are constants)
            db.execute("COMMIT")

    try:
        folder.mkdir(mode=0o700)
        access.use(fill)
        # Renamed last, so that other processes never find incomplete tables.
        (folder / _UNFINISHED).rename(folder / TABLES)
        if spill is not None:
            spill.mkdir(mode=0o700)
    except (OSError, sqlite3.Error) as error:
        remove(folder, None)
        raise ChannelMemoryError(f"no session can be made in {parent}: {error}") from error
    return folder


def checked_token(token: str) -> Path:
    """Return the folder that a token names."""
    folder = Path(token)
    if not folder.is_absolute() or not _NAME.fullmatch(folder.name):
        raise ShoalValueError(f"token={token!r}: expected what Session.token returned")
    try:
        owner = folder.stat().st_uid
    except OSError:
        raise gone(folder) from None
    if owner != os.getuid():
        raise ChannelError(
            f"the session at {folder} belongs to user {owner}, and this process to {os.getuid()}"
        )
    if not (folder / TABLES).exists():
        if (folder / _OF_RUST).exists():
            raise ChannelError(
                f"the session at {folder} was made by the rust backend and this process runs "
                "pure: set SHOAL_BACKEND=rust"
            )
        raise gone(folder)
    return folder


def spare(folder: Path, pid: int) -> None:
    """Keep a session for ten seconds even if all participants die, as long as `pid` is alive.

    `pid` is a process that starts replacements for the dead.
    """
    try:
        # Not truncated, so that a reader always finds the old line or the new one.
        descriptor = os.open(folder / _SPARED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("{} {} {}\n".format(*process_of(pid)))
    except FileNotFoundError:
        pass  # the session was removed
    except OSError as error:
        why = f"cannot write into {folder}: {error.strerror} (os error {error.errno})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ChannelMemoryError(f"spare: {why}") from error
        raise ChannelError(f"spare: the session: {why}") from error


def remove(folder: Path, spill: str | None) -> None:
    """Remove the folder of a session, and the folder of its spilled messages.

    Also removes files that participants create meanwhile: at most one doorbell each.
    """
    for _ in range(_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
    if spill:
        shutil.rmtree(spill, ignore_errors=True)


def collect(wanted: str | None, own: set[Path]) -> list[str]:
    """Remove this user's dead sessions in a folder, by default in all; return those removed.

    The folders of this process's own sessions are left alone.
    """
    if wanted is not None and not Path(wanted).is_dir():
        raise ShoalValueError(f"dir={wanted!r}: expected a folder")
    removed = []
    for parent in dict.fromkeys(_defaults() if wanted is None else [Path(wanted).absolute()]):
        with contextlib.suppress(OSError):
            for folder in sorted(parent.iterdir()):
                name = _NAME.fullmatch(folder.name)
                mine = name and int(name[1]) == folder.stat().st_uid == os.getuid()
                if mine and folder not in own and _remove_if_dead(folder):
                    removed.append(str(folder))
    return removed


def participants(db: sqlite3.Connection) -> list[int]:
    """Return the numbers of the participants."""
    return [row["id"] for row in db.execute("SELECT id FROM participants").fetchall()]


def bell_of(folder: Path, number: int) -> Path:
    """Return the path of a participant's doorbell, a named pipe that the participant has locked."""
    return folder / f"b{number}"


def is_dead(folder: Path, number: int) -> bool:
    """Whether a participant has died: the kernel releases the lock on its bell with its process."""
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        bell = os.open(bell_of(folder, number), flags)
    except OSError:
        return False  # the session was removed, or this process has too many files open
    try:
        # Shared: a child that another thread forks now has this descriptor too, for long.
        fcntl.flock(bell, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(bell)
    return True


def _folder_for(wanted: str | None, name: str) -> Path:
    """Return the parent folder for a new session: the wanted one, or for None a default."""
    if wanted is not None:
        if not os.access(wanted, os.W_OK | os.X_OK) or not Path(wanted).is_dir():
            raise ShoalValueError(f"{name}={wanted!r}: expected a folder that can be written to")
        return Path(wanted).absolute()
    shared, *others = _defaults()
    usable = [folder for folder in (shared, *others) if os.access(folder, os.W_OK | os.X_OK)]
    if not usable:
        raise ShoalValueError(f"{name}=None: none of {shared}, {others} can be written to")
    best = usable[0]
    if best == Path("/dev/shm") and free_bytes(best) < _TIGHT and len(usable) > 1:  # noqa: S108  (the kernel's folder for this)
        warnings.warn(
            f"{best} has {free_bytes(best)} bytes left, so that queues lie in {usable[1]}, which "
            "may be slower; in a container, raise --shm-size, or set SHOAL_SHM_DIR",
            RuntimeWarning,
            stacklevel=5,
        )
        best = usable[1]
    return best


def _defaults() -> list[Path]:
    chosen = os.environ.get("SHOAL_SHM_DIR")
    folders = [Path(chosen).absolute()] if chosen else []
    return [*folders, Path("/dev/shm"), Path(tempfile.gettempdir())]  # noqa: S108  (the kernel's folder for this)


def _remove_if_dead(folder: Path) -> bool:
    """Remove the folder of a session without living participants; return whether it was removed."""
    dead, spill = False, None
    with contextlib.suppress(OSError):
        old = time.time() - folder.stat().st_mtime >= _BEING_MADE_S
        if (folder / TABLES).exists():
            dead, spill = (False, None) if _is_spared(folder) else _examined(folder, old=old)
        elif old:  # the creator may have died before the session was complete
            dead = all(file.name.startswith(_UNFINISHED) for file in folder.iterdir())
    if dead:
        remove(folder, spill)
    return dead


def _is_spared(folder: Path) -> bool:
    path = folder / _SPARED
    try:
        if abs(time.time() - path.stat().st_mtime) >= _SPARED_S:
            return False
        host, pid, started = path.read_text().partition("\n")[0].split(" ")
        return is_running(ProcessId(host, int(pid), int(started)))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True  # the file is being written


def _examined(folder: Path, *, old: bool) -> tuple[bool, str | None]:
    """Return whether a session is a leftover, and the folder of its spilled messages.

    One without participants is a leftover only if it is old: it may be in creation, or was kept.
    """

    def examine() -> tuple[bool, str | None]:
        with contextlib.closing(connect(folder / TABLES)) as db:
            db.execute("BEGIN IMMEDIATE")  # no process joins meanwhile
            version, spill = db.execute("SELECT format, spill FROM session").fetchone()
            found = participants(db) if version == FORMAT else []
            known = version == FORMAT and (found or old)
            if not known or not all(is_dead(folder, number) for number in found):
                return False, None
            db.execute("UPDATE session SET closed = 1")
            db.execute("COMMIT")
            return True, spill

    try:
        return access.use(examine)
    except sqlite3.Error as error:
        return old and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED, None
