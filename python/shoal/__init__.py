"""shoal: place, launch and connect fleets of Python workers on a Ray cluster.

Importing this package imports only the standard library; each public name loads its module when it
is first used.
"""

import importlib
import importlib.metadata
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal._backend import Placement, WorkerAddress, backend
    from shoal.channel import Channel, ChannelWorker, WeightedItem
    from shoal.cluster import Cluster, ClusterEnvVar, NodeGroupInfo, NodeInfo
    from shoal.collective import CollectiveGroupOptions
    from shoal.config import ClusterConfig
    from shoal.hardware import (
        AcceleratorType,
        AcceleratorUtil,
        DOSW1HWInfo,
        DualFrankaHWInfo,
        FrankaHWInfo,
        GimArmHWInfo,
        HardwareInfo,
        Turtle2HWInfo,
    )
    from shoal.manager import WorkerInfo
    from shoal.placement import (
        ComponentPlacement,
        FlexiblePlacementStrategy,
        NodePlacementStrategy,
        PackedPlacementStrategy,
        PlacementStrategy,
    )
    from shoal.planner import plan
    from shoal.tracing import Tracer
    from shoal.weights import Weights
    from shoal.worker import (
        CommMapper,
        Worker,
        WorkerGroup,
        WorkerGroupFuncResult,
        build_recv_plan,
        build_route_channel_key,
        build_send_key,
        build_send_plan,
        decoupled_build_recv_plan,
        get_batch_size,
        get_group_world_size,
        infer_batch_size,
        merge_batches,
        split_batch,
        split_channel_message,
    )

_OLDEST_RAY = (2, 47)


def _ray_is_wrong(state: str) -> Exception:
    oldest = ".".join(map(str, _OLDEST_RAY))
    error: Exception = importlib.import_module("shoal.errors").DependencyError(
        f'shoal needs ray {oldest} or newer, and {state} here; run: pip install "ray>={oldest}"'
    )
    return error


def _check_ray() -> None:
    # Read the installed package's metadata: importing Ray itself takes a second.
    try:
        found = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return  # `shoal.shm` and `shoal.plan` work without Ray; the other names raise when used
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < _OLDEST_RAY:
        raise _ray_is_wrong(f"ray {found} is installed")


_check_ray()


def _report_waits() -> None:
    hooks = importlib.import_module("shoal.long_wait_hooks")
    hooks.annotate_waits("shoal.observe.long_waits:describe_others")
    hooks.report_hangs("shoal.observe.long_waits:report_job")


_report_waits()

_NAMES = {
    "shoal._backend": "Placement WorkerAddress backend",
    "shoal.channel": "Channel ChannelWorker WeightedItem",
    "shoal.cluster": "Cluster ClusterEnvVar NodeGroupInfo NodeInfo",
    "shoal.collective": "CollectiveGroupOptions",
    "shoal.config": "ClusterConfig",
    "shoal.hardware": (
        "AcceleratorType AcceleratorUtil DOSW1HWInfo DualFrankaHWInfo FrankaHWInfo GimArmHWInfo"
        " HardwareInfo Turtle2HWInfo"
    ),
    "shoal.manager": "WorkerInfo",
    "shoal.placement": (
        "ComponentPlacement FlexiblePlacementStrategy NodePlacementStrategy"
        " PackedPlacementStrategy PlacementStrategy"
    ),
    "shoal.planner": "plan",
    "shoal.tracing": "Tracer",
    "shoal.weights": "Weights",
    "shoal.worker": (
        "CommMapper Worker WorkerGroup WorkerGroupFuncResult build_recv_plan"
        " build_route_channel_key build_send_key build_send_plan decoupled_build_recv_plan"
        " get_batch_size get_group_world_size infer_batch_size merge_batches split_batch"
        " split_channel_message"
    ),
}
_EXPORTS = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AcceleratorType",
    "AcceleratorUtil",
    "Channel",
    "ChannelWorker",
    "Cluster",
    "ClusterConfig",
    "ClusterEnvVar",
    "CollectiveGroupOptions",
    "CommMapper",
    "ComponentPlacement",
    "DOSW1HWInfo",
    "DualFrankaHWInfo",
    "FlexiblePlacementStrategy",
    "FrankaHWInfo",
    "GimArmHWInfo",
    "HardwareInfo",
    "NodeGroupInfo",
    "NodeInfo",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "Placement",
    "PlacementStrategy",
    "Tracer",
    "Turtle2HWInfo",
    "WeightedItem",
    "Weights",
    "Worker",
    "WorkerAddress",
    "WorkerGroup",
    "WorkerGroupFuncResult",
    "WorkerInfo",
    "backend",
    "build_recv_plan",
    "build_route_channel_key",
    "build_send_key",
    "build_send_plan",
    "decoupled_build_recv_plan",
    "get_batch_size",
    "get_group_world_size",
    "infer_batch_size",
    "merge_batches",
    "plan",
    "split_batch",
    "split_channel_message",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("shoal")
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise _ray_is_wrong("ray is not installed") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
