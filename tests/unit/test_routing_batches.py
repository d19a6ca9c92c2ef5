"""Batches of rows in routing: counting, splitting and joining without loss or duplicates."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shoal.errors import ShoalValueError
from shoal.worker.routing import (
    get_batch_size,
    get_group_info,
    get_group_world_size,
    infer_batch_size,
    merge_batches,
    split_batch,
    validate_batch_size,
)
from support.routing_doubles import Manager

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (torch.zeros(3, 2), 3),
        (np.zeros((3, 2)), 3),
        ([1, 2], 2),
        ([], 0),
        ({"a": None, "b": [1, 2, 3]}, 3),
        ({"a": {"b": torch.zeros(7)}}, 7),
    ],
    ids=repr,
)
def test_rows_are_counted(data, rows):
    assert infer_batch_size(data) == rows
    assert get_batch_size(data) == rows
    validate_batch_size(data, rows)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "Cannot infer batch size from an all-None dict payload."),
        ({"a": None}, "Cannot infer batch size from an all-None dict payload."),
        ({"a": "str", "b": [1]}, "Unsupported payload type for batch-size inference: str"),
        ((1, 2), "Unsupported payload type for batch-size inference: tuple"),
        (None, "Unsupported payload type"),
        (5, "Unsupported payload type"),
        ("str", "Unsupported payload type"),
        (torch.tensor(1), "no dimension"),
        (np.array(1), "no dimension"),
    ],
    ids=repr,
)
def test_data_without_rows_is_refused(data, text):
    with pytest.raises(ShoalValueError, match=text):
        infer_batch_size(data)


def test_rows_are_checked():
    with pytest.raises(ValueError, match=r"Expected batch size 4, but received 3\."):
        validate_batch_size([1, 2, 3], 4)
    validate_batch_size(object(), None)
    validate_batch_size("four", 4, len)
    assert get_batch_size("four", len) == 4


def test_tensors_are_split_into_contiguous_chunks_and_arrays_into_views():
    for chunk in split_batch(torch.arange(12).reshape(2, 6).t(), [4, 2]):
        assert chunk.is_contiguous()
    array = np.arange(6)
    assert all(np.shares_memory(chunk, array) for chunk in split_batch(array, [4, 2]))


def test_lists_and_dicts_are_split():
    assert split_batch([1, 2, 3], [0, 3]) == [[], [1, 2, 3]]
    data = {"rows": [1, 2, 3], "none": None, "task": "pick", "in": {"x": [4, 5, 6]}}
    assert split_batch(data, [1, 2]) == [
        {"rows": [1], "none": None, "task": "pick", "in": {"x": [4]}},
        {"rows": [2, 3], "none": None, "task": "pick", "in": {"x": [5, 6]}},
    ]
    assert split_batch({}, [1, 2]) == [{}, {}]


@pytest.mark.parametrize("value", [True, 3, 0.5, "text", np.float64(2.5)])
def test_a_value_for_all_rows_is_in_every_piece(value):
    assert split_batch(value, [2, 1]) == [value, value]


@pytest.mark.parametrize(
    "make", [list, np.array, torch.tensor, lambda rows: {"deep": {"rows": rows}}]
)
@pytest.mark.parametrize("sizes", [[1, 1], [2, 2], [3], [4, -1], [], [2, 9]])
def test_sizes_that_are_not_all_rows_are_an_error_that_names_both(make, sizes):
    data = make([1, 2, 3, 4] if sizes == [3] else [1, 2, 3])
    with pytest.raises(ShoalValueError, match=r"sum exactly|0 or more rows") as caught:
        split_batch(data, sizes)
    assert str(sizes) in str(caught.value)
    for wrong in (3, None, [1.5, 1.5]):
        with pytest.raises(ShoalValueError, match="expected a list of integers, the rows of each"):
            split_batch(data, wrong)


def test_the_part_of_a_dict_with_other_rows_is_named():
    with pytest.raises(ShoalValueError, match=r"data\['b'\]\['c'\]: they are 3, and it has 2"):
        split_batch({"a": [1, 2, 3], "b": {"c": [1, 2]}}, [2, 1])


@pytest.mark.parametrize("value", [None, (1, 2), b"12", np.int64(3)])
def test_other_data_cannot_be_split(value):
    with pytest.raises(ShoalValueError, match="Unsupported payload type for batch split"):
        split_batch(value, [1, 1])
    if value is not None:
        with pytest.raises(ShoalValueError, match=r"batch split: data\['a'\]"):
            split_batch({"a": value}, [1, 1])


def test_a_tensor_without_a_dimension_cannot_be_split():
    with pytest.raises(ShoalValueError, match=r"data\['loss'\].*no dimension"):
        split_batch({"loss": torch.tensor(1.0)}, [1])


@pytest.mark.parametrize(
    ("batches", "merged"),
    [
        ([torch.tensor([1, 2]), torch.tensor([3])], [1, 2, 3]),
        ([np.array([1, 2]), np.array([3])], [1, 2, 3]),
        ([[1], [2, 3], []], [1, 2, 3]),
        ([None, None], None),
        ([3, 3], 3),
        (["x", "x"], "x"),
        ([True, 1], True),
        ([{"a": [1], "b": None}, {"a": [2], "b": None}], {"a": [1, 2], "b": None}),
    ],
    ids=repr,
)
def test_batches_are_merged(batches, merged):
    before = repr(batches)
    result = plain(merge_batches(batches))
    assert (type(result), result) == (type(merged), merged)
    assert repr(batches) == before


def test_one_batch_is_returned_as_it_is():
    one = object()
    assert merge_batches([one]) is one


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        (5, "batches=5: expected a list of batches"),
        ({"a": [1]}, "expected a list of batches"),
        ([], r"Cannot merge an empty batch list\."),
        ([None, [1]], "mix of None and non-None"),
        ([[1], None], "mix of None and non-None"),
        ([{"a": None}, {"a": [1]}], r"mix of None and non-None: data\['a'\]"),
        ([3, 4], "Unsupported payload type for batch merge"),
        (["x", "y"], "Unsupported payload type for batch merge"),
        ([(1, np.arange(3)), (1, np.arange(3))], "Unsupported payload type for batch merge"),
        ([[1], "abc"], "Unsupported payload type for batch merge.*list, str"),
        ([np.zeros(1), [1]], "Unsupported payload type for batch merge"),
        ([{"a": [1]}, {"a": [1], "b": [2]}], "the keys 'b' in one"),
        ([{"a": [1], "b": [2]}, {"a": [1]}], "the keys 'b' in one"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], r"shapes \(1, 2\), \(1, 3\)"),
        ([torch.zeros(1, 2), torch.zeros(1, 3)], r"shapes \(1, 2\), \(1, 3\)"),
    ],
)
def test_other_batches_cannot_be_merged(batches, text):
    with pytest.raises(ShoalValueError, match=text):
        merge_batches(batches)


cells = st.integers(-9, 9)


@st.composite
def batches(draw):
    """A batch, and sizes whose sum is its number of rows."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    rows = sum(sizes)
    column = st.lists(cells, min_size=rows, max_size=rows)
    part = st.one_of(
        column,
        column.map(np.array),
        column.map(lambda values: np.array(values).reshape(rows, 1) * np.ones((1, 2))),
        column.map(lambda values: torch.tensor(values, dtype=torch.int64)),
    )
    values = st.one_of(part, st.none(), st.text(max_size=3), cells, st.booleans())
    tree = st.recursive(
        values, lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3), max_leaves=5
    )
    data = draw(st.one_of(part, st.dictionaries(st.text(max_size=2), tree, max_size=4)))
    return data, sizes


def plain(value):
    """A batch as lists, for comparison."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


@given(batches())
def test_merging_the_pieces_of_a_split_restores_the_batch(case):
    data, sizes = case
    pieces = split_batch(data, sizes)
    assert len(pieces) == len(sizes)
    assert plain(merge_batches(pieces)) == plain(data)


@given(st.lists(cells, max_size=12), st.lists(st.integers(0, 6), max_size=5))
def test_sizes_never_lose_a_row(rows, sizes):
    try:
        pieces = split_batch(rows, sizes)
    except ShoalValueError:
        assert sum(sizes) != len(rows)
    else:
        assert [row for piece in pieces for row in piece] == rows


def test_groups_are_looked_up():
    manager = Manager(env=4)
    assert get_group_info(manager, "env").group_world_size == 4
    assert get_group_world_size(manager, "env") == 4
    assert manager.asked == ["env:0", "env:0"]
    with pytest.raises(ValueError, match="Worker group 'x' is not registered"):
        get_group_world_size(manager, "x")
