"""Starts one process of a user's class on a node."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._backend import NAME as BACKEND
from shoal._ray import NAME_TAKEN
from shoal.bootstrap.host import LaunchSpec, host_class, own_versions, pack
from shoal.bootstrap.probe import NodeReport, fingerprint
from shoal.cluster.env import merge_mode, merge_worker_env_vars, needs_fresh_process
from shoal.cluster.job import Job
from shoal.context import current
from shoal.errors import NameTakenError, ShoalValueError
from shoal.hardware import visibility_env

__all__ = ["Allocation", "allocate", "hooks", "read_arguments"]

# Called in each worker before the user's class is loaded, as `module:function`.
hooks: list[str] = []

_MAX_CONCURRENCY = 2**31 - 1

# Variables of one process or one shell, which say nothing to another.
_NOT_SHARED = frozenset({"_", "OLDPWD", "PWD", "SHLVL", "SHOAL_BACKEND"})
_NOT_SHARED_PREFIXES = ("RAY_", "__RAY")


@dataclass
class Allocation:
    """The arguments of `Cluster.allocate`, whichever spelling they came in.

    Attributes:
        cls: The class to construct.
        worker_name: The actor's name.
        node_rank: The node.
        env_vars: Variables of this worker.
        worker_rank: Its rank; taken from the name's last part where it is not given.
        gpu_id: The accelerator on the node; None where `env_vars` says, -1 for none.
        max_concurrency: How many calls run at once, as Ray understands it; None for its default.
        node_group_label: The group whose variables and interpreter hold.
        cls_args: Positional arguments of the class.
        cls_kwargs: Keyword arguments of the class.
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


# The parameters after `cls, worker_name` in the three spellings that documents and code use.
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
    """Tell the spellings of `Cluster.allocate` apart, and name the arguments.

    Raises:
        TypeError: The arguments fit none of them.
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
    given.pop("disable_distributed_log", None)
    given = {_RENAMED.get(k, k): v for k, v in given.items()}
    if "node_rank" not in given:
        raise TypeError("allocate() misses the argument 'node_rank'")
    for name in ("env_vars", "cls_args", "cls_kwargs"):
        if given.get(name, 0) is None:
            del given[name]
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


def allocate(job: Job, request: Allocation, reports: Sequence[NodeReport]) -> Any:
    """Start the process; returns the actor's handle without waiting for it.

    Raises:
        ShoalValueError: There is no such node, accelerator or node group.
        NameTakenError: The name belongs to somebody who is alive.
    """
    node = job.nodes[_checked_node(job, request)]
    if request.max_concurrency is not None and not 1 <= request.max_concurrency <= _MAX_CONCURRENCY:
        raise ShoalValueError(
            f"max_concurrency={request.max_concurrency!r}: expected 1 to {_MAX_CONCURRENCY}"
        )
    group = job.groups.get(str(request.node_group_label))
    if group is None:
        raise ShoalValueError(
            f"no node group {request.node_group_label!r}; known: {', '.join(job.groups)}"
        )
    worker_env = _accelerator_env(job, request) | {k: str(v) for k, v in request.env_vars.items()}
    env = _environment(
        node.default_env_vars, reports, group.get_node_env_vars(node.node_rank), worker_env
    )
    env.setdefault("CLUSTER_NAMESPACE", job.namespace)
    env.setdefault("CLUSTER_NODE_RANK", str(node.node_rank))
    env.setdefault("NODE_ID", str(node.node_rank))
    env.setdefault("NODE_GROUP_LABEL", str(request.node_group_label))
    env.setdefault("WORKER_NAME", request.worker_name)
    env.setdefault("RAY_ACTOR", "1")
    payload, refs = pack(request.cls, list(request.cls_args), dict(request.cls_kwargs))
    rank = request.worker_rank
    if rank is None:
        last = request.worker_name.rpartition(":")[2]
        rank = int(last) if last.isdecimal() else 0
    spec = LaunchSpec(
        name=request.worker_name,
        rank=rank,
        namespace=job.namespace,
        node_rank=node.node_rank,
        env={k: v for k, v in env.items() if not needs_fresh_process(k)},
        backend=BACKEND,
        class_name=f"{request.cls.__module__}.{request.cls.__qualname__}",
        payload=payload,
        versions=own_versions(),
        hooks=tuple(hooks),
    )
    options: dict[str, Any] = {
        "name": request.worker_name,
        "namespace": job.namespace,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node.ray_id, soft=False),
    }
    if request.max_concurrency is not None:
        options["max_concurrency"] = request.max_concurrency
    runtime_env = _runtime_env(env, group.get_node_python_interpreter_path(node.node_rank))
    if runtime_env:
        options["runtime_env"] = runtime_env
    try:
        return _actor_class(request.cls).options(**options).remote(spec, *refs)
    except NAME_TAKEN as error:
        raise NameTakenError(
            f"the name {request.worker_name!r} belongs to a worker that is alive in the job "
            f"{job.namespace!r}; close its group first, or choose another name"
        ) from error


_actor_classes: dict[type, Any] = {}


def _actor_class(cls: type) -> Any:
    # Ray exports an actor class once; making it anew for each worker would export it each time.
    made = _actor_classes.get(cls)
    if made is None:
        made = _actor_classes[cls] = ray.remote(host_class(cls))
    return made


def _checked_node(job: Job, request: Allocation) -> int:
    rank: Any = request.node_rank  # typed, but it comes from a user
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < len(job.nodes):
        raise ShoalValueError(
            f"{request.worker_name}: node {rank!r} does not exist; this cluster has nodes 0 to "
            f"{len(job.nodes) - 1}"
        )
    return rank


def _accelerator_env(job: Job, request: Allocation) -> dict[str, str]:
    gpu: Any = request.gpu_id  # typed, but it comes from a user
    if gpu is None or gpu == -1:
        return {}
    node = job.nodes[request.node_rank]
    if isinstance(gpu, bool) or not isinstance(gpu, int) or not 0 <= gpu < node.num_accelerators:
        has = f"has {node.num_accelerators}" if node.num_accelerators else "has none"
        raise ShoalValueError(
            f"{request.worker_name}: accelerator {gpu!r} does not exist; node {node.node_rank} "
            f"{has} (-1 or None asks for none)"
        )
    return {
        "LOCAL_ACCELERATOR_RANK": str(gpu),
        "GPU_ID": str(gpu),
        **visibility_env(node.accelerator_type, [str(gpu)], node.device_names()),
    }


def _environment(
    node_own: Mapping[str, str],
    reports: Sequence[NodeReport],
    configured: Mapping[str, str],
    worker_env: Mapping[str, str],
) -> dict[str, str]:
    """Lay the sources over each other, later ones winning, and return what must be set."""
    env = dict(node_own)
    for layer in (_changed_here(reports), configured, worker_env):
        mode = merge_mode(env | dict(layer))
        env = merge_worker_env_vars(env, layer, mode)
    return {k: v for k, v in env.items() if node_own.get(k) != v}


def _changed_here(reports: Sequence[NodeReport]) -> dict[str, str]:
    # What this driver's environment has and that of its node, when Ray started there, had not.
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


def _runtime_env(env: Mapping[str, str], interpreter: str | None) -> dict[str, Any]:
    early = {k: v for k, v in env.items() if needs_fresh_process(k)}
    made: dict[str, Any] = {"env_vars": early} if early else {}
    if interpreter:
        made["py_executable"] = interpreter
    return made
