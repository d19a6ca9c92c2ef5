"""The identity of this process within a job, and shoal's environment variables.

Lower layers read the identity here, so that they need not depend on `Worker`.
"""

import logging
import os
from dataclasses import dataclass, replace

from shoal.errors import ShoalValueError

__all__ = [
    "Context",
    "current",
    "describe_self",
    "env_value",
    "env_var",
    "log_level",
    "set_context",
]

_PREFIXES = ("SHOAL_", "RLINF_")


def env_var(name: str) -> tuple[str | None, str]:
    """Look a variable up as `SHOAL_<name>`, then as `RLINF_<name>`.

    Returns:
        The value, or None if neither is set; and the full name of the variable found, by default
        `SHOAL_<name>`.
    """
    for prefix in _PREFIXES:
        value = os.environ.get(prefix + name)
        if value is not None:
            return value, prefix + name
    return None, _PREFIXES[0] + name


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


@dataclass(frozen=True)
class Context:
    """The identity of this process within a job.

    Attributes:
        name: The worker's address, or `driver`.
        namespace: The Ray namespace of the job; empty while the process belongs to no job.
        node_rank: The rank of the node in the cluster; -1 if it is not known.
    """

    name: str = "driver"
    namespace: str = ""
    node_rank: int = -1


_current = Context()


def current() -> Context:
    """Return the identity of this process."""
    return _current


def set_context(
    *, name: str | None = None, namespace: str | None = None, node_rank: int | None = None
) -> None:
    """Change the given fields of this process's identity; fields that are None stay."""
    global _current  # noqa: PLW0603  (a process has exactly one identity)
    given = {"name": name, "namespace": namespace, "node_rank": node_rank}
    _current = replace(_current, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]  # the names and types match the fields


def describe_self() -> str:
    """Name this process in a message: its address, or `driver (pid 12)`."""
    return _current.name if _current.name != "driver" else f"driver (pid {os.getpid()})"
