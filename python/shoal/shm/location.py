"""Which shared memory a process can use."""

import os
import tempfile
from pathlib import Path

from shoal._backend import backend
from shoal.process import own_process

__all__ = ["memory_id"]


def memory_id() -> str:
    """Return a text that is equal in processes that can share memory, and different in others.

    It names the boot of the kernel and the namespace of process numbers, the device and inode of
    the folder in which sessions are made (containers of one machine may each have a `/dev/shm`),
    the core that lays the memory out, and the user.
    """
    folder = Path(os.environ.get("SHOAL_SHM_DIR") or "/dev/shm")  # noqa: S108  (its inode is all that is read)
    if not folder.is_dir():
        folder = Path(tempfile.gettempdir())
    found = folder.stat()
    where = f"{own_process().host} {found.st_dev}:{found.st_ino}"
    return f"{where} {backend()} {os.geteuid()}"
