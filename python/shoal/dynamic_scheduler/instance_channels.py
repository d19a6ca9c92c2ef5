"""The scheduler's ends of its channels: requests and answers, with deadlines and liveness."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from shoal.channel import Channel
from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait, default_timeout
from shoal.dynamic_scheduler.messages import (
    get_scheduler_channel,
    get_scheduler_request_queue,
    get_scheduler_response_queue,
)
from shoal.errors import PeerLostError, ShoalTimeoutError

__all__ = ["InstanceChannel", "Waits", "Watch", "wait_for_all"]

_CHECK_S = 0.8
"""Seconds between two checks whether the component that is waited for is alive."""

T = TypeVar("T")

Watch = Callable[[str, int, str, Deadline, dict[int, set[int]]], Awaitable[PeerLostError | None]]
"""Returns the error of a wait for an instance that has died; None while it may go on.

Its arguments: the component, the instance, the operation, its deadline, and for each rank the ids
of the processes that the operation has seen.
"""


class Waits:
    """The limits of the scheduler's waits.

    Args:
        limit: Maximum seconds of one wait; None for the default.
        watch: Tells whether an instance has died; None to rely on the deadlines.
    """

    def __init__(self, limit: float | None = None, watch: Watch | None = None) -> None:
        self._limit = default_timeout() if limit is None else limit
        self._watch = watch
        self._step = Deadline(None, default=float("inf"))

    def begin_step(self, timeout: float | None) -> None:
        """Begin a step of at most `timeout` seconds; None for no limit of the whole step."""
        self._step = Deadline(timeout, default=float("inf"))

    def deadline(self, limit: float | None = None) -> Deadline:
        """Return the deadline of a wait that begins now.

        Args:
            limit: Maximum seconds of this wait; None for the limit of all waits.
        """
        return Deadline(min(self._limit if limit is None else limit, self._step.remaining))

    async def wait(
        self,
        awaited: Coroutine[Any, Any, T],
        what: str,
        role: str,
        instance: int,
        limit: float | None = None,
    ) -> T:
        """Wait for a message from an instance.

        Raises:
            ShoalTimeoutError: It did not come in time.
            PeerLostError: The instance has died.
        """
        deadline, seen = self.deadline(limit), dict[int, set[int]]()
        peer = f"{role} {instance}"
        task = asyncio.ensure_future(awaited)
        try:
            with LongWait(lambda: f"{describe_self()}: {what}: waits for {peer}", deadline) as wait:
                while True:
                    done, _ = await asyncio.wait({task}, timeout=wait.step(_CHECK_S))
                    if done:
                        return task.result()
                    if self._watch is not None:
                        error = await self._watch(role, instance, what, deadline, seen)
                        if error is not None and not task.done():
                            raise error
                    if self._step.expired and not task.done():
                        raise ShoalTimeoutError(
                            f"{describe_self()}: {what}: the step's timeout of "
                            f"{self._step.timeout:g} s has passed; it waited for {peer}"
                        )
                    if deadline.expired and not task.done():
                        raise ShoalTimeoutError(
                            f"{describe_self()}: {what}: nothing from {peer} within "
                            f"{deadline.timeout:.3g} s; its event loop is blocked, it does not run, or "
                            "it does not follow the scheduler"
                        )
                    wait.tick()
        finally:
            # A cancelled get loses no message.
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


class InstanceChannel:
    """The scheduler's end of the channel to one instance.

    Args:
        role: The component.
        instance: The instance.
        make_channel: Creates a channel, or connects to the one of this name.
        waits: The limits of waits.

    Attributes:
        channel: The channel.
        instance: Same as the argument.
    """

    def __init__(
        self, role: str, instance: int, make_channel: Callable[[str], Channel], waits: Waits
    ) -> None:
        self.channel = make_channel(get_scheduler_channel(role, instance))
        self.instance = instance
        self._role = role
        self._waits = waits

    async def send(self, message: Any) -> None:
        """Send a request to the instance."""
        key = get_scheduler_request_queue()
        await self.channel.put(message, key=key, async_op=True).async_wait()

    async def receive(self, what: str, limit: float | None = None) -> Any:
        """Wait for the instance's next message.

        Args:
            what: The operation, for errors and log lines.
            limit: Maximum seconds; None for the limit of all waits.

        Raises:
            ShoalTimeoutError: It did not come in time.
            PeerLostError: The instance has died.
        """
        got = self.channel.get(key=get_scheduler_response_queue(), async_op=True)
        return await self._waits.wait(got.async_wait(), what, self._role, self.instance, limit)

    def drain(self) -> list[Any]:
        """Drop the messages that an interrupted step has left, and return those of the instance."""
        self.channel.drain(key=get_scheduler_request_queue())
        return self.channel.drain(key=get_scheduler_response_queue())


async def wait_for_all(awaited: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines side by side and return their results; the first error ends the others."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
