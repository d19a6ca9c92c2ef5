"""`LocalCluster`: a cluster whose workers run in threads of this process, without Ray."""

import copy
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from shoal._backend import NAME as BACKEND
from shoal._ray import use_runtime
from shoal.bootstrap.host import LaunchSpec, pack
from shoal.cluster import Cluster
from shoal.cluster.allocate import Allocation, name_taken, resolve
from shoal.cluster.env import PATH_LIKE_ENV_VARS
from shoal.cluster.job import Job
from shoal.cluster.stop import prepare_stop
from shoal.config import ClusterConfig, load
from shoal.context import current, set_context
from shoal.deadline import observe_waits
from shoal.errors import ClusterError, LaunchError, ShoalValueError
from shoal.integers import as_int, as_ints
from shoal.manager import NodeManager
from shoal.net_emulation import (
    NetEmulationManager,
    forget_network,
    use_network,
    warn_of_unknown,
)
from shoal.planner.inventory import nodes_with_robots, read_inventory
from shoal.ports import released_ports
from shoal.problems import shown
from shoal.testing import actors
from shoal.testing.environ import environ_of_ranks
from shoal.testing.runtime import IP, LocalRuntime
from shoal.topology import NodeInfo, build_groups
from shoal.tracing import InProcess, Tracer, finish, use
from shoal.worker import Worker

__all__ = ["LocalCluster", "local_cluster"]

_NAMESPACE = "shoal"
_EITHER = "local_cluster: give either an inventory, or num_nodes and accelerators"


@contextmanager
def local_cluster(
    num_nodes: int | None = None,
    accelerators: int | Sequence[int] = 0,
    cluster_cfg: Any = None,
    *,
    inventory: Any = None,
) -> "Iterator[LocalCluster]":
    """Run workers in threads of this process until the end of the block.

    Args:
        num_nodes: Number of nodes; None for those of the configuration, or 1.
        accelerators: Number of accelerators of each node, or one number for each node. They exist
            for placement only.
        cluster_cfg: The configuration, as for `Cluster`.
        inventory: The nodes, as `shoal.plan` takes them (`2x8:H100/64cpu`); instead of `num_nodes`
            and `accelerators`. A configuration uses the first of them, as many as it wants.

    Yields:
        The cluster. Until the end of the block, `Cluster()` returns it as well.

    Raises:
        ShoalValueError: An argument is invalid, or they contradict each other.
        ClusterError: This process has a cluster already.
    """
    with LocalCluster(
        num_nodes, cluster_cfg, accelerators=accelerators, inventory=inventory
    ) as cluster:
        yield cluster


class LocalCluster(Cluster):
    """A cluster whose workers are threads of this process; made by `local_cluster`.

    Placement, groups, results, errors, channels and messages are those of `Cluster`. Its nodes
    exist by description only: all workers share this process's memory, devices and network.

    Args:
        num_nodes: Same as for `local_cluster`.
        cluster_cfg: Same as for `local_cluster`.
        distributed_log_dir: Refused: all workers print where the test prints.
        timeout: Ignored.
        accelerators: Same as for `local_cluster`.
        inventory: Same as for `local_cluster`.
    """

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Make a cluster; unlike a `Cluster`, never return another one."""
        return object.__new__(cls)

    def __init__(
        self,
        num_nodes: int | None = None,
        cluster_cfg: Any = None,
        distributed_log_dir: str | None = None,
        *,
        timeout: float | None = None,
        accelerators: int | Sequence[int] = 0,
        inventory: Any = None,
    ) -> None:
        del timeout
        if getattr(Cluster, "_instance", None) is self:
            self._warn_of_size(num_nodes)  # `Cluster(...)` within the block
            return
        if distributed_log_dir is not None:
            raise ShoalValueError(
                f"distributed_log_dir={distributed_log_dir!r}: a local cluster has no logs of its "
                "ranks: its workers are threads of this process and print where it prints"
            )
        if Cluster._has_initialized:  # noqa: SLF001  (a base class)
            raise ClusterError(
                "this process has a cluster already: end it with shutdown() before local_cluster()"
            )
        config = None if cluster_cfg is None else load(cluster_cfg)
        if config is not None and num_nodes not in (None, config.num_nodes):
            raise ShoalValueError(
                f"num_nodes={num_nodes} contradicts the configuration, which has num_nodes: "
                f"{config.num_nodes}; give one of them"
            )
        count = num_nodes if config is None else config.num_nodes
        if num_nodes is not None and inventory is not None:
            raise ShoalValueError(_EITHER)
        nodes = _nodes(count, accelerators, inventory, config)
        prepare_stop()
        self._stack = ExitStack()
        try:
            self._enter(nodes, config)
        except BaseException:
            self._stack.close()
            raise

    def _enter(self, nodes: list[NodeInfo], config: Any) -> None:
        stack, before = self._stack, current()
        stack.enter_context(released_ports())
        groups = build_groups(nodes, config)
        manager = NodeManager(nodes, groups, config)
        port = manager.get_master_port()
        namespace = os.environ.get("CLUSTER_NAMESPACE") or _NAMESPACE
        self._join(Job(namespace, nodes, groups, config, nodes[0].node_ip, port), manager)
        tracer = None
        if config is not None and config.tracer is not None and config.tracer.enable:
            tracer = Tracer(config.tracer.path(), fresh=True)
            stack.callback(finish, tracer)
            use(InProcess(tracer))
            stack.callback(use, None)
        emulation = None if config is None else config.net_emulation
        use_network(emulation, namespace)
        stack.callback(forget_network, namespace)
        links = NetEmulationManager(emulation) if emulation and emulation.enabled else None
        self._runtime = LocalRuntime(manager, tracer, links)
        stack.callback(_undo(Worker, "PID", "current_worker", "logger"))
        self._variables = stack.enter_context(environ_of_ranks())
        set_context(namespace=namespace, node_rank=0)
        stack.callback(set_context, namespace=before.namespace, node_rank=before.node_rank)
        use_runtime(self._runtime)
        stack.callback(use_runtime, None)
        observe_waits(self._runtime.watch)
        stack.callback(observe_waits, None)
        actors.find_by_name = self._runtime.get_actor
        stack.callback(setattr, Cluster, "NAMESPACE", Cluster.NAMESPACE)
        Cluster.NAMESPACE = namespace
        Cluster._instance = self  # noqa: SLF001  (a base class)
        Cluster._has_initialized = True  # noqa: SLF001  (a base class)
        stack.callback(self._leave)

    def _leave(self) -> None:
        self._is_ending = True
        self._runtime.shutdown()
        if NetEmulationManager in self._runtime.managers:
            warn_of_unknown(self._runtime.manager(NetEmulationManager))
        actors.find_by_name = None
        for name in self._runtime.names:
            # A handler writes to the stdout of its test, which is closed afterwards.
            logging.getLogger(f"shoal.worker.{name}").handlers.clear()
        if getattr(Cluster, "_instance", None) is self:
            del Cluster._instance  # noqa: SLF001  (a base class)
        Cluster._has_initialized = False  # noqa: SLF001  (a base class)

    def shutdown(self) -> None:
        """End the workers and channels. Idempotent.

        A worker that runs a call ends when the call returns, or waits in shoal.
        """
        try:
            self._close_handles()
        finally:
            self._stack.close()

    def is_connected(self) -> bool:
        """Return whether the cluster has not ended."""
        return self._runtime.is_initialized()

    def _start_actor(self, request: Allocation) -> actors.LocalActor:
        name = request.worker_name
        start = resolve(self._job, request, self._reports)
        if name in self._runtime.actors:
            raise name_taken(name, self._job.namespace)
        payload, buffers, refs = pack(request.cls, request.cls_args, request.cls_kwargs)
        if refs:
            raise LaunchError(f"{name}: a local cluster cannot resolve references of Ray")
        spec = LaunchSpec(
            name=name,
            rank=start.rank,
            namespace=self._job.namespace,
            node_rank=start.node.node_rank,
            # Handlers of signals would belong to the whole process.
            env={**start.env, "CATCH_SYSTEM_FAILURE": "0"},
            backend=BACKEND,
            class_name=f"{request.cls.__module__}.{request.cls.__qualname__}",
            payload=payload,
            buffers=buffers,
        )
        actor = actors.LocalActor(
            request.cls,
            spec,
            dict(self._variables),
            self._runtime.watch,
            request.max_concurrency,
        )
        self._runtime.add(actor, name)
        return actor

    @staticmethod
    def get_alive_nodes() -> list[dict[str, Any]]:
        """Return records like Ray's of the nodes, all of which are alive."""
        return [
            {"NodeID": node.ray_id, "NodeManagerAddress": node.node_ip, "Alive": True}
            for node in Cluster().nodes
        ]


def _nodes(
    num_nodes: Any, accelerators: Any, inventory: Any, config: ClusterConfig | None
) -> list[NodeInfo]:
    """Make the nodes; the arguments come from a user and may have any type."""
    if inventory is not None:
        if accelerators:
            raise ShoalValueError(_EITHER)
        found = read_inventory(inventory)
        if num_nodes is not None and len(found.nodes) < num_nodes:
            raise ShoalValueError(
                f"local_cluster: the configuration has num_nodes: {num_nodes}, and the inventory "
                f"{found.name} has {len(found.nodes)}"
            )
    else:
        wanted = as_int(num_nodes, 1)
        if wanted is None and num_nodes is not None:
            raise ShoalValueError(
                f"local_cluster: num_nodes={num_nodes!r}: expected a whole number, at least one node"
            )
        several = isinstance(accelerators, Sequence) and not isinstance(accelerators, str)
        counts = as_ints(accelerators if several else [accelerators] * (wanted or 1))
        if not counts or min(counts) < 0:
            raise ShoalValueError(
                f"local_cluster: accelerators={shown(accelerators)}: expected a number from 0 on, "
                "or a list with one for each node"
            )
        if num_nodes not in (None, len(counts)):
            raise ShoalValueError(
                f"local_cluster: accelerators={counts!r} has {len(counts)} numbers for "
                f"{num_nodes} nodes"
            )
        found = read_inventory(",".join(map(str, counts)))
    nodes = copy.deepcopy(nodes_with_robots(found, config))
    shared = {name: os.environ[name] for name in PATH_LIKE_ENV_VARS if name in os.environ}
    for rank, node in enumerate(nodes):
        node.ray_id = node.ray_id or f"local-{rank}"
        node.node_ip = node.node_ip or IP
        node.default_env_vars = dict(shared)
    return nodes


def _undo(cls: type, *names: str) -> Callable[[], None]:
    """Return a function that gives class attributes back their present values."""
    before = {name: getattr(cls, name) for name in names}

    def undo() -> None:
        for name, value in before.items():
            setattr(cls, name, value)

    return undo
