"""The rollout workers: workers that play and put the episodes into the channel."""

import gymnasium as gym
import numpy as np
from episode import Episode, Recorder
from policy import Layers, choose, log_probabilities
from settings import Settings

from shoal import Channel, Weights, Worker
from shoal.weights import Version


class Rollout(Worker):
    """Plays many games of CartPole side by side, with the actors' newest policy.

    Args:
        settings: The settings of the job.
        num_actors: Number of actors that share the episodes.
    """

    def __init__(self, settings: Settings, num_actors: int) -> None:
        super().__init__()
        self._settings = settings
        self._num_actors = num_actors
        self._played: Version | None = None  # each policy is played once: PPO is on-policy
        # A game that ends is restarted within the same step, so that no step is lost.
        self._games = gym.make_vec(
            "CartPole-v1",
            num_envs=settings.environments,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP},
        )
        self._random = np.random.default_rng([settings.seed, self._rank])
        seeds = self._random.integers(2**31, size=settings.environments)
        self._observations, _ = self._games.reset(seed=seeds.tolist())
        self._scores = np.zeros(settings.environments)

    def play(self, channel: Channel, policies: Weights) -> list[float]:
        """Play one iteration.

        Returns:
            The scores of the games that ended, in the order of their ends.
        """
        with self.worker_timer("wait for weights"):
            policy = policies.latest(newer_than=self._played)
        self._played = policy.version
        layers: Layers = list(policy.values())  # in the memory that all workers of the node share
        games = self._settings.environments
        recorder = Recorder(self._settings.steps, games, first_stream=self._rank * games)
        scores: list[float] = []
        for _ in range(self._settings.steps):
            with self.worker_timer("choose actions"):
                log_probs = log_probabilities(layers, self._observations)
                actions, chosen = choose(log_probs, self._random)
            with self.worker_timer("step games"):
                after, rewards, terminated, truncated, info = self._games.step(actions)
            recorder.record(self._observations, actions, chosen, rewards)
            self._observations = after
            self._scores += rewards
            for game in np.flatnonzero(terminated | truncated).tolist():
                end, fell = info["final_obs"][game], bool(terminated[game])
                self._hand_over(channel, recorder.cut(game, end, terminated=fell))
                scores.append(float(self._scores[game]))
                self._scores[game] = 0
        for game in recorder.running():
            self._hand_over(channel, recorder.cut(game, self._observations[game], terminated=False))
        return scores

    def _hand_over(self, channel: Channel, episode: Episode) -> None:
        # Each game plays for one actor; the actor's rank is the key. All games make the same number
        # of steps, so every actor gets exactly its share, in any number of episodes.
        with self.worker_timer("hand over episodes"):
            channel.put(episode, weight=len(episode), key=episode.stream % self._num_actors)
