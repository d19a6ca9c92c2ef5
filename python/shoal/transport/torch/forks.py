"""Protection of torch's process groups from forked children.

A child has none of the threads that serve its parent's groups. Destroying a group there hangs, and
using one ends the parent too, because both share one epoll descriptor. So a child may not use
them, and what it inherited is never destroyed in it.
"""

import ctypes
import os
import weakref
from typing import Any

from shoal.errors import TransportError
from shoal.fork import ChildStage, in_child

__all__ = ["check_fork", "is_inherited", "keep_in_children", "leak", "leak_all"]

_kept: "weakref.WeakSet[Any]" = weakref.WeakSet()


def keep_in_children(thing: Any) -> None:
    """Have every child that is forked from now on leak an object and all that it refers to."""
    _kept.add(thing)


def is_inherited(pid: int) -> bool:
    """Whether an object that was made by the process `pid` is a forked child's copy."""
    return os.getpid() != pid


def check_fork(pid: int, what: str) -> None:
    """Raise in a child that was forked after the object was made.

    Args:
        pid: The process that made the object.
        what: Names the object in the message.

    Raises:
        TransportError: This process is another one.
    """
    if is_inherited(pid):
        raise TransportError(
            f"process {os.getpid()} was forked from process {pid}, which made {what}; a child "
            "cannot use it: start the child with multiprocessing's method 'spawn', or let its "
            "parent send and receive"
        )


def leak(thing: Any) -> None:
    """Never destroy an object, nor what it refers to; for use in a forked child."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def leak_all() -> None:
    """Never destroy what is kept in children; for use where a process ends, too."""
    for thing in list(_kept):
        leak(thing)


in_child(ChildStage.KEEP, leak_all)
