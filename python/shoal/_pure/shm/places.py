"""The folders of sessions: chooses, creates, checks and removes them.

A folder is accessible to its owner only, and its name cannot be guessed.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
import time
import warnings
from pathlib import Path

from shoal._pure.shm.alive import Process, process_of, take_lock
from shoal._pure.shm.schema import FORMAT
from shoal._pure.shm.store import connected, gone
from shoal.errors import ChannelError, ChannelMemoryError, ShoalValueError

__all__ = [
    "LOCKS",
    "TABLES",
    "UNFINISHED",
    "checked_format",
    "checked_token",
    "collect",
    "folder_for",
    "free_bytes",
    "new_folder",
    "remove",
    "spare",
]

LOCKS = "locks"
TABLES = "pure.db"
UNFINISHED = "pure.new"
_OF_RUST = "ctl"
_NAME = re.compile(r"shoal-(\d+)-[0-9a-f]{32}")
_TIGHT = 128 * 2**20
"""With fewer free bytes than this in `/dev/shm`, a session uses the temporary folder instead."""
_SPARED = "spared"
"""File with the process for which a session is kept while all its participants are dead."""
_SPARED_S = 10.0
"""Seconds for which one call of `spare` keeps a session."""
_ATTEMPTS = 8
"""Maximum attempts to remove a folder in which another process creates files meanwhile."""
_BEING_MADE_S = 3600.0
"""Seconds for which a folder without tables counts as a session that is being created."""


def folder_for(wanted: str | None, name: str) -> Path:
    """Return the parent folder for a new session: the wanted one, or for None a default.

    Raises:
        ShoalValueError: `wanted` is not a folder that can be written to.
    """
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


def free_bytes(folder: Path) -> int:
    """Return the number of free bytes on the file system of a folder."""
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def new_folder(parent: Path, name: str | None = None) -> Path:
    """Create the folder of a session.

    Raises:
        ChannelMemoryError: There is no room.
    """
    folder = parent / (name or f"shoal-{os.getuid()}-{secrets.token_hex(16)}")
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise ChannelMemoryError(f"no session can be made in {parent}: {error}") from error
    return folder


def checked_token(token: str) -> Path:
    """Return the folder that a token names.

    Raises:
        ShoalValueError: The text is not a token.
        ChannelNotFoundError: The session is gone.
        ChannelError: The session belongs to another user or backend.
    """
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


def checked_format(folder: Path, found: int) -> None:
    """Refuse tables of another version.

    Raises:
        ChannelError: The tables have another version.
    """
    if found != FORMAT:
        raise ChannelError(
            f"the session at {folder} has tables of version {found}, this process knows {FORMAT}: "
            "run the same version of shoal everywhere"
        )


def collect(wanted: str | None, own: set[Path]) -> list[str]:
    """Remove this user's sessions whose participants are all dead.

    Args:
        wanted: The folder to search; None for the default ones.
        own: The folders of this process's sessions, which are left alone.

    Returns:
        The folders that were removed.
    """
    if wanted is not None and not Path(wanted).is_dir():
        raise ShoalValueError(f"dir={wanted!r}: expected a folder")
    parents = _defaults() if wanted is None else [Path(wanted).absolute()]
    removed = []
    for parent in dict.fromkeys(parents):
        for folder in _sessions(parent):
            if folder in own or not _remove_if_dead(folder):
                continue
            removed.append(str(folder))
    return removed


def spare(folder: Path, pid: int) -> None:
    """Keep a session for ten seconds even if all participants die, as long as `pid` is alive.

    `pid` is a process that starts replacements for the dead.

    Raises:
        ChannelMemoryError: There is no room for the file.
        ChannelError: The file cannot be written.
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


def _is_spared(folder: Path) -> bool:
    path = folder / _SPARED
    try:
        if abs(time.time() - path.stat().st_mtime) >= _SPARED_S:
            return False
        pid, started, space = path.read_text().partition("\n")[0].split(" ")
        return not Process(int(pid), int(started), space).gone()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True  # the file is being written


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


def _defaults() -> list[Path]:
    chosen = os.environ.get("SHOAL_SHM_DIR")
    folders = [Path(chosen).absolute()] if chosen else []
    return [*folders, Path("/dev/shm"), Path(tempfile.gettempdir())]  # noqa: S108  (the kernel's folder for this)


def _sessions(parent: Path) -> list[Path]:
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(parent.iterdir()):
            name = _NAME.fullmatch(folder.name)
            if name and int(name[1]) == os.getuid() and folder.stat().st_uid == os.getuid():
                found.append(folder)
    return found


def _remove_if_dead(folder: Path) -> bool:
    # Do not open the locks of another backend's session: closing the file would release the locks
    # that this process has on it.
    if not (folder / TABLES).exists():
        return _remove_if_unfinished(folder)
    try:
        descriptor = os.open(folder / LOCKS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # All bytes at once; no process can join while they are locked.
        if not take_lock(descriptor, 0, 0):
            return False  # a participant is alive
        dead, spill = _last_words(folder)
        dead = dead and not _is_spared(folder)
        if dead:
            remove(folder, spill)
    except OSError:
        return False
    else:
        return dead
    finally:
        os.close(descriptor)


def _remove_if_unfinished(folder: Path) -> bool:
    """Remove a folder whose creator died before the session was complete."""
    try:
        old = time.time() - folder.stat().st_mtime >= _BEING_MADE_S
        dead = old and all(
            file.name == LOCKS or file.name.startswith(UNFINISHED) for file in folder.iterdir()
        )
    except OSError:
        return False
    if dead:
        remove(folder, None)
    return dead


def _last_words(folder: Path) -> tuple[bool, str | None]:
    """Return whether all participants are gone, and the folder of spilled messages.

    Called while this process holds all locks.
    """
    young = time.time() - (folder / LOCKS).stat().st_mtime < _BEING_MADE_S
    try:
        with connected(folder / TABLES) as db:
            rows = db.execute("SELECT pid, started, space FROM participants").fetchall()
            spill = db.execute("SELECT spill FROM session").fetchone()
    except sqlite3.Error:
        # The tables are damaged, or not filled yet.
        return not young, None
    if not rows:
        # The last participant that leaves removes the session. So this one is being created, or its
        # creator died.
        return not young, None
    return all(Process(*row).gone() for row in rows), spill[0]
