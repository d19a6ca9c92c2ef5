"""Placement of 8 to 65,536 processes, 8 on a node, by both cores and by a rival with the same API.

Row (a): a configuration is parsed, checked and solved. Row (b): every placement is made, and every
field is read once. The rival makes its placements in (a) already.
"""

import importlib
import importlib.metadata

import pytest

from harness.contenders import by_function
from harness.row import Row, UnavailableError
from shoal import _backend, placement
from shoal.hardware import HardwareInfo, HardwareResource
from shoal.placement import ComponentPlacement
from shoal.topology import NodeInfo, build_groups

SIZES = [8, 64, 512, 4096, 65536]
PER_NODE = 8
RIVAL = "rlinf"
CORES = {"rust": _backend.load("rust"), "pure": _backend.load("pure")}


class Cluster:
    """A stand-in for a cluster: its nodes and groups, without Ray."""

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
    """Make the public classes use a core."""
    for module in (placement.groups, placement.strategy, placement.component):
        for name in vars(module).keys() & set(CORES["rust"].__all__):
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
    """Return a function that places with another package of the same API, if it is installed."""
    try:
        importlib.metadata.distribution(RIVAL)
    except importlib.metadata.PackageNotFoundError:
        raise UnavailableError(
            f"{RIVAL} is not installed: the cores race each other alone"
        ) from None
    component_placement = importlib.import_module(f"{RIVAL}.scheduler").ComponentPlacement
    omegaconf = importlib.import_module("omegaconf").OmegaConf

    def place(config, cluster):
        document = omegaconf.create({"cluster": config})
        return component_placement(document, cluster).get_strategy("actor").get_placement(cluster)

    return place


def read(placements):
    """Read every field of every placement."""
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


def row_of(name, processes):
    return Row(f"{name} of {processes}", "rust", most=max(2, 200_000 // processes), processes=1)


@pytest.mark.parametrize("contender", [*CORES, RIVAL])
@pytest.mark.parametrize("processes", SIZES)
def test_plan_ready(measure, processes):
    cluster, config = Cluster(processes), config_of(processes)

    def planned(core):
        return by_function(lambda: solve(config, cluster), before=lambda: use(core))

    def rival_planned(stack):
        place = rival()
        return by_function(lambda: place(config, cluster))(stack)

    contenders = {name: planned(core) for name, core in CORES.items()}
    measure(row_of("(a) plan", processes), contenders | {RIVAL: rival_planned})


@pytest.mark.parametrize("contender", [*CORES, RIVAL])
@pytest.mark.parametrize("processes", SIZES)
def test_every_field(measure, processes):
    cluster, config = Cluster(processes), config_of(processes)

    def with_core(core):
        def open_(stack):
            use(core)
            solved = solve(config, cluster)
            assert len(solved) == processes
            return by_function(lambda: read(solved))(stack)

        return open_

    def with_rival(stack):
        made = rival()(config, cluster)
        return by_function(lambda: read(made))(stack)

    contenders = {name: with_core(core) for name, core in CORES.items()}
    measure(row_of("(b) fields", processes), contenders | {RIVAL: with_rival})
