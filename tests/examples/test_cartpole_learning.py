"""The learning code of the CartPole example, without Ray."""

import math

import numpy as np
import pytest
import torch  # noqa: TID253  (what is tested here is written with it)
from episode import Episode, Recorder
from policy import choose, log_probabilities
from ppo import Batch, Network, advantages, loss, make_batch
from settings import Settings

pytestmark = pytest.mark.nightly

SETTINGS = Settings(
    seed=0,
    environments=2,
    steps=8,
    discount=0.9,
    gae_lambda=0.8,
    epochs=1,
    minibatch=8,
    learning_rate=1e-3,
    clip=0.2,
    value_coefficient=0.5,
    entropy_coefficient=0.0,
    max_grad_norm=0.5,
)


def make_network():
    torch.manual_seed(3)
    network = Network(observation_size=4, num_actions=2)
    with torch.no_grad():  # away from the start, where all actions are equally likely
        network.policy[-1].weight.mul_(100)
    return network


def make_episode(steps, *, terminated, seed=0):
    random = np.random.default_rng(seed)
    return Episode(
        stream=seed,
        observations=random.normal(size=(steps, 4)).astype(np.float32),
        actions=random.integers(2, size=steps),
        log_probs=np.full(steps, -math.log(2), np.float32),
        rewards=random.normal(size=steps).astype(np.float32),
        last_observation=random.normal(size=4).astype(np.float32),
        terminated=terminated,
    )


def test_the_numpy_policy_is_the_torch_policy():
    network = make_network()
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    expected = torch.log_softmax(network.policy(torch.from_numpy(observations)), -1)
    ours = log_probabilities(list(network.policy_weights().values()), observations)
    np.testing.assert_allclose(ours, expected.detach().numpy(), atol=1e-5)
    assert np.ptp(ours) > 0.5  # the comparison saw more than equal numbers


def test_actions_are_drawn_with_their_probabilities():
    log_probs = np.log(np.tile(np.array([[0.2, 0.8]], np.float32), (20_000, 1)))
    actions, chosen = choose(log_probs, np.random.default_rng(0))
    assert actions.mean() == pytest.approx(0.8, abs=0.01)
    np.testing.assert_allclose(np.exp(chosen), np.where(actions == 1, 0.8, 0.2), rtol=1e-6)


@pytest.mark.parametrize("next_value", [0.0, 1.7])
def test_advantages_are_the_weighted_sum_of_surprises(next_value):
    random = np.random.default_rng(1)
    rewards, values = random.normal(size=(2, 6)).astype(np.float32)
    ours = advantages(rewards, values, next_value, discount=0.9, gae_lambda=0.8)
    after = np.append(values[1:], next_value)
    surprises = rewards + 0.9 * after - values
    for step in range(6):
        weights = (0.9 * 0.8) ** np.arange(6 - step)
        assert ours[step] == pytest.approx(np.sum(weights * surprises[step:]), rel=1e-4)


def test_only_a_game_that_goes_on_is_worth_something_after_its_end():
    network = make_network()
    ended = make_batch(network, [make_episode(5, terminated=True)], SETTINGS)
    going_on = make_batch(network, [make_episode(5, terminated=False)], SETTINGS)
    end_value = network.values(torch.from_numpy(make_episode(5, terminated=False).last_observation))
    difference = (going_on.returns - ended.returns)[-1].item()
    assert difference == pytest.approx(0.9 * end_value.item(), rel=1e-4)


def test_a_batch_keeps_episodes_apart_and_normalises_advantages():
    network = make_network()
    first, second = make_episode(5, terminated=True), make_episode(7, terminated=False, seed=1)
    both = make_batch(network, [first, second], SETTINGS)
    alone = make_batch(network, [second], SETTINGS)
    assert len(both) == 12
    torch.testing.assert_close(both.returns[5:], alone.returns)
    assert both.advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert both.advantages.std(correction=0).item() == pytest.approx(1, rel=1e-4)


def test_minibatches_go_through_every_step_once():
    batch = make_batch(make_network(), [make_episode(10, terminated=True)], SETTINGS)
    pieces = list(batch.minibatches(4, torch.Generator().manual_seed(0)))
    assert [len(piece) for piece in pieces] == [4, 4, 2]
    seen = torch.cat([piece.returns for piece in pieces])
    assert not torch.equal(seen, batch.returns)
    torch.testing.assert_close(seen.sort().values, batch.returns.sort().values)


def one_step(log_prob_before, advantage):
    """A step whose value error is zero, so that the loss is the clipped objective alone."""
    network = make_network()
    observation = torch.ones(1, 4)
    now = torch.log_softmax(network.policy(observation), -1)[0, 1].item()
    batch = Batch(
        observations=observation,
        actions=torch.tensor([1]),
        log_probs=torch.tensor([now + log_prob_before]),
        advantages=torch.tensor([advantage]),
        returns=network.values(observation).detach(),
    )
    value = loss(network, batch, SETTINGS)
    torch.autograd.backward(value)
    return value.item(), network.policy[-1].weight.grad.abs().sum().item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "moves"),
    [
        (1.0, 2.0, -2.0, True),
        (1.1, 2.0, -2.2, True),
        (1.5, 2.0, -2.4, False),  # good, and already much likelier: no further
        (0.5, -2.0, 1.6, False),  # bad, and already much less likely: no further
        (1.5, -2.0, 3.0, True),  # bad, yet likelier than before: has to go back
        (0.5, 2.0, -1.0, True),  # good, yet less likely than before: has to go back
    ],
)
def test_the_objective_is_clipped_only_where_it_has_gone_far_enough(
    ratio, advantage, expected, moves
):
    value, gradient = one_step(-math.log(ratio), advantage)
    assert value == pytest.approx(expected, rel=1e-4)
    assert (gradient > 1e-6) == moves


def test_a_recorder_cuts_each_game_where_it_ended():
    recorder = Recorder(steps=4, games=2, first_stream=10)
    cut = []
    for step in range(4):
        observations = np.full((2, 4), step, np.float32)
        recorder.record(observations, np.array([step, -step]), np.zeros(2), np.ones(2))
        if step == 2:
            cut.append(recorder.cut(1, np.full(4, 9, np.float32), terminated=True))
    cut += [
        recorder.cut(game, np.zeros(4, np.float32), terminated=False) for game in recorder.running()
    ]
    assert [(e.stream, e.actions.tolist(), e.terminated) for e in cut] == [
        (11, [0, -1, -2], True),
        (10, [0, 1, 2, 3], False),
        (11, [-3], False),
    ]
    assert cut[0].last_observation.tolist() == [9] * 4
    assert recorder.running() == []


def test_a_misspelt_setting_names_the_right_one():
    values = {name: getattr(SETTINGS, name) for name in Settings.__dataclass_fields__}
    assert Settings.from_mapping(values) == SETTINGS
    with pytest.raises(ValueError, match=r"train\.learning_rat: .*did you mean 'learning_rate'"):
        Settings.from_mapping({**values, "learning_rat": 1})
    del values["clip"]
    with pytest.raises(ValueError, match="missing clip"):
        Settings.from_mapping(values)
