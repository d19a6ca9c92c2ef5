"""What travels from the rollout workers to the actors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Episode:
    """One game, or as much of it as fits into an iteration.

    Attributes:
        stream: Which game it comes from, counted over all rollout workers.
        observations: What the policy saw before each step, shape (steps, 4).
        actions: What it did, shape (steps,).
        log_probs: How likely it was to do that, as a logarithm, shape (steps,).
        rewards: What it got, shape (steps,).
        last_observation: What came after the last step, shape (4,).
        terminated: Whether the pole fell. If not, the game went on (or ran into its limit of 500
            steps), and the value of `last_observation` stands for the rewards to come.
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
    """Writes down one iteration of games that run side by side, and cuts episodes out of it."""

    def __init__(self, steps: int, games: int, *, first_stream: int) -> None:
        self._observations = np.empty((steps, games, 4), np.float32)
        self._actions = np.empty((steps, games), np.int64)
        self._log_probs = np.empty((steps, games), np.float32)
        self._rewards = np.empty((steps, games), np.float32)
        self._first_stream = first_stream
        self._started = np.zeros(games, int)  # where the running episode of each game begins
        self._now = 0

    def record(
        self,
        observations: NDArray[np.float32],
        actions: NDArray[np.int64],
        log_probs: NDArray[np.float32],
        rewards: NDArray[Any],
    ) -> None:
        """Write down one step of all games."""
        self._observations[self._now] = observations
        self._actions[self._now] = actions
        self._log_probs[self._now] = log_probs
        self._rewards[self._now] = rewards
        self._now += 1

    def running(self) -> list[int]:
        """Return the games that have steps which no episode holds yet."""
        return [int(game) for game in np.flatnonzero(self._started < self._now)]

    def cut(self, game: int, last_observation: NDArray[np.float32], *, terminated: bool) -> Episode:
        """Take the steps of `game` since its last episode."""
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
