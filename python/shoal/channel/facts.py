"""What a channel is: what all handles of it know, wherever they are."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shoal._backend import backend
from shoal.errors import ShoalValueError

__all__ = ["CAPACITY", "DROPPING", "MOST_ITEMS", "Facts", "Place"]

CAPACITY = 262_144
"""How many items a key holds at least when its channel has no `maxsize`."""

POLICIES = ("block", "error", "drop_oldest", "keep_latest")
"""What a put does where a key holds as many items as it may."""

DROPPING = ("drop_oldest", "keep_latest")

MEMORY_POLICIES = ("block", "error", "spill")
"""What a put does where a channel holds as many bytes as it may."""


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class Place:
    """Where the items of one host of a channel lie.

    Two processes have the same memory when they run on one kernel and see the same folder: its
    device and inode tell containers apart that have a `/dev/shm` each.

    Attributes:
        token: What `shoal.shm.Session.attach` takes: the path of the folder.
        boot: The boot of the kernel.
        device: The folder's device.
        inode: The folder's inode.
        backend: The core that made it.
        user: Whose it is.
    """

    token: str
    boot: str
    device: int
    inode: int
    backend: str
    user: int

    @classmethod
    def of(cls, token: str) -> "Place":
        """Describe a session of this host."""
        found = Path(token).stat()
        return cls(token, _boot(), found.st_dev, found.st_ino, backend(), os.geteuid())

    def is_here(self) -> bool:
        """Whether this process can have the memory."""
        if (self.boot, self.backend, self.user) != (_boot(), backend(), os.geteuid()):
            return False
        try:
            found = Path(self.token).stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    def is_gone(self) -> bool:
        """Whether it was on this host, and is there no more: what was removed with its channel."""
        return self.boot == _boot() and not Path(self.token).exists()


@dataclass(frozen=True)
class Facts:
    """How a channel was made.

    Attributes:
        name: Its name.
        maxsize: Items per key before a put waits; 0 for `capacity`.
        capacity: The bound of a key without `maxsize`.
        max_bytes: The bytes that all items of a host may have; None for the default.
        policy: What a put does at the bound of items.
        memory_policy: What a put does at the bound of bytes.
        key_bytes: The bytes that the items of one key may have; 0 for no bound of its own.
        hosts: How many hosts it has; 0 for a local channel.
        places: Where the items of each host lie.
    """

    name: str
    maxsize: int = 0
    capacity: int = CAPACITY
    max_bytes: int | None = None
    policy: str = "block"
    memory_policy: str = "block"
    key_bytes: int = 0
    hosts: int = 0
    places: tuple[Place | None, ...] = ()

    def __post_init__(self) -> None:
        if type(self.name) is not str or not self.name or ":" in self.name:
            raise ShoalValueError(
                f"channel name {self.name!r}: expected a text that is not empty and has no ':'"
            )
        for name, low in (("maxsize", 0), ("capacity", 1), ("max_bytes", 1)):
            value = getattr(self, name)
            if value is None and name == "max_bytes":
                continue
            if type(value) is not int or value < low:
                raise self._wrong(name, f"an integer, at least {low}")
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
        """Whether several nodes have a host."""
        return self.hosts > 1

    def differing(self, wanted: "Facts") -> list[str]:
        """List in words in what this one differs from another that was asked for, wherever it is."""
        names = ("maxsize", "distributed", "capacity", "max_bytes", "policy", "memory_policy")
        return [
            f"{name}={getattr(self, name)!r} (asked for: {getattr(wanted, name)!r})"
            for name in names
            if getattr(self, name) != getattr(wanted, name)
        ]

    def shown(self, key: Any) -> str:
        """Name a queue of it in messages."""
        kind = "local channel" if self.hosts == 0 else "channel"
        return f"the {kind} {self.name!r}, key {key!r}"


MOST_ITEMS = 1 << 20
"""The most that a queue in shared memory can hold."""
