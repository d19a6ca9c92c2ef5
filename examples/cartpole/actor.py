"""The actors: workers that take episodes from the channel and improve the policy together."""

from datetime import timedelta

import torch
import torch.distributed as dist
from episode import Episode
from ppo import Network, loss, make_batch
from settings import Settings

from shoal import Channel, Weights, Worker

PATIENCE_S = 60.0
"""Maximum number of seconds that an actor waits for the other actors, or for the next episode."""


class Actor(Worker):
    """Learns from its share of the episodes; the gradients of all actors are averaged.

    Args:
        settings: The settings of the job.
        share: Number of steps that each actor gets in one iteration.
    """

    def __init__(self, settings: Settings, share: int) -> None:
        super().__init__()
        self._settings = settings
        self._share = share
        torch.set_num_threads(1)  # the networks are small, and other workers need the cores
        # shoal has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; torch reads them.
        dist.init_process_group("gloo", init_method="env://", timeout=timedelta(seconds=PATIENCE_S))
        torch.manual_seed(settings.seed)  # all actors start with the same weights
        self._network = Network(observation_size=4, num_actions=2)
        self._optimizer = torch.optim.Adam(
            self._network.parameters(), lr=settings.learning_rate, eps=1e-5
        )
        self._random = torch.Generator().manual_seed(settings.seed * 1000 + self._rank)

    def learn(self, channel: Channel, policies: Weights) -> float:
        """Publish the weights, take the episodes that were played with them, and improve them.

        Returns:
            The mean loss.
        """
        if self._rank == 0:
            with self.worker_timer("send weights"):
                policies.publish(self._network.policy_weights())
        with self.worker_timer("wait for episodes"):
            episodes = self._take_share(channel)
        with self.worker_timer("advantages"):
            batch = make_batch(self._network, episodes, self._settings)
        losses = []
        for _ in range(self._settings.epochs):
            for minibatch in batch.minibatches(self._settings.minibatch, self._random):
                with self.worker_timer("gradients"):
                    value = loss(self._network, minibatch, self._settings)
                    self._optimizer.zero_grad()
                    torch.autograd.backward(value)
                with self.worker_timer("average gradients"):
                    self._average_gradients()
                with self.worker_timer("step optimizer"):
                    self._optimizer.step()
                losses.append(value.item())
        return sum(losses) / len(losses)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the weights, for `torch.save`."""
        return self._network.state_dict()

    def _take_share(self, channel: Channel) -> list[Episode]:
        episodes: list[Episode] = []
        # One `get_batch` is enough unless the channel was full and so returned less.
        while (missing := self._share - sum(map(len, episodes))) > 0:
            episodes += channel.get_batch(missing, key=self._rank, timeout=PATIENCE_S)
        # The order of arrival differs from run to run; sorting makes runs repeatable.
        return sorted(episodes, key=lambda episode: episode.stream)

    def _average_gradients(self) -> None:
        parameters = list(self._network.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        total = torch.nn.utils.parameters_to_vector(gradients)  # one message instead of twelve
        dist.all_reduce(total)
        torch.nn.utils.vector_to_parameters(total / self._world_size, gradients)
        torch.nn.utils.clip_grad_norm_(parameters, self._settings.max_grad_norm)
