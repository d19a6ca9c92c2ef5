"""The environment variables that tell a process its placement: every name and value."""

from types import SimpleNamespace

from shoal import NodeInfo, PackedPlacementStrategy
from shoal.hardware import ACCELERATOR_HW_TYPE, HardwareInfo, HardwareResource
from shoal.placement import NodePlacementStrategy
from shoal.placement.environment import group_environment, process_environment
from shoal.topology import build_groups

MODEL = "NV_GPU:H200"


def cluster(ips=("10.0.0.1", "10.0.0.2")):
    resources = [
        HardwareResource(ACCELERATOR_HW_TYPE, [HardwareInfo(ACCELERATOR_HW_TYPE, MODEL)] * 4)
    ]
    nodes = [NodeInfo([], i, "", ip, 8, hardware_resources=resources) for i, ip in enumerate(ips)]
    return SimpleNamespace(
        get_node_group=build_groups(nodes, None).get, get_node_info=nodes.__getitem__
    )


def test_a_process_on_accelerators():
    where = cluster()
    placements = PackedPlacementStrategy(2, 7, num_hardware_per_process=2).get_placement(where)
    assert group_environment("actor", placements, where) == {
        "GROUP_NAME": "actor",
        "WORLD_SIZE": "3",
        "RAY_ACTOR": "1",
        "MASTER_ADDR": "10.0.0.1",
    }
    assert process_environment("actor", placements[2], MODEL) == {
        "WORKER_NAME": "actor:2",
        "RANK": "2",
        "NODE_RANK": "1",
        "CLUSTER_NODE_RANK": "1",
        "NODE_ID": "1",
        "LOCAL_ACCELERATOR_RANK": "2",
        "GPU_ID": "2",
        "NODE_LOCAL_RANK": "1",
        "NODE_LOCAL_WORLD_SIZE": "2",
        "VISIBLE_DEVICES": "2,3",
        "ACCELERATOR_TYPE": "NV_GPU",
        "ACCELERATOR_MODEL": MODEL,
        "ISOLATE_ACCELERATOR": "1",
        "ISOLATE_GPU": "1",
        "LOCAL_HARDWARE_RANKS": "2,3",
        "NODE_GROUP_LABEL": "cluster",
    }


def test_the_address_is_that_of_rank_0_in_any_order():
    where = cluster()
    placements = NodePlacementStrategy([1, 0]).get_placement(where)
    address = where.get_node_info(placements[0].cluster_node_rank).node_ip
    for order in (placements, placements[::-1]):
        assert group_environment("env", order, where)["MASTER_ADDR"] == address


def test_an_unknown_address_is_left_out():
    where = cluster(("", ""))
    placements = NodePlacementStrategy([0]).get_placement(where)
    assert "MASTER_ADDR" not in group_environment("env", placements, where)
