"""`PeerRoutes`: finds the queue from one worker to another, in shared memory or in a mailbox."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal._backend import WorkerAddress
from shoal._ray import in_process
from shoal.collective.directory import Directory, ManagerDirectory
from shoal.collective.mailbox import Mailboxes
from shoal.collective.node_memory import NodeMemory
from shoal.collective.peers import Peers
from shoal.manager import WorkerInfo
from shoal.net_emulation import Endpoint, Link, emulated_network, worker_endpoint
from shoal.queues.wait import Queues
from shoal.transport.choice import OBJECTS, choose, has_registered

__all__ = ["PeerRoutes", "Route"]


class Route(NamedTuple):
    """A queue from one worker to another.

    Attributes:
        name: The transport: `shm` or `lane`.
        queues: The queues that it is one of.
        key: Its key among them.
        direct: The queues that can be used directly: in shared memory, with nothing pending.
    """

    name: str
    queues: Queues
    key: str
    direct: dict[Any, Any]


class PeerRoutes:
    """The directory, memory, mailboxes and peers by which one worker reaches others.

    Args:
        info: The worker's own record.
        directory: Where workers look each other up; None for the job's manager.
    """

    def __init__(self, info: WorkerInfo, directory: Directory | None = None) -> None:
        self.info = info
        self.name = info.address.get_name()
        # Without accelerators and registered transports, all tensors travel with the objects.
        self.has_carriers = bool(info.available_accelerators) or has_registered()
        local = in_process()
        self.directory = directory or (ManagerDirectory() if local is None else local.directory)
        self.memory = NodeMemory(self.directory)
        self.mailboxes = Mailboxes()
        self.peers = Peers(self.directory, self.mailboxes)
        self._refused: dict[str, dict[str, str]] = {}
        self.network = emulated_network()
        """The emulated links of the job; None if there are none."""
        if self.network is not None:
            self.network.note(self.name, _endpoint(info))

    def refused_by(self, peer: WorkerAddress) -> dict[str, str]:
        """Return the transports that refused to carry tensors to a worker, with the reasons."""
        return self._refused.setdefault(peer.get_name(), {})

    @property
    def sends_over_links(self) -> bool:
        """Whether messages of this worker may take an emulated link."""
        return self.network is not None and self.network.table.has_source(_endpoint(self.info))

    def link(self, source: WorkerInfo, target: WorkerInfo) -> Link | None:
        """Return the emulated link from one worker to another; None if messages pass at once."""
        if self.network is None:
            return None
        return self.network.table.find(_endpoint(source), _endpoint(target))

    def seconds(self, links: Sequence[Link], size: int) -> list[float]:
        """Book a message on links with one uplink; return the seconds that it takes over each."""
        return [] if self.network is None else self.network.seconds(links, size)

    def accelerator_rank(self, device: Any) -> int | None:
        """Return the cluster-wide rank of a torch device; None if it is not known."""
        visible = self.info.available_accelerators
        index = device.index or 0
        return visible[index] if device.type != "cpu" and index < len(visible) else None

    def outgoing(self, kind: str, peer: WorkerInfo) -> Route:
        """Return the queue to another worker.

        Args:
            kind: Keeps point-to-point messages and those of each broadcast apart.
            peer: The receiver.
        """
        key = _key(kind, self.info.address, peer)
        if choose(self.info, peer, OBJECTS).name == "shm":
            return Route("shm", self.memory.queues(), key, self.memory.direct)
        return Route("lane", self.mailboxes.queues(peer.cluster_node_rank, key), key, {})

    def incoming(self, kind: str, peer: WorkerInfo) -> Route:
        """Return the queue from another worker; same arguments as `outgoing`."""
        key = _key(kind, peer.address, self.info)
        if choose(peer, self.info, OBJECTS).name == "shm":
            return Route("shm", self.memory.queues(), key, self.memory.direct)
        node = self.info.cluster_node_rank
        queues = self.mailboxes.queues(node, key)
        return Route("lane", queues, key, self.mailboxes.direct(node))


def _endpoint(info: WorkerInfo) -> Endpoint:
    return worker_endpoint(info.address.get_name(), info.cluster_node_rank)


def _key(kind: str, src: WorkerAddress, dst: WorkerInfo) -> str:
    # Names the receiver's process, so that messages to a worker that died do not reach the one
    # that takes its name; not the sender's, whose messages arrive even after it died.
    process = dst.process
    return f"{kind}|{src.get_name()}|{dst.address.get_name()}|{process.pid}.{process.started}"
