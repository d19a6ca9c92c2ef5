"""The files of state pages: one folder for each job of the user on a node.

The name of a page says whose it is, so that it can be removed unread.
"""

import contextlib
import functools
import mmap
import os
import re
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from shoal.context import memory_folder
from shoal.process import own_process, run_state
from shoal.state.page import SIZE, Page
from shoal.state.stacks import companions

__all__ = [
    "Status",
    "claim_report",
    "find_jobs",
    "folder_of",
    "identity_of",
    "is_of_host",
    "is_private",
    "keep_placement",
    "make_page",
    "read_placements",
    "remove_dead",
    "remove_files",
    "status_of",
]

Status = Literal["running", "stopped", "dead", "unknown"]

_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9a-f]{8})")
_ATTEMPTS = 5
_made: list[Page] = []
"""The pages of this process. None is freed: `mmap` would close the number of its descriptor then, under
which the program may have another file, if it has closed all that it did not open."""
_REPORTED = "reported-"
"""The file of a job that says that a hang was reported."""
_PLACEMENT = "placement-"
"""The file of a job that says where the workers of a group run."""


def make_page(job: str) -> Page:
    """Create the page of this process.

    Raises:
        OSError: There is no room, or the folder is not one of this user alone.
    """
    folder = folder_of(job, memory_folder())
    process = own_process()
    path = folder / f"{process.pid}-{process.started}-{_this_host()}"
    file = _create(path)
    try:
        # Reserves the memory: a store into a hole would kill this process when there is none left.
        os.posix_fallocate(file, 0, SIZE)
        _made.append(Page(path, mmap.mmap(file, SIZE)))
        return _made[-1]
    except OSError:
        remove_files(folder, [path])
        raise
    finally:
        os.close(file)


def _create(path: Path) -> int:
    """Create a page and its folder; return the file's descriptor."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        # Another process may remove the folder while it is empty.
        with contextlib.suppress(FileNotFoundError):
            if not is_private(path.parent):
                raise PermissionError(f"{path.parent} is not a folder of this user alone")
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    raise FileNotFoundError(f"{path.parent} is removed again and again")


def folder_of(job: str, parent: Path) -> Path:
    """Return the folder of a job of this user."""
    return parent / f"{_prefix()}{quote(job, safe='')}"


def _prefix() -> str:
    return f"shoal-state-{os.geteuid()}-"


def _digest(host: str) -> str:
    return f"{zlib.crc32(host.encode()):08x}"


@functools.cache
def _this_host() -> str:
    return _digest(own_process().host)


def is_of_host(page: str, host: str) -> bool:
    """Whether the process of a page is one of this host, by the page's name."""
    return page.endswith(f"-{_digest(host)}")


def is_private(folder: Path) -> bool:
    """Whether a folder is one of this user alone."""
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not stat.S_IMODE(found.st_mode) & 0o077
    )


def identity_of(page: str) -> tuple[int, int] | None:
    """Return the process id and the start time of a page's process; None if it is no page's name."""
    name = _NAME.fullmatch(page)
    return None if name is None else (int(name[1]), int(name[2]))


def status_of(page: Path) -> Status:
    """Return whether the process of a page runs; `unknown` for one of another container."""
    name = _NAME.fullmatch(page.name)
    if name is None:
        return "dead"  # a file beside a page, or one of no process
    return run_state(int(name[1]), int(name[2])) if name[3] == _this_host() else "unknown"


def remove_files(folder: Path, pages: Iterable[Path]) -> None:
    """Remove pages of a job with the files beside them, and the job's folder if it is empty then."""
    for page in pages:
        for file in (page, *companions(page)):
            with contextlib.suppress(OSError):
                file.unlink()
    with contextlib.suppress(OSError):
        left = list(folder.iterdir())
        if all(file.name.startswith((_REPORTED, _PLACEMENT)) for file in left):
            for file in left:
                file.unlink()
        folder.rmdir()


def claim_report(folder: Path, kind: str) -> bool:
    """Return True to the one process of a job that shall report a hang of a kind.

    Args:
        folder: The folder of the job's pages.
        kind: Why processes wait, as a word.
    """
    path = folder / f"{_REPORTED}{kind}"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True


def keep_placement(folder: Path, group: str, text: str) -> None:
    """Write where the workers of a group run, for those who look at a job without its driver.

    Args:
        folder: The folder of the job's pages.
        group: The name of the group. What is there of an earlier group of this name is replaced.
        text: Where they run.

    Raises:
        OSError: There is no room.
    """
    path = folder / f"{_PLACEMENT}{quote(group, safe='')}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w") as opened:
        opened.write(text)


def read_placements(folder: Path) -> str:
    """Return where the workers of a job's groups run, as it was written on this node."""
    found = []
    for file in sorted(folder.glob(f"{_PLACEMENT}*")):
        with contextlib.suppress(OSError):
            found.append(file.read_text(errors="replace"))
    return "\n".join(found)


def find_jobs(parent: Path | None = None) -> dict[str, Path]:
    """Return the folders of this user's jobs on this node, by the names of the jobs.

    Args:
        parent: The folder to search; None for the one where this process would make its page.
    """
    found = {}
    for folder in sorted((parent or memory_folder()).glob(f"{_prefix()}*")):
        with contextlib.suppress(FileNotFoundError):
            if is_private(folder):
                found[unquote(folder.name.removeprefix(_prefix()))] = folder
    return found


def remove_dead(parent: Path | None = None) -> list[str]:
    """Remove the pages of this user's jobs of which no process is alive; return their folders.

    A stopped process counts as alive. As long as its job goes on, the page of a dead process stays.

    Args:
        parent: The folder to search; None for the one where this process would make its page.
    """
    removed = []
    for folder in find_jobs(parent).values():
        with contextlib.suppress(OSError):
            pages = list(folder.iterdir())
            if all(status_of(page) == "dead" for page in pages):
                # One by one: a process may have made its page in this moment.
                remove_files(folder, pages)
                removed.append(str(folder))
    return removed
