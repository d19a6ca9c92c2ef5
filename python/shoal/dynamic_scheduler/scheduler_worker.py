"""`SchedulerWorker`: the process that moves GPUs from rollout and inference to the actor."""

import asyncio
from collections.abc import Sequence
from typing import Any

from shoal.deadline import Deadline
from shoal.dynamic_scheduler.arithmetic import get_valid_dp_sizes
from shoal.dynamic_scheduler.component_manager import ComponentManager
from shoal.dynamic_scheduler.instance_channels import Waits
from shoal.dynamic_scheduler.manager import ActorManager, create_component_manager
from shoal.dynamic_scheduler.settings import (
    JobSizes,
    read,
    read_sizes,
    use_pre_process_policy,
    use_wait_before_last_iter_policy,
)
from shoal.dynamic_scheduler.state import SchedulerState
from shoal.errors import ClusterConfigError, PeerLostError, ShoalError, ShoalTimeoutError
from shoal.problems import shown
from shoal.worker import Worker

__all__ = ["SchedulerWorker"]

_ROLLOUT_BACKENDS = ("sglang", "vllm")
_ACTOR_BACKEND = "megatron"
_UNMANAGED = "reward"


class SchedulerWorker(Worker):
    """Moves GPUs between the components of a job during each step of training.

    Launch it as a group of one process, after which the components can connect to its channels.

    Args:
        config: The configuration of the job.
        component_placement: The sizes of the components; see `read_sizes`.
        workflow: The order in which components release and take GPUs after a training step.

    Raises:
        ClusterConfigError: The configuration or the sizes do not allow the job to be scheduled.
    """

    def __init__(
        self,
        config: Any,
        component_placement: Any,
        workflow: Sequence[str] = ("rollout", "inference", "actor"),
    ) -> None:
        super().__init__()
        self.config = config
        sizes = read_sizes(component_placement)
        _check_backends(config)
        self.components = [name for name in sizes.components if name != _UNMANAGED]
        self.workflow = _checked_workflow(workflow, self.components)
        self.use_pre_process_policy = use_pre_process_policy(config)
        self.use_wait_before_last_iter_policy = use_wait_before_last_iter_policy(config)
        self.state = SchedulerState(
            sizes.num_gpus,
            {name: sizes.size_of(name) for name in self.components},
            _valid_sizes(config, sizes),
        )
        self._group_names = {
            name: str(read(config, f"{name}.group_name", "")) for name in self.components
        }
        self._waits = Waits(_limit(config), self._check_alive)
        arguments = {
            "config": config,
            "component_placement": sizes,
            "use_pre_process_policy": self.use_pre_process_policy,
            "use_wait_before_last_iter_policy": self.use_wait_before_last_iter_policy,
            "channel_factory": self.create_channel,
            "_logger": self._logger,
            "state": self.state,
            "waits": self._waits,
        }
        self.component_managers: dict[str, ComponentManager] = {
            name: create_component_manager(name, arguments) for name in self.components
        }
        self.n_minibatches = self.component_managers["actor"].n_minibatches
        self._is_scheduling = False
        self._has_failed = False

    async def schedule(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  (part of the API)
        """Schedule one step: the part before the training steps, then all training steps.

        Args:
            timeout: Maximum seconds of the step; None for no limit of the whole. Each wait for a
                component is also limited by `cluster.scheduler_timeout`.

        Raises:
            ShoalTimeoutError: A component did not answer in time.
            PeerLostError: A component has died.
            RemoteError: A rollout instance failed to follow a request.
            ShoalError: Another call of this worker schedules a step already.
        """
        if self._is_scheduling:
            raise ShoalError(f"{self._worker_name}: a step is being scheduled already")
        self._is_scheduling = True
        self._waits.begin_step(timeout)
        if self._has_failed:
            for manager in self.component_managers.values():
                manager.drain()
        self._has_failed = True  # until it has ended well
        try:
            await self.pre_process()
            await self.main_loop()
        except ShoalTimeoutError as error:
            error.add_note(self._progress())
            raise
        else:
            self._has_failed = False
        finally:
            self._is_scheduling = False
            if self._has_failed:
                for manager in self.component_managers.values():
                    await manager.abandon()

    async def pre_process(self) -> None:
        """Prepare a step: rollout first, because its instances may have to leave GPUs."""
        rollout = self.component_managers["rollout"]
        await rollout.pre_process()
        for manager in self.component_managers.values():
            if manager is not rollout:
                await manager.pre_process()
        self.state.reset({"rollout": rollout.current_instance_num})

    async def main_loop(self) -> None:
        """After each training step of the actor, let the components release and take GPUs."""
        actor = self.component_managers["actor"]
        for train_iter in range(self.n_minibatches):
            if isinstance(actor, ActorManager):
                await actor.wait_for_training_step(train_iter)
            for name in self.workflow:
                manager = self.component_managers[name]
                released, added = await manager.release_or_allocate(train_iter)
                self.state.update(name, released, added)

    def _progress(self) -> str:
        counts = self.state.components_instance_num
        numbers = ", ".join(f"{name} {count}" for name, count in counts.items())
        return f"instances: {numbers}; free GPUs: {self.state.available_gpu_num}"

    async def _check_alive(
        self, role: str, instance: int, what: str, deadline: Deadline, seen: dict[int, set[int]]
    ) -> PeerLostError | None:
        """Return the error of a wait for a worker that has died; None while it may go on.

        An instance of rollout is one worker; the other components answer through rank 0, which
        waits for its other ranks.
        """
        group = self._group_names.get(role)
        if not group:
            return None
        rank = instance if role == "rollout" else None
        return await asyncio.to_thread(self._find_loss, group, rank, what, deadline, seen)

    def _find_loss(
        self, group: str, rank: int | None, what: str, deadline: Deadline, seen: dict[int, set[int]]
    ) -> PeerLostError | None:
        infos = self._manager_proxy.get_group(group)
        for info in infos:
            if rank in (None, info.rank):
                processes = seen.setdefault(info.rank, set())
                error = self._collective.find_loss(info, what, deadline, processes)
                if error is not None:
                    return error
        return None


def _check_backends(config: Any) -> None:
    rollout = read(config, "rollout.rollout_backend")
    if rollout not in _ROLLOUT_BACKENDS:
        raise ClusterConfigError(
            f"rollout.rollout_backend={shown(rollout)}: expected one of "
            f"{', '.join(_ROLLOUT_BACKENDS)}"
        )
    actor = read(config, "actor.training_backend")
    if actor != _ACTOR_BACKEND:
        raise ClusterConfigError(
            f"actor.training_backend={shown(actor)}: expected {_ACTOR_BACKEND}, whose actor can "
            "change its size between training steps"
        )


def _checked_workflow(workflow: Sequence[str], components: list[str]) -> list[str]:
    for name in ("rollout", "actor"):
        if name not in components or name not in workflow:
            raise ClusterConfigError(
                f"the dynamic scheduler needs the component {name!r}: the placement has "
                f"{', '.join(components) or 'none'}, the workflow {', '.join(workflow)}"
            )
    absent = [name for name in components if name not in workflow]
    if absent:
        raise ClusterConfigError(
            f"workflow={list(workflow)}: expected every component of the placement; "
            f"{', '.join(absent)} is missing"
        )
    return [name for name in workflow if name in components]


def _valid_sizes(config: Any, sizes: JobSizes) -> list[int]:
    """Return the sizes that the actor may have.

    Raises:
        ClusterConfigError: Its initial size is not one of them.
    """
    actor = sizes.size_of("actor")
    valid = get_valid_dp_sizes(config, sizes.num_gpus, actor.model_parallel_size)
    if actor.dp_size not in valid:
        raise ClusterConfigError(
            f"actor_dp_size={actor.dp_size}: the rows of a training step cannot be divided among "
            f"so many ranks of {actor.model_parallel_size} GPUs on {sizes.num_gpus} GPUs; "
            f"expected one of {valid}. Change the actor's placement, data.rollout_batch_size, "
            "algorithm.group_size or algorithm.n_minibatches"
        )
    return valid


def _limit(config: Any) -> float | None:
    value = read(config, "cluster.scheduler_timeout", None)
    return None if value is None else Deadline(value, name="cluster.scheduler_timeout").timeout
