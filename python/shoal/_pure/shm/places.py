"""Where sessions lie: a folder each, its owner's alone, with a name that nobody can guess."""

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
"""With less free memory than this a session goes to the temporary folder instead."""
_SPARED = "spared"
"""Says for whom a session is spared when all who take part are dead."""
_SPARED_S = 10.0
"""So long from each time that somebody asked for it."""
_ATTEMPTS = 8
"""So often is a folder removed that somebody makes a file in meanwhile."""
_BEING_MADE_S = 3600.0
"""How long a folder without tables is taken for one that is being made."""


def folder_for(wanted: str | None, name: str) -> Path:
    """Return the folder that shall hold what is made: the one wanted, or a default.

    Raises:
        ShoalValueError: `wanted` is no folder that can be written to.
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
    """Return how much is free on the file system of a folder."""
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def new_folder(parent: Path, name: str | None = None) -> Path:
    """Make the folder of a session.

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
        ShoalValueError: It is no token.
        ChannelNotFoundError: The session is gone.
        ChannelError: It is not for this process: another's, another backend's, another version's.
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
    """Refuse the tables of another version.

    Raises:
        ChannelError: They are of one.
    """
    if found != FORMAT:
        raise ChannelError(
            f"the session at {folder} has tables of version {found}, this process knows {FORMAT}: "
            "run the same version of shoal everywhere"
        )


def collect(wanted: str | None, own: set[Path]) -> list[str]:
    """Remove the sessions of this user in which nobody is alive.

    Args:
        wanted: The folder to look in, None for the default ones.
        own: The sessions of this process.

    Returns:
        What was removed.
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
    """Have a session spared for a moment, as long as a process lives that starts others in it.

    Raises:
        ChannelMemoryError: There is no room for a line.
        ChannelError: The file cannot be written.
    """
    try:
        # Not truncated: a reader finds one of the two lines.
        descriptor = os.open(folder / _SPARED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("{} {} {}\n".format(*process_of(pid)))
    except FileNotFoundError:
        pass  # it was removed
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
        return True  # it is being written


def remove(folder: Path, spill: str | None) -> None:
    """Remove the folder of a session, and the one where it spilled.

    So is what participants make in it meanwhile: a doorbell each, at most.
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
    # Another backend's is not even looked at: to close its locks would give back what this process
    # has of them.
    if not (folder / TABLES).exists():
        return _remove_if_unfinished(folder)
    try:
        descriptor = os.open(folder / LOCKS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # All bytes at once; while they are held nobody can join.
        if not take_lock(descriptor, 0, 0):
            return False  # somebody is alive
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
    """Remove a folder whose maker died before it was a session."""
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
    """Whether all participants are gone, and where they spilled; nobody has a lock."""
    young = time.time() - (folder / LOCKS).stat().st_mtime < _BEING_MADE_S
    try:
        with connected(folder / TABLES) as db:
            rows = db.execute("SELECT pid, started, space FROM participants").fetchall()
            spill = db.execute("SELECT spill FROM session").fetchone()
    except sqlite3.Error:
        # Damaged, or not filled yet.
        return not young, None
    if not rows:
        # Whoever leaves last removes it, so that it is being made, or its maker died.
        return not young, None
    return all(Process(*row).gone() for row in rows), spill[0]
