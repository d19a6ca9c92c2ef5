"""The environment workers: they step environments with the actions of the rollout workers."""

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig
from rlinf.scheduler import Channel, Worker, get_group_world_size

Trajectory = dict[str, NDArray[np.float32]]
"""Arrays with a row for each environment and a column for each step; see `learning.py`."""


class EnvWorker(Worker):
    """Plays in its share of the environments, in stages.

    While the environments of one stage step, the rollout workers choose the actions of another.

    Args:
        cfg: The configuration of the job.
    """

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self._cfg = cfg
        stages = cfg.env.pipeline_stages
        self._batch_size = cfg.env.num_envs // stages  # of a stage, over all env workers
        mine = self._batch_size // self._world_size
        self._stages = [
            gym.make_vec(cfg.env.name, num_envs=mine, vectorization_mode="sync")
            for _ in range(stages)
        ]
        self.log_info(f"plays {mine * stages} times {cfg.env.name}, in {stages} stages")

    @Worker.timer("interact")
    def interact(
        self, iteration: int, observations: Channel, actions: Channel, trajectories: Channel
    ) -> list[float]:
        """Play one episode in each environment, and put its trajectory into a channel.

        Args:
            iteration: The iteration, which fixes the first states of the environments.
            observations: Takes observations to the rollout workers.
            actions: Brings actions from them.
            trajectories: Takes trajectories to the actors; the key is an actor's rank.

        Returns:
            The sum of the rewards of each episode.
        """
        made = self._play(iteration + 1, observations, actions)
        num_actors = get_group_world_size(self.manager_proxy, self._cfg.actor.group_name)
        for stage, trajectory in enumerate(made):
            number = self._rank * len(made) + stage
            trajectories.put((number, trajectory), key=number % num_actors)
        return _returns(made)

    @Worker.timer("evaluate")
    def evaluate(self, observations: Channel, actions: Channel) -> list[float]:
        """Play one episode in each environment, from the same states in each evaluation.

        Returns:
            The sum of the rewards of each episode.
        """
        return _returns(self._play(0, observations, actions))

    def _play(self, number: int, observations: Channel, actions: Channel) -> list[Trajectory]:
        recorders = [Recorder() for _ in self._stages]
        random = np.random.default_rng([self._cfg.runner.seed, self._rank, number])
        for stage, games in enumerate(self._stages):
            seeds = random.integers(2**31, size=games.num_envs).tolist()
            self._observe(stage, games.reset(seed=seeds)[0], observations, recorders[stage])
        for _ in range(self._cfg.env.steps):
            for stage, games in enumerate(self._stages):
                answer = self._await_answer(stage, actions)
                with self.worker_timer("step", trace=False):
                    after, rewards, *_ = games.step(answer["actions"])
                recorders[stage].add(**answer, rewards=rewards)
                self._observe(stage, after, observations, recorders[stage])
        for stage, recorder in enumerate(recorders):
            # The value of the last observation stands for the rewards after the end.
            recorder.add(values=self._await_answer(stage, actions)["values"])
        return [recorder.trajectory() for recorder in recorders]

    def _observe(
        self, stage: int, seen: NDArray[np.float32], channel: Channel, recorder: "Recorder"
    ) -> None:
        recorder.add(observations=seen)
        self.send_to(
            self._cfg.rollout.group_name,
            channel,
            seen,
            tag="observations",
            route_key=stage,
            batch_size=self._batch_size,
        )

    def _await_answer(self, stage: int, channel: Channel) -> Trajectory:
        with self.worker_timer("wait for actions", trace=False):
            answer: Trajectory = self.recv_from(
                self._cfg.rollout.group_name,
                channel,
                tag="actions",
                route_key=stage,
                batch_size=self._batch_size,
            )
        return answer


def _returns(made: list[Trajectory]) -> list[float]:
    sums: list[float] = np.concatenate([each["rewards"].sum(1) for each in made]).tolist()
    return sums


class Recorder:
    """Records the steps of environments that run side by side."""

    def __init__(self) -> None:
        self._columns: dict[str, list[NDArray[np.float32]]] = {}

    def add(self, **columns: NDArray[np.float32]) -> None:
        """Add a column to some of the arrays; each has a row for each environment."""
        for name, column in columns.items():
            self._columns.setdefault(name, []).append(np.array(column, np.float32))

    def trajectory(self) -> Trajectory:
        """Return the columns, side by side."""
        return {name: np.stack(columns, axis=1) for name, columns in self._columns.items()}
