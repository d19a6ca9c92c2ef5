"""Doubles of clusters with only the attributes that placement uses."""

from dataclasses import dataclass, field

import pytest

from shoal import _backend, placement


@dataclass
class Node:
    node_rank: int
    num_accelerators: int = 0
    robots: int = 0
    node_labels: list = field(default_factory=list)

    @property
    def accelerator_type(self):
        return "NV_GPU" if self.num_accelerators else "NO_ACCEL"

    def get_hw_resource_count(self, hw_type):
        return {"Accelerator": self.num_accelerators, "Arm": self.robots}.get(hw_type, 0)


@dataclass
class Group:
    label: str
    nodes: list
    hardware_type: str | None = None


@dataclass
class Cluster:
    """Returns None for an unknown label, or raises, as some callers' doubles do."""

    groups: list
    raises: bool = False
    by_label: dict = field(init=False)

    def __post_init__(self):
        self.by_label = {group.label: group for group in self.groups}

    def get_node_group(self, label):
        if self.raises and label not in self.by_label:
            raise AssertionError(label)
        return self.by_label.get(label)


def make_cluster(sizes, groups=(), **keywords):
    nodes = [Node(rank, size) for rank, size in enumerate(sizes)]
    kind = "Accelerator" if any(sizes) else None
    for label, ranks in dict(groups).items():
        for rank in ranks:
            nodes[rank].node_labels.append(label)
    return Cluster(
        [
            Group("cluster", nodes, kind),
            Group("node", nodes),
            *(
                Group(label, [nodes[rank] for rank in ranks], kind)
                for label, ranks in dict(groups).items()
            ),
        ],
        **keywords,
    )


def where(placements):
    """The node and the hardware of each process."""
    return [(p.cluster_node_rank, p.local_hardware_ranks) for p in placements]


@pytest.fixture(autouse=True)
def core(backend, monkeypatch):
    """Run the public classes on the backend of the test."""
    for module in (placement.groups, placement.strategy, placement.component):
        for name in vars(module).keys() & set(_backend.load("rust").__all__):
            monkeypatch.setattr(module, name, getattr(backend, name))
    return backend
