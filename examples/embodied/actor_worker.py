"""The actors: FSDP workers that improve the policy from trajectories."""

from typing import Any

import torch
import torch.distributed as dist
from learning import Batch, loss, make_batch, minibatches
from model import Policy, random_seed
from omegaconf import DictConfig
from rlinf.scheduler import Channel, Worker, get_group_world_size, merge_batches
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class ActorWorker(Worker):
    """Holds its shard of the weights, and learns from its share of the trajectories.

    Args:
        cfg: The configuration of the job.
        audience: The members of the broadcast of new weights, for `Worker.broadcast`.
    """

    def __init__(self, cfg: DictConfig, audience: list[tuple[str, list[int]]]) -> None:
        super().__init__()
        self._cfg = cfg
        self._audience = audience
        torch.set_num_threads(1)  # the network is small, and other workers need the cores
        # The scheduler has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; torch reads them.
        dist.init_process_group("gloo")
        self._policy = Policy(cfg.model, cfg.runner.seed)  # the same weights in all actors
        fully_shard(self._policy, mesh=init_device_mesh("cpu", (self._world_size,)))
        self._optimizer = torch.optim.Adam(
            self._policy.parameters(), lr=cfg.actor.learning_rate, eps=1e-5
        )
        self._random = torch.Generator()
        self._batch: Batch = {}
        held = sum(p.to_local().numel() for p in self._policy.parameters())
        self.log_info(
            f"holds {held} of {sum(p.numel() for p in self._policy.parameters())} weights"
        )

    @Worker.timer("send_weights")
    async def send_weights(self, version: int) -> None:
        """Gather the weights, and broadcast them to the rollout workers."""
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights = get_model_state_dict(self._policy, options=whole)  # needs all actors
        if self._rank == 0:
            work = self.broadcast(
                {**weights, "version": torch.tensor([version], dtype=torch.int32)},
                groups=self._audience,
                src=(self._group_name, 0),
                async_op=True,
            )
            await work.async_wait()

    @Worker.timer("recv_trajectories")
    def recv_trajectories(self, channel: Channel) -> None:
        """Take this actor's share of the trajectories of one iteration."""
        cfg = self._cfg
        env_workers = get_group_world_size(self.manager_proxy, cfg.env.group_name)
        share = env_workers * cfg.env.pipeline_stages // self._world_size
        taken = [channel.get(key=self._rank) for _ in range(share)]
        # The order of arrival differs from run to run; sorting makes runs repeatable.
        taken.sort(key=lambda item: item[0])
        self._batch = make_batch(merge_batches([each for _, each in taken]), cfg.actor)

    @Worker.timer("train")
    def train(self, iteration: int) -> float:
        """Improve the policy, and return the mean loss of this actor."""
        cfg = self._cfg.actor
        self._random.manual_seed(random_seed(self._cfg.runner.seed, self._rank, iteration))
        self._normalize(self._batch["advantages"])
        losses = []
        for _ in range(cfg.epochs):
            for batch in minibatches(self._batch, cfg.minibatch, self._random):
                value = loss(self._policy, batch, cfg)
                self._optimizer.zero_grad()
                torch.autograd.backward(value)  # FSDP averages the gradients
                torch.nn.utils.clip_grad_norm_(self._policy.parameters(), cfg.max_grad_norm)
                self._optimizer.step()
                losses.append(value.item())
        self._batch = {}
        mean_loss = sum(losses) / len(losses)
        self.log_debug(f"took {len(losses)} steps, mean loss {mean_loss:.4f}")
        return mean_loss

    @Worker.timer("save")
    def save(self, folder: str) -> None:
        """Write this actor's shard of the weights and of the optimizer's state into a checkpoint."""
        checkpoint.save(self._state(), checkpoint_id=folder)

    @Worker.timer("load")
    def load(self, folder: str) -> None:
        """Read this actor's shard from a checkpoint, which any number of actors has written."""
        state = self._state()
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(
            self._policy,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._policy, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def _normalize(self, values: torch.Tensor) -> None:
        """Scale the values of all actors together to mean 0 and standard deviation 1."""
        sums = torch.stack([values.sum(), values.square().sum(), torch.tensor(1.0 * len(values))])
        dist.all_reduce(sums)
        total, squares, count = sums.tolist()
        mean = total / count
        values.sub_(mean).div_((squares / count - mean**2) ** 0.5 + 1e-8)
