"""The policy of the rollout workers: plain numpy, so that they start without torch."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Layers = Sequence[NDArray[np.float32]]
"""Matrix and bias of each layer in turn, inputs first."""


def log_probabilities(layers: Layers, observations: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logarithm of each action's probability, shape (games, actions)."""
    hidden = observations
    for matrix, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        hidden = np.tanh(hidden @ matrix.T + bias)
    logits = hidden @ layers[-2].T + layers[-1]
    logits -= logits.max(axis=1, keepdims=True)
    log_probs: NDArray[np.float32] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_probs


def choose(
    log_probs: NDArray[np.float32], random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw an action for each game.

    The index of the largest `log p + Gumbel noise` is a draw from p, for any number of actions.

    Returns:
        The actions, and the logarithms of their probabilities.
    """
    actions = np.argmax(log_probs + random.gumbel(size=log_probs.shape), axis=1)
    return actions, log_probs[np.arange(len(actions)), actions]
