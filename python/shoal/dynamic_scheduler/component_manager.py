"""The managers of the components: what each releases or takes after a training step."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from shoal.channel import Channel
from shoal.dynamic_scheduler.instance_channels import InstanceChannel, Waits
from shoal.dynamic_scheduler.messages import (
    get_scheduler_request_queue,
    get_scheduler_response_queue,
)
from shoal.dynamic_scheduler.settings import number, read_sizes
from shoal.dynamic_scheduler.state import SchedulerState, get_global_scheduer_state
from shoal.errors import ShoalValueError

__all__ = ["ComponentManager", "RoleManager"]

_log = logging.getLogger("shoal")


class ComponentManager(ABC):
    """Changes the number of a component's instances during a training step.

    Args:
        component_role: The component.
        config: The configuration of the job.
        component_placement: The sizes of the components; see `read_sizes`.
        use_pre_process_policy: Whether rollout instances start on the actor's GPUs.
        use_wait_before_last_iter_policy: Whether rollout and inference end before the last
            training step.
        channel_factory: Creates a channel by its name, or connects to it.
        _logger: The logger; None for shoal's.
        state: The free GPUs of the job; None for the state of this process.
        waits: The limits of waits; None for the defaults.

    Attributes:
        component_role: Same as the argument.
        init_instance_num: Number of instances at the start of a step.
        current_instance_num: Number of instances now.
        init_gpu_num: Number of GPUs at the start of a step.
        current_gpu_num: Number of GPUs now.
        current_instance_offset: The lowest instance that lives; instances leave in ascending order.
        model_parallel_size: Number of GPUs of an instance.
        n_minibatches: Number of training steps of an iteration.
        channels: The channels to the instances.
        request_queue: The key of the messages to the instances.
        response_queue: The key of the messages from the instances.
    """

    def __init__(
        self,
        component_role: str,
        config: Any,
        component_placement: Any,
        use_pre_process_policy: bool,
        use_wait_before_last_iter_policy: bool,
        channel_factory: Callable[[str], Channel],
        _logger: logging.Logger | None = None,
        *,
        state: SchedulerState | None = None,
        waits: Waits | None = None,
    ) -> None:
        self.component_role = component_role
        self.config = config
        self.component_placement = component_placement
        self.use_pre_process_policy = use_pre_process_policy
        self.use_wait_before_last_iter_policy = use_wait_before_last_iter_policy
        self._sizes = read_sizes(component_placement)
        size = self._sizes.size_of(component_role)
        self.init_instance_num = size.dp_size
        self.init_gpu_num = size.world_size
        self.model_parallel_size = size.model_parallel_size
        self.n_minibatches = number(config, "algorithm.n_minibatches")
        self.request_queue = get_scheduler_request_queue()
        self.response_queue = get_scheduler_response_queue()
        self._channel_factory = channel_factory
        self._logger = _log if _logger is None else _logger
        self._given_state = state
        self._waits = Waits() if waits is None else waits
        self._instance_channels: list[InstanceChannel] = []
        self.reset()

    @property
    def channels(self) -> list[Channel]:
        """The channels to the instances."""
        return [one.channel for one in self._instance_channels]

    @property
    def _state(self) -> SchedulerState:
        given = self._given_state
        return get_global_scheduer_state() if given is None else given

    def create_channels(self, n: int) -> None:
        """Create the channels to the instances 0 to n - 1, or connect to them."""
        role, make, waits = self.component_role, self._channel_factory, self._waits
        self._instance_channels = [InstanceChannel(role, i, make, waits) for i in range(n)]

    def reset(self) -> None:
        """Begin a step: all instances live."""
        self.current_instance_num = self.init_instance_num
        self.current_gpu_num = self.init_gpu_num
        self.current_instance_offset = 0

    def update(self, released_instance_num: int = 0, incremental_instance_num: int = 0) -> None:
        """Record instances that have left, and instances that were added.

        Raises:
            ShoalValueError: More instances leave than there are.
        """
        count = self.current_instance_num - released_instance_num + incremental_instance_num
        if min(count, released_instance_num, incremental_instance_num) < 0:
            raise ShoalValueError(
                f"{self.component_role}: {released_instance_num} instances leave and "
                f"{incremental_instance_num} are added, of {self.current_instance_num}"
            )
        self.current_instance_num = count
        self.current_gpu_num = count * self.model_parallel_size
        self.current_instance_offset += released_instance_num

    async def pre_process(self) -> None:
        """Begin a step, before the first training step."""
        self.reset()
        await self.pre_process_impl()

    async def release_or_allocate(self, train_iter: int) -> tuple[int, int]:
        """Let instances go, or add some, after a training step.

        Args:
            train_iter: The training step. After the last one the component only ends the step.

        Returns:
            The numbers of GPUs that the component has released and that it has taken.
        """
        if train_iter == self.n_minibatches - 1:
            await self.main_loop_finalize()
            return 0, 0
        released = await self.release_resource(train_iter)
        self.update(released_instance_num=released)
        added = await self.allocate_resource(train_iter)
        self.update(incremental_instance_num=added)
        if released or added:
            self._logger.info(
                "%s: training step %d: %d instances left, %d were added, %d live",
                self.component_role, train_iter, released, added, self.current_instance_num,
            )  # fmt: skip
        return released * self.model_parallel_size, added * self.model_parallel_size

    async def abandon(self) -> None:
        """End the waits of a step that has failed; most components have none of their own."""
        return

    def drain(self) -> None:
        """Drop the messages that a step that failed has left."""
        for one in self._instance_channels:
            left = one.drain()
            if left:
                self._logger.warning(
                    "%s %d: dropped %d messages of a step that failed",
                    self.component_role, one.instance, len(left),
                )  # fmt: skip

    @abstractmethod
    async def pre_process_impl(self) -> None:
        """Do what the component needs before the first training step."""

    @abstractmethod
    async def main_loop_finalize(self) -> None:
        """End the component's part of the step, after the last training step."""

    @abstractmethod
    async def release_resource(self, train_iter: int) -> int:
        """Let instances go; return how many."""

    @abstractmethod
    async def allocate_resource(self, train_iter: int) -> int:
        """Add instances; return how many."""


class RoleManager(ComponentManager):
    """A manager of one certain component; otherwise the arguments are those of `ComponentManager`.

    Attributes:
        ROLE: The component.
    """

    ROLE: ClassVar[str]

    def __init__(
        self,
        config: Any,
        component_placement: Any,
        use_pre_process_policy: bool,
        use_wait_before_last_iter_policy: bool,
        channel_factory: Callable[[str], Channel],
        _logger: logging.Logger | None = None,
        *,
        state: SchedulerState | None = None,
        waits: Waits | None = None,
    ) -> None:
        super().__init__(
            self.ROLE,
            config,
            component_placement,
            use_pre_process_policy,
            use_wait_before_last_iter_policy,
            channel_factory,
            _logger,
            state=state,
            waits=waits,
        )
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Create the channels, and the state that only this manager has."""
