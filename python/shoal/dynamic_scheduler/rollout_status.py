"""`RolloutStatus`: which sequence groups a rollout instance generates, and when it may end."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.dynamic_scheduler.messages import RolloutReport, count_tasks
from shoal.errors import ShoalTimeoutError, ShoalValueError

__all__ = ["RolloutStatus"]


@dataclass(eq=False)  # two groups may be equal
class _Running:
    """A group that is generated.

    Attributes:
        group: The group.
        task: The task that generates it, if the status shall notice its failure.
        open: Number of its sequences that are not complete.
    """

    group: Any
    task: Awaitable[Any] | None
    open: int


class RolloutStatus:
    """The sequence groups of one rollout instance during a step; used in one event loop only.

    The worker starts each group, and then completes or aborts it. `RolloutScalingScheduler` reads
    the numbers, takes the aborted groups, starts those that come from other instances, and ends
    the step.

    Example:
        >>> status = RolloutStatus()
        >>> status.start("a group", num_tasks=2)
        >>> status.complete_tasks("a group")
        >>> status.report().running_tasks
        1
        >>> status.complete("a group")
        >>> status.running_tasks
        0
    """

    def __init__(self) -> None:
        self._running: list[_Running] = []
        self._waiters: set[asyncio.Future[None]] = set()
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the groups of the step before; `report_offloaded` calls this.

        Raises:
            ShoalValueError: Groups are still running.
        """
        if self._running:
            raise ShoalValueError(f"{len(self._running)} groups are still running")
        self._aborted: list[Any] = []
        self._requests = self._requests_done = self._tasks = self._tasks_done = 0
        self._is_finished = False
        self._failure: Exception | None = None
        self._notify()

    def start(
        self, group: Any, task: Awaitable[Any] | None = None, num_tasks: int | None = None
    ) -> None:
        """Record that a group is generated from now on, and wake a rollout that had nothing to do.

        Args:
            group: The group; any object.
            task: The task that generates it; if it fails, so do the waits of this status.
            num_tasks: Number of sequences to generate; None for `num_aborted` of the group, else
                its length, else 1.
        """
        count = count_tasks(group) if num_tasks is None else num_tasks
        running = _Running(group, task, count)
        self._running.append(running)
        self._requests += 1
        self._tasks += count
        if isinstance(task, asyncio.Future):
            task.add_done_callback(lambda _: self._notify())
        self._notify()

    def complete_tasks(self, group: Any, num_tasks: int = 1) -> None:
        """Record that sequences of a running group are complete.

        Raises:
            ShoalValueError: The group does not run, or has fewer open sequences.
        """
        running = self._find(group)
        if not 0 <= num_tasks <= running.open:
            raise ShoalValueError(
                f"{num_tasks} sequences are complete, of a group with {running.open} open ones"
            )
        running.open -= num_tasks
        self._tasks_done += num_tasks
        self._notify()

    def complete(self, group: Any) -> None:
        """Record that a running group is complete.

        Raises:
            ShoalValueError: The group does not run.
        """
        running = self._find(group)
        self._running.remove(running)
        self._tasks_done += running.open
        self._requests_done += 1
        self._notify()

    def abort(self, group: Any) -> None:
        """Record that a running group was stopped before it was complete.

        Raises:
            ShoalValueError: The group does not run.
        """
        self._running.remove(self._find(group))
        self._aborted.append(group)
        self._notify()

    def take_aborted(self) -> list[Any]:
        """Return the groups that were stopped, each once."""
        taken, self._aborted = self._aborted, []
        return taken

    def finish(self) -> None:
        """End the step: `wait_for_work` returns False once nothing runs."""
        self._is_finished = True
        self._notify()

    def fail(self, error: Exception) -> None:
        """End the waits with an error, until `begin_step`."""
        self._failure = error
        self._notify()

    @property
    def running_groups(self) -> list[Any]:
        """The groups that are generated now."""
        return [running.group for running in self._running]

    @property
    def running_tasks(self) -> int:
        """Number of sequences that are generated now."""
        return sum(running.open for running in self._running)

    def report(self) -> RolloutReport:
        """Return the numbers of this step."""
        return RolloutReport(
            total_requests=self._requests,
            completed_requests=self._requests_done,
            total_tasks=self._tasks,
            completed_tasks=self._tasks_done,
            running_tasks=self.running_tasks,
            timestamp=time.time(),
        )

    async def wait_idle(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  (part of the API)
        """Wait until no group is generated.

        Args:
            timeout: Seconds to wait; None for the default.

        Raises:
            ShoalTimeoutError: Groups are still generated.
            Exception: The task of a group failed, or the worker no longer follows the requests.
        """
        deadline = Deadline(timeout)
        with LongWait(self._describe, deadline) as wait:
            while True:
                self._raise_failure()
                if not self._running:
                    return
                await self._wait_for_change(wait, deadline)

    async def wait_for_work(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  (part of the API)
        """Wait until a group is started, or the scheduler ends the step.

        Args:
            timeout: Seconds to wait; None for the default.

        Returns:
            Whether a group runs, or was started during the wait; False at the end of the step.

        Raises:
            ShoalTimeoutError: Neither happened.
            Exception: The worker no longer follows the scheduler's requests.
        """
        deadline = Deadline(timeout)
        before = self._requests
        with LongWait(lambda: f"{describe_self()}: waits for the scheduler", deadline) as wait:
            while not self._running and self._requests == before:
                self._raise_failure()
                if self._is_finished:
                    return False
                await self._wait_for_change(wait, deadline)
        return True

    def _describe(self) -> str:
        return (
            f"{describe_self()}: waits for {len(self._running)} groups with "
            f"{self.running_tasks} sequences"
        )

    async def _wait_for_change(self, wait: LongWait, deadline: Deadline) -> None:
        changed = asyncio.get_running_loop().create_future()
        self._waiters.add(changed)
        try:
            await asyncio.wait({changed}, timeout=wait.step())
        finally:
            self._waiters.discard(changed)
        if not changed.done():
            if deadline.expired:
                raise ShoalTimeoutError(f"{wait.describe()}: not within {deadline.timeout:g} s")
            wait.tick()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        for running in self._running:
            task = running.task
            if not isinstance(task, asyncio.Future) or not task.done():
                continue
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
            raise ShoalValueError(
                f"the task of a group ended, and neither complete() nor abort() was called for "
                f"{running.group!r:.120}"
            )

    def _find(self, group: Any) -> _Running:
        for running in self._running:
            if running.group is group:
                return running
        for running in self._running:
            if running.group == group:
                return running
        raise ShoalValueError(f"the group {group!r:.120} is not running")

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
