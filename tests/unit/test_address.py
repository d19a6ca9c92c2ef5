"""`WorkerAddress`: the shared vectors (`tests/vectors`), and cases that they cannot express."""

import json
import pickle
from enum import IntEnum
from pathlib import Path

import pytest

from shoal.errors import AddressError, ShoalTypeError

pytestmark = pytest.mark.vectors

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "address.json").read_text())


@pytest.mark.parametrize("case", VECTORS["parse"], ids=lambda case: repr(case["input"]))
def test_from_name_matches_vector(backend, case):
    if "error" in case:
        with pytest.raises(AddressError) as caught:
            backend.WorkerAddress.from_name(case["input"])
        assert str(caught.value) == case["error"]["message"]
        assert caught.value.text == case["input"]
        assert list(caught.value.span) == case["error"]["span"]
        return
    address = backend.WorkerAddress.from_name(case["input"])
    parent = address.get_parent_address()
    assert case["expect"] == {
        "root": address.root_group_name,
        "path": address.rank_path,
        "rank": address.rank,
        "parent_rank": address.get_parent_rank(),
        "parent": None if parent is None else parent.get_name(),
        "first_child": address.get_child_address(0).get_name(),
    }
    assert address.get_name() == str(address) == case["input"]


@pytest.mark.parametrize("case", VECTORS["make"], ids=lambda case: f"{case['root']}{case['ranks']}")
def test_constructor_matches_vector(backend, case):
    ranks = [int(rank) for rank in case["ranks"]]
    if "error" in case:
        with pytest.raises(AddressError) as caught:
            backend.WorkerAddress(case["root"], ranks)
        assert str(caught.value) == case["error"]["message"]
        assert (caught.value.text, list(caught.value.span)) == (
            case["error"]["text"],
            case["error"]["span"],
        )
        return
    assert backend.WorkerAddress(case["root"], ranks).get_name() == case["expect"]
    assert backend.WorkerAddress(case["root"], tuple(ranks)).get_name() == case["expect"]


def test_sort_matches_vector(backend):
    shuffled = sorted(VECTORS["sorted"], key=hash)
    addresses = sorted(map(backend.WorkerAddress.from_name, shuffled))
    assert [address.get_name() for address in addresses] == VECTORS["sorted"]


def test_list_and_tuple_paths_are_equal(backend):
    address = backend.WorkerAddress
    assert address("g", [1, 2]) == address("g", (1, 2)) == address.from_name("g:1:2")
    assert hash(address("g", [1, 2])) == hash(address("g", (1, 2))) == hash("g:1:2")
    assert address("g", (1, 2)).get_child_address(3) == address("g", [1, 2, 3])
    assert address("g", 4) == address("g", [4]) == address.from_parent_name_rank("g", 4)


def test_a_rank_may_be_a_member_of_an_enum_of_ints(backend):
    class Rank(IntEnum):
        FIRST = 1

    assert str(backend.WorkerAddress("g", Rank.FIRST)) == "g:1"


def test_the_rank_path_is_a_copy(backend):
    address = backend.WorkerAddress("g", [1])
    address.rank_path.append(7)
    assert address.rank_path == [1]
    assert backend.WorkerAddress("g").rank_path == []


def test_address_is_immutable_and_final(backend):
    address = backend.WorkerAddress("g", [1])
    for name in ("rank", "anything"):
        with pytest.raises(AttributeError):
            setattr(address, name, 3)
    with pytest.raises(AttributeError):
        del address.rank
    assert address.get_name() == "g:1"


def test_comparison_follows_the_path_and_not_the_text(backend):
    two, ten = (backend.WorkerAddress("g", [rank]) for rank in (2, 10))
    assert two != "g:2"
    assert two != ten
    with pytest.raises(TypeError, match="'<' not supported"):
        _ = two < "g:2"
    assert two < ten
    assert ten > two
    assert two <= two <= ten  # noqa: PLR0124  (the test is about the operator)
    assert ten >= two
    assert not two > ten


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "root_group_name must be a str, not int"),
        ((None,), "root_group_name must be a str, not NoneType"),
        (("g", "12"), "ranks must be an int or a sequence of ints, not str"),
        (("g", None), "ranks must be an int or a sequence of ints, not NoneType"),
        (("g", 1.0), "ranks must be an int or a sequence of ints, not float"),
        (("g", True), "ranks must be an int or a sequence of ints, not bool"),
        (("g", [0, True]), "a rank must be an int, not bool"),
        (("g", ["0"]), "a rank must be an int, not str"),
        (("g", [None]), "a rank must be an int, not NoneType"),
    ],
)
def test_wrong_type_is_a_type_error(backend, arguments, message):
    with pytest.raises(ShoalTypeError) as caught:
        backend.WorkerAddress(*arguments)
    assert str(caught.value) == message


def test_child_rank_must_be_a_rank(backend):
    root = backend.WorkerAddress("g")
    with pytest.raises(ShoalTypeError, match="rank must be an int, not bool"):
        root.get_child_address(False)
    with pytest.raises(AddressError, match=r"(?s)expected a rank, digits only.*  g:-1\n    \^\^"):
        root.get_child_address(-1)
    with pytest.raises(AddressError, match="at most 2147483647"):
        root.get_child_address(2**31)
    with pytest.raises(AddressError):
        backend.WorkerAddress.from_parent_name_rank("g::", 0)


def test_numpy_ranks_are_ranks(backend):
    numpy = pytest.importorskip("numpy")
    address = backend.WorkerAddress("g", numpy.array([1, 2]))
    assert address.get_child_address(numpy.int64(3)).rank_path == [1, 2, 3]


def test_lone_surrogate_is_refused(backend):
    with pytest.raises(UnicodeEncodeError):
        backend.WorkerAddress.from_name("g\udc80:1")


def test_the_error_has_its_older_base_classes_and_is_pickled(backend):
    with pytest.raises(AssertionError):
        backend.WorkerAddress("a:b", [0])
    with pytest.raises(ValueError, match="leading zeros") as caught:
        backend.WorkerAddress.from_name("g:01")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.text, again.span) == (str(caught.value), "g:01", (2, 4))


def test_repr_shows_the_arguments(backend):
    assert repr(backend.WorkerAddress("it's", [0, 1])) == """WorkerAddress("it's", [0, 1])"""
