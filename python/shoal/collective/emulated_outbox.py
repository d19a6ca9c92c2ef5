"""`EmulatedOutbox`: sends over an emulated link, and the messages that arrive at a set time.

A message over such a link is put at once, and says when it arrives; the receiver waits until then.
So several messages are on their way together, and one that was sent arrives even if its sender
ends.
"""

from typing import Any

from shoal.collective.message import held_message, is_held
from shoal.collective.outbox import Outbox
from shoal.deadline import Deadline
from shoal.manager import WorkerInfo
from shoal.net_emulation import EmulatedNetwork, Endpoint, Link, worker_endpoint
from shoal.pickling import dumps, nbytes_of
from shoal.queues.protocol import Future
from shoal.shm import Parcel

__all__ = ["EmulatedOutbox", "endpoint_of", "held"]


class EmulatedOutbox(Outbox):
    """The sends to one worker, some or all of which take an emulated link."""

    def offer(self, message: Any, seconds: float = 0.0) -> bool:
        """Return False: which link a message takes has to be found first."""
        del message, seconds
        return False

    def start_send(self, message: Any, deadline: Deadline) -> Future:
        """Start an asynchronous send; its way begins now if the receiver is known."""
        info = self._info
        if info is not None and self._route is not None:
            message = self._on_its_way(message, info)
        return super().start_send(message, deadline)

    def _send_in_slices(self, message: Any, deadline: Deadline) -> None:
        info, _ = self._reach(deadline)
        super()._send_in_slices(self._on_its_way(message, info), deadline)

    def _on_its_way(self, message: Any, info: WorkerInfo) -> Any:
        network = self._routes.network
        # A parcel is a message of `start_send`, which has its time already.
        if network is None or type(message) is Parcel or is_held(message):
            return message
        link = network.table.find(self._routes.endpoint, endpoint_of(info))
        return message if link is None else held(message, network, [link])[0]


def endpoint_of(info: WorkerInfo) -> Endpoint:
    """Return the endpoint of a worker."""
    return worker_endpoint(info.address.get_name(), info.cluster_node_rank)


def held(message: Any, network: EmulatedNetwork, links: list[Link]) -> list[Any]:
    """Book a message on links with one uplink; return it as each receiver gets it."""
    parts: tuple[Any, ...] = (message,)
    size = 0
    if any(link.is_limited for link in links):
        found = nbytes_of(message)
        if found is None:
            # Only its pickle has a size; it is sent as it is, so that it is made once.
            head, buffers = dumps(message)
            parts = (head, [bytes(buffer) for buffer in buffers])
            found = len(head) + sum(map(len, parts[1]))
        size = found
    return [held_message(arrival, *parts) for arrival in network.arrivals(links, size)]
