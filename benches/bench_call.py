"""A call on a group of 4 ranks, beside the same calls on bare actor handles."""

import pytest
import ray

from shoal import NodePlacementStrategy, Worker
from side_by_side import Contender

RANKS = 4


class Echo(Worker):
    def echo(self, value):
        return value


class BareEcho:
    def echo(self, value):
        return value


@pytest.fixture
def group(cluster):
    strategy = NodePlacementStrategy([0] * RANKS)
    made = Echo.create_group().launch(cluster, strategy, name="echo", wait=True)
    yield made
    made.close()


@pytest.fixture
def handles(cluster):
    made = [ray.remote(BareEcho).options(num_cpus=0).remote() for _ in range(RANKS)]
    ray.get([handle.echo.remote(0) for handle in made])
    yield made
    for handle in made:
        ray.kill(handle)


def test_call(race, group, handles):
    def call_ray():
        return ray.get([handle.echo.remote(1) for handle in handles])

    def call_shoal():
        return group.echo(1).wait()

    assert call_ray() == call_shoal() == [1] * RANKS
    rivals = {"bare actor handles": Contender(call_ray), "shoal group": Contender(call_shoal)}
    race.run(f"call on {RANKS} ranks", rivals, rounds=1000, warmup=50)
