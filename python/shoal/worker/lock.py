"""The locks of a worker: of its accelerators, and of ports of its node."""

import asyncio
import concurrent.futures
import itertools
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from ray.exceptions import RayError, RayTaskError

from shoal._ray import aget
from shoal.bootstrap.host import release_at_end
from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import LockError, ShoalError, ShoalTimeoutError
from shoal.futures import start
from shoal.loop import in_event_loop
from shoal.manager import DeviceLockManager, PortLockManager
from shoal.manager.lock_table import show_devices
from shoal.ports import hold_port
from shoal.process import Origin
from shoal.state import hold_devices
from shoal.work import AsyncWork
from shoal.worker import timing

__all__ = ["DeviceLock", "PortLock"]

_log = logging.getLogger("shoal")

_Call = concurrent.futures.Future[Any]

_ATTEMPTS = 10_000

_numbers = itertools.count(1)


class DeviceLock:
    """The lock of all accelerators that a worker sees, as `Worker.device_lock`.

    A worker that holds it has the devices for itself among the workers that use their locks. The
    worker may take it again while it holds it: the takes are counted, whichever thread or coroutine
    makes them, and the last release frees the devices. Workers get it in the order in which they
    asked. The lock of a worker without accelerators does nothing.

    Use it as `with lock:`, or in a coroutine as `async with lock:`. If the worker's process ends,
    the devices are free within 2 s; if its constructor fails, at once.

    Args:
        worker: The worker; None outside a worker, where every call fails.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        name = "a worker" if worker is None else worker.worker_address.get_name()
        self._origin = Origin(f"the device lock of {name}")
        self._lock = threading.Lock()
        self._takes: list[int] = []
        release_at_end(self._release_all)

    def acquire(self, *, timeout: float | None = None) -> None:
        """Wait until the worker has its accelerators.

        Args:
            timeout: Limit in seconds; None for the default, 0 to take the lock only if it is free.

        Raises:
            ShoalTimeoutError: The devices were not free in time; the error names their holders.
            PeerLostError: The job has ended.
            LockError: This is not a worker.
            TransportError: This process was forked from the worker.
        """
        if not self._devices("lock"):
            return
        with self._taking(timeout, logs=False) as work:
            try:
                if in_event_loop():
                    self._warn_if_slow(work)
                work.wait(math.inf)
            finally:
                del work  # as in `AsyncWork.result`

    async def async_acquire(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  (part of the API)
    ) -> None:
        """Same as `acquire`, in an event loop; cancelling it gives the request up."""
        if self._devices("lock"):
            with self._taking(timeout, logs=True) as work:
                try:
                    await work.async_wait()
                finally:
                    del work  # as in `AsyncWork.result`

    def release(self) -> None:
        """End a take; the last one frees the devices.

        Raises:
            LockError: The lock is not acquired.
            ShoalTimeoutError: The manager did not answer: the release can be repeated, and is a
                `LockError` if it has arrived.
        """
        devices = self._devices("unlock")
        if devices:
            manager = DeviceLockManager.get_proxy()
            with self._ending_take() as number:
                manager.release_devices(self._address, devices, number=number)

    async def async_release(self) -> None:
        """Same as `release`, in an event loop."""
        devices = self._devices("unlock")
        if devices:
            manager, what = DeviceLockManager.get_proxy(), show_devices(devices)
            with self._ending_take() as number:
                call = manager.begin_call("release_devices", self._address, devices, number=number)
                await _answer(call, Deadline(None), f"releasing the lock of {what}")

    def _release_all(self) -> None:
        """End all takes."""
        while self._takes:
            self.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        await self.async_acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.async_release()

    @property
    def _address(self) -> Any:
        return self._worker.worker_address

    def _devices(self, verb: str) -> list[int]:
        """Return the devices to lock, after checking that this is the worker's own process."""
        if self._worker is None:
            raise LockError(f"Cannot {verb} accelerators when not running in a worker.")
        self._origin.check()
        devices: list[int] = self._worker.worker_info.available_accelerators
        return devices

    @contextmanager
    def _ending_take(self) -> Iterator[int]:
        """End the last take; the block tells the manager, and the take stays if that fails."""
        with self._lock:
            if not self._takes:
                raise LockError(
                    f"Lock is not acquired. {self._address.get_name()} has released it as often as it "
                    "has taken it"
                )
            number = self._takes[-1]
            self._uncount(number)
        try:
            yield number
        except LockError:  # the manager does not know the take
            raise
        except (ShoalError, RayError):
            self._count(number)
            raise

    def _count(self, number: int) -> None:
        with self._lock:
            self._takes.append(number)
            if len(self._takes) == 1:
                hold_devices(self._worker.worker_info.available_accelerators)

    def _uncount(self, number: int) -> None:
        """Forget a take, if it was counted; the caller has the lock of the takes."""
        if number in self._takes:
            self._takes.remove(number)
            if not self._takes:
                hold_devices(())

    @contextmanager
    def _taking(self, timeout: float | None, *, logs: bool) -> Iterator[AsyncWork]:
        """Ask for the devices; the block waits for them, and has not taken them if it raises."""
        manager, number = DeviceLockManager.get_proxy(), next(_numbers)
        devices = self._devices("lock")
        work = AsyncWork(what=f"the lock of {show_devices(devices)}")
        work.operation, work.deadline = "lock", Deadline(timeout)
        call: _Call | None = None
        try:
            call = manager.begin_call(
                "acquire_devices",
                self._address,
                devices,
                number=number,
                timeout=work.deadline.timeout,
            )
            start(self._ask(manager, number, work, call, logs), lambda _: None, future=work.future)
            yield work
            self._count(number)
        except BaseException:
            work.cancel()
            if not _was_refused(call):
                # The request may wait, may have been granted, or may arrive later.
                with suppress(ShoalError, RayError):  # the manager has ended, and the lock with it
                    manager.begin_call("cancel_acquire", self._address, number)
            with self._lock:
                self._uncount(number)
            del work, call  # as in `AsyncWork.result`
            raise

    async def _ask(
        self, manager: Any, number: int, work: AsyncWork, call: _Call, logs: bool
    ) -> None:
        """Wait for the devices, and keep the work's description up to date meanwhile."""
        what, deadline = work.what, work.deadline or Deadline(None)
        # The page shows the wait for the work.
        wait = LongWait(
            lambda: f"{describe_self()}: waits for {work.what}",
            deadline,
            operation="",
            peers=lambda: work.peers,
        )
        granted = asyncio.wrap_future(call)
        pause = timing.TIMING.first_look_s
        while True:
            pause = wait.step(pause) if logs else min(pause, deadline.remaining)
            ended, _ = await asyncio.wait({granted}, timeout=pause)
            if ended or deadline.expired:
                break
            reason, work.peers = await self._explain(manager, number)
            work.what = f"{what}: {reason}" if reason else what
            if logs:
                wait.tick()
            pause = timing.TIMING.refresh_s
        limit = Deadline(deadline.remaining + timing.TIMING.spare_s)
        await _answer(granted, limit, f"acquiring {what}")

    async def _explain(self, manager: Any, number: int) -> tuple[str, Sequence[str]]:
        call = manager.begin_call("explain_wait", self._address, number)
        with suppress(ShoalError, RayError):  # the line then names no holder
            reason: tuple[str, Sequence[str]] = await _answer(
                call, Deadline(timing.TIMING.explain_s), "asking for the holder"
            )
            return reason
        return "", ()

    def _warn_if_slow(self, work: AsyncWork) -> None:
        with suppress(ShoalTimeoutError):
            work.wait(timing.TIMING.patience_s)
        if not work.done():
            _log.warning(
                "%s: acquire() waits for %s in an event loop and stops all its coroutines: write "
                "`async with worker.device_lock` or `await worker.device_lock.async_acquire()`",
                describe_self(), work.what,
            )  # fmt: skip


class PortLock:
    """The ports of a worker's node, which the workers of the job reserve.

    Args:
        worker: The worker; None outside a worker, where every call fails.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def acquire(self, port: int) -> bool:
        """Reserve a port number for this worker's process, without binding it.

        Returns:
            Whether the port is reserved now; False if a worker has it, also this one.

        Raises:
            LockError: This is not a worker.
            ShoalValueError: It is not a port number.
        """
        node_rank, name = self._owner()
        acquired: bool = PortLockManager.get_proxy().acquire(node_rank, name, port)
        return acquired

    def release(self, port: int) -> None:
        """Give a port back that `acquire` reserved.

        Raises:
            LockError: This worker does not have the port, or this is not a worker.
        """
        node_rank, name = self._owner()
        PortLockManager.get_proxy().release(node_rank, name, port)

    def acquire_free(self, max_port_num: int | None = None) -> int:
        """Reserve a free port and bind it; see `Worker.acquire_free_port`."""
        self._owner()
        try:
            return hold_port(max_port_num, self.acquire, _ATTEMPTS)
        except LockError as error:
            raise LockError(
                f"Failed to acquire a free port after {_ATTEMPTS} attempts. "
                f"{self._owner()[1]}: {error}"
            ) from error

    def _owner(self) -> tuple[int, str]:
        if self._worker is None:
            raise LockError("Cannot lock ports when not running in a worker.")
        info = self._worker.worker_info
        return info.cluster_node_rank, info.address.get_name()


async def _answer(
    ended: "asyncio.Future[Any] | concurrent.futures.Future[Any]", deadline: Deadline, what: str
) -> Any:
    """Return a manager's answer, or raise its error."""
    answer = asyncio.wrap_future(ended)
    return await aget(answer, deadline, lambda: what, DeviceLockManager.MANAGER_NAME)


def _was_refused(call: _Call | None) -> bool:
    """Whether the manager has answered a call with an error."""
    return (
        call is not None
        and call.done()
        and not call.cancelled()
        and isinstance(call.exception(), (ShoalError, RayTaskError))
    )
