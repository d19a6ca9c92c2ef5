"""The managers of inference and of the actor, and the choice of a component's manager."""

import asyncio
import contextlib
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from shoal.context import describe_self
from shoal.dynamic_scheduler.arithmetic import grown_dp_size
from shoal.dynamic_scheduler.component_manager import ComponentManager, RoleManager
from shoal.dynamic_scheduler.rollout_manager import RolloutManager
from shoal.errors import ShoalError, ShoalTimeoutError, ShoalValueError

__all__ = ["ActorManager", "InferenceManager", "create_component_manager"]


class InferenceManager(RoleManager):
    """The manager of inference, which leaves as a whole."""

    ROLE: ClassVar[str] = "inference"

    def _set_up(self) -> None:
        self._done: asyncio.Task[Any] | None = None
        self.create_channels(1)

    async def pre_process_impl(self) -> None:
        """Begin to wait for the message that inference is done."""
        await self.abandon()
        # It takes as long as the step; only where the step waits for it, the wait has a limit.
        receive = self._instance_channels[0].receive("the end of inference", limit=math.inf)
        self._done = asyncio.ensure_future(receive)

    async def main_loop_finalize(self) -> None:
        """Wait until inference is done."""
        if self._done is not None:
            await self._wait_until_done(self._done)

    async def release_resource(self, train_iter: int) -> int:
        """Let inference go if it is done; with the policy, wait for it where that costs nothing."""
        if self.current_instance_num == 0 or self._done is None:
            return 0
        before_last = train_iter == self.n_minibatches - 2
        if self.use_wait_before_last_iter_policy and (
            before_last or self._state.get_component_instance_num("rollout") == 0
        ):
            await self._wait_until_done(self._done)
        if not self._done.done():
            return 0
        self._done.result()  # raises its error
        return self.current_instance_num

    async def allocate_resource(self, train_iter: int) -> int:
        """Add nothing."""
        del train_iter
        return 0

    async def _wait_until_done(self, done: asyncio.Task[Any]) -> None:
        deadline = self._waits.deadline()
        ended, _ = await asyncio.wait({done}, timeout=deadline.remaining_or_none())
        if not ended:
            raise ShoalTimeoutError(
                f"{describe_self()}: inference did not say within {deadline.timeout:.3g} s that it "
                "is done"
            )
        done.result()  # raises its error

    async def abandon(self) -> None:
        """Stop to wait for the message; it stays in the channel."""
        done, self._done = self._done, None
        if done is not None:
            done.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await done


class ActorManager(RoleManager):
    """The manager of the actor, which takes free GPUs."""

    ROLE: ClassVar[str] = "actor"

    def _set_up(self) -> None:
        self.create_channels(1)

    async def pre_process_impl(self) -> None:
        """With the policy: let the actor load its weights, as the rollouts have left its GPUs."""
        if self.use_pre_process_policy:
            await self._instance_channels[0].send(None)

    async def wait_for_training_step(self, train_iter: int) -> None:
        """Wait until the actor has done a training step.

        Raises:
            ShoalTimeoutError: It did not say so in time.
            PeerLostError: It has died.
            ShoalError: It sent something else.
        """
        message = await self._instance_channels[0].receive(f"training step {train_iter}")
        if message is not None:
            raise ShoalError(
                f"training step {train_iter}: the actor sent {message!r:.120}; expected None"
            )

    async def main_loop_finalize(self) -> None:
        """Return to the initial size."""
        added = self.current_instance_num - self.init_instance_num
        await self._answer(self.init_instance_num)
        self.update(released_instance_num=added)

    async def release_resource(self, train_iter: int) -> int:
        """Let nothing go."""
        del train_iter
        return 0

    async def allocate_resource(self, train_iter: int) -> int:
        """Grow to the largest valid size that fits on the free GPUs, and tell the actor."""
        del train_iter
        extra = self._state.available_gpu_num // self.model_parallel_size
        valid, now = self._state.actor_valid_dp_sizes, self.current_instance_num
        size = grown_dp_size(valid, now, extra)
        await self._answer(size)
        return size - now

    async def _answer(self, instances: int) -> None:
        changed = instances != self.current_instance_num
        world_size = instances * self.model_parallel_size
        await self._instance_channels[0].send({"world_size": world_size} if changed else None)


_MANAGERS: dict[str, type[Any]] = {
    "rollout": RolloutManager,
    "inference": InferenceManager,
    "actor": ActorManager,
}


def create_component_manager(
    component_role: str, component_manager_kwargs: Mapping[str, Any]
) -> ComponentManager:
    """Return the manager of a component.

    Args:
        component_role: `rollout`, `inference` or `actor`.
        component_manager_kwargs: The arguments of `ComponentManager`, without `component_role`.

    Raises:
        ShoalValueError: There is no manager for this component.
    """
    if component_role not in _MANAGERS:
        raise ShoalValueError(
            f"can't find ComponentManager subclass for {component_role}; there are managers for "
            f"{', '.join(_MANAGERS)}"
        )
    manager: ComponentManager = _MANAGERS[component_role](**component_manager_kwargs)
    return manager
