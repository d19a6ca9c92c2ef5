"""Routed batches between two groups on a cluster, through a channel and from worker to worker."""

import numpy as np
import pytest

from shoal import Channel, NodePlacementStrategy, Worker

pytestmark = pytest.mark.ray

ENVS, ROLLOUTS = 4, 2
WIDE = 20_000
"""Columns that make a piece large enough to arrive in shared memory, not as a copy."""


class Env(Worker):
    """The asking side: sends observations, receives actions."""

    def exchange(self, channel, steps, **options):
        """Return the mean action of each row of each step."""
        received = []
        for step in steps:
            rows = np.array([10 * self._rank, 10 * self._rank + 1]) + 100 * step
            data = {"obs": np.repeat(rows[:, None], WIDE, axis=1), "task": "pick"}
            self.send_to("rollout", channel, data, tag="obs", timeout=60, **options)
            actions = self.recv_from(
                "rollout", channel, tag="obs", batch_size=8, timeout=60, **options
            )
            received.append(actions["act"].mean(axis=1).tolist())
        return received


class Rollout(Worker):
    """The answering side: receives observations, sends their negative."""

    def exchange(self, channel, steps, **options):
        """Return the number of rows of each step."""
        counts = []
        for _ in steps:
            work = self.recv_from(
                "env", channel, tag="obs", batch_size=8, timeout=60, async_op=True, **options
            )
            batch = work.wait(timeout=60)
            assert batch["task"] == "pick"
            batch["obs"] += 0  # what arrives can be written to
            counts.append(len(batch["obs"]))
            self.send_to("env", channel, {"act": -batch["obs"]}, tag="obs", timeout=60, **options)
        return counts


@pytest.fixture(scope="module")
def groups(cluster):
    env, rollout = Env.create_group(), Rollout.create_group()
    env.launch(cluster, NodePlacementStrategy([0] * ENVS), name="env")
    rollout.launch(cluster, NodePlacementStrategy([0] * ROLLOUTS), name="rollout")
    env.ready()
    rollout.ready()
    yield env, rollout
    for group in (env, rollout):
        group._close()


@pytest.fixture(scope="module")
def routes(cluster):
    channel = Channel.create("routes")
    yield channel
    channel.delete()


def expected(steps):
    return [
        [[-(100 * step + 10 * rank + row) for row in range(2)] for step in steps]
        for rank in range(ENVS)
    ]


@pytest.mark.parametrize("options", [{"route_key": 1}, {"enable_p2p": True}], ids=["fixed", "p2p"])
def test_every_environment_gets_the_answers_to_its_own_rows(groups, routes, options):
    env, rollout = groups
    channel = None if "enable_p2p" in options else routes
    asking = env.exchange(channel, range(3), **options)
    answering = rollout.exchange(channel, range(3), **options)
    assert answering.wait() == [[4, 4, 4]] * ROLLOUTS
    assert asking.wait() == expected(range(3))
