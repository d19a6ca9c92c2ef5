"""Flattening the tensors of a dataclass into a list, and restoring them."""

import dataclasses

import pytest

from shoal.collective import extract_dataclass_tensor_fields, unflatten_dataclass_tensor_fields
from shoal.errors import ShoalTypeError, ShoalValueError

torch = pytest.importorskip("torch")


@dataclasses.dataclass
class Batch:
    step: int
    state: object = None
    steps: object = None
    pair: object = None
    by_name: object = None
    nested: object = None
    later: object = dataclasses.field(init=False)


def tensors(count):
    return [torch.full((2,), float(n)) for n in range(count)]


def test_fields_with_tensors_are_found_in_order_and_put_back():
    one, two, three, four, five, six = tensors(6)
    batch = Batch(3, one, [two, three], (four,), {"b": five, 1: six}, [[one]])
    found, flat, metadata = extract_dataclass_tensor_fields(batch)
    assert list(found) == list(metadata) == ["state", "steps", "pair", "by_name"]
    assert found["steps"] is batch.steps
    assert [id(tensor) for tensor in flat] == [id(t) for t in (one, two, three, four, five, six)]
    others = [tensor + 10 for tensor in flat]
    back = unflatten_dataclass_tensor_fields(metadata, others)
    assert list(back) == ["state", "steps", "pair", "by_name"]
    assert back["state"] is others[0]
    assert [type(value).__name__ for value in back.values()] == ["Tensor", "list", "tuple", "dict"]
    assert list(back["by_name"]) == ["b", 1]
    assert back["by_name"][1] is others[5]


def test_empty_containers_count_as_containers_of_tensors():
    found, flat, metadata = extract_dataclass_tensor_fields(Batch(3, None, [], (), {}, [1]))
    assert found == {"steps": [], "pair": (), "by_name": {}}
    assert flat == []
    assert unflatten_dataclass_tensor_fields(metadata, flat) == found


def test_a_dataclass_without_tensors_has_none():
    batch = Batch(3, "text", [torch.ones(1), 2], (None,), {"a": [torch.ones(1)]})
    assert extract_dataclass_tensor_fields(batch) == ({}, [], {})
    assert unflatten_dataclass_tensor_fields({}, []) == {}


def test_parameters_are_tensors_too():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert extract_dataclass_tensor_fields(Batch(3, parameter))[1] == [parameter]


@pytest.mark.parametrize("given", [Batch, {"state": 1}, None])
def test_other_objects_than_dataclass_instances_are_refused(given):
    with pytest.raises(ShoalTypeError, match="expected an instance of a dataclass, got"):
        extract_dataclass_tensor_fields(given)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_another_number_of_tensors_is_an_error(count):
    metadata = extract_dataclass_tensor_fields(Batch(3, None, tensors(2), (), {"a": tensors(1)[0]}))
    text = rf"steps, pair, by_name have 3 tensors, but {count} were given$"
    with pytest.raises(ShoalValueError, match=text):
        unflatten_dataclass_tensor_fields(metadata[2], tensors(count))


@pytest.mark.parametrize("described", [{"kind": "set", "length": 1}, {}])
def test_an_unknown_kind_is_an_error(described):
    with pytest.raises(ValueError, match="field 'state' is of the unknown kind"):
        unflatten_dataclass_tensor_fields({"state": described}, tensors(1))
