"""Arguments and results of calls through Ray: the same as in `tests/unit/test_call_values.py`."""

import threading

import pytest
import ray

pytest.importorskip("torch")

from shoal import NodePlacementStrategy
from shoal.errors import CallDecodeError, ShoalValueError
from support import call_kinds as kinds

pytestmark = [pytest.mark.ray, kinds.quiet]


@pytest.fixture(scope="module")
def keeper(cluster):
    ray.cloudpickle.register_pickle_by_value(kinds)
    group = kinds.Keeper.create_group().launch(cluster, NodePlacementStrategy([0]), "keeper")
    yield group.ready()
    group.close()
    ray.cloudpickle.unregister_pickle_by_value(kinds)


def test_values_arrive_as_they_are(keeper):
    wanted = {name: kinds.facts(make()) for name, make in kinds.KINDS.items()}
    looked, given = {}, {}
    for name, make in kinds.KINDS.items():
        (looked[name],) = keeper.look(make(), again=make()).wait()
        given[name] = kinds.facts(keeper.give(name).wait()[0])
    assert looked == {name: (value, value) for name, value in wanted.items()}
    assert given == wanted


def test_rows_of_large_tensors_arrive_without_the_rest(keeper):
    weighed = [keeper.weigh(kinds.KINDS[name]()).wait()[0] for name in kinds.ROWS]
    weighed += [kinds.bytes_held(keeper.give(name).wait()[0]) for name in kinds.ROWS]
    assert max(weighed) < 100


def test_a_call_names_the_values_that_it_cannot_send_or_rebuild(keeper):
    text = r"the arguments \(generator\) of keeper\.keep cannot be sent: cannot pickle"
    with pytest.raises(ShoalValueError, match=text):
        keeper.keep(number for number in range(2))
    text = r"the arguments \(Breaks\) of keeper\.keep cannot be rebuilt in keeper:0: ZeroDivision"
    with pytest.raises(CallDecodeError, match=text):
        keeper.keep(kinds.Breaks()).wait()
    text = r"what Keeper\.broken returned \(Breaks\) cannot be rebuilt in .*: ZeroDivisionError: on"
    with pytest.raises(CallDecodeError, match=text):
        keeper.broken().wait()


def test_a_result_is_rebuilt_in_the_thread_that_waits(keeper):
    """Not in the one in which it arrives: in Ray's own thread torch crashed on sparse tensors."""
    assert keeper.where().wait() == [threading.get_ident()]


def test_references_of_ray_arrive_and_keep_their_objects(keeper):
    ref = ray.put([1, 2])
    keeper.keep({"inside": ref}).wait()
    seen = keeper.look(ref, again=[ref]).wait()[0]
    del ref
    assert seen[0] == kinds.facts([1, 2])
    assert keeper.fetch().wait() == [[1, 2]]
