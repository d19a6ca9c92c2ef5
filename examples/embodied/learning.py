"""Proximal policy optimisation (arXiv 1707.06347): the learning algorithm, without its distribution.

A trajectory is a dict of arrays with a row for each environment and a column for each step;
`observations` and `values` also have a column for the state after the last step.
"""

from collections.abc import Iterator

import numpy as np
import torch
from model import Policy, log_probabilities
from numpy.typing import NDArray
from omegaconf import DictConfig
from torch import Tensor

Batch = dict[str, Tensor]
"""Steps to learn from, one row each."""


def advantages(
    rewards: NDArray[np.float32], values: NDArray[np.float32], discount: float, gae_lambda: float
) -> NDArray[np.float32]:
    """Estimate how much better each step went than expected (GAE, arXiv 1506.02438).

    Args:
        rewards: The reward of each step.
        values: The expected return before each step, and after the last one.
        discount: Gamma.
        gae_lambda: Lambda.
    """
    surprises = rewards + discount * values[:, 1:] - values[:, :-1]
    result = np.empty_like(rewards)
    running = np.zeros_like(rewards[:, 0])
    for step in reversed(range(rewards.shape[1])):
        running = surprises[:, step] + discount * gae_lambda * running
        result[:, step] = running
    return result


def make_batch(trajectory: dict[str, NDArray[np.float32]], cfg: DictConfig) -> Batch:
    """Turn trajectories into steps with advantages and returns."""
    values = trajectory["values"]
    rewards = trajectory["rewards"] * cfg.reward_scale
    found = advantages(rewards, values, cfg.discount, cfg.gae_lambda)
    columns = {
        "observations": trajectory["observations"][:, :-1],
        "actions": trajectory["actions"],
        "log_probs": trajectory["log_probs"],
        "advantages": found,
        "returns": found + values[:, :-1],
    }
    # From (environments, steps, ...) to (environments * steps, ...).
    return {name: torch.from_numpy(array).flatten(0, 1) for name, array in columns.items()}


def minibatches(batch: Batch, size: int, random: torch.Generator) -> Iterator[Batch]:
    """Yield all steps once, in random order, in pieces of at most `size`."""
    for rows in torch.split(torch.randperm(len(batch["actions"]), generator=random), size):
        yield {name: column[rows] for name, column in batch.items()}


def loss(policy: Policy, batch: Batch, cfg: DictConfig) -> Tensor:
    """Return the clipped objective and the value function's error."""
    means, stds, values = policy(batch["observations"])
    ratio = (log_probabilities(means, stds, batch["actions"]) - batch["log_probs"]).exp()
    clipped = ratio.clamp(1 - cfg.clip, 1 + cfg.clip)
    gain = torch.minimum(ratio * batch["advantages"], clipped * batch["advantages"]).mean()
    error = (values.squeeze(-1) - batch["returns"]).square().mean()
    return cfg.value_coefficient * error - gain
