"""Launches a job's managers on node 0, and finds those of a running job."""

import concurrent.futures
import logging
import os
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._backend import backend
from shoal._ray import NAME_TAKEN, find_actor, get
from shoal.cluster import timing
from shoal.cluster.node_record import note_nodes
from shoal.cluster.progress import timed_step
from shoal.config import ClusterConfig
from shoal.context import set_context
from shoal.deadline import Deadline
from shoal.errors import ClusterError, ClusterNotFoundError, NameTakenError, PeerLostError
from shoal.manager import JobManager, Manager, NodeManager
from shoal.net_emulation import NetEmulationManager
from shoal.topology import NodeGroupInfo, NodeInfo, build_groups
from shoal.tracing import Tracer

__all__ = [
    "Job",
    "emulates_network",
    "end_actors",
    "find_job",
    "in_free_namespace",
    "launch_managers",
]

_log = logging.getLogger("shoal")

_MAX_NAMESPACES = 100

_MANAGERS: tuple[type[Manager], ...] = (NodeManager, JobManager)
"""The managers that every job has; the JobManager keeps its workers, groups and locks. A traced
job also has a Tracer, and one with an emulated network a NetEmulationManager."""


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
        trace: The name of its trace; empty if it is not traced.
        log: Names the job to the collector of its logs; empty if they are not collected.
        managers: The managers' handles, in the process that launched them. Ray ends an actor when
            its creator drops the last handle.
    """

    namespace: str
    nodes: list[NodeInfo]
    groups: dict[str, NodeGroupInfo]
    config: ClusterConfig | None
    master_ip: str
    master_port: int
    trace: str = ""
    log: str = ""
    managers: list[Any] = field(default_factory=list)


def in_free_namespace(start: Callable[[str], Job], taken: Collection[str], prefix: str) -> Job:
    """Start a job in the namespace that `CLUSTER_NAMESPACE` names, else in the first free one.

    Args:
        start: Starts the job in a namespace; raises `NameTakenError` if another process was faster.
        taken: The namespaces of the jobs that run.
        prefix: The first namespace, and how the others begin.

    Raises:
        NameTakenError: A live job has the named namespace.
        ClusterError: Too many jobs run.
    """
    asked = os.environ.get("CLUSTER_NAMESPACE")
    for number in range(1 if asked else _MAX_NAMESPACES):
        namespace = asked or (f"{prefix}_{number}" if number else prefix)
        if namespace in taken:
            continue
        try:
            job = start(namespace)
        except NameTakenError:
            continue
        if number:
            _log.info("other jobs run on this Ray: this one has the namespace %r", namespace)
        return job
    if asked:
        raise NameTakenError(
            f"CLUSTER_NAMESPACE={asked!r}: a live job has this namespace; call Cluster() without "
            "arguments to join it, set another name, or unset the variable"
        )
    raise ClusterError(f"{_MAX_NAMESPACES} jobs run on this Ray: {', '.join(sorted(taken))}")


def launch_managers(
    namespace: str,
    nodes: list[NodeInfo],
    config: ClusterConfig | None,
    deadline: Deadline,
    *,
    log: str = "",
) -> Job:
    """Start the managers of a new job.

    Args:
        namespace: Its namespace.
        nodes: Its nodes, in rank order.
        config: Its configuration, or None.
        deadline: When the managers must have answered.
        log: Names it to the collector of its logs; empty if they are not collected.

    Raises:
        NameTakenError: A live job has this namespace.
        PeerLostError: A manager died while it started.
        ClusterError: The trace cannot be written.
    """
    groups = build_groups(nodes, config)
    arguments: dict[type[Manager], tuple[Any, ...]] = {
        NodeManager: (nodes, groups, config, namespace, log),
        JobManager: (namespace, sum(node.num_accelerators for node in nodes)),
    }
    managers, trace = _MANAGERS, ""
    if config is not None and config.tracer is not None and config.tracer.enable:
        managers, trace = (*_MANAGERS, Tracer), f"{namespace}-{secrets.token_hex(8)}"
        arguments[Tracer] = (config.tracer.path(),)
    if emulates_network(config):
        managers = (*managers, NetEmulationManager)
        arguments[NetEmulationManager] = (None if config is None else config.net_emulation,)
    keywords: dict[type[Manager], dict[str, Any]] = {Tracer: {"token": trace, "fresh": True}}
    affinity = NodeAffinitySchedulingStrategy(node_id=nodes[0].ray_id, soft=False)
    # On a Ray that another program started, actors do not have this process's variables; actors
    # that the managers start inherit the managers' variables. Ray starts a new process for an actor
    # with a `runtime_env`, so the managers get one only for the backend that is not the default.
    own = {"env_vars": {"SHOAL_BACKEND": "pure"}} if backend() == "pure" else None
    actors: list[Any] = []
    try:
        with timed_step("managers"):
            for cls in managers:
                options = ray.remote(cls).options(
                    name=cls.MANAGER_NAME,
                    namespace=namespace,
                    num_cpus=0,
                    max_concurrency=cls.MAX_CALLS,
                    runtime_env=own,
                    scheduling_strategy=affinity,
                )
                try:
                    made = options.remote(*arguments.get(cls, ()), **keywords.get(cls, {}))
                    actors.append(made)
                except NAME_TAKEN as error:
                    raise NameTakenError(
                        f"the namespace {namespace!r} belongs to a live job"
                    ) from error
            for actor, cls in zip(actors, managers, strict=True):
                try:
                    ready = actor.__ray_ready__.remote()
                    get(ready, deadline, lambda: "launching", cls.MANAGER_NAME)
                except PeerLostError as error:
                    if cls is not Tracer:
                        raise
                    raise ClusterError(
                        f"the trace cannot be written to {arguments[Tracer][0]} on node 0: set "
                        "cluster.tracer.output_file to a file in a folder that can be written "
                        f"there, or cluster.tracer.enable to false ({error})"
                    ) from error
        note_nodes(namespace, nodes)
        set_context(namespace=namespace, node_rank=_own_node_rank(nodes), num_nodes=len(nodes))
        port = NodeManager.get_proxy().get_master_port()
    except BaseException:
        # The error's traceback would keep them alive, and a later `Cluster()` would join them.
        with suppress(Exception):  # the first error is raised
            end_actors(actors)
        raise
    return Job(
        namespace=namespace,
        nodes=nodes,
        groups=groups,
        config=config,
        master_ip=nodes[0].node_ip,
        master_port=port,
        trace=trace,
        log=log,
        managers=actors,
    )


def end_actors(actors: Sequence[Any]) -> None:
    """Kill actors of this process, and wait until their names are free for the next job."""
    pings = [actor.__ray_ready__.remote() for actor in actors]
    for actor in actors:
        ray.kill(actor)
    if pings:
        concurrent.futures.wait([ping.future() for ping in pings], timing.TIMING.end_s)


def emulates_network(config: ClusterConfig | None) -> bool:
    """Whether a job with this configuration emulates links."""
    return config is not None and config.net_emulation is not None and config.net_emulation.enabled


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
    config = manager.get_cluster_cfg()
    set_context(node_rank=_own_node_rank(nodes), num_nodes=len(nodes))
    return Job(
        namespace=namespace,
        nodes=nodes,
        groups=manager.get_node_groups(),
        config=config,
        master_ip=manager.get_master_ip(),
        master_port=manager.get_master_port(),
        trace=_find_trace(config),
        log=manager.get_log_token(),
    )


def _find_trace(config: ClusterConfig | None) -> str:
    if config is None or config.tracer is None or not config.tracer.enable:
        return ""
    try:
        return str(Tracer.get_proxy().get_token())
    except (ClusterNotFoundError, PeerLostError):
        return ""  # the tracer has died; the job goes on without it


def _own_node_rank(nodes: list[NodeInfo]) -> int:
    here = ray.get_runtime_context().get_node_id()
    return next((node.node_rank for node in nodes if node.ray_id == here), -1)
