"""The three call forms of `Cluster.allocate`, which are told apart by their arguments."""

import pytest

from shoal import NodeInfo
from shoal.cluster.allocate import allocate, read_arguments
from shoal.cluster.cluster import _ClassOrInstanceMethod
from shoal.cluster.job import Job
from shoal.errors import ShoalTypeError, ShoalValueError


class Some:
    pass


def read(*args, **kwargs):
    return read_arguments(Some, "g:1", args, kwargs)


def test_the_form_of_today_with_positions():
    request = read(1, 0, None, {"X": "1"}, "cluster", False, [1], {"a": 2})
    assert (request.worker_rank, request.node_rank, request.max_concurrency) == (1, 0, None)
    assert (request.env_vars, request.node_group_label) == ({"X": "1"}, "cluster")
    assert (request.cls_args, request.cls_kwargs) == ([1], {"a": 2})
    assert request.gpu_id is None


def test_the_form_of_today_with_keywords():
    request = read(worker_rank=3, node_rank=2, max_concurrency=4, env_vars={}, cls_args=(7,))
    assert (request.worker_rank, request.node_rank, request.max_concurrency) == (3, 2, 4)
    assert request.cls_args == (7,)


def test_the_documented_form_with_a_gpu():
    request = read(2, 1, {"X": "1"}, [5], {"a": 6})
    assert (request.node_rank, request.gpu_id, request.env_vars) == (2, 1, {"X": "1"})
    assert (request.cls_args, request.cls_kwargs) == ([5], {"a": 6})
    assert request.worker_rank is None


def test_the_documented_form_by_keyword():
    request = read(node_id=2, gpu_id=1, env_vars={"X": "1"})
    assert (request.node_rank, request.gpu_id, request.env_vars) == (2, 1, {"X": "1"})


def test_the_form_without_a_gpu():
    request = read(2, {"X": "1"}, [5])
    assert (request.node_rank, request.gpu_id, request.env_vars) == (2, None, {"X": "1"})
    assert request.cls_args == [5]
    assert read(node_id=2, env_vars={"X": "1"}).node_rank == 2


def test_none_means_the_default():
    request = read(0, 0, None, None, "cluster", False, None, None)
    assert (request.env_vars, request.cls_args, request.cls_kwargs) == ({}, (), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "node_rank"),
        ((), {"worker_rank": 0}, "node_rank"),
        ((0, 0, {}), {"node_id": 1}, "two values for 'node_id'"),
        ((), {"node_id": 0, "gpus": 1}, "unexpected argument 'gpus'; expected node_id"),
        ((0, {}, [], {}, 1), {}, "at most 6 positional"),
    ],
)
def test_other_arguments_are_an_error(args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        read(*args, **kwargs)


@pytest.mark.parametrize("count", [0, -1, 2**31, "2", 1.5, True])
def test_an_invalid_max_concurrency_is_refused(count):
    request = read(worker_rank=0, node_rank=0, max_concurrency=count)
    job = Job("", [NodeInfo([], 0, "", "", 1)], {}, None, "", 0)
    with pytest.raises(ShoalValueError, match=f"max_concurrency={count!r}: expected 1 to"):
        allocate(job, request, [])


@pytest.mark.parametrize("variables", ["X=1", [("X", "1")], 5])
def test_variables_are_a_mapping(variables):
    with pytest.raises(ShoalTypeError, match="g:1: env_vars must be a mapping of names to values"):
        read(worker_rank=0, node_rank=0, env_vars=variables)


def test_a_method_of_class_and_instance_makes_an_instance_only_when_it_is_called():
    made = []

    class Single:
        def __init__(self):
            made.append(self)

        def _add(self, value):
            """Add."""
            return len(made) + value

        add = _ClassOrInstanceMethod(_add)

    assert Single.add.__doc__ == "Add."
    assert made == []
    assert Single.add(value=1) == 2
    assert made[0].add(5) == 6
