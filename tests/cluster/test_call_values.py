"""Arguments and results of calls through Ray: the same as in `tests/unit/test_call_values.py`."""

import pytest
import ray

pytest.importorskip("torch")

from shoal import NodePlacementStrategy
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


def test_references_of_ray_arrive_and_keep_their_objects(keeper):
    ref = ray.put([1, 2])
    keeper.keep({"inside": ref}).wait()
    seen = keeper.look(ref, again=[ref]).wait()[0]
    del ref
    assert seen[0] == kinds.facts([1, 2])
    assert keeper.fetch().wait() == [[1, 2]]
