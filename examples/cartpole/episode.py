"""Episodes: the messages from the rollout workers to the actors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Episode:
    """One game, or the part of it that fits into an iteration.

    Attributes:
        stream: Number of its game, counted over all rollout workers.
        observations: The observation before each step, shape (steps, 4).
        actions: The chosen actions, shape (steps,).
        log_probs: Logarithms of the actions' probabilities, shape (steps,).
        rewards: The rewards, shape (steps,).
        last_observation: The observation after the last step, shape (4,).
        terminated: Whether the pole fell. If not, the game went on (or ran into its limit of 500
            steps), and the value of `last_observation` stands for the later rewards.
    """

    stream: int
    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    last_observation: NDArray[np.float32]
    terminated: bool

    def __len__(self) -> int:
        return len(self.actions)


class Recorder:
    """Records one iteration of games that run side by side, and cuts it into episodes."""

    def __init__(self, steps: int, games: int, *, first_stream: int) -> None:
        self._observations = np.empty((steps, games, 4), np.float32)
        self._actions = np.empty((steps, games), np.int64)
        self._log_probs = np.empty((steps, games), np.float32)
        self._rewards = np.empty((steps, games), np.float32)
        self._first_stream = first_stream
        self._started = np.zeros(games, int)  # first step of the running episode of each game
        self._now = 0

    def record(
        self,
        observations: NDArray[np.float32],
        actions: NDArray[np.int64],
        log_probs: NDArray[np.float32],
        rewards: NDArray[Any],
    ) -> None:
        """Record one step of all games."""
        self._observations[self._now] = observations
        self._actions[self._now] = actions
        self._log_probs[self._now] = log_probs
        self._rewards[self._now] = rewards
        self._now += 1

    def running(self) -> list[int]:
        """Return the games with steps that are not part of an episode yet."""
        return [int(game) for game in np.flatnonzero(self._started < self._now)]

    def cut(self, game: int, last_observation: NDArray[np.float32], *, terminated: bool) -> Episode:
        """Return the steps of `game` since its last episode as an episode."""
        steps = slice(self._started[game], self._now)
        self._started[game] = self._now
        return Episode(
            stream=self._first_stream + game,
            observations=self._observations[steps, game].copy(),
            actions=self._actions[steps, game].copy(),
            log_probs=self._log_probs[steps, game].copy(),
            rewards=self._rewards[steps, game].copy(),
            last_observation=np.array(last_observation, np.float32),
            terminated=terminated,
        )
