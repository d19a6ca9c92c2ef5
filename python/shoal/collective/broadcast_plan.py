"""The plan of a broadcast: who takes part, and who sends to whom.

`expand`, `own_group` and `source` turn the arguments `groups`, `ranks` and `src` into addresses.
`edges_of` returns a member's part: one transfer to each node, written there once.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from shoal._backend import WorkerAddress
from shoal.collective.peers import peer_address
from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.integers import as_int
from shoal.manager import WorkerInfo

__all__ = ["RING_FROM", "Edges", "direct_edges", "edges_of", "expand", "own_group", "source"]

_FORM = "a list of (group name, rank, path of ranks, or list of those)"

RING_FROM = 3
"""Minimum number of nodes beside the source's for a ring, in which each node sends to the next."""


def expand(groups: Any) -> list[WorkerAddress]:
    """Return the addresses that `groups` names, in the same order.

    Raises:
        ShoalTypeError: A container, an entry or a rank is of the wrong type.
        ShoalValueError: No worker is named, or one is named twice.
    """
    if groups is None:
        raise ShoalValueError(f"broadcast: groups is missing; expected {_FORM}")
    if not isinstance(groups, (list, tuple)):
        raise ShoalTypeError(f"broadcast: groups={groups!r}: expected {_FORM}")
    if not groups:
        raise ShoalValueError(f"broadcast: groups is empty; expected {_FORM}")
    members: list[WorkerAddress] = []
    for index, entry in enumerate(groups):
        where = f"broadcast: groups[{index}]={entry!r}"
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:  # noqa: PLR2004  (a pair has two)
            raise ShoalTypeError(f"{where}: expected (group name, ranks)")
        members += _addresses(entry[0], entry[1], where)
    twice = sorted({m.get_name() for m in members if members.count(m) > 1})
    if twice:
        raise ShoalValueError(
            f"broadcast: groups={groups!r} names {', '.join(twice)} twice; expected each member once"
        )
    return members


def _addresses(name: Any, ranks: Any, where: str) -> list[WorkerAddress]:
    if not isinstance(name, str):
        raise ShoalTypeError(f"{where}: expected a text as the group's name")
    if _is_rank(ranks) or (isinstance(ranks, tuple) and ranks and all(map(_is_rank, ranks))):
        return [peer_address(name, ranks)]
    if not isinstance(ranks, list):
        raise ShoalTypeError(f"{where}: expected an integer, a tuple of them, or a list of those")
    if not ranks:
        raise ShoalValueError(f"{where}: the list of ranks is empty")
    for rank in ranks:
        if not _is_rank(rank) and not (isinstance(rank, tuple) and all(map(_is_rank, rank))):
            raise ShoalTypeError(f"{where}: rank {rank!r}: expected an integer or a tuple of them")
    return [peer_address(name, rank) for rank in ranks]


def _is_rank(value: Any) -> bool:
    return as_int(value) is not None


def source(src: Any, members: Sequence[WorkerAddress]) -> WorkerAddress:
    """Return the member that has the object: `src`, or the first member if that is None.

    Raises:
        ShoalTypeError: `src` is not a (group name, rank).
        ShoalValueError: It is not a member.
    """
    if src is None:
        return members[0]
    where = f"broadcast: src={src!r}"
    if not isinstance(src, (list, tuple)) or len(src) != 2:  # noqa: PLR2004  (a pair has two)
        raise ShoalTypeError(f"{where}: expected (group name, rank or path of ranks)")
    found = _addresses(src[0], src[1], where)
    if len(found) != 1 or found[0] not in members:
        names = ", ".join(member.get_name() for member in members)
        raise ShoalValueError(f"{where}: expected one of the members: {names}")
    return found[0]


def own_group(own: WorkerAddress, ranks: Sequence[int]) -> list[WorkerAddress]:
    """Return the workers of the caller's own group with these ranks: a broadcast's older form.

    Raises:
        ShoalTypeError: The ranks are not a list of integers.
        ShoalValueError: There is no rank, or one is named twice.
    """
    if not isinstance(ranks, (list, tuple, range)) or not all(map(_is_rank, ranks)):
        raise ShoalTypeError(f"broadcast: ranks={ranks!r}: expected a list of integers")
    if not ranks or len(set(ranks)) < len(ranks):
        raise ShoalValueError(f"broadcast: ranks={ranks!r}: expected different ranks, at least one")
    parent = own.get_parent_address() or WorkerAddress(own.root_group_name)
    return [parent.get_child_address(rank) for rank in ranks]


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
