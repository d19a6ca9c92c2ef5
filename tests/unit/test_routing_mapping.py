"""Plans of fixed mode: the rows that each pair of ranks exchanges, and the keys."""

import math
from collections import Counter

import pytest
from hypothesis import example, given, strategies as st

from shoal.errors import ShoalValueError
from shoal.worker.routing import (
    CommMapper,
    RouteEntry,
    RoutePlan,
    build_recv_plan,
    build_route_channel_key,
    build_send_key,
    build_send_plan,
    normalize_route_key,
    normalize_route_tag,
)

worlds = st.integers(1, 24)


@given(worlds, worlds, st.integers(0, 3))
@example(2, 2, 0)
@example(5, 3, 2)
@example(2, 8, 4)
@example(16, 12, 1)
@example(4, 10, 3)
def test_ranks_exchange_the_rows_that_belong_to_both(sources, destinations, factor):
    """Row n of a batch belongs to the rank whose block has it, on both sides."""
    sizes = (factor * math.lcm(sources, destinations), sources, destinations)
    rows = range(sizes[0])
    pairs = Counter((n * sources // len(rows), n * destinations // len(rows)) for n in rows)
    for rank in range(sources):
        expected = sorted((other, count) for (own, other), count in pairs.items() if own == rank)
        assert CommMapper.get_dst_ranks(*sizes, rank) == expected
    for rank in range(destinations):
        expected = sorted((other, count) for (other, own), count in pairs.items() if own == rank)
        assert CommMapper.get_src_ranks(*sizes, rank) == expected


@pytest.mark.parametrize(
    ("batch", "sources", "destinations", "text"),
    [
        (10, 4, 2, r"batch_size \(10\) must be divisible by src_world_size \(4\)\."),
        (64, 3, 4, r"batch_size \(64\) must be divisible by src_world_size \(3\)\."),
        (12, 2, 5, r"batch_size \(12\) must be divisible by dst_world_size \(5\)\."),
        (-4, 2, 2, r"batch_size \(-4\) must be 0 or more"),
        (4.5, 1, 1, r"batch_size \(4\.5\) must be an integer"),
        (4, 0, 1, r"src_world_size \(0\) must be 1 or more"),
        (4, 1, 0, r"dst_world_size \(0\) must be 1 or more"),
        (4, "1", 1, r"src_world_size \('1'\) must be 1 or more, and an integer"),
    ],
)
@pytest.mark.parametrize("function", [CommMapper.get_dst_ranks, CommMapper.get_src_ranks])
def test_invalid_sizes_are_an_error_in_both_directions(
    function, batch, sources, destinations, text
):
    with pytest.raises(AssertionError, match=text) as caught:
        function(batch, sources, destinations, 0)
    assert isinstance(caught.value, ShoalValueError)


@pytest.mark.parametrize("rank", [2, -1, "1", 1.0])
def test_a_rank_that_does_not_exist_is_an_error(rank):
    with pytest.raises(AssertionError, match=rf"src_rank \({rank!r}\) must be in \[0, 2\)\."):
        CommMapper.get_dst_ranks(8, 2, 2, rank)
    with pytest.raises(AssertionError, match=rf"dst_rank \({rank!r}\) must be in \[0, 2\)\."):
        CommMapper.get_src_ranks(8, 2, 2, rank)


def test_channel_key_of_ranks():
    assert CommMapper.build_channel_key(0, 1, "x") == "0_1_x"


@pytest.mark.parametrize(
    ("tag", "normal"), [(None, "default"), ("", "default"), ("obs", "obs"), ("None", "None")]
)
def test_tags(tag, normal):
    assert normalize_route_tag(tag) == normal


@pytest.mark.parametrize(
    ("key", "normal"), [(None, ""), ("", ""), ("k", "k"), (3, "3"), ((1, "a"), "(1, 'a')")]
)
def test_route_keys(key, normal):
    assert normalize_route_key(key) == normal


@pytest.mark.parametrize(
    ("ranks", "tag", "key", "expected"),
    [
        ((0, 1), None, None, ("default", "", 0, 1)),
        ((0, 1), "eval", "k", ("eval", "k", 0, 1)),
        ((None, None), "eval", 3, ("eval", "3", None, None)),
    ],
)
def test_channel_keys_of_routes(ranks, tag, key, expected):
    made = build_route_channel_key("env", "rollout", *ranks, tag, key)
    assert made == ("scheduler_route", "env", "rollout", *expected)
    names = {"src_group_name": "env", "dst_group_name": "rollout", "tag": tag, "route_key": key}
    assert build_send_key(**names, src_rank=ranks[0], dst_rank=ranks[1]) == made
    assert hash(made) == hash(tuple(made))


def recv_plan(**changes):
    given = {
        "src_group_name": "env",
        "dst_group_name": "rollout",
        "dst_rank": 1,
        "src_world_size": 2,
        "dst_world_size": 3,
        "tag": None,
        "route_key": 7,
        "batch_size": 12,
    }
    return build_recv_plan(**given | changes)


def test_the_plan_of_a_receiver():
    key = ("scheduler_route", "env", "rollout", "default", "7")
    entries = [RouteEntry(0, 2, (*key, 0, 1)), RouteEntry(1, 2, (*key, 1, 1))]
    plan = recv_plan()
    assert plan == RoutePlan("env", "rollout", None, 1, 2, 3, "default", 7, entries)
    with pytest.raises(TypeError, match="unhashable"):
        hash(plan)
    with pytest.raises(AttributeError):
        plan.tag = "other"
    with pytest.raises(AttributeError):
        plan.entries[0].key = ()


def test_the_plan_of_a_sender():
    plan = build_send_plan(
        src_group_name="env",
        dst_group_name="rollout",
        src_rank=0,
        src_world_size=2,
        dst_world_size=3,
        tag="obs",
        route_key=None,
        batch_size=12,
    )
    key = ("scheduler_route", "env", "rollout", "obs", "")
    entries = [RouteEntry(0, 4, (*key, 0, 0)), RouteEntry(1, 2, (*key, 0, 1))]
    assert plan == RoutePlan("env", "rollout", 0, None, 2, 3, "obs", None, entries)


def test_plans_are_made_of_keywords_only():
    with pytest.raises(TypeError):
        build_send_plan("env", "rollout", 0, 2, 3, "obs", None, 12)
    with pytest.raises(TypeError):
        build_recv_plan("env", "rollout", 0, 2, 3, "obs", None, 12)


@given(worlds, worlds, st.integers(0, 6), st.sampled_from([None, "a"]), st.sampled_from([None, 1]))
def test_plans_of_sources_and_destinations_have_the_same_keys_and_rows(
    sources, destinations, factor, tag, key
):
    batch = factor * math.lcm(sources, destinations)
    names = {
        "src_group_name": "s",
        "dst_group_name": "d",
        "src_world_size": sources,
        "dst_world_size": destinations,
        "tag": tag,
        "route_key": key,
    }
    sends = [build_send_plan(**names, src_rank=r, batch_size=batch) for r in range(sources)]
    receives = [build_recv_plan(**names, dst_rank=r, batch_size=batch) for r in range(destinations)]
    for plan in (*sends, *receives):
        assert plan.entries == sorted(plan.entries, key=lambda entry: entry.peer_rank)
    sent = {entry.key: entry.batch_size for plan in sends for entry in plan.entries}
    received = {entry.key: entry.batch_size for plan in receives for entry in plan.entries}
    assert sent == received
    assert len(sent) == sum(len(plan.entries) for plan in sends)
    assert all(sent.values())


@given(worlds, worlds, st.integers(1, 6))
def test_the_peers_of_a_receiver_are_known_without_the_batch_size(sources, destinations, factor):
    worlds_of = {"src_world_size": sources, "dst_world_size": destinations}
    for rank in range(destinations):
        batch = factor * math.lcm(sources, destinations)
        sized = recv_plan(**worlds_of, dst_rank=rank, batch_size=batch).entries
        open_ = recv_plan(**worlds_of, dst_rank=rank, batch_size=None).entries
        assert [(e.peer_rank, e.key) for e in open_] == [(e.peer_rank, e.key) for e in sized]
        assert {entry.batch_size for entry in open_} == {None}
