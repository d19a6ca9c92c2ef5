"""Where the workers of a group run, as it is kept for a maintainer."""

from types import SimpleNamespace

from shoal import Placement
from shoal.placement.launched_placements import describe_placement


def placement(rank, node, hardware, visible, label="gpus"):
    kind = "NV_GPU" if visible else "NO_ACCEL"
    return Placement(rank, node, node, 0, kind, 0, 1, visible, True, hardware, label)


def test_each_worker_has_a_line_with_its_node_and_its_devices():
    addresses = {0: "10.0.0.1", 1: ""}
    cluster = SimpleNamespace(get_node_info=lambda rank: SimpleNamespace(node_ip=addresses[rank]))
    placements = [placement(1, 1, [], [], "cpus"), placement(0, 0, [2, 3], ["2", "3"])]
    head, *lines = describe_placement("actor", "Actor", placements, cluster).splitlines()
    assert head.startswith("actor: 2 workers of the class Actor, launched ")
    assert lines == [
        "  rank 0: hardware 2,3 of node 0 (10.0.0.1), node group gpus; sees NV_GPU 2,3",
        "  rank 1: the whole of node 1, node group cpus; sees no accelerator",
    ]
