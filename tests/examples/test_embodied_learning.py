"""The learning code of the embodied example, without workers."""

import math

import numpy as np
import pytest
import torch  # noqa: TID253  (what is tested here is written with it)
from omegaconf import OmegaConf

pytestmark = pytest.mark.nightly

MODEL = OmegaConf.create({"observation_size": 3, "action_size": 1, "hidden_size": 8})
ACTOR = OmegaConf.create(
    {"discount": 0.9, "gae_lambda": 0.8, "reward_scale": 0.5, "clip": 0.2, "value_coefficient": 0.5}
)


def make_policy(embodied):
    return embodied.model.Policy(MODEL, seed=3)


def make_trajectory(envs, steps):
    random = np.random.default_rng(0)
    shapes = {
        "observations": (envs, steps + 1, 3),
        "actions": (envs, steps, 1),
        "log_probs": (envs, steps),
        "values": (envs, steps + 1),
        "rewards": (envs, steps),
    }
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_advantages_are_the_weighted_sum_of_surprises(embodied):
    trajectory = make_trajectory(2, 6)
    rewards, values = trajectory["rewards"], trajectory["values"]
    ours = embodied.learning.advantages(rewards, values, discount=0.9, gae_lambda=0.8)
    surprises = rewards + 0.9 * values[:, 1:] - values[:, :-1]
    for step in range(6):
        weights = (0.9 * 0.8) ** np.arange(6 - step)
        expected = (weights * surprises[:, step:]).sum(1)
        np.testing.assert_allclose(ours[:, step], expected, rtol=1e-4)


def test_a_batch_has_a_row_for_each_step(embodied):
    trajectory = make_trajectory(2, 5)
    batch = embodied.learning.make_batch(trajectory, ACTOR)
    assert {name: tuple(column.shape) for name, column in batch.items()} == {
        "observations": (10, 3),
        "actions": (10, 1),
        "log_probs": (10,),
        "advantages": (10,),
        "returns": (10,),
    }
    np.testing.assert_array_equal(batch["observations"][5], trajectory["observations"][1, 0])
    found = batch["returns"] - batch["advantages"]
    np.testing.assert_allclose(found[5:], trajectory["values"][1, :-1], atol=1e-6)


def test_minibatches_go_through_every_step_once(embodied):
    batch = embodied.learning.make_batch(make_trajectory(2, 5), ACTOR)
    pieces = list(embodied.learning.minibatches(batch, 4, torch.Generator().manual_seed(0)))
    assert [len(piece["actions"]) for piece in pieces] == [4, 4, 2]
    seen = torch.cat([piece["returns"] for piece in pieces])
    assert not torch.equal(seen, batch["returns"])
    torch.testing.assert_close(seen.sort().values, batch["returns"].sort().values)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "moves"),
    [
        (1.0, 2.0, -2.0, True),
        (1.5, 2.0, -2.4, False),  # good, and already much likelier: no further
        (0.5, -2.0, 1.6, False),  # bad, and already much less likely: no further
        (1.5, -2.0, 3.0, True),  # bad, yet likelier than before: has to go back
        (0.5, 2.0, -1.0, True),  # good, yet less likely than before: has to go back
    ],
)
def test_the_objective_is_clipped_only_where_it_has_gone_far_enough(
    embodied, ratio, advantage, expected, moves
):
    policy = make_policy(embodied)
    observations, actions = torch.ones(1, 3), torch.full((1, 1), 0.7)
    means, stds, values = policy(observations)
    now = embodied.model.log_probabilities(means, stds, actions).detach()
    batch = {
        "observations": observations,
        "actions": actions,
        "log_probs": now - math.log(ratio),
        "advantages": torch.tensor([advantage]),
        "returns": values.detach().squeeze(-1),  # no error of the value function
    }
    value = embodied.learning.loss(policy, batch, ACTOR)
    torch.autograd.backward(value)
    assert value.item() == pytest.approx(expected, rel=1e-4)
    assert (policy.log_std.grad.abs().sum().item() > 1e-6) == moves
