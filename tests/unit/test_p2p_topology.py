"""Edges of a broadcast: the parts that members compute by themselves form one tree."""

import pytest

from shoal import WorkerAddress, WorkerInfo
from shoal.collective.broadcast_plan import RING_FROM, edges_of


def record(name, node, memory=None):
    address = WorkerAddress.from_name(name)
    memory = f"node {node}" if memory is None else memory
    return WorkerInfo(address, address.rank, 1, node, memory=memory)


def members_of(nodes, each):
    # The order of the names differs from the order of the nodes.
    return [
        record(f"g{(7 * node + place) % 5}:{place * nodes + node}", node)
        for node in range(nodes)
        for place in range(each)
    ]


def picture(members, source, **options):
    return {info.address: edges_of(info.address, source, members, **options) for info in members}


def spread(edges, source):
    """Follow a broadcast from its source; return how often it reaches each member."""
    reached, front = {source: 1}, [source]
    while front:
        giver = front.pop(0)
        for taker in (*edges[giver].near, *edges[giver].far):
            reached[taker] = reached.get(taker, 0) + 1
            assert edges[taker].parent == giver
            if reached[taker] == 1:
                front.append(taker)
    return reached


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("ring", [False, True], ids=["star", "ring"])
@pytest.mark.parametrize("each", [1, 2, 4])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 7])
def test_each_member_is_reached_once_from_every_source(nodes, each, ring, apart):
    members = members_of(nodes, each)
    addresses = {info.address for info in members}
    node_of = {info.address: info.memory for info in members}
    for source in addresses:
        edges = picture(members, source, ring=ring, apart=apart)
        assert spread(edges, source) == dict.fromkeys(addresses, 1)
        assert edges[source].parent is None
        transfers = [taker for found in edges.values() for taker in found.far]
        if apart:
            assert len(transfers) == len(members) - 1
            assert all(found.near == [] for found in edges.values())
        else:
            assert sorted(map(node_of.get, transfers)) == sorted(
                set(node_of.values()) - {node_of[source]}
            )
            for giver, found in edges.items():
                assert all(node_of[taker] == node_of[giver] for taker in found.near)


def test_all_members_agree_whatever_the_order_of_the_records():
    members = members_of(4, 3)
    source = members[5].address
    assert picture(members, source) == picture(members[::-1], source)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("others", range(1, RING_FROM + 3))
def test_many_nodes_form_a_ring(others, ring):
    members = members_of(others + 1, 2)
    edges = picture(members, members[0].address, ring=ring)
    most = max(len(found.far) for found in edges.values())
    assert most == (1 if ring or others >= RING_FROM else others)


def test_a_worker_without_shared_memory_is_a_node_of_its_own():
    members = [record("a:0", 0, ""), record("a:1", 0, ""), record("a:2", 0, "m")]
    edges = picture(members, members[0].address)
    assert edges[members[0].address].near == []
    assert len(edges[members[0].address].far) == 2


def test_an_address_that_is_not_a_member_is_named():
    members = members_of(2, 2)
    with pytest.raises(LookupError, match="x:0 is not a member"):
        edges_of(WorkerAddress.from_name("x:0"), members[0].address, members)
