"""Placement and address on both cores: the same results and errors, and pickles that both read."""

import os
import pickle
from pathlib import Path
from types import ModuleType

import hypothesis.strategies as st
import pytest
from hypothesis import given

import shoal
from shoal import _backend

rust = _backend.load("rust")
pure = _backend.load("pure")

FIELDS = (
    "rank",
    "cluster_node_rank",
    "placement_node_rank",
    "local_accelerator_rank",
    "accelerator_type",
    "local_rank",
    "local_world_size",
    "visible_accelerators",
    "isolate_accelerator",
    "local_hardware_ranks",
    "node_group_label",
)

words = st.text(alphabet="-0123456789al:, \téx", max_size=14)
ranks = st.integers(-1, 12) | st.integers(2**31 - 2, 2**31 + 1) | st.integers() | st.booleans()
nodes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 4)), max_size=4)
clusters = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([None, "Accelerator", "Arm"]), nodes),
    min_size=1,
    max_size=2,
)


def outcome(function):
    """The outcome of a call: its result, or the class, text and position of its error."""
    try:
        return "result", function()
    except (ValueError, TypeError) as error:
        span = getattr(error, "span", None)
        return type(error).__name__, str(error), getattr(error, "text", None), span


def groups(core, cluster):
    return [
        core.NodeGroup(label, kind, [core.NodeResources(*node, "NV_GPU") for node in members])
        for label, kind, members in cluster
    ]


def rows(placements):
    return [[getattr(placement, field) for field in FIELDS] for placement in placements]


def describe(address):
    parent = address.get_parent_address()
    return (
        address.root_group_name,
        address.rank_path,
        address.rank,
        address.get_name(),
        str(address),
        repr(address),
        hash(address),
        address.get_parent_rank(),
        None if parent is None else describe(parent),
    )


@given(st.text(max_size=12) | words)
def test_from_name_agrees(text):
    left, right = (
        outcome(lambda core=core: describe(core.WorkerAddress.from_name(text)))
        for core in (rust, pure)
    )
    assert left == right


@given(st.text(max_size=6), ranks | st.lists(ranks, max_size=4) | st.text(max_size=2), ranks)
def test_construction_agrees(root, path, child):
    left, right = (
        outcome(lambda core=core: describe(core.WorkerAddress(root, path).get_child_address(child)))
        for core in (rust, pure)
    )
    assert left == right


numbers = st.integers(0, 12).map(str) | st.sampled_from(["007", "1048575", "99999999999", "9" * 30])
spans = st.sampled_from(["all", "ALL"]) | numbers | st.tuples(numbers, numbers).map("-".join)
steps = st.just("") | st.integers(0, 4).map("/{}".format)
exclusions = st.lists(spans.map("!{}".format), max_size=2).map("".join)
processes = st.just("") | spans.map(":{}".format) | spans.map(":0-{}".format)
segments = st.tuples(spans, steps, exclusions, processes).map("".join)
# Texts close to placements, so that most errors are about meaning and not about spelling.
specs = st.lists(segments, min_size=1, max_size=3).map(",".join)
odd = st.text(
    alphabet="-0123456789al:,!/ \t;.[]*^%~…\u2013\uff10\uff19\uff1a\u3000組é\u0301\u202e\x1f\u200b",
    max_size=16,
)
slips = st.tuples(specs, st.integers(0, 30), odd).map(lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :])


@given(words | specs | odd | slips, st.text(max_size=200), clusters)
def test_parse_placement_agrees(text, more, cluster):
    for whole in (text, text + more, text * 40, more):
        left, right = (
            outcome(
                lambda core=core, whole=whole: list(
                    core.parse_placement(whole, groups(core, cluster), whole)
                )
            )
            for core in (rust, pure)
        )
        assert left == right


@given(clusters, ranks, ranks, st.integers(-1, 3), st.integers(-1, 3), st.booleans())
def test_place_packed_agrees(cluster, start, end, size, stride, isolate):
    left, right = (
        outcome(
            lambda core=core: rows(
                core.place_packed(groups(core, cluster), start, end, size, stride, isolate)
            )
        )
        for core in (rust, pure)
    )
    assert left == right


@given(clusters, st.lists(st.lists(st.integers(-1, 8), max_size=3), max_size=4), st.booleans())
def test_place_flexible_agrees(cluster, hardware, isolate):
    left, right = (
        outcome(
            lambda core=core: rows(core.place_flexible(groups(core, cluster), hardware, isolate))
        )
        for core in (rust, pure)
    )
    assert left == right


@given(clusters, st.lists(ranks, max_size=6), st.booleans())
def test_place_nodes_agrees(cluster, node_ranks, isolate):
    left, right = (
        outcome(
            lambda core=core: rows(core.place_nodes(groups(core, cluster), node_ranks, isolate))
        )
        for core in (rust, pure)
    )
    assert left == right


CORES = pytest.mark.parametrize(("here", "there"), [(rust, pure), (pure, rust)])


@CORES
def test_addresses_of_both_backends_are_one_key(here, there):
    mine, other = here.WorkerAddress("g", [1]), there.WorkerAddress("g", (1,))
    assert mine == other
    assert hash(mine) == hash(other)
    assert {mine: "found"}[other] == "found"
    assert mine != there.WorkerAddress("g", [2])
    assert mine < there.WorkerAddress("g", [10])
    assert there.WorkerAddress("f", [99]) <= mine
    assert min(there.WorkerAddress("g", [10]), mine) is mine


@CORES
def test_values_of_both_backends_are_equal(here, there):
    cluster = [("a", "Accelerator", [(0, 2, 2), (1, 2, 2)])]
    mine, other = (core.place_packed(groups(core, cluster), 0, 3) for core in (here, there))
    assert mine == other == list(mine)
    assert mine[1:] != other
    assert mine != tuple(other)
    assert (mine[1:], mine[-1], len(mine)) == (other[1:], other[3], 4)
    assert hash(mine[3]) == hash(other[3])
    assert repr(list(mine)) == repr(list(other))
    assert repr(mine) == repr(other) == "<4 placements>"
    left, right = (core.RankLists([[2, 1], [0], []]) for core in (here, there))
    assert left == right == [[2, 1], [0], []]
    assert left.in_order() == right.in_order() == [[], [0], [1, 2]]
    assert left.firsts() == right.firsts() == [2, 0]
    assert left.unique() == right.unique() == [0, 1, 2]
    assert repr(left) == repr(right) == "RankLists([[2, 1], [0], []])"
    assert mine[0] != other[1]
    assert groups(here, cluster) == groups(there, cluster)
    assert hash(groups(here, cluster)[0]) == hash(groups(there, cluster)[0])


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("core", [rust, pure])
def test_pickles_load_as_the_public_class(core, protocol):
    cluster = [("a", "Accelerator", [(0, 2, 2)])]
    for value in (
        core.WorkerAddress("größe", [1, 2]),
        core.place_packed(groups(core, cluster), 0, 1)[1],
        *groups(core, cluster),
        core.RankLists([[0, 1], [2]]),
        core.place_packed(groups(core, cluster), 0, 1),
    ):
        data = pickle.dumps(value, protocol)
        assert b"_rust" not in data
        assert b"_pure" not in data
        again = pickle.loads(data)
        if not isinstance(again, list):  # `Placements` are pickled as lists
            assert type(again).__module__ == type(value).__module__
        assert again == value
    assert type(pickle.loads(pickle.dumps(core.WorkerAddress("g")))) is shoal.WorkerAddress


@pytest.mark.parametrize("core", [rust, pure])
def test_cloudpickle_takes_the_public_path_too(core):
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    data = cloudpickle.dumps(core.WorkerAddress("g", [1]))
    assert b"_pure" not in data
    assert pickle.loads(data) == core.WorkerAddress("g", [1])


def test_both_cores_have_the_same_names():
    def public(core):
        names = {name for name in dir(core) if not name.startswith("_")} - {"Final"}
        return {name for name in names if not isinstance(getattr(core, name), ModuleType)}

    assert public(rust) == public(pure)
    assert rust.__version__ == pure.__version__
    assert (rust.build_profile in {"debug", "release"}, pure.build_profile) == (True, "pure")


def test_version_is_the_workspaces():
    manifest = (Path(__file__).parents[2] / "Cargo.toml").read_text()
    assert f'version = "{pure.__version__}"' in manifest


def resident():
    """The resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_million_placements_are_small_until_they_are_asked_for():
    count = 1_048_576
    cluster = groups(rust, [("a", "Accelerator", [(rank, 8, 8) for rank in range(64)])])
    before = resident()
    ranks = rust.parse_placement(f"all:0-{count - 1}", cluster, "actor")
    placed = rust.place_flexible(cluster, ranks)
    assert (resident() - before) / count < 200
    assert placed[count - 1].local_rank == count // 64 - 1
