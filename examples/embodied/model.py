"""The policy network, which rollout workers and actors share."""

from collections.abc import Sequence

import torch
from omegaconf import DictConfig
from torch import Tensor, nn


class Policy(nn.Module):
    """Chooses actions from a normal distribution, and judges states.

    Everything is computed by `forward`, because FSDP gathers the weights when it is called.

    Args:
        cfg: The section `model` of the configuration.
        seed: Fixes the first weights.
    """

    def __init__(self, cfg: DictConfig, seed: int = 0) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        inputs, hidden = cfg.observation_size, cfg.hidden_size
        self.mean = _layers((inputs, hidden, hidden, cfg.action_size), 0.01, random)
        self.value = _layers((inputs, hidden, hidden, 1), 1.0, random)
        self.log_std = nn.Parameter(torch.zeros(cfg.action_size))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means of the actions, their standard deviations, and the expected returns.

        The shapes are (rows, actions), (actions,) and (rows, 1): FSDP warns of results that are
        views of others.
        """
        return self.mean(observations), self.log_std.exp(), self.value(observations)


def log_probabilities(means: Tensor, stds: Tensor, actions: Tensor) -> Tensor:
    """Return the logarithm of each action's probability density."""
    return torch.distributions.Normal(means, stds).log_prob(actions).sum(-1)


def random_seed(seed: int, rank: int, iteration: int) -> int:
    """Return the seed of a worker in an iteration, so that a resumed run continues as if unbroken."""
    return (seed * 1_000 + rank) * 1_000_000 + iteration


def _layers(sizes: Sequence[int], last_gain: float, random: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    gains = [2**0.5] * (len(sizes) - 2) + [last_gain]
    for inputs, outputs, gain in zip(sizes[:-1], sizes[1:], gains, strict=True):
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, gain, generator=random)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])
