"""Immutable description of a channel that every handle has: name, bounds, policies, memory."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shoal._backend import backend
from shoal.errors import ShoalValueError
from shoal.integers import as_int

__all__ = ["CAPACITY", "DROPPING", "MOST_ITEMS", "ChannelSettings", "MemoryLocation"]

CAPACITY = 262_144
"""Default `capacity`: a key of a channel without `maxsize` can hold at least this many items."""

POLICIES = ("block", "error", "drop_oldest", "keep_latest")
"""Possible behaviors of a put when its key holds as many items as allowed."""

DROPPING = ("drop_oldest", "keep_latest")
"""Policies that drop items to make room."""

MEMORY_POLICIES = ("block", "error", "spill")
"""Possible behaviors of a put when its channel holds as many bytes as allowed."""


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class MemoryLocation:
    """The location of the shared memory of one actor of a channel.

    Two processes share memory when they run on one kernel and see the same folder: its device and
    inode tell containers apart that each have their own `/dev/shm`.

    Attributes:
        token: The argument of `shoal.shm.Session.attach`: the path of the folder.
        boot: The boot id of the kernel.
        device: The folder's device.
        inode: The folder's inode.
        backend: The core that created the memory.
        user: The effective user id of its owner.
    """

    token: str
    boot: str
    device: int
    inode: int
    backend: str
    user: int

    @classmethod
    def of(cls, token: str) -> "MemoryLocation":
        """Return the location of a session of this node."""
        found = Path(token).stat()
        return cls(token, _boot(), found.st_dev, found.st_ino, backend(), os.geteuid())

    def is_here(self) -> bool:
        """Whether this process can attach to the memory."""
        if (self.boot, self.backend, self.user) != (_boot(), backend(), os.geteuid()):
            return False
        try:
            found = Path(self.token).stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    def is_gone(self) -> bool:
        """Whether the memory was on this node and was removed, as happens with its channel."""
        return self.boot == _boot() and not Path(self.token).exists()


@dataclass(frozen=True)
class ChannelSettings:
    """Description of a channel: the arguments it was created with, and its actors.

    Attributes:
        name: The channel's name.
        maxsize: Items per key before a put waits; 0 for `capacity`.
        capacity: The bound of a key without `maxsize`.
        max_bytes: Maximum bytes of all items of an actor; None for the default.
        policy: Behavior of a put at the bound of items.
        memory_policy: Behavior of a put at the bound of bytes.
        key_bytes: Maximum bytes of the items of one key; 0 for no bound per key.
        num_actors: Number of actors; 0 for a local channel.
        locations: The location of the items of each actor.
        node_ranks: The rank of the node of each actor, where it is known.
        is_internal: Whether it is no channel of the user: messages between workers, weights.
    """

    name: str
    maxsize: int = 0
    capacity: int = CAPACITY
    max_bytes: int | None = None
    policy: str = "block"
    memory_policy: str = "block"
    key_bytes: int = 0
    num_actors: int = 0
    locations: tuple[MemoryLocation | None, ...] = ()
    node_ranks: tuple[int, ...] = ()
    is_internal: bool = False

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name or ":" in self.name:
            raise ShoalValueError(
                f"channel name {self.name!r}: expected a text that is not empty and has no ':'"
            )
        for name, low in (("maxsize", 0), ("capacity", 1), ("max_bytes", 1)):
            given = getattr(self, name)
            if given is None and name == "max_bytes":
                continue
            value = as_int(given, low)
            if value is None:
                raise self._wrong(name, f"an integer, at least {low}")
            object.__setattr__(self, name, value)
        for name, known in (("policy", POLICIES), ("memory_policy", MEMORY_POLICIES)):
            if getattr(self, name) not in known:
                raise self._wrong(name, f"one of {', '.join(known)}")
        if self.capacity > MOST_ITEMS or self.maxsize > MOST_ITEMS:
            name = "maxsize" if self.maxsize > MOST_ITEMS else "capacity"
            raise self._wrong(name, f"at most {MOST_ITEMS:,}")

    def _wrong(self, name: str, expected: str) -> ShoalValueError:
        value = getattr(self, name)
        return ShoalValueError(f"channel {self.name!r}: {name}={value!r}: expected {expected}")

    @property
    def distributed(self) -> bool:
        """Whether several nodes have an actor."""
        return self.num_actors > 1

    @property
    def page_name(self) -> str:
        """The name on the state pages of processes; empty if it is internal or local."""
        return "" if self.is_internal or self.num_actors == 0 else self.name

    def differing(self, wanted: "ChannelSettings") -> list[str]:
        """Describe each argument that differs from a wanted channel; the node does not matter."""
        names = ("maxsize", "distributed", "capacity", "max_bytes", "policy", "memory_policy")
        return [
            f"{name}={getattr(self, name)!r} (asked for: {getattr(wanted, name)!r})"
            for name in names
            if getattr(self, name) != getattr(wanted, name)
        ]

    def shown(self, key: Any) -> str:
        """Return the name of a key's queue for messages."""
        kind = "local channel" if self.num_actors == 0 else "channel"
        return f"the {kind} {self.name!r}, key {key!r}"


MOST_ITEMS = 1 << 20
"""Maximum number of items in a queue in shared memory."""
