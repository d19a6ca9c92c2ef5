"""Every name of `rlinf.scheduler`: shoal serves it, or refuses it with a reason.

`NAMES` are the names that its documentation and the code around it import. `names.json` has what
programs for RLinf import (`imports`), the members of its classes and objects that they use
(`members`), and those that its documentation names (`documented`). All were collected from there, not
from shoal's table.
"""

import importlib
import inspect
import json
from pathlib import Path

import pytest

import shoal
from shoal import Channel, ComponentPlacement, NodePlacementStrategy, Worker, WorkerAddress
from shoal.compat.rlinf import TABLE
from shoal.compat.rlinf.listing import State, as_markdown, entries
from shoal.compat.rlinf.names import REFUSED, REFUSED_MEMBERS
from shoal.testing import local_cluster

USES = json.loads((Path(__file__).parent / "names.json").read_text(encoding="utf-8"))

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
    "manager.net_emulation": "NetEmulationManager NetEmulationConfig BandwidthGroup CrossDCPair",
    "manager.node_manager": "NodeManager",
    "manager.tracer": "Tracer",
    "manager.worker_manager": "WorkerAddress WorkerInfo WorkerManager WorkerNode",
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
    "worker.routing": """
        CommMapper DecoupledRouteEntry RouteEntry RoutePlan _build_channel_message
        split_channel_message build_recv_plan build_route_channel_key build_send_key
        build_send_plan decoupled_build_recv_plan decoupled_build_send_plan get_batch_size
        get_group_info get_group_world_size infer_batch_size merge_batches split_batch
        validate_batch_size ROUTING_KEY_PREFIX ROUTING_DEFAULT_TAG normalize_route_tag
        normalize_route_key""",
    "worker.worker": "Worker WorkerMeta",
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
    "hardware.accelerators.accelerator": "Accelerator AcceleratorManager AcceleratorType",
    "hardware.accelerators.amd_gpu": "AMDGPUManager RocprofSysConfig",
    "hardware.accelerators.ascend_npu": "AscendNPUManager",
    "hardware.accelerators.intel_gpu": "IntelGPUManager",
    "hardware.accelerators.kunlun_xpu": "KunlunXPUManager",
    "hardware.accelerators.musa_gpu": "MUSAGPUManager",
    "hardware.accelerators.nvidia_gpu": "NvidiaGPUManager NsightConfig",
    "hardware.robots": "FrankaConfig FrankaHWInfo RobotAutoConfig",
    "hardware.robots.auto_config": "RobotAutoConfig",
    "hardware.robots.dosw1": "DOSW1HWConfig DOSW1HWInfo DOSW1Robot",
    "hardware.robots.dual_franka": "DualFrankaConfig DualFrankaHWInfo DualFrankaRobot",
    "hardware.robots.franka": "FrankaConfig FrankaHWInfo FrankaRobot",
    "hardware.robots.gim_arm": "GimArmConfig GimArmHWInfo GimArmRobot",
    "hardware.robots.xsquare": "Turtle2Config Turtle2HWInfo",
    "dynamic_scheduler": "",
    "dynamic_scheduler.manager": """
        ComponentManager RolloutManager InferenceManager ActorManager create_component_manager
        RolloutScalingScheduler""",
    "dynamic_scheduler.scheduler_worker": "SchedulerWorker",
    "dynamic_scheduler.utils": """
        DynamicSchedulerState RolloutAction RolloutReport RolloutScheduleInfo get_scheduler_channel
        get_scheduler_request_queue get_scheduler_response_queue get_valid_dp_sizes
        get_global_scheduer_state set_global_scheduer_state""",
}

# Types of the annotations within RLinf, and what is private to its classes: the modules vary.
PRIVATE = """
    ClsType DataclassProtocol DataclassTensorFieldsMetadata HardwareType HiddenWorkerGroupFunc
    ManagerClsType TensorFieldValue WorkerClsType"""

# The keywords by which programs pass arguments, where they are easily given other names.
KEYWORDS = {
    "AcceleratorManager.register_manager": "accelerator_type",
    "CollectiveManager.register_collective_group": "group_info",
    "CollectiveManager.set_master_port_info": "master_port",
    "MultiNodeGroupResolver.get_hardware_type_for_rank": "global_hw_rank",
    "MultiNodeGroupResolver.get_local_hardware_rank": "global_hw_rank",
    "MultiNodeGroupResolver.get_node_by_hardware_rank": "global_hw_rank",
    "MultiNodeGroupResolver.get_node_group": "global_hw_rank",
    "MultiNodeGroupResolver.get_node_group_label": "global_hw_rank",
    "NodeGroupInfo.get_local_hardware_rank": "hardware_rank",
    "NodeGroupInfo.get_node_by_hardware_rank": "hardware_rank",
    "WorkerAddress.from_name": "worker_name",
    "create_component_manager": "component_manager_kwargs",
    "normalize_route_key": "route_key",
    "set_global_scheduer_state": "cfg total_gpus component_managers",
    "split_channel_message": "channel_message",
    "unflatten_dataclass_tensor_fields": "flat_tensors",
}

EXPECTED = {
    f"rlinf.scheduler.{module}".rstrip("."): set(names.split()) for module, names in NAMES.items()
}
for _module, _names in USES["imports"].items():
    EXPECTED[_module] |= set(_names)

HOMES = {name: home for names in TABLE.values() for name, home in names.items()}


def ours(home):
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(module), name)


def test_exactly_the_known_modules_are_served():
    assert set(TABLE) == set(EXPECTED)


@pytest.mark.parametrize("module", EXPECTED)
def test_module_has_every_name_that_is_not_refused(rlinf_served, module):
    served = importlib.import_module(module)
    found = {name for name in EXPECTED[module] if hasattr(served, name)}
    assert found == EXPECTED[module] - set(REFUSED)
    assert found <= set(dir(served))


def test_names_without_a_known_module_are_refused_in_any(rlinf_served):
    for name in PRIVATE.split():
        for module in ("rlinf.scheduler", "rlinf.scheduler.worker.worker_group"):
            with pytest.raises(ImportError) as caught:
                exec(f"from {module} import {name}", {})
            assert REFUSED[name] in str(caught.value)


@pytest.mark.parametrize("function", KEYWORDS)
def test_arguments_have_the_keywords_that_programs_use(function):
    name, *members = function.split(".")
    found = ours(HOMES[name])
    for member in members:
        found = getattr(found, member)
    assert set(KEYWORDS[function].split()) <= set(inspect.signature(found).parameters)


@pytest.mark.parametrize("module", TABLE)
def test_rows_give_the_objects_of_shoal_that_have_these_names(rlinf_served, module):
    for name, home in TABLE[module].items():
        value = getattr(importlib.import_module(module), name)
        assert value is ours(home)
        attribute = home.partition(":")[2]
        assert getattr(value, "__name__", attribute) == attribute


def test_every_name_of_the_package_itself_is_a_name_of_shoal():
    for name, home in TABLE["rlinf.scheduler"].items():
        assert name in shoal.__all__
        assert getattr(shoal, name) is ours(home)


# The state of each name.


def test_each_name_has_one_state_and_the_facts_that_belong_to_it():
    found = entries()
    assert len({(one.module, one.name) for one in found}) == len(found)
    for one in found:
        assert (one.ours != "") == (one.state in (State.SERVED, State.RENAMED))
        assert (one.reason != "") == (one.state is State.REFUSED)
        assert "use " in one.reason or not one.reason


def test_the_states_are_these():
    by_state = {state: {one.name for one in entries() if one.state is state} for state in State}
    assert by_state[State.REFUSED] == set(REFUSED)
    renamed = {name for name, home in HOMES.items() if home.partition(":")[2] != name}
    assert by_state[State.RENAMED] == renamed
    assert by_state[State.SERVED] == set(HOMES) - renamed


def test_the_tables_have_every_name():
    text = as_markdown()
    for one in entries():
        assert f"`{one.name}`" in text
    for name in REFUSED_MEMBERS:
        assert f"`{name}`" in text


# The members that programs use.


class Looking(Worker):
    def lacks(self, names):
        return [name for name in names if not hasattr(self, name)]


CONFIG = {
    "cluster": {
        "num_nodes": 1,
        "component_placement": {"actor": {"node_group": "node", "placement": "0"}},
    }
}


@pytest.fixture(scope="module")
def lacking():
    """The members that `names.json` lists and shoal does not have."""
    owners = [*USES["members"].items(), *USES["documented"].items()]
    members: dict[str, set[str]] = {}
    for owner, kinds in owners:
        members.setdefault(owner, set()).update(kinds.get("instance", []))
    with local_cluster(cluster_cfg=CONFIG) as cluster:
        group = Looking.create_group().launch(cluster, NodePlacementStrategy([0]), name="looking")
        call = group.lacks(sorted(members["Worker"]))
        channel = Channel.create("queue", local=True)
        objects = {
            "AsyncWork": channel.put(1, async_op=True),
            "Channel": channel,
            "Cluster": cluster,
            "ComponentPlacement": ComponentPlacement(CONFIG, cluster),
            "PlacementStrategy": NodePlacementStrategy([0]),
            "WorkerAddress": WorkerAddress("looking", 0),
            "WorkerGroup": group,
            "WorkerGroupFuncResult": call,
            "WorkerInfo": shoal.WorkerInfo(WorkerAddress("looking", 0), 0, 1, 0),
        }
        lacking = {f"Worker.{name}" for name in call.wait()[0]}
        for owner, names in members.items():
            if names and owner != "Worker":
                lacking |= {f"{owner}.{n}" for n in names if not hasattr(objects[owner], n)}
    for owner, kinds in owners:
        found = ours(HOMES[owner]) if owner in HOMES else None
        lacking |= {f"{owner}.{n}" for n in kinds.get("class", []) if not hasattr(found, n)}
    return lacking


def test_every_member_that_is_used_is_there_or_refused(lacking):
    assert lacking == set(REFUSED_MEMBERS)
