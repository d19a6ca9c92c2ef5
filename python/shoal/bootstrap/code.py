"""Code that the driver sends to the nodes: workers prefer it to a copy that a node has itself."""

import importlib
import os
import sys
from collections.abc import Sequence

__all__ = ["prefer_shipped", "set_shipped", "shipped_roots", "without_roots"]

_roots: tuple[str, ...] = ()


def shipped_roots() -> tuple[str, ...]:
    """Return the folders whose packages this job sends to its nodes, as the driver names them."""
    return _roots


def set_shipped(roots: Sequence[str]) -> None:
    """Set what `shipped_roots` returns in this process."""
    global _roots  # noqa: PLW0603  (a process belongs to one job)
    _roots = tuple(roots)


def prefer_shipped(roots: Sequence[str]) -> None:
    """Let imports of this worker find the code that was sent.

    Ray puts the folders of the driver's script, and its current folder, before all others. A node
    may have other code at these paths. They become the last ones, and `PYTHONPATH`, which the
    worker's own children read, loses them.
    """
    set_shipped(roots)
    own = [entry for entry in sys.path if _is_in(entry, roots)]
    sys.path[:] = [entry for entry in sys.path if not _is_in(entry, roots)] + own
    importlib.invalidate_caches()
    if own_path := os.environ.get("PYTHONPATH"):
        left = without_roots(own_path, roots)
        if left:
            os.environ["PYTHONPATH"] = left
        else:
            del os.environ["PYTHONPATH"]


def without_roots(python_path: str, roots: Sequence[str]) -> str:
    """Return a list of folders without those that are sent."""
    entries = python_path.split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if not _is_in(entry, roots))


def _is_in(entry: str, roots: Sequence[str]) -> bool:
    return bool(entry) and os.path.normpath(entry) in roots
