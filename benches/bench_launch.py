"""Launching 1, 4 and 8 workers, beside bare Ray actors.

`shoal` makes a group, sets its workers' environment and waits until all constructors returned.
`ray, same variables` makes as many bare actors that get the same variables from Ray's runtime
environment; `ray, no variables` makes bare actors without any. Each round ends with all actors
dead, so that the next one starts from new processes.
"""

import pytest
import ray

from shoal import NodePlacementStrategy, Worker
from shoal.worker.environment import worker_environment

ROUNDS = 3


class Idle(Worker):
    def name(self):
        return self._worker_name


class Bare:
    def name(self):
        return "bare"


def _kill(actors):
    pings = [actor.name.remote() for actor in actors]
    for actor in actors:
        ray.kill(actor)
    ray.wait(pings, num_returns=len(pings), timeout=10)


@pytest.mark.parametrize("workers", [1, 4, 8])
@pytest.mark.parametrize("contender", ["shoal", "ray, same variables", "ray, no variables"])
def test_launch(benchmark, cluster, workers, contender):
    benchmark.group = f"launch of {workers}"
    strategy = NodePlacementStrategy([0] * workers)
    placements = strategy.get_placement(cluster)
    bare = ray.remote(Bare)
    living = []

    def launch_shoal():
        living.append(Idle.create_group().launch(cluster, strategy, name="idle", wait=True))

    def launch_ray():
        for placement in placements:
            options = {"num_cpus": 0, "name": f"idle:{placement.rank}"}
            if contender == "ray, same variables":
                env = worker_environment("idle", placement, placements, cluster, catch=False)
                options["runtime_env"] = {"env_vars": env}
            living.append(bare.options(**options).remote())
        ray.get([actor.name.remote() for actor in living])

    def clean():
        if contender == "shoal":
            for group in living:
                group.close()
        else:
            _kill(living)
        living.clear()

    launch = launch_shoal if contender == "shoal" else launch_ray
    benchmark.pedantic(launch, teardown=clean, rounds=ROUNDS)
