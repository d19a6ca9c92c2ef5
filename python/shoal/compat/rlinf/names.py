"""The names of `rlinf.scheduler`, and the modules of shoal that define them.

`TABLE` combines two lists: the names in each old module, and the old names in each module of shoal.
A name is the same on both sides, except in `_RENAMED`. A name that no module of shoal defines is
refused for a reason, which the error about it gives.

The known uses of `rlinf.scheduler` name the modules of three vendors. The modules of the others are
named in the same way after their classes.
"""

__all__ = ["OFFERED", "REFUSED", "REFUSED_MEMBERS", "TABLE"]

_ACCELERATOR = "Accelerator AcceleratorType AcceleratorUtil"
_HARDWARE = "Hardware HardwareConfig HardwareInfo HardwareResource NodeHardwareConfig"
_ROBOT_INFO = "DOSW1HWInfo DualFrankaHWInfo FrankaHWInfo GimArmHWInfo Turtle2HWInfo"
_ROBOTS = (
    f"{_ROBOT_INFO} DOSW1HWConfig DualFrankaConfig FrankaConfig GimArmConfig RobotAutoConfig"
    " Turtle2Config"
)
_STRATEGIES = (
    "FlexiblePlacementStrategy NodePlacementStrategy PackedPlacementStrategy PlacementStrategy"
)
_ROUTING = (
    "CommMapper build_recv_plan build_route_channel_key build_send_key build_send_plan"
    " decoupled_build_recv_plan get_batch_size get_group_world_size infer_batch_size merge_batches"
    " split_batch split_channel_message"
)
_ALL_ROUTING = (
    f"{_ROUTING} DecoupledRouteEntry RouteEntry RoutePlan _build_channel_message"
    " decoupled_build_send_plan get_group_info validate_batch_size"
)
_ROUTING_KEYS = "ROUTING_DEFAULT_TAG ROUTING_KEY_PREFIX normalize_route_key normalize_route_tag"
_ASYNC_WORK = (
    "AsyncChannelCommWork AsyncChannelWork AsyncCollWork AsyncFuncWork AsyncRayWork AsyncRouteWork"
    " AsyncWork"
)
_CLUSTER_UTILS = "dataclass_arg_check load_user_extension_module without_http_proxies"
_TENSOR_FIELDS = "extract_dataclass_tensor_fields unflatten_dataclass_tensor_fields"
_NET_EMULATION = "NetEmulationConfig NetEmulationManager"
_WORKER_INFO = "WorkerAddress WorkerInfo"
_GROUP = "WorkerGroup WorkerGroupFunc WorkerGroupFuncResult"

_OLD_MODULES = {
    "rlinf.scheduler": (
        f"{_STRATEGIES} {_ROBOT_INFO} {_ROUTING} {_WORKER_INFO} AcceleratorType AcceleratorUtil"
        " Channel ChannelWorker Cluster ClusterConfig CollectiveGroupOptions ComponentPlacement"
        " HardwareInfo Tracer WeightedItem Worker WorkerGroupFuncResult"
    ),
    "rlinf.scheduler.channel": "Channel ChannelWorker WeightedItem",
    "rlinf.scheduler.channel.channel": "DEFAULT_KEY Channel WeightedItem",
    "rlinf.scheduler.channel.channel_worker": ("ChannelWorker LocalChannel PeekQueue WeightedItem"),
    "rlinf.scheduler.cluster": (
        f"{_CLUSTER_UTILS} Cluster ClusterConfig ClusterEnvVar NodeGroupConfig NodeGroupInfo"
        " NodeInfo parse_rank_config"
    ),
    "rlinf.scheduler.cluster.cluster": "Cluster ClusterEnvVar PathEnvMergeMode",
    "rlinf.scheduler.cluster.config": (
        "ClusterConfig NodeGroupConfig NodeGroupEnvConfig NsightConfig"
    ),
    "rlinf.scheduler.cluster.node": "NodeGroupInfo NodeInfo NodeProbe",
    "rlinf.scheduler.cluster.utils": (
        f"{_CLUSTER_UTILS} {_TENSOR_FIELDS} DistributedRayLogCollector parse_rank_config"
    ),
    "rlinf.scheduler.collective": (
        f"{_ASYNC_WORK} Collective CollectiveGroup CollectiveGroupOptions"
    ),
    "rlinf.scheduler.collective.async_work": _ASYNC_WORK,
    "rlinf.scheduler.collective.collective": "Collective",
    "rlinf.scheduler.collective.collective_group": (
        "CollectiveGroup CollectiveGroupOptions CollectiveWorkQueue TensorData"
    ),
    "rlinf.scheduler.collective.multi_channel_pg": "MultiChannelProcessGroup",
    "rlinf.scheduler.dynamic_scheduler": "",
    "rlinf.scheduler.dynamic_scheduler.manager": (
        "ActorManager ComponentManager InferenceManager RolloutManager RolloutScalingScheduler"
        " create_component_manager"
    ),
    "rlinf.scheduler.dynamic_scheduler.scheduler_worker": "SchedulerWorker",
    "rlinf.scheduler.dynamic_scheduler.utils": (
        "DynamicSchedulerState RolloutAction RolloutReport RolloutScheduleInfo"
        " get_global_scheduer_state get_scheduler_channel get_scheduler_request_queue get_scheduler_response_queue"
        " get_valid_dp_sizes set_global_scheduer_state"
    ),
    "rlinf.scheduler.hardware": f"{_ACCELERATOR} {_HARDWARE} {_ROBOTS} ProfileConfig",
    "rlinf.scheduler.hardware.accelerators": (
        f"{_ACCELERATOR} AMDGPUManager AcceleratorManager AscendNPUManager IntelGPUManager"
        " KunlunXPUManager MUSAGPUManager NsightConfig NvidiaGPUManager ProfileConfig"
        " RocprofSysConfig"
    ),
    "rlinf.scheduler.hardware.accelerators.accelerator": f"{_ACCELERATOR} AcceleratorManager",
    "rlinf.scheduler.hardware.accelerators.amd_gpu": "AMDGPUManager RocprofSysConfig",
    "rlinf.scheduler.hardware.accelerators.ascend_npu": "AscendNPUManager",
    "rlinf.scheduler.hardware.accelerators.intel_gpu": "IntelGPUManager",
    "rlinf.scheduler.hardware.accelerators.kunlun_xpu": "KunlunXPUManager",
    "rlinf.scheduler.hardware.accelerators.musa_gpu": "MUSAGPUManager",
    "rlinf.scheduler.hardware.accelerators.nvidia_gpu": (
        "EGL_DEVICE_ID_ENV_VARS NsightConfig NvidiaGPUManager _egl_index_by_cuda_device"
        " _nv_profiling_active"
    ),
    "rlinf.scheduler.hardware.hardware": _HARDWARE,
    "rlinf.scheduler.hardware.robots": _ROBOTS,
    "rlinf.scheduler.hardware.robots.auto_config": "RobotAutoConfig",
    "rlinf.scheduler.hardware.robots.dosw1": "DOSW1HWConfig DOSW1HWInfo DOSW1Robot",
    "rlinf.scheduler.hardware.robots.dual_franka": (
        "DualFrankaConfig DualFrankaHWInfo DualFrankaRobot"
    ),
    "rlinf.scheduler.hardware.robots.franka": "FrankaConfig FrankaHWInfo FrankaRobot",
    "rlinf.scheduler.hardware.robots.gim_arm": "GimArmConfig GimArmHWInfo GimArmRobot",
    "rlinf.scheduler.hardware.robots.xsquare": "Turtle2Config Turtle2HWInfo",
    "rlinf.scheduler.manager": (
        f"{_WORKER_INFO} {_NET_EMULATION} CollectiveGroupInfo CollectiveManager DeviceLockManager"
        " Manager NodeInfo NodeManager PortLockManager Tracer WorkerManager"
    ),
    "rlinf.scheduler.manager.coll_manager": "CollectiveGroupInfo CollectiveManager",
    "rlinf.scheduler.manager.lock_manager": ("DeviceLockManager PortLockManager WorkerDeviceLock"),
    "rlinf.scheduler.manager.manager": "Manager ManagerProxy",
    "rlinf.scheduler.manager.net_emulation": f"{_NET_EMULATION} BandwidthGroup CrossDCPair",
    "rlinf.scheduler.manager.node_manager": "NodeInfo NodeManager",
    "rlinf.scheduler.manager.tracer": "Tracer",
    "rlinf.scheduler.manager.worker_manager": f"{_WORKER_INFO} WorkerManager WorkerNode",
    "rlinf.scheduler.placement": f"{_STRATEGIES} ComponentPlacement Placement",
    "rlinf.scheduler.placement.flexible": "FlexiblePlacementStrategy",
    "rlinf.scheduler.placement.node": "NodePlacementStrategy",
    "rlinf.scheduler.placement.packed": "PackedPlacementStrategy",
    "rlinf.scheduler.placement.placement": (
        "ComponentPlacement MultiNodeGroupResolver Placement PlacementStrategy"
    ),
    "rlinf.scheduler.worker": f"{_ALL_ROUTING} {_GROUP} Worker WorkerAddress",
    "rlinf.scheduler.worker.lock": "DeviceLock PortLock",
    "rlinf.scheduler.worker.routing": f"{_ALL_ROUTING} {_ROUTING_KEYS}",
    "rlinf.scheduler.worker.worker": f"{_WORKER_INFO} Worker WorkerMeta",
    "rlinf.scheduler.worker.worker_group": _GROUP,
}

_OURS = {
    "shoal": "WorkerAddress",
    "shoal.channel": "Channel ChannelWorker DEFAULT_KEY LocalChannel WeightedItem",
    "shoal.cluster": (
        "Cluster ClusterEnvVar DistributedRayLogCollector NodeGroupInfo NodeInfo NodeProbe"
        " PathEnvMergeMode load_user_extension_module without_http_proxies"
    ),
    "shoal.collective": (
        "AsyncChannelWork AsyncCollWork AsyncFuncWork AsyncRayWork AsyncRouteWork AsyncWork"
        " Collective CollectiveGroup CollectiveGroupOptions CollectiveWorkQueue"
        f" TensorData {_TENSOR_FIELDS}"
    ),
    "shoal.compat.rlinf.multi_channel_pg": "MultiChannelProcessGroup",
    "shoal.config": (
        "ClusterConfig NodeGroupConfig NodeGroupEnvConfig dataclass_arg_check parse_rank_config"
    ),
    "shoal.dynamic_scheduler": (
        "ActorManager ComponentManager InferenceManager RolloutAction RolloutManager RolloutReport"
        " RolloutScalingScheduler RolloutScheduleInfo SchedulerWorker create_component_manager"
        " get_global_scheduer_state get_scheduler_channel get_scheduler_request_queue"
        " get_scheduler_response_queue get_valid_dp_sizes set_global_scheduer_state"
    ),
    "shoal.hardware": f"{_ACCELERATOR} {_HARDWARE} {_ROBOTS}",
    "shoal.hardware.accelerators": (
        "AMDGPUManager AcceleratorManager AscendNPUManager IntelGPUManager KunlunXPUManager"
        " MUSAGPUManager NvidiaGPUManager"
    ),
    "shoal.hardware.accelerators.nvidia": "EGL_DEVICE_ID_ENV_VARS",
    "shoal.profiling": "NsightConfig ProfileConfig RocprofSysConfig",
    "shoal.manager": (
        "CollectiveGroupInfo CollectiveManager DeviceLockManager Manager ManagerProxy NodeManager"
        " PortLockManager WorkerInfo WorkerManager"
    ),
    "shoal.manager.lock_manager": "WorkerDeviceLock",
    "shoal.net_emulation": "BandwidthGroup CrossDCPair NetEmulationConfig NetEmulationManager",
    "shoal.placement": f"{_STRATEGIES} ComponentPlacement MultiNodeGroupResolver Placement",
    "shoal.tracing": "Tracer",
    "shoal.worker": f"{_GROUP} Worker",
    "shoal.worker.lock": "DeviceLock PortLock",
    "shoal.worker.meta": "WorkerMeta",
    "shoal.worker.routing": f"{_ALL_ROUTING} {_ROUTING_KEYS}",
}

_RENAMED = {
    "AsyncChannelCommWork": "shoal.collective:AsyncChannelWork",
    "DOSW1Robot": "shoal.hardware.robots:DOSW1",
    "DualFrankaRobot": "shoal.hardware.robots:DualFranka",
    "DynamicSchedulerState": "shoal.dynamic_scheduler:SchedulerState",
    "FrankaRobot": "shoal.hardware.robots:Franka",
    "GimArmRobot": "shoal.hardware.robots:GimArm",
}

OFFERED: dict[str, frozenset[str]] = {
    module: frozenset(names.split()) for module, names in _OLD_MODULES.items()
}
"""All names of each old module, including those that shoal does not have."""

_HOMES = _RENAMED | {
    name: f"{module}:{name}" for module, names in _OURS.items() for name in names.split()
}

TABLE: dict[str, dict[str, str]] = {
    module: {name: _HOMES[name] for name in sorted(names) if name in _HOMES}
    for module, names in OFFERED.items()
}
"""The names that shoal has, and their modules in it: {old module: {name: "module:name"}}."""

REFUSED = {
    "ClsType": "it is a variable of RLinf's own annotations; use typing.TypeVar",
    "DataclassProtocol": (
        "it is a type of RLinf's own annotations; use dataclasses.is_dataclass(obj)"
    ),
    "DataclassTensorFieldsMetadata": (
        "it is a type of RLinf's own annotations; use a dict, which extract_dataclass_tensor_fields"
        " returns"
    ),
    "HardwareType": "shoal knows kinds of hardware by their names; use Hardware.HW_TYPE",
    "HiddenWorkerGroupFunc": (
        "it is private to RLinf's WorkerGroup; use WorkerGroupFunc for a method of a group"
    ),
    "ManagerClsType": "it is a variable of RLinf's own annotations; use type[Manager]",
    "PeekQueue": (
        "it is the queue within RLinf's channel actor; use Channel.peek_all(key) to look into a"
        " channel, or Channel.create(name, local=True) for a queue within one process"
    ),
    "StridedPlacementStrategy": (
        "its argument is part of another strategy; use PackedPlacementStrategy(..., stride=n)"
    ),
    "TensorFieldValue": (
        "it is a type of RLinf's own annotations; use torch.Tensor, or a list, tuple or dict of them"
    ),
    "WorkerClsType": "it is a variable of RLinf's own annotations; use type[Worker]",
    "WorkerNode": (
        "it is how RLinf's WorkerManager stores workers; use WorkerManager.get_worker_info(address)"
    ),
    "_egl_index_by_cuda_device": (
        "it is private to RLinf; use the variable EGL_DEVICE_ID, which every worker with a GPU has"
    ),
    "_nv_profiling_active": ("it is private to RLinf; use NvidiaGPUManager.is_profiling_active()"),
}
"""Names that shoal does not have on purpose: the reason, and what to use."""

REFUSED_MEMBERS = {
    "Cluster.TIMEOUT_WARN_TIME": (
        "waits have deadlines, and are logged after 10 s; use timeout= or SHOAL_TIMEOUT"
    ),
    "Cluster._run_failed": (
        "the driver keeps its own exit code; use SHOAL_ON_FAILURE to choose what a failure does"
    ),
    "NvidiaGPUManager.get_egl_device_id": (
        "each node is asked for its EGL indices once; use the variable EGL_DEVICE_ID, which every"
        " worker with a GPU has"
    ),
}
"""Members of classes in `TABLE` that shoal does not have on purpose, with the reason."""
