"""Identifies the shared memory that a process can use, to tell which processes can share it."""

import os

from shoal._backend import backend
from shoal.context import memory_folder
from shoal.process import own_process

__all__ = ["memory_id"]


def memory_id() -> str:
    """Return a text that is the same in processes that can share memory, and differs in others.

    It consists of the boot id of the kernel, the pid namespace, the device and inode of the folder
    in which sessions are made (containers of one node may each have a `/dev/shm`), the backend,
    which determines the memory layout, and the user.
    """
    found = memory_folder().stat()
    where = f"{own_process().host} {found.st_dev}:{found.st_ino}"
    return f"{where} {backend()} {os.geteuid()}"
