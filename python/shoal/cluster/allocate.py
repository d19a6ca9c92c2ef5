"""Starts an actor of a user's class on a node: the work of `Cluster.allocate`."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, overload

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._backend import NAME as BACKEND
from shoal._ray import NAME_TAKEN
from shoal.bootstrap.code import shipped_roots
from shoal.bootstrap.host import LaunchSpec, host_class, own_versions, pack
from shoal.cluster.env import (
    ClusterEnvVar,
    is_own_setting,
    merge_mode,
    merge_worker_env_vars,
    needs_fresh_process,
    settings_for,
)
from shoal.cluster.job import Job, emulates_network
from shoal.context import current
from shoal.errors import LaunchError, NameTakenError, ShoalTypeError, ShoalValueError
from shoal.hardware import AcceleratorType, visibility_env
from shoal.integers import as_int
from shoal.node_probe.report import NodeReport, fingerprint
from shoal.profiling import (
    ProfileConfig,
    get_profiling_env_vars_for_worker,
    modify_profile_context,
)
from shoal.topology import NodeGroupInfo, NodeInfo
from shoal.tracing import TOKEN_VARIABLE

__all__ = ["AllocateCall", "Allocation", "Start", "allocate", "hooks", "read_arguments", "resolve"]

# `module:function`: called in each worker before the class of the user is loaded, and on each node
# before the kinds of hardware of the user are.
hooks: list[str] = []

_MAX_CONCURRENCY = 2**31 - 1

# Variables that belong to one process or shell, and are not passed to workers.
_NOT_SHARED = frozenset({"_", "OLDPWD", "PWD", "SHLVL", "SHOAL_BACKEND"})
_NOT_SHARED_PREFIXES = ("RAY_", "__RAY")


@dataclass
class Allocation:
    """The arguments of `Cluster.allocate`, whichever signature the caller used.

    Attributes:
        cls: The class to construct.
        worker_name: The actor's name.
        node_rank: The node.
        env_vars: Variables of this worker.
        worker_rank: Its rank; None for the number at the end of its name.
        gpu_id: The accelerator on the node; None or -1 for those that `env_vars` names, if any.
        max_concurrency: Ray's option: how many calls run at once; None for Ray's default.
        node_group_label: The node group whose variables and interpreter apply.
        cls_args: Positional arguments of the class.
        cls_kwargs: Keyword arguments of the class.
        disable_distributed_log: Whether its output is kept out of the job's log folder.
    """

    cls: type
    worker_name: str
    node_rank: int
    env_vars: dict[str, str] = field(default_factory=dict)
    worker_rank: int | None = None
    gpu_id: int | None = None
    max_concurrency: int | None = None
    node_group_label: str = "cluster"
    cls_args: Sequence[Any] = ()
    cls_kwargs: Mapping[str, Any] = field(default_factory=dict)
    disable_distributed_log: bool = False


class AllocateCall(Protocol):
    """The spellings of `Cluster.allocate`."""

    @overload
    def __call__(
        self,
        cls: type,
        worker_name: str,
        worker_rank: int,
        node_rank: int,
        max_concurrency: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        node_group_label: str = "cluster",
        disable_distributed_log: bool = False,
        cls_args: Sequence[Any] | None = None,
        cls_kwargs: Mapping[str, Any] | None = None,
    ) -> Any: ...

    @overload
    def __call__(
        self,
        cls: type,
        worker_name: str,
        node_id: int,
        gpu_id: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        cls_args: Sequence[Any] | None = None,
        cls_kwargs: Mapping[str, Any] | None = None,
    ) -> Any: ...

    @overload
    def __call__(
        self,
        cls: type,
        worker_name: str,
        node_id: int,
        env_vars: Mapping[str, str],
        cls_args: Sequence[Any] | None = None,
        cls_kwargs: Mapping[str, Any] | None = None,
    ) -> Any: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Start an actor of a class on a node; see `Cluster.allocate`."""


# The parameters after `cls, worker_name` in the three signatures that documents and code use.
_TODAY = (
    "worker_rank", "node_rank", "max_concurrency", "env_vars", "node_group_label",
    "disable_distributed_log", "cls_args", "cls_kwargs",
)  # fmt: skip
_WITH_GPU = ("node_id", "gpu_id", "env_vars", "cls_args", "cls_kwargs")
_WITHOUT_GPU = ("node_id", "env_vars", "cls_args", "cls_kwargs")
_RENAMED = {"node_id": "node_rank"}


def read_arguments(
    cls: type, worker_name: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> Allocation:
    """Find the signature of `Cluster.allocate` that a call uses, and name the arguments.

    Raises:
        TypeError: The arguments fit no signature.
        ShoalTypeError: `env_vars` is not a mapping.
    """
    names = _spelling(args, kwargs)
    if len(args) > len(names):
        raise TypeError(f"allocate() takes at most {len(names) + 2} positional arguments here")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names or name in given:
            raise TypeError(
                f"allocate() got {'two values for' if name in given else 'an unexpected argument'} "
                f"{name!r}; expected {', '.join(names)}"
            )
        given[name] = value
    given = {_RENAMED.get(k, k): v for k, v in given.items()}
    if "node_rank" not in given:
        raise TypeError("allocate() misses the argument 'node_rank'")
    for name in ("env_vars", "cls_args", "cls_kwargs"):
        if given.get(name, 0) is None:
            del given[name]
    if not isinstance(given.get("env_vars", {}), Mapping):
        raise ShoalTypeError(f"{worker_name}: env_vars must be a mapping of names to values")
    return Allocation(cls=cls, worker_name=worker_name, **given)


def _spelling(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    if not {"worker_rank", "node_rank", "max_concurrency", "node_group_label"}.isdisjoint(kwargs):
        return _TODAY
    if len(args) > 1 and isinstance(args[1], Mapping):
        return _WITHOUT_GPU
    if "gpu_id" in kwargs or (len(args) > 2 and isinstance(args[2], Mapping)):  # noqa: PLR2004  (node, gpu, variables)
        return _WITH_GPU
    if "node_id" in kwargs or len(args) <= 2:  # noqa: PLR2004  (node, gpu)
        return _WITH_GPU
    return _TODAY


class Start(NamedTuple):
    """A checked allocation.

    Attributes:
        node: The node of the actor.
        group: The node group whose variables and interpreter apply.
        env: The variables of the actor that differ from those of its node.
        profiling_env: The variables of a profiled actor.
        rank: The actor's rank.
    """

    node: NodeInfo
    group: NodeGroupInfo
    env: dict[str, str]
    profiling_env: dict[str, str]
    rank: int


def resolve(job: Job, request: Allocation, reports: Sequence[NodeReport]) -> Start:
    """Check an allocation, and find its node and its environment.

    Raises:
        ShoalValueError: The node, accelerator or node group does not exist.
    """
    node = job.nodes[_checked_node(job, request)]
    calls = request.max_concurrency
    request.max_concurrency = as_int(calls, 1, _MAX_CONCURRENCY)
    if request.max_concurrency is None and calls is not None:
        raise ShoalValueError(f"max_concurrency={calls!r}: expected 1 to {_MAX_CONCURRENCY}")
    group = job.groups.get(str(request.node_group_label))
    if group is None:
        raise ShoalValueError(
            f"no node group {request.node_group_label!r}; known: {', '.join(job.groups)}"
        )
    own = node.default_env_vars
    changed = _changed_here(reports)
    if node.node_rank != current().node_rank:
        changed = {k: v for k, v in changed.items() if not is_own_setting(k, own)}
    group_env = group.get_node_env_vars(node.node_rank)
    before = _laid(own, settings_for(own), changed, group_env)
    worker_env = {k: str(v) for k, v in request.env_vars.items()}
    worker_env = _accelerator_env(node, request, before | worker_env) | worker_env
    profiling = job.config.profiling if job.config is not None else None
    profiling_env = get_profiling_env_vars_for_worker(request.worker_name, profiling)
    after = _laid(before, worker_env, profiling_env)
    env = {k: v for k, v in after.items() if own.get(k) != v}
    env.setdefault("CLUSTER_NAMESPACE", job.namespace)
    env.setdefault("CLUSTER_NODE_RANK", str(node.node_rank))
    env.setdefault("NODE_ID", str(node.node_rank))
    env.setdefault("NODE_GROUP_LABEL", str(request.node_group_label))
    env.setdefault("WORKER_NAME", request.worker_name)
    env.setdefault("RAY_ACTOR", "1")
    if job.trace:
        env[TOKEN_VARIABLE] = job.trace
    # Only the configuration says whether links are emulated, whatever the node's variable says.
    variable = f"SHOAL_{ClusterEnvVar.NET_EMULATION}"
    if emulates_network(job.config):
        env[variable] = "1"
    elif "1" in (after.get(variable), after.get(f"RLINF_{ClusterEnvVar.NET_EMULATION}")):
        env[variable] = "0"
    rank = request.worker_rank
    if rank is None:
        last = request.worker_name.rpartition(":")[2]
        rank = int(last) if last.isdecimal() else 0
    return Start(node, group, env, profiling_env, rank)


def allocate(job: Job, request: Allocation, reports: Sequence[NodeReport]) -> Any:
    """Start the actor, and return its handle without waiting for it.

    Raises:
        ShoalValueError: The node, accelerator or node group does not exist.
        NameTakenError: The name belongs to a live worker.
    """
    node, group, env, profiling_env, rank = resolve(job, request, reports)
    early = {k: v for k, v in env.items() if k in profiling_env or needs_fresh_process(k, v)}
    payload, buffers, refs = pack(request.cls, request.cls_args, request.cls_kwargs)
    spec = LaunchSpec(
        name=request.worker_name,
        rank=rank,
        namespace=job.namespace,
        node_rank=node.node_rank,
        env={k: v for k, v in env.items() if k not in early},
        backend=BACKEND,
        class_name=f"{request.cls.__module__}.{request.cls.__qualname__}",
        payload=payload,
        buffers=buffers,
        versions=own_versions(),
        hooks=(*hooks, *_device_hooks(env)),
        code=shipped_roots(),
        log="" if request.disable_distributed_log else job.log,
        driver_has_torch="torch" in sys.modules,
        max_concurrency=request.max_concurrency,
    )
    options: dict[str, Any] = {
        "name": request.worker_name,
        "namespace": job.namespace,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node.ray_id, soft=False),
    }
    if request.max_concurrency is not None:
        options["max_concurrency"] = request.max_concurrency
    runtime_env: dict[str, Any] = {"env_vars": early} if early else {}
    profiling = job.config.profiling if job.config is not None else None
    interpreter = _interpreter(node, group, request.worker_name, profiling)
    if interpreter:
        runtime_env["py_executable"] = interpreter
    if runtime_env:
        options["runtime_env"] = runtime_env
    try:
        return _actor_class(request.cls).options(**options).remote(spec, *refs)
    except NAME_TAKEN as error:
        raise name_taken(request.worker_name, job.namespace) from error


def name_taken(name: str, namespace: str) -> NameTakenError:
    """Return the error about a name that a live worker has."""
    text = f"the name {name!r} belongs to a worker that is alive in the job {namespace!r}"
    group, is_rank, _ = name.partition(":")
    if not is_rank:
        return NameTakenError(f"{text}; end it first, or choose another name")
    return NameTakenError(
        f"{text}, as one whose constructor failed is, too; close its group first, or choose another "
        f"name. Without a handle: WorkerGroup.from_group_name(cls, {group!r}).close()"
    )


_actor_classes: dict[type, Any] = {}


def _actor_class(cls: type) -> Any:
    # Ray exports each actor class once; creating a class per worker would export it each time.
    made = _actor_classes.get(cls)
    if made is None:
        made = _actor_classes[cls] = ray.remote(host_class(cls))
    return made


def _checked_node(job: Job, request: Allocation) -> int:
    rank = as_int(request.node_rank, 0, len(job.nodes) - 1)
    if rank is None:
        raise ShoalValueError(
            f"{request.worker_name}: node {request.node_rank!r} does not exist; this cluster has nodes 0 to "
            f"{len(job.nodes) - 1}"
        )
    return rank


def _accelerator_env(
    node: NodeInfo, request: Allocation, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that restrict a worker to the devices of its placement or `gpu_id`."""
    gpu = as_int(request.gpu_id, 0, node.num_accelerators - 1)
    env: dict[str, str] = {}
    if request.gpu_id is None or request.gpu_id == -1:
        kind = request.env_vars.get("ACCELERATOR_TYPE")
        visible = request.env_vars.get("VISIBLE_DEVICES")
        if kind is None or visible is None:
            return {}
        ranks = [rank for rank in visible.split(",") if rank]
    elif gpu is None:
        has = f"has {node.num_accelerators}" if node.num_accelerators else "has none"
        raise ShoalValueError(
            f"{request.worker_name}: accelerator {request.gpu_id!r} does not exist; node {node.node_rank} "
            f"{has} (-1 or None asks for none)"
        )
    else:
        kind, ranks = node.accelerator_type, [str(gpu)]
        env = {
            "LOCAL_ACCELERATOR_RANK": str(gpu),
            "GPU_ID": str(gpu),
            "ACCELERATOR_TYPE": kind,
            "ACCELERATOR_MODEL": node.accelerator_model,
            "VISIBLE_DEVICES": str(gpu),
        }
    return env | visibility_env(
        kind, ranks, node.device_names(), egl_ids=node.egl_ids(), environment=environment
    )


def _device_hooks(env: Mapping[str, str]) -> list[str]:
    if env.get("ACCELERATOR_TYPE", AcceleratorType.NO_ACCEL) == AcceleratorType.NO_ACCEL:
        return []  # a plain class without devices needs none of shoal's modules
    return ["shoal.hardware.accelerators:complete_environment"]


def _laid(base: Mapping[str, str], *layers: Mapping[str, str]) -> dict[str, str]:
    """Merge environments: a later one overrides an earlier one; path-like variables merge."""
    env = dict(base)
    for layer in layers:
        env = merge_worker_env_vars(env, layer, merge_mode(env | dict(layer)))
    return env


def _interpreter(
    node: NodeInfo, group: NodeGroupInfo, worker_name: str, profiling: ProfileConfig | None
) -> str | None:
    """Return the shell command that runs a worker; None for the interpreter of Ray's node.

    Raises:
        LaunchError: The worker is to be profiled, but the node does not have the profiler.
    """
    own = group.get_node_python_interpreter_path(node.node_rank)
    if profiling is None or not profiling.profiles_worker_group(worker_name.partition(":")[0]):
        return None if own is None else shlex.quote(own)
    if profiling.backend not in node.profiler_backends:
        raise LaunchError(
            f"{worker_name}: the profiling backend {profiling.backend!r} is not available on node "
            f"{node.node_rank} ({node.hostname}): there is no {profiling.EXECUTABLE!r} on its PATH; "
            "install it there, or leave the group out of cluster.profiling.worker_groups"
        )
    return modify_profile_context(own or node.python_interpreter_path, worker_name, profiling)


def _changed_here(reports: Sequence[NodeReport]) -> dict[str, str]:
    # The driver's variables that its node did not have, or had with other values, when Ray started.
    if not reports:
        return {}
    head = reports[max(0, current().node_rank)]
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_SHARED
        and not name.startswith(_NOT_SHARED_PREFIXES)
        and head.fingerprints.get(name) != fingerprint(value, head.salt)
    }
