"""The rollout workers: they hold the policy, and answer observations with actions."""

import numpy as np
import torch
from model import Policy, log_probabilities, random_seed
from numpy.typing import NDArray
from omegaconf import DictConfig
from rlinf.scheduler import Channel, Worker


class RolloutWorker(Worker):
    """Chooses the actions of its share of the environments.

    Args:
        cfg: The configuration of the job.
        audience: The members of the broadcast of new weights, for `Worker.broadcast`.
    """

    def __init__(self, cfg: DictConfig, audience: list[tuple[str, list[int]]]) -> None:
        super().__init__()
        self._cfg = cfg
        self._audience = audience
        torch.set_num_threads(1)  # the network is small, and other workers need the cores
        self._device = torch.device(self.torch_device_type or "cpu")
        self._policy = Policy(cfg.model).to(self._device)
        self._random = torch.Generator()
        self.log_info(f"answers on {self._device}")

    @Worker.timer("receive_weights")
    async def receive_weights(self) -> int:
        """Take part in the actors' broadcast, and return the version of the weights."""
        source = (self._cfg.actor.group_name, 0)
        work = self.broadcast(groups=self._audience, src=source, async_op=True)
        weights: dict[str, torch.Tensor] = await work.async_wait()
        version = int(weights.pop("version"))
        self._random.manual_seed(random_seed(self._cfg.runner.seed, self._rank, version))
        with self.device_lock:  # workers on the same accelerator load one after the other
            self._policy.load_state_dict(weights)
        self.log_debug(f"has the weights of version {version}")
        return version

    @Worker.timer("generate")
    async def generate(self, observations: Channel, actions: Channel, explore: bool = True) -> None:
        """Answer all observations of one episode.

        Args:
            observations: Brings observations from the env workers.
            actions: Takes actions to them.
            explore: Whether to draw actions from their distribution, instead of taking its mean.
        """
        stages = range(self._cfg.env.pipeline_stages)
        route = {"batch_size": self._cfg.env.num_envs // len(stages)}
        for _ in range(self._cfg.env.steps + 1):  # the last one needs a value, but no actions
            for stage in stages:
                route["route_key"] = stage
                work = self.recv_from(
                    self._cfg.env.group_name,
                    observations,
                    tag="observations",
                    async_op=True,
                    **route,
                )
                with self.worker_timer("wait for observations", trace=False):
                    seen = await work.async_wait()
                with self.worker_timer("choose actions", trace=False):
                    answer = self.choose(seen, explore)
                self.send_to(self._cfg.env.group_name, actions, answer, tag="actions", **route)

    @torch.no_grad()
    def choose(self, seen: NDArray[np.float32], explore: bool) -> dict[str, NDArray[np.float32]]:
        """Choose an action for each observation."""
        actions, stds, values = self._policy(torch.as_tensor(seen, device=self._device))
        means = actions
        if explore:
            noise = torch.randn(means.shape, generator=self._random).to(self._device)
            actions = means + stds * noise
        answer = {
            "actions": actions,
            "log_probs": log_probabilities(means, stds, actions),
            "values": values.squeeze(-1),
        }
        return {name: tensor.cpu().numpy() for name, tensor in answer.items()}
