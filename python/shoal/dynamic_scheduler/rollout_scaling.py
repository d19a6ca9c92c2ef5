"""`RolloutScalingScheduler`: follows the scheduler's requests in a rollout worker."""

import asyncio
import contextlib
import inspect
from collections.abc import Sequence
from typing import Any, Protocol

from shoal.channel import Channel
from shoal.dynamic_scheduler.messages import (
    RolloutAction,
    RolloutReport,
    RolloutScheduleInfo,
    get_scheduler_request_queue,
    get_scheduler_response_queue,
)
from shoal.dynamic_scheduler.own_status import OwnStatus
from shoal.errors import ShoalError, ShoalTypeError, ShoalValueError

__all__ = ["RolloutScalingScheduler", "ScalableRollout", "StatusManager"]


class StatusManager(Protocol):
    """The methods of `worker.status_manager`; `RolloutStatus` has them."""

    def report(self) -> RolloutReport:
        """Return the numbers of this step."""

    def start(self, group: Any, task: Any = None) -> None:
        """Record that a group is generated from now on, and wake a rollout that sleeps."""

    def take_aborted(self) -> list[Any]:
        """Return the groups that were stopped, each once."""

    def finish(self) -> None:
        """End the step."""

    def begin_step(self) -> None:
        """Forget the groups of the step before."""

    def fail(self, error: Exception) -> None:
        """End the waits of the worker with an error: the scheduler's requests are not followed."""

    async def wait_idle(self) -> None:
        """Wait until no group is generated."""


_STATUS = ("report", "start", "take_aborted", "finish", "begin_step", "fail", "wait_idle")
"""The methods of `StatusManager`."""


class ScalableRollout(Protocol):
    """The members of a rollout worker that the scheduler uses."""

    status_manager: StatusManager

    def abort_generation(self) -> Any:
        """Stop all groups: each is then aborted in the status; may be a coroutine method."""

    async def _async_generate_group(self, group: Any) -> Any:
        """Generate a group, then complete or abort it in the status."""


def _status_of(worker: ScalableRollout) -> StatusManager:
    status: Any = worker.status_manager
    missing = [name for name in _STATUS if not callable(getattr(status, name, None))]
    if not missing:
        return status  # type: ignore[no-any-return]  # it has all methods
    if all(callable(getattr(status, name, None)) for name in OwnStatus.METHODS):
        return OwnStatus(status)
    raise ShoalTypeError(
        f"worker.status_manager is a {type(status).__name__} without the methods "
        f"{', '.join(missing)}: use shoal.dynamic_scheduler.RolloutStatus"
    )


class RolloutScalingScheduler:
    """Answers the scheduler on behalf of one rollout instance.

    Args:
        rank: The rank of the instance.
        scheduler_channel: The channel `get_scheduler_channel("rollout", rank)`.
        worker: The rollout worker; see `ScalableRollout`.

    Raises:
        ShoalTypeError: The worker's `status_manager` is neither a `StatusManager` nor a status of
            the kind that RLinf's rollout workers have (`SequenceGroupStatus`).
    """

    def __init__(self, rank: int, scheduler_channel: Channel, worker: ScalableRollout) -> None:
        self._status = _status_of(worker)
        self._rank = rank
        self._channel = scheduler_channel
        self._worker = worker
        self._tasks: set[asyncio.Task[Any]] = set()

    async def main_loop(self) -> None:
        """Follow requests without end: run it as a task and cancel it at the end of the job.

        If a request fails, the scheduler and the waits of the status get the error, and the loop
        raises it.

        Raises:
            ShoalValueError: The scheduler sent something else than a request.
        """
        while True:
            try:
                got = self._channel.get(key=get_scheduler_request_queue(), async_op=True)
                await self._follow(await got.async_wait())
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                try:
                    self._status.fail(error)
                finally:
                    with contextlib.suppress(ShoalError):  # the channel may be the cause
                        await self._answer(RolloutScheduleInfo(self._rank, error=text))
                raise

    async def report_offloaded(self) -> None:
        """Tell the scheduler that the instance has released its GPUs; ends its part of the step.

        From then on the status counts the groups of the next step: a report that is asked for
        before the instance begins it must not have the numbers of the last one.
        """
        self._status.begin_step()
        await self._answer(RolloutScheduleInfo(self._rank, action=RolloutAction.Offloaded))

    async def _follow(self, request: Any) -> None:
        action = getattr(request, "action", None)
        status = self._status
        if action is RolloutAction.Report:
            await self._answer(RolloutScheduleInfo(self._rank, report=status.report()))
        elif action is RolloutAction.Migrate_Out:
            await self._answer(RolloutScheduleInfo(self._rank, data=await self._migrate_out()))
        elif action is RolloutAction.Migrate_In:
            self._migrate_in(request.data or ())
        elif action in (RolloutAction.Finish, RolloutAction.Wait_For_Finish):
            await status.wait_idle()
            status.finish()
        else:
            raise ShoalValueError(
                f"Unknown scheduler action {action!r} in {request!r:.200}; rollout {self._rank} "
                "follows Report, Migrate_In, Migrate_Out, Finish and Wait_For_Finish"
            )

    async def _migrate_out(self) -> list[Any]:
        stopping = self._worker.abort_generation()
        if inspect.isawaitable(stopping):
            await stopping
        await self._status.wait_idle()
        return self._status.take_aborted()

    def _migrate_in(self, groups: Sequence[Any]) -> None:
        for group in groups:
            generate = self._worker._async_generate_group(group)  # noqa: SLF001  (part of the API)
            task = asyncio.ensure_future(generate)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._status.start(group, task)

    async def _answer(self, info: RolloutScheduleInfo) -> None:
        key = get_scheduler_response_queue()
        await self._channel.put(info, key=key, async_op=True).async_wait()
