"""The manager of a job's nodes; also owns actors that must outlive the worker that started them."""

import asyncio
import contextlib
from typing import Any, ClassVar

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._ray import NAME_TAKEN, aget
from shoal.context import set_context
from shoal.deadline import Deadline
from shoal.errors import ClusterError, NameTakenError, PeerLostError, ShoalValueError
from shoal.manager.base import Manager
from shoal.ports import hold_port
from shoal.state import accept_calls

__all__ = ["NodeManager"]

# Maximum number of concurrent calls of an asyncio actor, blocked calls included.
_HOST_CALLS = 1_000_000


class NodeManager(Manager):
    """Keeps the job's nodes, node groups and configuration, as its driver found them at launch.

    Args:
        nodes: The nodes, in rank order.
        node_groups: The node groups, by label.
        cluster_cfg: The cluster's configuration, or None.
        namespace: The job's namespace.
        log: Names the job to the collector of its logs; empty if they are not collected.
    """

    MANAGER_NAME: ClassVar[str] = "NodeManager"

    def __init__(
        self,
        nodes: list[Any],
        node_groups: dict[str, Any],
        cluster_cfg: Any = None,
        namespace: str = "",
        log: str = "",
    ) -> None:
        self._nodes = nodes
        self._node_groups = node_groups
        self._cluster_cfg = cluster_cfg
        self._master_port = hold_port()
        self._namespace = namespace
        self._log = log
        # Ray ends an actor when the last handle from its creation is dropped; handles looked up by
        # name do not count. So the handles of all hosts stay here.
        self._hosts: dict[str, Any] = {}
        self._notes: dict[str, Any] = {}
        if namespace:
            accept_calls(0)
            set_context(name=self.MANAGER_NAME, namespace=namespace, node_rank=0)

    def get_nodes(self) -> list[Any]:
        """Return the nodes, in rank order."""
        return self._nodes

    def get_node_groups(self) -> dict[str, Any]:
        """Return the node groups, by label."""
        return self._node_groups

    def get_hardware_infos(
        self, node_group_label: str, node_rank: int
    ) -> tuple[str | None, list[Any]]:
        """Return the hardware type of a node group, and the node's hardware of that type.

        The result is `(None, [])` if there is no such group or the node is not in it.
        """
        group = self._node_groups.get(node_group_label)
        if group is None or node_rank not in group.node_ranks:
            return None, []
        return group.hardware_type, group.get_hardware_infos(node_rank)

    def get_cluster_cfg(self) -> Any:
        """Return the configuration that the job was launched with, or None."""
        return self._cluster_cfg

    def get_log_token(self) -> str:
        """Return what names the job to the collector of its logs; empty if there is none."""
        return self._log

    def get_master_ip(self) -> str:
        """Return the IP address of node 0."""
        return str(self._nodes[0].node_ip)

    def get_master_port(self) -> int:
        """Return a port on node 0 that is reserved while the job lives."""
        return self._master_port

    def get_num_gpus_per_node(self) -> int:
        """Return the number of accelerators of every node.

        Raises:
            ClusterError: The nodes differ.
        """
        counts = [node.num_accelerators for node in self._nodes]
        if len(set(counts)) > 1:
            listed = ", ".join(f"node {i}: {n}" for i, n in enumerate(counts))
            raise ClusterError(f"the nodes have different numbers of accelerators: {listed}")
        return int(counts[0])

    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    async def start_host(
        self,
        name: str,
        cls: type,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        node_rank: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109  (part of the API)
        restarts: bool = False,
    ) -> Any:
        """Start a named asyncio actor on a node and wait until it answers.

        The actor belongs to this manager, so it lives as long as the job, not as long as the worker
        that requested it. `cls` needs a method `ping`. With `restarts`, a process that dies is
        replaced by a new one with the same arguments, which can read the former one's `note`.

        Raises:
            NameTakenError: The name is taken in the job's namespace.
            ShoalValueError: There is no such node.
            PeerLostError: The actor died during its start.
            ShoalTimeoutError: The actor did not answer in time.
        """
        if not 0 <= node_rank < len(self._nodes):
            raise ShoalValueError(
                f"{name!r}: node {node_rank} does not exist; this cluster has nodes "
                f"0 to {len(self._nodes) - 1}"
            )
        deadline = Deadline(timeout)
        options = {
            "name": name,
            "namespace": self._namespace,
            "num_cpus": 0,
            "max_concurrency": _HOST_CALLS,
            "max_restarts": -1 if restarts else 0,
            # Otherwise Ray records every call for its dashboard, which shoal does not start.
            "enable_task_events": False,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(
                node_id=self._nodes[node_rank].ray_id, soft=False
            ),
        }
        try:
            made: Any = ray.remote(cls)
            actor = made.options(**options).remote(*args, **(kwargs or {}))
        except NAME_TAKEN as error:
            raise NameTakenError(
                f"the name {name!r} is taken in the job {self._namespace!r}"
            ) from error
        # Drop the note of a previous actor with this name.
        self._notes.pop(name, None)
        try:
            await aget(actor.ping.remote(), deadline, lambda: f"starting {name}", name)
        except (PeerLostError, RayActorError):
            ray.kill(actor)
            raise
        self._hosts[name] = actor
        return actor

    def note(self, name: str, value: Any) -> None:
        """Keep a value of a host for the process that replaces the host if it dies."""
        self._notes[name] = value

    def note_once(self, name: str, value: Any) -> Any:
        """Keep a value unless one is kept already; return the one that is kept."""
        if self._notes.get(name) is None:
            self._notes[name] = value
        return self._notes[name]

    def noted(self, name: str) -> Any:
        """Return the value that a host noted, or None."""
        return self._notes.get(name)

    async def end_hosts(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  (as above)
        """Let the hosts clean up before they are killed; ignore those that do not answer."""
        self._notes.clear()  # the hosts end on purpose and are not replaced
        hosts = [host for host in self._hosts.values() if hasattr(host, "end")]

        async def end(host: Any) -> None:
            with contextlib.suppress(RayActorError):  # it ended by itself
                await host.end.remote()

        if hosts:
            ends = [asyncio.create_task(end(host)) for host in hosts]
            await asyncio.wait(ends, timeout=Deadline(timeout).remaining)
