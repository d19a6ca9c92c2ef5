"""Arguments and results of calls on a group, without Ray; `tests/cluster` has the same with Ray."""

import threading

import numpy as np
import pytest

pytest.importorskip("torch")

from shoal.errors import CallDecodeError, LaunchError
from shoal.testing import local_cluster
from support import call_kinds as kinds

pytestmark = kinds.quiet


@pytest.fixture(scope="module")
def cluster():
    with local_cluster() as made:
        yield made


@pytest.fixture(scope="module")
def keeper(cluster):
    return kinds.Keeper.create_group().launch(cluster, name="keeper")


@pytest.mark.parametrize("name", kinds.KINDS)
def test_a_value_arrives_as_it_is(keeper, name):
    wanted = kinds.facts(kinds.KINDS[name]())
    assert keeper.look(kinds.KINDS[name](), again=kinds.KINDS[name]()).wait() == [(wanted, wanted)]
    assert kinds.facts(keeper.give(name).wait()[0]) == wanted


@pytest.mark.parametrize("name", kinds.ROWS)
def test_a_row_of_a_large_tensor_arrives_without_the_rest(keeper, name):
    assert keeper.weigh(kinds.KINDS[name]()).wait()[0] < 100
    assert kinds.bytes_held(keeper.give(name).wait()[0]) < 100


def test_a_worker_can_write_to_an_array_that_it_keeps(keeper):
    array = np.arange(100_000)
    keeper.keep(array).wait()
    assert keeper.write().wait() == [float(array.sum() + len(array))]
    assert array[0] == 0


def test_two_arguments_that_are_one_object_arrive_as_one(keeper):
    value = [1]
    assert keeper.same(value, value).wait() == [True]


def test_an_argument_that_cannot_be_rebuilt_is_an_error_of_the_call(keeper):
    text = (
        r"the arguments \(Breaks\) of keeper\.keep cannot be rebuilt in .*: ZeroDivisionError: on"
    )
    with pytest.raises(CallDecodeError, match=text) as caught:
        keeper.keep(kinds.Breaks()).wait()
    assert "raised on rank 0 (keeper:0)" in caught.value.__notes__[0]
    assert keeper.same(1, 2).wait() == [False]


def test_a_result_that_cannot_be_rebuilt_is_an_error_of_the_call(keeper):
    text = (
        r"what Keeper\.broken returned \(Breaks\) cannot be rebuilt in .*: ZeroDivisionError: on p"
    )
    with pytest.raises(CallDecodeError, match=text):
        keeper.broken().wait()


def test_a_result_is_rebuilt_in_the_thread_that_waits(keeper):
    """Not in the one in which it arrives: in Ray's own thread torch crashed on sparse tensors."""
    assert keeper.where().wait() == [threading.get_ident()]


def test_the_result_of_one_call_is_an_argument_of_another(keeper):
    wanted = kinds.facts(kinds.KINDS["a large array"]())
    (ref,) = keeper.give("a large array")._call.refs
    assert keeper.look(ref, again=ref).wait() == [(wanted, wanted)]


class Builds(kinds.Keeper):
    def __init__(self, value):
        super().__init__()
        self.kept = value

    def seen(self):
        return kinds.facts(self.kept)


@pytest.mark.parametrize("name", ["a row", "a large array", "one list twice", "complex32"])
def test_an_argument_of_a_constructor_arrives_as_it_is(cluster, name):
    group = Builds.create_group(kinds.KINDS[name]()).launch(cluster, name=f"builds {name}")
    assert group.seen().wait() == [kinds.facts(kinds.KINDS[name]())]


def test_an_argument_of_a_constructor_that_cannot_be_rebuilt_is_an_error_of_the_launch(cluster):
    group = Builds.create_group(kinds.Breaks()).launch(cluster, name="breaks")
    with pytest.raises(LaunchError, match="ZeroDivisionError: on purpose"):
        group.ready()
