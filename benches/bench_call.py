"""A call on a group of 4 ranks, compared with the same calls on bare actor handles."""

import pytest
import ray

from harness.contenders import by_function
from harness.row import Goal, Row
from shoal import NodePlacementStrategy, Worker

RANKS = 4
BARE, SHOAL = "bare actor handles", "shoal group"


class Echo(Worker):
    def echo(self, value):
        return value


class BareEcho:
    def echo(self, value):
        return value


@pytest.fixture(scope="module")
def group(cluster):
    strategy = NodePlacementStrategy([0] * RANKS)
    made = Echo.create_group().launch(cluster, strategy, name="echo", wait=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def handles(cluster):
    made = [ray.remote(BareEcho).options(num_cpus=0).remote() for _ in range(RANKS)]
    ray.get([handle.echo.remote(0) for handle in made])
    yield made
    for handle in made:
        ray.kill(handle)


@pytest.mark.parametrize("contender", [BARE, SHOAL])
def test_call(measure, group, handles):
    def call_ray():
        return ray.get([handle.echo.remote(1) for handle in handles])

    def call_shoal():
        return group.echo(1).wait()

    assert call_ray() == call_shoal() == [1] * RANKS
    goals = {SHOAL: [Goal(f"≤ 1.3 of {BARE}", times_reference=1.3)]}
    row = Row(f"call on {RANKS} ranks", BARE, goals, most=1000, processes=RANKS + 1)
    measure(row, {BARE: by_function(call_ray), SHOAL: by_function(call_shoal)})
