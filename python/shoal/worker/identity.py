"""`Identity`: a worker's ranks and hardware, read from its environment variables."""

import os
from dataclasses import dataclass
from typing import Any, Self

from shoal._backend import WorkerAddress
from shoal.errors import NotLaunchedError, ShoalTypeError
from shoal.problems import shown

__all__ = ["Identity", "accelerator_type"]


def _integer(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.lstrip("-").isdecimal() else default


def _integers(name: str) -> list[int]:
    return [int(part) for part in os.environ.get(name, "").split(",") if part.strip().isdecimal()]


def accelerator_type() -> str:
    """Return this worker's kind of accelerator."""
    return os.environ.get("ACCELERATOR_TYPE") or "NO_ACCEL"


@dataclass
class Identity:
    """A worker's ranks and hardware in its group and in the cluster, from variables of launch.

    Attributes:
        address: The worker's address.
        world_size: The number of ranks in the group.
        cluster_node_rank: The node's rank in the cluster.
        node_rank: The node's index among the nodes of this placement.
        node_local_rank: The rank among the group's workers on the node.
        node_local_world_size: The number of the group's workers on the node.
        local_accelerator_rank: The first visible accelerator, -1 without one.
        accelerator_type: The kind of accelerator.
        accelerator_model: Its model, empty without one.
        isolate: Whether the node's other accelerators are hidden.
        local_hardware_ranks: The ranks of the assigned hardware on the node.
        visible_accelerators: The ranks of the visible accelerators on the node.
        node_group_label: The label of the node group.
    """

    address: WorkerAddress
    world_size: int
    cluster_node_rank: int
    node_rank: int
    node_local_rank: int
    node_local_world_size: int
    local_accelerator_rank: int
    accelerator_type: str
    accelerator_model: str
    isolate: bool
    local_hardware_ranks: list[int]
    visible_accelerators: list[int]
    node_group_label: str

    @classmethod
    def read(
        cls, parent_address: WorkerAddress | None, world_size: int | None, rank: int | None
    ) -> Self:
        """Read the environment, and the arguments of a worker that Ray did not start.

        Raises:
            NotLaunchedError: Neither of them identifies the worker.
            ShoalTypeError: The parent's address is something else.
        """
        given: Any = parent_address  # typed, but it comes from a user
        if given is not None and not isinstance(given, WorkerAddress):
            raise ShoalTypeError(
                f"parent_address: expected a WorkerAddress, got {shown(given)}; the arguments of "
                "create_group go to the constructor, which is that of Worker if the class has none"
            )
        launched = bool(os.environ.get("RAY_ACTOR") and os.environ.get("WORKER_NAME"))
        if parent_address is not None and world_size is not None and rank is not None:
            address = parent_address.get_child_address(rank)
        elif launched:
            name = os.environ["WORKER_NAME"]
            address = (
                WorkerAddress.from_name(name)
                if parent_address is None
                else parent_address.get_child_address(_integer("RANK", 0))
            )
        else:
            raise NotLaunchedError(
                "a Worker is made by create_group(...).launch(cluster, ...), not directly; in a "
                "process that you start yourself give all of parent_address, world_size and rank"
            )
        return cls(
            address=address,
            world_size=_integer("WORLD_SIZE", 1) if world_size is None else world_size,
            cluster_node_rank=_integer("CLUSTER_NODE_RANK", 0),
            node_rank=_integer("NODE_RANK", 0),
            node_local_rank=_integer("NODE_LOCAL_RANK", 0),
            node_local_world_size=_integer("NODE_LOCAL_WORLD_SIZE", 1),
            local_accelerator_rank=_integer("LOCAL_ACCELERATOR_RANK", -1),
            accelerator_type=accelerator_type(),
            accelerator_model=os.environ.get("ACCELERATOR_MODEL", ""),
            isolate=os.environ.get("ISOLATE_ACCELERATOR", "1") == "1",
            local_hardware_ranks=_integers("LOCAL_HARDWARE_RANKS"),
            visible_accelerators=_integers("VISIBLE_DEVICES"),
            node_group_label=os.environ.get("NODE_GROUP_LABEL") or "cluster",
        )

    def set_local_rank(self) -> tuple[int, int]:
        """Set LOCAL_RANK and LOCAL_WORLD_SIZE, which frameworks read, and return both.

        For frameworks, a worker that sees only its own devices is rank 0 of 1. Without isolation,
        LOCAL_RANK is the worker's first accelerator on its node, and -1 if it has none.
        """
        if self.isolate:
            local_rank, local_world_size = 0, 1
        else:
            local_rank = self.local_accelerator_rank
            local_world_size = self.node_local_world_size
        os.environ["LOCAL_RANK"] = str(local_rank)
        os.environ["LOCAL_WORLD_SIZE"] = str(local_world_size)
        return local_rank, local_world_size
