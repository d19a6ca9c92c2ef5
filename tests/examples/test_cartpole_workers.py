"""The workers of the CartPole example, in this process: `shoal.testing` instead of Ray."""

from pathlib import Path

import pytest
import torch.distributed as dist  # noqa: TID253  (what is tested here uses it)
import yaml
from actor import Actor
from ppo import Network
from rollout import Rollout
from settings import Settings

from shoal import Channel, ComponentPlacement, Weights
from shoal.errors import ShoalTimeoutError
from shoal.testing import StalledError, local_cluster

pytestmark = pytest.mark.nightly

JOB = Path(__file__).parents[2] / "examples" / "cartpole" / "cartpole.yaml"
SECTION = yaml.safe_load(JOB.read_text())["train"]
SETTINGS = Settings.from_mapping(
    {**SECTION, "environments": 4, "steps": 16, "epochs": 2, "minibatch": 32}
)
DOCUMENT = {
    "cluster": {
        "num_nodes": 1,
        "component_placement": {
            "rollout": {"node_group": "node", "placement": "0:0-1"},
            "actor": {"node_group": "node", "placement": "0:0"},
        },
    }
}


@pytest.fixture
def cluster():
    with local_cluster(cluster_cfg=DOCUMENT) as made:
        yield made


def launch_rollouts(cluster):
    strategy = ComponentPlacement(DOCUMENT, cluster).get_strategy("rollout")
    return Rollout.create_group(SETTINGS, 1).launch(cluster, strategy, name="rollout")


def test_rollouts_put_every_step_into_the_channel_once(cluster):
    rollouts = launch_rollouts(cluster)
    channel, policies = Channel.create("episodes"), Weights.create("policies")
    playing = rollouts.play(channel, policies)
    policies.publish(Network(4, 2).policy_weights())
    scores = playing.wait()
    episodes = channel.drain(key=0)
    assert sum(map(len, episodes)) == 2 * SETTINGS.environments * SETTINGS.steps
    assert {episode.stream for episode in episodes} == set(range(2 * SETTINGS.environments))
    assert sum(len(of_rank) for of_rank in scores) == sum(one.terminated for one in episodes)


def test_rollouts_play_with_each_policy_once_and_tell_which_one_they_wait_for(cluster):
    rollouts = launch_rollouts(cluster)
    channel, policies = Channel.create("episodes"), Weights.create("policies")
    for wanted in ("a version", "a version after 1.1"):
        with pytest.raises(ExceptionGroup) as caught:
            rollouts.play(channel, policies).wait()
        error = caught.value.exceptions[0]
        assert isinstance(error, StalledError)
        assert isinstance(error, ShoalTimeoutError)
        assert f"waits for {wanted} of the weights 'policies'" in str(error)
        policies.publish(Network(4, 2).policy_weights())
        rollouts.play(channel, policies).wait()


def train(iterations):
    """Train with one actor, and return its losses; torch's process group is one per process."""
    with local_cluster(cluster_cfg=DOCUMENT) as cluster:
        rollouts = launch_rollouts(cluster)
        share = 2 * SETTINGS.environments * SETTINGS.steps
        actor = Actor.create_group(SETTINGS, share).launch(cluster, name="actor")
        channel, policies = Channel.create("episodes", maxsize=1024), Weights.create("policies")
        losses = []
        try:
            for _ in range(iterations):
                calls = [rollouts.play(channel, policies), actor.learn(channel, policies)]
                losses += [call.wait() for call in calls][1]
            times = actor.pop_execution_times().wait()[0]
            assert {"send weights", "average gradients", "step optimizer"} <= set(times)
            assert channel.qsize(0) == 0
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    return losses


def test_an_iteration_goes_through_both_groups_and_repeats_itself():
    first, second = train(2), train(2)
    assert len(first) == 2
    assert first == second
