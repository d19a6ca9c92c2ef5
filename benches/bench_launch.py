"""Launching 1, 4 and 8 workers, beside bare Ray actors.

`shoal` makes a group, sets its workers' environment and waits until all constructors returned.
`Ray, same variables` makes as many bare actors that get the same variables from Ray's runtime
environment; `Ray, no variables` makes bare actors without any. After each all actors are killed
and have ended, so that the next one starts new processes.
"""

import pytest
import ray

from shoal import NodePlacementStrategy, Worker
from shoal.placement.environment import group_environment, process_environment
from side_by_side import Contender

ROUNDS = 3


class Idle(Worker):
    def name(self):
        return self._worker_name


class Bare:
    def name(self):
        return "bare"


class ShoalLaunch:
    """Launches a group."""

    def __init__(self, cluster, strategy):
        self.cluster, self.strategy = cluster, strategy

    def run(self):
        self.group = Idle.create_group().launch(self.cluster, self.strategy, name="idle", wait=True)

    def clean(self):
        self.group.close()


class RayLaunch:
    """Launches bare actors; `env` gives the variables of a placement, or None."""

    def __init__(self, placements, env):
        self.placements, self.env = placements, env
        self.bare = ray.remote(Bare)

    def run(self):
        self.actors = []
        for placement in self.placements:
            options = {"num_cpus": 0, "name": f"bare:{placement.rank}"}
            if self.env is not None:
                options["runtime_env"] = {"env_vars": self.env(placement)}
            self.actors.append(self.bare.options(**options).remote())
        ray.get([actor.name.remote() for actor in self.actors])

    def clean(self):
        pings = [actor.name.remote() for actor in self.actors]
        for actor in self.actors:
            ray.kill(actor)
        ray.wait(pings, num_returns=len(pings), timeout=10)


MEASURED = pytest.mark.measured


@pytest.mark.parametrize(
    "workers", [1, pytest.param(4, marks=MEASURED), pytest.param(8, marks=MEASURED)]
)
def test_launch(race, cluster, workers):
    strategy = NodePlacementStrategy([0] * workers)
    placements = strategy.get_placement(cluster)

    shared = group_environment("idle", placements, cluster)

    def env(placement):
        return shared | process_environment("idle", placement, "")

    launches = {
        "Ray, same variables": RayLaunch(placements, env),
        "Ray, no variables": RayLaunch(placements, None),
        "shoal": ShoalLaunch(cluster, strategy),
    }
    rivals = {name: Contender(made.run, after=made.clean) for name, made in launches.items()}
    race.run(f"launch of {workers}", rivals, ROUNDS)
