"""`Budgets`: when messages that share limited uplinks and downlinks arrive."""

import threading
from collections.abc import Sequence

from shoal.net_emulation.links import Link

__all__ = ["Budgets"]


class Budgets:
    """The uplinks and downlinks of bandwidth groups, and until when each is busy.

    Args:
        rates: Bytes per second of each group.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        self._rates = rates
        self._up_until: dict[int, float] = {}
        self._down_until: dict[int, float] = {}
        self._lock = threading.Lock()

    def book(self, links: Sequence[Link], size: int, now: float) -> list[float]:
        """Send a message from one endpoint over one or several links.

        The uplink carries the message once, and the downlink of each group carries it once.

        Args:
            links: The links; they have the same uplink.
            size: The bytes of the message.
            now: The time.

        Returns:
            The time of the arrival over each link.
        """
        if not links:
            return []
        size = max(0, size)
        with self._lock:
            start, finish = self._send(links[0].uplink, size, now)
            by_group: dict[int, list[Link]] = {}
            for link in links:
                if link.downlink is not None:
                    by_group.setdefault(link.downlink, []).append(link)
            received: dict[int | None, float] = {
                number: self._receive(number, members, start, finish, size)
                for number, members in by_group.items()
            }
        return [max(finish + link.delay_s, received.get(link.downlink, 0.0), now) for link in links]

    def _send(self, uplink: int | None, size: int, now: float) -> tuple[float, float]:
        if uplink is None:
            return now, now
        start = max(now, self._up_until.get(uplink, now))
        finish = self._up_until[uplink] = start + size / self._rates[uplink]
        return start, finish

    def _receive(
        self, downlink: int, links: Sequence[Link], start: float, finish: float, size: int
    ) -> float:
        """Return when a group's downlink has received a message; it is busy until then."""
        first = start + min(link.delay_s for link in links)
        last = finish + max(link.delay_s for link in links)
        begins = max(first, self._down_until.get(downlink, first))
        received = begins + size / self._rates[downlink]
        self._down_until[downlink] = max(last, received)
        return received
