"""Edges of a broadcast between workers: one transfer to each node, written there once."""

from collections.abc import Sequence
from typing import NamedTuple

from shoal._backend import WorkerAddress
from shoal.manager import WorkerInfo

__all__ = ["RING_FROM", "Edges", "direct_edges", "edges_of"]

RING_FROM = 3
"""Minimum number of nodes beside the source's for a ring, in which each node sends to the next."""


class Edges(NamedTuple):
    """A member's part in a broadcast.

    Attributes:
        parent: The member that it receives from; None for the source.
        near: The members on its own node that it sends to.
        far: The members on other nodes that it sends to.
    """

    parent: WorkerAddress | None
    near: list[WorkerAddress]
    far: list[WorkerAddress]


def direct_edges(
    me: WorkerAddress, source: WorkerAddress, members: Sequence[WorkerAddress]
) -> Edges:
    """Return the edges of one member if the source itself sends to every other member."""
    if me != source:
        return Edges(source, [], [])
    return Edges(None, [], [member for member in members if member != source])


def edges_of(
    me: WorkerAddress,
    source: WorkerAddress,
    members: Sequence[WorkerInfo],
    *,
    apart: bool = False,
    ring: bool = False,
) -> Edges:
    """Return the edges of one member; the results of all members fit together.

    The source sends to the members of its node, and to one leader on each other node, which sends
    to the others there. In a ring each leader receives from the one before it instead.

    Args:
        me: The member.
        source: The member that has the object.
        members: The records of all members.
        apart: Whether shared memory must not be used: every member then counts as its own node.
        ring: Whether to make a ring of the nodes even if they are few.
    """
    nodes: dict[str, list[WorkerInfo]] = {}
    for info in sorted(members, key=lambda info: info.address.get_name()):
        memory = info.address.get_name() if apart or not info.memory else info.memory
        nodes.setdefault(memory, []).append(info)
    first = next(node for node in nodes.values() if any(i.address == source for i in node))
    others = [node for node in nodes.values() if node is not first]
    others.sort(key=lambda node: (node[0].cluster_node_rank, node[0].address.get_name()))
    leaders = [source, *(node[0].address for node in others)]
    in_ring = ring or len(others) >= RING_FROM
    for leader, node in zip(leaders, [first, *others], strict=True):
        inside = [info.address for info in node]
        if me not in inside:
            continue
        if me != leader:
            return Edges(leader, [], [])
        near = [address for address in inside if address != leader]
        at = leaders.index(leader)
        if in_ring:
            return Edges(leaders[at - 1] if at else None, near, leaders[at + 1 : at + 2])
        return Edges(source if at else None, near, [] if at else leaders[1:])
    raise LookupError(f"{me.get_name()} is not a member")
