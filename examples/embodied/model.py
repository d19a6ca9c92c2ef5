"""The policy network, which rollout workers and actors share."""

import torch
from omegaconf import DictConfig
from torch import Tensor, nn


class Policy(nn.Module):
    """Chooses actions from a normal distribution, and judges states.

    Everything is computed by `forward`, because FSDP gathers the weights when it is called.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        inputs, hidden = cfg.observation_size, cfg.hidden_size
        self.mean = _layers(inputs, hidden, cfg.action_size, last_gain=0.01)
        self.value = _layers(inputs, hidden, 1, last_gain=1.0)
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


def _layers(inputs: int, hidden: int, outputs: int, last_gain: float) -> nn.Sequential:
    sizes = [(inputs, hidden, 2**0.5), (hidden, hidden, 2**0.5), (hidden, outputs, last_gain)]
    layers: list[nn.Module] = []
    for size, next_size, gain in sizes:
        linear = nn.Linear(size, next_size)
        nn.init.orthogonal_(linear.weight, gain=gain)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])
