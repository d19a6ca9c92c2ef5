"""A call on a group of 4 ranks, beside the same calls on bare actor handles."""

import pytest
import ray

from shoal import NodePlacementStrategy, Worker

RANKS = 4


class Echo(Worker):
    def echo(self, value):
        return value


class BareEcho:
    def echo(self, value):
        return value


@pytest.fixture(scope="module")
def group(cluster):
    made = Echo.create_group().launch(
        cluster, NodePlacementStrategy([0] * RANKS), name="echo", wait=True
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def handles(cluster):
    made = [ray.remote(BareEcho).options(num_cpus=0).remote() for _ in range(RANKS)]
    ray.get([handle.echo.remote(0) for handle in made])
    yield made
    for handle in made:
        ray.kill(handle)


@pytest.mark.parametrize("contender", ["shoal", "ray"])
def test_call(benchmark, group, handles, contender):
    benchmark.group = f"call on {RANKS} ranks"

    def call_shoal():
        return group.echo(1).wait()

    def call_ray():
        return ray.get([handle.echo.remote(1) for handle in handles])

    call = call_shoal if contender == "shoal" else call_ray
    assert call() == [1] * RANKS
    benchmark.pedantic(call, rounds=500, warmup_rounds=50)
