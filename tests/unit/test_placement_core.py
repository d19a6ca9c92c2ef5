"""The placement core: the shared vectors (`tests/vectors`), and cases that they cannot express."""

import json
import timeit
from pathlib import Path

import pytest

from shoal.errors import PlacementError, PlacementIndexError, ShoalTypeError

pytestmark = pytest.mark.vectors

VECTORS = Path(__file__).parents[1] / "vectors"
GROUPS, GRAMMAR, SOLVE = (
    json.loads((VECTORS / f"{name}.json").read_text()) for name in ("groups", "grammar", "solve")
)


def make_groups(backend, name):
    return [
        backend.NodeGroup(label, kind, [backend.NodeResources(*node) for node in nodes])
        for label, kind, nodes in GROUPS[name]
    ]


def check_error(error, expected, text=None):
    assert str(error) == expected["message"]
    assert error.text == (text if "span" in expected else None)
    assert (None if error.span is None else list(error.span)) == expected.get("span")
    wanted = PlacementIndexError if expected["kind"] == "NodeOutOfRange" else PlacementError
    assert type(error) is wanted


@pytest.mark.parametrize("case", GRAMMAR, ids=lambda case: f"{case['groups']}-{case['input']!r}")
def test_parse_placement_matches_vector(backend, case):
    groups = make_groups(backend, case["groups"])
    if "error" in case:
        with pytest.raises(PlacementError) as caught:
            backend.parse_placement(case["input"], groups, "actor,rollout")
        check_error(caught.value, case["error"], case["input"])
        return
    expected = [ranks for ranks, times in case["expect"] for _ in range(times)]
    assert backend.parse_placement(case["input"], groups, "actor,rollout") == expected


@pytest.mark.parametrize(
    "case", SOLVE, ids=lambda case: f"{case['op']}-{case['groups']}-{case['args']}"
)
def test_strategy_matches_vector(backend, case):
    place = getattr(backend, f"place_{case['op']}")
    groups = make_groups(backend, case["groups"])
    if "error" in case:
        with pytest.raises(PlacementError) as caught:
            place(groups, *case["args"])
        check_error(caught.value, case["error"])
        return
    placed = place(groups, *case["args"])
    assert placed == [backend.Placement(**fields) for fields in case["expect"]]
    for placement, fields in zip(placed, case["expect"], strict=True):
        assert {name: getattr(placement, name) for name in fields} == fields


def test_every_rule_has_a_vector():
    kinds = {case["error"]["kind"] for case in GRAMMAR + SOLVE if "error" in case}
    source = Path(__file__).parents[2] / "rust" / "core" / "src" / "placement" / "error.rs"
    body = source.read_text().partition("pub enum PlacementErrorKind {")[2].partition("}")[0]
    rules = {line.strip().rstrip(",") for line in body.splitlines() if line.strip()[:1].isalpha()}
    assert kinds == rules


@pytest.fixture
def placement(backend):
    groups = make_groups(backend, "one")
    return backend.place_packed(groups, 2, 5, 2)[1]


def test_placement_has_the_older_names(placement):
    assert placement.node_id == placement.cluster_node_rank == 0
    assert placement.node_rank == placement.placement_node_rank == 0
    assert placement.local_gpu_id == placement.local_accelerator_id == 4
    assert placement.cuda_visible_devices == placement.visible_accelerators == ["4", "5"]
    assert placement.isolate_gpu is placement.isolate_accelerator is True


def test_placement_is_a_frozen_value(backend, placement):
    placement.visible_accelerators.append("9")
    placement.local_hardware_ranks.clear()
    assert placement.visible_accelerators == ["4", "5"]
    assert placement.local_hardware_ranks == [4, 5]
    with pytest.raises(AttributeError):
        placement.rank = 3
    same = backend.place_packed(make_groups(backend, "one"), 2, 5, 2)[1]
    assert placement == same
    assert hash(placement) == hash(same)
    assert placement != backend.place_packed(make_groups(backend, "one"), 2, 3)[0]
    assert placement != 1
    assert repr(placement).startswith("Placement(rank=1, cluster_node_rank=0, ")


TO_MAX = "to 2147483647, not"
WRONG = {
    ShoalTypeError: [
        (lambda b: b.NodeResources("0"), "node_rank must be an int, not str"),
        (lambda b: b.NodeResources(True), "node_rank must be an int, not bool"),
        (lambda b: b.NodeGroup(3, None, []), "label must be a str, not int"),
        (lambda b: b.NodeGroup("a", 3, []), "hardware_type must be a str, not int"),
        (lambda b: b.NodeGroup("a", None, [0]), "a node must be a NodeResources, not int"),
        (lambda b: b.parse_placement(3, [], "a"), "text must be a str, not int"),
        (lambda b: b.parse_placement("3", ["a"], "a"), "a group must be a NodeGroup, not str"),
        (lambda b: b.place_nodes([], [0], 1), "isolate_accelerator must be a bool, not int"),
        (
            lambda b: b.place_packed([], 3, 1, 1, 1, 1),
            "isolate_accelerator must be a bool, not int",
        ),
    ],
    TypeError: [
        (lambda b: b.Placements(), "cannot create 'shoal.placement.Placements' instances"),
    ],
    ValueError: [
        (lambda b: b.NodeResources(0, -1), f"num_hardware must be from 0 {TO_MAX} -1"),
        (lambda b: b.NodeResources(10**30), f"node_rank must be from 0 {TO_MAX} {10**30}"),
    ],
    PlacementError: [
        (lambda b: b.packed_ranks(-1, 3), f"start must be from 0 {TO_MAX} -1"),
        (
            lambda b: b.packed_ranks(0, 3, 0),
            f"num_hardware_per_process must be from 1 {TO_MAX} 0",
        ),
        (lambda b: b.place_flexible([], [[-1]]), f"a hardware rank must be from 0 {TO_MAX} -1"),
    ],
    PlacementIndexError: [
        (lambda b: b.place_nodes([], [-1]), f"a node rank must be from 0 {TO_MAX} -1"),
    ],
}


@pytest.mark.parametrize(
    ("error", "make", "message"), [(error, *case) for error in WRONG for case in WRONG[error]]
)
def test_wrong_argument_is_named(backend, error, make, message):
    with pytest.raises(error) as caught:
        make(backend)
    assert type(caught.value) is error
    assert str(caught.value) == message


def test_packed_ranks_interleave_by_stride(backend):
    assert backend.packed_ranks(0, 7, 2, 2) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert backend.packed_ranks(3, 5) == [[3], [4], [5]]


def test_sequences_can_be_read_from_their_end(backend):
    groups = make_groups(backend, "one")
    placed = backend.place_packed(groups, 0, 5, 2)
    assert [placement.rank for placement in reversed(placed)] == [2, 1, 0]
    assert list(reversed(backend.packed_ranks(0, 5, 2))) == [[4, 5], [2, 3], [0, 1]]


def test_access_to_one_placement_does_not_depend_on_their_number(backend):
    def cost(nodes):
        members = [backend.NodeResources(rank, 8, 8, "NV_GPU") for rank in range(nodes)]
        groups = [backend.NodeGroup("all", "Accelerator", members)]
        placed = backend.place_packed(groups, 0, nodes * 8 - 1)
        return min(timeit.repeat(lambda: placed[nodes], number=10, repeat=50))

    assert cost(8192) < 8 * cost(1)
