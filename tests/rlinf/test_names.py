"""Every name of `rlinf.scheduler`: shoal serves it, or the list of missing names has it.

`NAMES` are the names that its documentation and the code around it import. They were collected
from there, not from shoal's table.
"""

import importlib

import pytest

from shoal.compat.rlinf import TABLE

NAMES = {
    "": """
        AcceleratorUtil AcceleratorType HardwareInfo DOSW1HWInfo DualFrankaHWInfo FrankaHWInfo
        GimArmHWInfo Turtle2HWInfo CollectiveGroupOptions Cluster ClusterConfig ComponentPlacement
        PlacementStrategy FlexiblePlacementStrategy NodePlacementStrategy PackedPlacementStrategy
        Worker WorkerAddress WorkerGroupFuncResult CommMapper split_channel_message build_send_plan
        build_send_key build_recv_plan build_route_channel_key decoupled_build_recv_plan
        get_batch_size get_group_world_size infer_batch_size split_batch merge_batches WorkerInfo
        Channel ChannelWorker WeightedItem Tracer""",
    "cluster": """
        Cluster ClusterEnvVar load_user_extension_module NodeGroupInfo NodeInfo ClusterConfig
        NodeGroupConfig dataclass_arg_check parse_rank_config without_http_proxies""",
    "cluster.cluster": "Cluster ClusterEnvVar PathEnvMergeMode",
    "cluster.config": "ClusterConfig NodeGroupConfig NodeGroupEnvConfig NsightConfig",
    "cluster.node": "NodeGroupInfo NodeInfo NodeProbe",
    "cluster.utils": """
        DistributedRayLogCollector extract_dataclass_tensor_fields
        unflatten_dataclass_tensor_fields dataclass_arg_check parse_rank_config
        load_user_extension_module without_http_proxies""",
    "manager": """
        Manager CollectiveManager CollectiveGroupInfo DeviceLockManager PortLockManager
        NetEmulationManager NetEmulationConfig NodeManager NodeInfo Tracer WorkerAddress
        WorkerManager WorkerInfo""",
    "manager.manager": "Manager ManagerProxy",
    "manager.coll_manager": "CollectiveManager CollectiveGroupInfo",
    "manager.lock_manager": "DeviceLockManager PortLockManager WorkerDeviceLock",
    "manager.net_emulation": "NetEmulationManager NetEmulationConfig",
    "manager.node_manager": "NodeManager",
    "manager.tracer": "Tracer",
    "manager.worker_manager": "WorkerAddress WorkerInfo WorkerManager",
    "placement": """
        FlexiblePlacementStrategy NodePlacementStrategy PackedPlacementStrategy ComponentPlacement
        Placement PlacementStrategy""",
    "placement.flexible": "FlexiblePlacementStrategy",
    "placement.node": "NodePlacementStrategy",
    "placement.packed": "PackedPlacementStrategy",
    "placement.placement": "ComponentPlacement MultiNodeGroupResolver Placement PlacementStrategy",
    "worker": """
        CommMapper DecoupledRouteEntry RouteEntry RoutePlan _build_channel_message
        split_channel_message build_recv_plan build_route_channel_key build_send_key
        build_send_plan decoupled_build_recv_plan decoupled_build_send_plan get_batch_size
        get_group_info get_group_world_size infer_batch_size merge_batches split_batch
        validate_batch_size Worker WorkerAddress WorkerGroup WorkerGroupFunc
        WorkerGroupFuncResult""",
    "worker.lock": "DeviceLock PortLock",
    "worker.routing": "CommMapper RouteEntry RoutePlan split_batch merge_batches",
    "worker.worker": "Worker",
    "worker.worker_group": "WorkerGroup WorkerGroupFunc WorkerGroupFuncResult",
    "channel": "Channel ChannelWorker WeightedItem",
    "channel.channel": "Channel DEFAULT_KEY",
    "channel.channel_worker": "ChannelWorker LocalChannel PeekQueue",
    "collective": """
        AsyncWork AsyncRouteWork AsyncRayWork AsyncChannelCommWork AsyncChannelWork AsyncCollWork
        AsyncFuncWork CollectiveGroup Collective CollectiveGroupOptions""",
    "collective.async_work": "AsyncWork AsyncFuncWork AsyncCollWork AsyncChannelWork",
    "collective.collective": "Collective",
    "collective.collective_group": """
        CollectiveGroup CollectiveGroupOptions CollectiveWorkQueue TensorData""",
    "collective.multi_channel_pg": "MultiChannelProcessGroup",
    "hardware": """
        AcceleratorUtil Accelerator AcceleratorType ProfileConfig Hardware HardwareConfig
        HardwareInfo HardwareResource NodeHardwareConfig DOSW1HWConfig DOSW1HWInfo
        DualFrankaConfig DualFrankaHWInfo FrankaConfig FrankaHWInfo GimArmConfig GimArmHWInfo
        RobotAutoConfig Turtle2Config Turtle2HWInfo""",
    "hardware.hardware": """
        Hardware HardwareConfig HardwareInfo HardwareResource NodeHardwareConfig""",
    "hardware.accelerators": """
        AcceleratorManager AMDGPUManager RocprofSysConfig AscendNPUManager IntelGPUManager
        NvidiaGPUManager NsightConfig MUSAGPUManager KunlunXPUManager AcceleratorUtil
        AcceleratorType""",
    "hardware.robots": "FrankaConfig FrankaHWInfo RobotAutoConfig",
    "dynamic_scheduler": "",
    "dynamic_scheduler.manager": """
        ComponentManager RolloutManager InferenceManager ActorManager create_component_manager
        RolloutScalingScheduler""",
    "dynamic_scheduler.scheduler_worker": "SchedulerWorker",
    "dynamic_scheduler.utils": """
        RolloutAction RolloutReport RolloutScheduleInfo get_scheduler_channel
        get_scheduler_request_queue get_scheduler_response_queue get_valid_dp_sizes
        get_global_scheduer_state set_global_scheduer_state""",
}

# Names that shoal does not have yet. A name that shoal has fails a test: remove it here.
_MISSING_BY_PART = {
    "communication": """
        AsyncChannelCommWork PeekQueue""",
}
MISSING = {name for names in _MISSING_BY_PART.values() for name in names.split()}

EXPECTED = {
    f"rlinf.scheduler.{module}".rstrip("."): set(names.split()) for module, names in NAMES.items()
}


def test_exactly_the_known_modules_are_served():
    assert set(TABLE) == set(EXPECTED)


@pytest.mark.parametrize("module", EXPECTED)
def test_module_has_every_name_that_is_not_listed_as_missing(rlinf_served, module):
    served = importlib.import_module(module)
    found = {name for name in EXPECTED[module] if hasattr(served, name)}
    assert found == EXPECTED[module] - MISSING
    assert found <= set(dir(served))


def test_list_of_missing_names_holds_nothing_else():
    assert set().union(*EXPECTED.values()) >= MISSING


@pytest.mark.parametrize("module", TABLE)
def test_rows_give_the_objects_of_shoal_that_have_these_names(rlinf_served, module):
    for name, home in TABLE[module].items():
        ours, _, attribute = home.partition(":")
        assert attribute == name
        value = getattr(importlib.import_module(module), name)
        assert value is getattr(importlib.import_module(ours), name)
        assert getattr(value, "__name__", name) == name
