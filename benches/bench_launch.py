"""Launch of 1, 4 and 8 workers, compared with bare Ray actors.

`shoal` makes a group, sets the environment of its workers and waits until all constructors have
returned. `Ray, same variables` makes the same number of bare actors, which get the same variables
through Ray's runtime environment. `Ray, no variables` makes bare actors without variables. After
each launch all actors are killed and have ended, so that the next launch starts new processes.
"""

import pytest
import ray

from harness.contenders import by_function
from harness.row import Row
from shoal import NodePlacementStrategy, Worker
from shoal.placement.environment import group_environment, process_environment

SAME, NONE, SHOAL = "Ray, same variables", "Ray, no variables", "shoal"


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
    """Launches bare actors. `env` returns the variables of a placement; None sets no variables."""

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


@pytest.mark.parametrize("contender", [SAME, NONE, SHOAL])
@pytest.mark.parametrize(
    "workers", [1, pytest.param(4, marks=MEASURED), pytest.param(8, marks=MEASURED)]
)
def test_launch(measure, cluster, workers):
    strategy = NodePlacementStrategy([0] * workers)
    placements = strategy.get_placement(cluster)
    shared = group_environment("idle", placements, cluster)

    def env(placement):
        return shared | process_environment("idle", placement, "")

    launches = {
        SAME: RayLaunch(placements, env),
        NONE: RayLaunch(placements, None),
        SHOAL: ShoalLaunch(cluster, strategy),
    }
    row = Row(f"launch of {workers}", SAME, rounds=3, processes=workers + 1)
    measure(row, {name: by_function(it.run, after=it.clean) for name, it in launches.items()})
