"""Runs functions at the start of a forked child, in a fixed order, whatever was imported first.

A forked child has a copy of its parent's objects and none of its threads. Each module says here what
must happen to its own state in the child.
"""

import logging
import os
import weakref
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

__all__ = ["ChildStage", "in_child", "reset_in_child"]


class ChildStage(IntEnum):
    """When in the child a function runs: the stages follow each other."""

    KEEP = 0
    """Objects that must never be destroyed in a child are kept alive."""
    RENEW = 1
    """Locks are replaced, which another thread of the parent may have held, and threads forgotten."""
    FORGET = 2
    """Operations and connections of the parent are forgotten."""


_log = logging.getLogger("shoal")
_functions: dict[ChildStage, list[Callable[[], object]]] = {stage: [] for stage in ChildStage}


def in_child(stage: ChildStage, function: Callable[[], object]) -> None:
    """Call a function in every child that is forked from now on.

    Args:
        stage: When to call it. Within a stage, functions run in the order of these calls.
        function: Must not wait. An error that it raises is logged; the other functions still run.
    """
    _functions[stage].append(function)


class _Resets(Protocol):
    def reset(self) -> None: ...


_to_reset: "weakref.WeakSet[_Resets]" = weakref.WeakSet()


def reset_in_child(thing: _Resets) -> None:
    """Call `reset` of an object in every child that is forked from now on, while the object exists.

    It belongs to the stage `FORGET`.
    """
    _to_reset.add(thing)


def _reset_all() -> None:
    for thing in _to_reset:
        thing.reset()


in_child(ChildStage.FORGET, _reset_all)


def _run() -> None:
    for stage in ChildStage:
        for function in _functions[stage]:
            try:
                function()
            except Exception:  # noqa: BLE001  (the other functions have to run)
                _log.exception("%r failed in the forked process %d", function, os.getpid())


os.register_at_fork(after_in_child=_run)
