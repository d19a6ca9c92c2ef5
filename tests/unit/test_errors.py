"""The classes of errors: their base classes, and that all errors can be pickled."""

import asyncio
import pickle
import queue

import pytest
import ray.cloudpickle

from shoal import errors
from shoal.errors import (
    AddressError,
    ChannelEmpty,
    ChannelFull,
    ClusterConfigError,
    ClusterNotFoundError,
    GeneratorMethodError,
    LaunchError,
    NameTakenError,
    PlacementIndexError,
    RemoteError,
    ShoalError,
    ShoalTimeoutError,
    WorkerGroupError,
)

ALL = [getattr(errors, name) for name in errors.__all__]


def make(cls):
    if cls is WorkerGroupError:
        return cls("two failed", [ValueError("a"), KeyError("b")], ranks=[3, 1])
    return cls("what was wrong")


@pytest.mark.parametrize("pickler", [pickle, ray.cloudpickle])
@pytest.mark.parametrize("cls", ALL)
def test_all_are_shoal_errors_and_pickle_with_message_and_notes(cls, pickler):
    error = make(cls)
    assert isinstance(error, ShoalError)
    error.add_note("seen on rank 3")
    read = pickler.loads(pickler.dumps(error))
    assert type(read) is cls
    assert str(read) == str(error)
    assert read.__notes__ == ["seen on rank 3"]


def test_attributes_are_pickled():
    address = AddressError("no", text="a:b", span=(2, 3))
    config = ClusterConfigError("no", problems=["num_nodes: is negative"])
    remote = RemoteError("no", type_name="m.E", traceback_text="Traceback")
    read = pickle.loads(pickle.dumps([address, config, remote]))
    assert (read[0].text, read[0].span) == ("a:b", (2, 3))
    assert read[1].problems == ("num_nodes: is negative",)
    assert (read[2].type_name, read[2].traceback_text) == ("m.E", "Traceback")


def test_a_group_keeps_its_ranks_when_it_travels_and_when_it_is_split():
    group = make(WorkerGroupError)
    read = pickle.loads(pickle.dumps(group))
    assert read.ranks == (3, 1)
    assert [type(e) for e in read.exceptions] == [ValueError, KeyError]
    keys, rest = group.split(KeyError)
    assert (keys.ranks, rest.ranks) == ((1,), (3,))


def test_a_group_is_caught_by_the_errors_in_it():
    caught = []
    try:
        raise make(WorkerGroupError)
    except* KeyError as group:
        caught.extend(group.exceptions)
    except* ValueError as group:
        caught.extend(group.exceptions)
    assert [type(e) for e in caught] == [KeyError, ValueError]


@pytest.mark.parametrize(
    ("cls", "bases"),
    [
        (PlacementIndexError, (ValueError, AssertionError, IndexError)),
        (ClusterConfigError, (ValueError, AssertionError)),
        (GeneratorMethodError, (TypeError, NotImplementedError)),
        (ShoalTimeoutError, (TimeoutError, asyncio.TimeoutError)),
        (ClusterNotFoundError, (RuntimeError,)),
        (NameTakenError, (LaunchError, ValueError)),
        (ChannelFull, (queue.Full, asyncio.QueueFull)),
        (ChannelEmpty, (queue.Empty, asyncio.QueueEmpty)),
    ],
)
def test_existing_callers_catch_them(cls, bases):
    for base in bases:
        assert issubclass(cls, base)
