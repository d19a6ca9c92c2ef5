"""`NetEmulationManager`: books the bandwidth of emulated links for all processes of a job."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from shoal.config import NetEmulationConfig
from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.manager import Manager
from shoal.nearest import did_you_mean
from shoal.net_emulation.budgets import Budgets
from shoal.net_emulation.links import Link, LinkTable, worker_endpoint
from shoal.net_emulation.sizes import estimate_payload_size_bytes

__all__ = ["NetEmulationManager"]


class NetEmulationManager(Manager):
    """Books messages on the emulated links of a job; a job that emulates a network has one.

    Args:
        cfg: The configuration, or a mapping with its keys.
        clock: Returns the time in seconds; None for the monotonic clock of this machine.

    Raises:
        ShoalValueError: The configuration is not enabled, or the mapping has problems.
    """

    MANAGER_NAME: ClassVar[str] = "NetEmulationManager"
    MAX_CALLS: ClassVar[int] = 1
    """No call waits, and Ray runs calls that are not coroutines in a thread each."""

    def __init__(
        self,
        cfg: NetEmulationConfig | Mapping[Any, Any] | None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if cfg is not None and not isinstance(cfg, NetEmulationConfig):
            cfg = NetEmulationConfig.from_cfg(cfg)
        if cfg is None or not cfg.enabled:
            raise ShoalValueError(
                "NetEmulationManager: the network emulation is not enabled; set "
                "cluster.net_emulation.enabled to true"
            )
        self._table = LinkTable(cfg)
        self._budgets = Budgets(self._table.rates)
        self._clock = clock or time.monotonic
        self._used = set(self._table.used(worker_endpoint("driver")))  # never noted
        self._known: set[str] = set()

    def reserve(self, src: str, dst: str, size_bytes: int) -> float:
        """Book a message from one worker to another.

        Args:
            src: The sender's address.
            dst: The receiver's address.
            size_bytes: The bytes of the message.

        Returns:
            Seconds until it arrives; 0.0 if the configuration has no such link.
        """
        return self.reserve_broadcast(src, [dst], size_bytes)

    def reserve_broadcast(self, src: str, dsts: Sequence[str], size_bytes: int) -> float:
        """Book a message from one worker to several.

        Returns:
            Seconds until the slowest of them has it; 0.0 if no link leads to any of them.
        """
        _check_size(size_bytes)
        source = worker_endpoint(src)
        found = [self._table.find(source, worker_endpoint(dst)) for dst in dsts]
        return max(self.book([link for link in found if link is not None], size_bytes), default=0.0)

    @classmethod
    def estimate_payload_size_bytes(cls, payload: Any) -> int:
        """Return the bytes of a payload, about; see `shoal.net_emulation.sizes`."""
        return estimate_payload_size_bytes(payload)

    def book(self, links: Sequence[Link], size: int) -> list[float]:
        """Book a message on links with one uplink; return the seconds until it arrives over each."""
        now = self._clock()
        arrivals = self._budgets.book([Link(*link) for link in links], size, now)
        return [arrival - now for arrival in arrivals]

    def note_endpoint(self, name: str, keys: Sequence[str]) -> None:
        """Note that a worker or channel exists.

        Args:
            name: Its name.
            keys: The names that the configuration may use for it.
        """
        self._known.add(name)
        self._used.update(self._table.used(keys))

    def find_unknown(self) -> list[str]:
        """Return a sentence for each endpoint of the configuration that nothing in the job had."""
        return [
            f"cluster.net_emulation: {name!r} was no worker, channel or node of this job"
            + did_you_mean(name, self._known)
            for name in sorted(self._table.names - self._used)
        ]


def _check_size(size: Any) -> None:
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        raise ShoalTypeError(f"size_bytes={size!r}: expected a number of bytes")
