"""Launches a job's managers on node 0, and finds those of a running job."""

from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._backend import backend
from shoal._ray import NAME_TAKEN, find_actor, get
from shoal.cluster.progress import stage
from shoal.config import ClusterConfig
from shoal.context import set_context
from shoal.deadline import Deadline
from shoal.errors import ClusterNotFoundError, NameTakenError
from shoal.manager import JobManager, Manager, NodeManager
from shoal.topology import NodeGroupInfo, NodeInfo, build_groups

__all__ = ["Job", "find_job", "launch_managers"]

_MANAGERS: tuple[type[Manager], ...] = (NodeManager, JobManager)
"""The managers that every job has; the JobManager keeps its workers, groups and locks."""

# Ray's limit of concurrent calls of a manager. Blocked calls count, and all ranks may wait at once.
_MANAGER_CALLS = 1_000_000


@dataclass
class Job:
    """The description of a job, in each of its processes.

    Attributes:
        namespace: Its Ray namespace.
        nodes: Its nodes, in rank order.
        groups: Its node groups, by label.
        config: The configuration it was launched with, or None.
        master_ip: Node 0's IP address.
        master_port: A port on node 0, reserved until the job ends.
        managers: The managers' handles, in the process that launched them. Ray ends an actor when
            its creator drops the last handle.
    """

    namespace: str
    nodes: list[NodeInfo]
    groups: dict[str, NodeGroupInfo]
    config: ClusterConfig | None
    master_ip: str
    master_port: int
    managers: list[Any] = field(default_factory=list)


def launch_managers(
    namespace: str, nodes: list[NodeInfo], config: ClusterConfig | None, deadline: Deadline
) -> Job:
    """Start the managers of a new job.

    Raises:
        NameTakenError: A live job has this namespace.
        PeerLostError: A manager died while it started.
    """
    groups = build_groups(nodes, config)
    arguments: dict[type[Manager], tuple[Any, ...]] = {
        NodeManager: (nodes, groups, config, namespace),
        JobManager: (namespace, sum(node.num_accelerators for node in nodes)),
    }
    affinity = NodeAffinitySchedulingStrategy(node_id=nodes[0].ray_id, soft=False)
    # On a Ray that another program started, actors do not have this process's variables; actors
    # that the managers start inherit the managers' variables. Ray starts a new process for an actor
    # with a `runtime_env`, so the managers get one only for the backend that is not the default.
    own = {"env_vars": {"SHOAL_BACKEND": "pure"}} if backend() == "pure" else None
    with stage("managers"):
        actors: list[Any] = []
        for cls in _MANAGERS:
            options = ray.remote(cls).options(
                name=cls.MANAGER_NAME,
                namespace=namespace,
                num_cpus=0,
                max_concurrency=_MANAGER_CALLS,
                runtime_env=own,
                scheduling_strategy=affinity,
            )
            try:
                actors.append(options.remote(*arguments.get(cls, ())))
            except NAME_TAKEN as error:
                raise NameTakenError(
                    f"the namespace {namespace!r} belongs to a live job"
                ) from error
        for actor, cls in zip(actors, _MANAGERS, strict=True):
            get(actor.__ray_ready__.remote(), deadline, lambda: "launching", cls.MANAGER_NAME)
    set_context(namespace=namespace, node_rank=_own_node_rank(nodes))
    return Job(
        namespace=namespace,
        nodes=nodes,
        groups=groups,
        config=config,
        master_ip=nodes[0].node_ip,
        master_port=NodeManager.get_proxy().get_master_port(),
        managers=actors,
    )


def find_job(namespace: str, deadline: Deadline) -> Job:
    """Describe a running job.

    Raises:
        ClusterNotFoundError: No job runs in this namespace.
        ShoalTimeoutError: Its manager did not answer in time.
    """
    if find_actor(NodeManager.MANAGER_NAME, namespace) is None:
        raise ClusterNotFoundError(
            f"no job runs in the namespace {namespace!r}: it has ended, or it is on another Ray "
            "(RAY_ADDRESS)"
        )
    set_context(namespace=namespace)
    manager = NodeManager.get_proxy(timeout=deadline.remaining)
    nodes = manager.get_nodes()
    set_context(node_rank=_own_node_rank(nodes))
    return Job(
        namespace=namespace,
        nodes=nodes,
        groups=manager.get_node_groups(),
        config=manager.get_cluster_cfg(),
        master_ip=manager.get_master_ip(),
        master_port=manager.get_master_port(),
    )


def _own_node_rank(nodes: list[NodeInfo]) -> int:
    here = ray.get_runtime_context().get_node_id()
    return next((node.node_rank for node in nodes if node.ray_id == here), -1)
