"""The identity of this process within a job, and shoal's environment variables.

Lower layers read the identity here, so that they need not depend on `Worker`.
"""

import logging
import os
import tempfile
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import ShoalValueError

__all__ = [
    "ENV_PREFIXES",
    "Context",
    "current",
    "describe_self",
    "enter_scope",
    "env_value",
    "env_var",
    "follow_identity",
    "log_level",
    "memory_folder",
    "set_context",
]

ENV_PREFIXES = ("SHOAL_", "RLINF_")
"""The prefixes of shoal's variables; the first one counts if both are set."""


def env_var(name: str) -> tuple[str | None, str]:
    """Look a variable up as `SHOAL_<name>`, then as `RLINF_<name>`.

    Returns:
        The value, or None if neither is set; and the full name of the variable found, by default
        `SHOAL_<name>`.
    """
    for prefix in ENV_PREFIXES:
        value = os.environ.get(prefix + name)
        if value is not None:
            return value, prefix + name
    return None, ENV_PREFIXES[0] + name


def env_value(name: str, default: str | None = None) -> str | None:
    """Return the variable `SHOAL_<name>`, else `RLINF_<name>`, else `default`."""
    value, _ = env_var(name)
    return default if value is None else value


def log_level() -> str:
    """Return the level of shoal's log: `SHOAL_LOG_LEVEL`, by default INFO.

    Raises:
        ShoalValueError: The value of the variable is not a level.
    """
    text, name = env_var("LOG_LEVEL")
    level = (text or "INFO").upper()
    known = logging.getLevelNamesMapping()
    if level not in known:
        raise ShoalValueError(f"{name}={text!r}: expected one of {', '.join(known)}")
    return level


def memory_folder() -> Path:
    """Return the folder for shared memory: `SHOAL_SHM_DIR`, else `/dev/shm`, else the temporary one."""
    folder = Path(os.environ.get("SHOAL_SHM_DIR") or "/dev/shm").absolute()  # noqa: S108  (the kernel's folder for this)
    return folder if folder.is_dir() else Path(tempfile.gettempdir())


@dataclass(frozen=True)
class Context:
    """The identity of this process within a job.

    Attributes:
        name: The worker's address, or `driver`.
        namespace: The Ray namespace of the job; empty while the process belongs to no job.
        node_rank: The rank of the node in the cluster; -1 if it is not known.
        num_nodes: The number of nodes of the job; 0 if it is not known.
    """

    name: str = "driver"
    namespace: str = ""
    node_rank: int = -1
    num_nodes: int = 0


_current = Context()
_scoped: ContextVar[Context | None] = ContextVar("shoal_context", default=None)


def current() -> Context:
    """Return the identity of this process, or of the scope that this code runs in."""
    return _scoped.get() or _current


_followers: list[Callable[[Context], None]] = []


def follow_identity(function: Callable[[Context], None]) -> None:
    """Call a function with each new identity of this process; not with that of a scope."""
    _followers.append(function)


def enter_scope(context: Context) -> None:
    """Give the current `contextvars` context an identity, for several workers in one process.

    Tasks inherit the identity, threads do not.
    """
    _scoped.set(context)


def set_context(
    *,
    name: str | None = None,
    namespace: str | None = None,
    node_rank: int | None = None,
    num_nodes: int | None = None,
) -> None:
    """Change the given fields of the identity that `current` returns; fields that are None stay."""
    global _current  # noqa: PLW0603  (outside a scope, a process has exactly one identity)
    given = {
        "name": name, "namespace": namespace, "node_rank": node_rank, "num_nodes": num_nodes,
    }  # fmt: skip
    changed = replace(current(), **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]  # the names and types match the fields
    if _scoped.get() is not None:
        _scoped.set(changed)
        return
    _current = changed
    for function in _followers:
        function(changed)


def describe_self() -> str:
    """Name this process in a message: its address, or `driver (pid 12)`."""
    name = current().name
    return name if name != "driver" else f"driver (pid {os.getpid()})"
