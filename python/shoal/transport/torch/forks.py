"""Protects torch's process groups from forked children.

A child has none of the threads that serve its parent's groups. Destroying a group there hangs, and
using one ends the parent too, because both share one epoll descriptor. So a child may not use its
parent's groups, and never destroys what it inherited.
"""

import ctypes
import weakref
from typing import Any

from shoal.fork import ChildStage, in_child

__all__ = ["keep_in_children", "leak", "leak_all"]

_kept: "weakref.WeakSet[Any]" = weakref.WeakSet()


def keep_in_children(thing: Any) -> None:
    """Make every child that is forked later leak an object and everything it refers to."""
    _kept.add(thing)


def leak(thing: Any) -> None:
    """Never destroy an object or anything it refers to; for use in a forked child."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def leak_all() -> None:
    """Leak everything given to `keep_in_children`; for use in a child, or before a process exits."""
    for thing in list(_kept):
        leak(thing)


in_child(ChildStage.KEEP, leak_all)
