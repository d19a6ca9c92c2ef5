"""Placing 8 to 65,536 processes, 8 on a node: with either core, and with rivals of the same API.

(a) The plan is ready: a configuration is parsed, checked and solved. (b) Every placement is made,
and every field is read once. A rival makes its placements in (a) already.
"""

import importlib
import importlib.metadata

import pytest

from shoal import _backend, placement
from shoal.hardware import HardwareInfo, HardwareResource
from shoal.placement import ComponentPlacement
from shoal.topology import NodeInfo, build_groups
from side_by_side import Contender

SIZES = [8, 64, 512, 4096, 65536]
PER_NODE = 8
RIVAL = "rlinf"
CORES = {"rust": _backend.load("rust"), "pure": _backend.load("pure")}


class Cluster:
    """The groups of a cluster of our own nodes, without Ray."""

    def __init__(self, processes):
        self.nodes = [make_node(rank) for rank in range(processes // PER_NODE)]
        self.num_nodes = len(self.nodes)
        self.num_accelerators = processes
        self.groups = build_groups(self.nodes, None)

    def get_node_group(self, label="cluster"):
        return self.groups.get(label)

    def get_node_info(self, node_rank):
        return self.nodes[node_rank]


def make_node(rank):
    infos = [HardwareInfo(type="Accelerator", model="NV_GPU:H200") for _ in range(PER_NODE)]
    return NodeInfo(
        node_labels=[],
        node_rank=rank,
        ray_id=f"{rank:040x}",
        node_ip=f"10.{rank >> 8}.{rank & 255}.1",
        num_cpus=64,
        hardware_resources=[HardwareResource(type="Accelerator", infos=infos)],
    )


def use(core):
    """Make the public classes run on a core."""
    for module in (placement.groups, placement.strategy, placement.component):
        for name in vars(module).keys() & set(_backend.__all__) - {"backend", "load"}:
            setattr(module, name, getattr(core, name))


@pytest.fixture(autouse=True)
def core_of_this_process():
    yield
    use(CORES[_backend.NAME])


def config_of(processes):
    return {
        "num_nodes": processes // PER_NODE,
        "component_placement": {"actor": f"0-{processes - 1}"},
    }


def solve(config, cluster):
    return ComponentPlacement(config, cluster).get_strategy("actor").solve(cluster)


def rival():
    """Another package with the same API, where one is installed: a call that places."""
    try:
        importlib.metadata.distribution(RIVAL)
    except importlib.metadata.PackageNotFoundError:
        return None
    component_placement = importlib.import_module(f"{RIVAL}.scheduler").ComponentPlacement
    omegaconf = importlib.import_module("omegaconf").OmegaConf

    def place(config, cluster):
        document = omegaconf.create({"cluster": config})
        return component_placement(document, cluster).get_strategy("actor").get_placement(cluster)

    return place


def read(placements):
    """Read every field; the work of the loop itself is the same for all."""
    row = ()
    for p in placements:
        row = (
            p.rank,
            p.cluster_node_rank,
            p.placement_node_rank,
            p.local_accelerator_rank,
            p.accelerator_type,
            p.local_rank,
            p.local_world_size,
            p.visible_accelerators,
            p.isolate_accelerator,
            p.local_hardware_ranks,
            p.node_group_label,
        )
    return row


@pytest.fixture(params=SIZES, ids=str)
def processes(request):
    return request.param


def rounds_of(processes):
    return max(10, min(200, 200_000 // processes))


def test_rival_is_there():
    if rival() is None:
        pytest.skip(f"{RIVAL} is not installed: the cores race each other alone")


def test_plan_ready(race, processes):
    cluster, config = Cluster(processes), config_of(processes)
    contenders = {
        name: Contender(lambda: solve(config, cluster), before=lambda core=core: use(core))
        for name, core in CORES.items()
    }
    if place := rival():
        contenders[RIVAL] = Contender(lambda: place(config, cluster))
    race.run(f"(a) plan of {processes}", contenders, rounds_of(processes))


def test_every_field(race, processes):
    cluster, config = Cluster(processes), config_of(processes)
    contenders = {}
    for name, core in CORES.items():
        use(core)
        solved = solve(config, cluster)
        assert len(solved) == processes
        contenders[name] = Contender(lambda solved=solved: read(solved))
    if place := rival():
        made = place(config, cluster)
        contenders[RIVAL] = Contender(lambda: read(made))
    race.run(f"(b) fields of {processes}", contenders, rounds_of(processes))
