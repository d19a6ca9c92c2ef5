"""Proximal policy optimisation: the learning algorithm, without its distribution.

Sources: Schulman et al., "Proximal Policy Optimization Algorithms", 2017 (arXiv 1707.06347), for
the clipped objective; Schulman et al., "High-Dimensional Continuous Control Using Generalized
Advantage Estimation", 2016 (arXiv 1506.02438), for the advantages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from episode import Episode
from numpy.typing import NDArray
from settings import Settings
from torch import Tensor, nn


class Network(nn.Module):
    """Two small networks: the choice of actions (`policy`) and the expected return (`value`).

    To use a trained policy: `network = Network(4, 2)`, then
    `network.load_state_dict(torch.load("policy.pt"))`, and the action for an observation is
    `network.policy(torch.as_tensor(observation)).argmax()`.
    """

    def __init__(self, observation_size: int, num_actions: int, hidden: int = 64) -> None:
        super().__init__()
        # The last layer of the policy starts near zero, so all actions are about equally likely.
        self.policy = _layers((observation_size, hidden, hidden, num_actions), last_gain=0.01)
        self.value = _layers((observation_size, hidden, hidden, 1), last_gain=1.0)

    def policy_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the policy's weights; their values are the `Layers` of `policy.py`, uncopied."""
        return {name: p.detach().numpy() for name, p in self.policy.named_parameters()}

    def values(self, observations: Tensor) -> Tensor:
        """Return the expected discounted return of each observation."""
        values: Tensor = self.value(observations).squeeze(-1)
        return values


def _layers(sizes: Sequence[int], last_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    last = len(sizes) - 2
    for i in range(last + 1):
        linear = nn.Linear(sizes[i], sizes[i + 1])
        nn.init.orthogonal_(linear.weight, gain=last_gain if i == last else 2**0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear] if i == last else [linear, nn.Tanh()]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Batch:
    """Steps to learn from, one row each."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor

    def __len__(self) -> int:
        return len(self.actions)

    def minibatches(self, size: int, random: torch.Generator) -> Iterator["Batch"]:
        """Yield all steps once, in random order, in pieces of at most `size`."""
        for rows in torch.split(torch.randperm(len(self), generator=random), size):
            yield Batch(
                self.observations[rows],
                self.actions[rows],
                self.log_probs[rows],
                self.advantages[rows],
                self.returns[rows],
            )


def advantages(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    next_value: float,
    discount: float,
    gae_lambda: float,
) -> NDArray[np.float32]:
    """Estimate how much better each step went than expected (GAE).

    Args:
        rewards: The reward of each step.
        values: The expected return before each step.
        next_value: The expected return after the last step; 0 if the game is over.
        discount: Gamma.
        gae_lambda: Lambda.
    """
    result = np.empty_like(rewards)
    running = 0.0
    for i in range(len(rewards) - 1, -1, -1):
        surprise = rewards[i] + discount * next_value - values[i]
        running = surprise + discount * gae_lambda * running
        result[i] = running
        next_value = values[i]
    return result


@torch.no_grad()
def make_batch(network: Network, episodes: Sequence[Episode], settings: Settings) -> Batch:
    """Turn episodes into steps with advantages and returns."""
    observations = torch.from_numpy(np.concatenate([e.observations for e in episodes]))
    ends = torch.from_numpy(np.stack([e.last_observation for e in episodes]))
    values = network.values(observations).numpy()
    end_values = network.values(ends).numpy()

    pieces = []
    start = 0
    for episode, end_value in zip(episodes, end_values, strict=True):
        stop = start + len(episode)
        pieces.append(
            advantages(
                episode.rewards,
                values[start:stop],
                0.0 if episode.terminated else float(end_value),
                settings.discount,
                settings.gae_lambda,
            )
        )
        start = stop
    advantage = np.concatenate(pieces)
    return Batch(
        observations=observations,
        actions=torch.from_numpy(np.concatenate([e.actions for e in episodes])),
        log_probs=torch.from_numpy(np.concatenate([e.log_probs for e in episodes])),
        advantages=torch.from_numpy((advantage - advantage.mean()) / (advantage.std() + 1e-8)),
        returns=torch.from_numpy(advantage + values),
    )


def loss(network: Network, batch: Batch, settings: Settings) -> Tensor:
    """Return the clipped objective of PPO plus the value error minus the entropy bonus."""
    log_probs = torch.log_softmax(network.policy(batch.observations), dim=-1)
    chosen = log_probs.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    ratio = torch.exp(chosen - batch.log_probs)
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    gain = torch.min(ratio * batch.advantages, clipped * batch.advantages).mean()
    value_error = (network.values(batch.observations) - batch.returns).square().mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return -gain + settings.value_coefficient * value_error - settings.entropy_coefficient * entropy
