"""`Worker.device_lock` and ports of workers, on a cluster within this process."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import re

import pytest

from shoal import (
    Channel,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    Worker,
    WorkerAddress,
)
from shoal.errors import LockError, ShoalTimeoutError, ShoalValueError
from shoal.manager import DeviceLockManager, PortLockManager, WorkerManager
from shoal.ports import hold_port
from shoal.process import ProcessId, own_process
from shoal.state import hide_process, show_process
from shoal.testing import StalledError, local_cluster
from shoal.worker import DeviceLock, PortLock, lock
from support.processes import in_a_child, until
from support.state_pages import states

pytestmark = pytest.mark.nightly

SAME = FlexiblePlacementStrategy([[0], [0], [0]])
TWO = FlexiblePlacementStrategy([[0], [0]])


class Locks(Worker):
    def __init__(self):
        super().__init__()
        self.log = None

    def take(self, timeout=None):
        self.device_lock.acquire(timeout=timeout)

    def give(self):
        self.device_lock.release()

    def work(self, events, times):
        for _ in range(times):
            with self.device_lock as held:
                assert held is self.device_lock
                events.put(("in", self._rank))
                events.put(("out", self._rank))

    def fail_inside(self):
        with self.device_lock:
            raise KeyError("inside")

    def use_in_a_child(self):
        with self.device_lock:
            calls = (self.device_lock.acquire, self.device_lock.release)
            return [in_a_child(call) for call in calls]

    def ports(self, count):
        return [self.acquire_free_port() for _ in range(count)]

    def no_port(self):
        return NoPort(self).acquire_free()

    def limited_port(self, limit):
        return self.acquire_free_port(limit)

    def is_alive(self, name):
        return self.check_worker_alive(name)


class AsyncLocks(Worker):
    async def take(self, timeout=None):  # noqa: ASYNC109  (the lock's own limit is tested)
        await self.device_lock.async_acquire(timeout=timeout)

    async def give(self):
        await self.device_lock.async_release()

    async def work(self, events, times):
        for _ in range(times):
            async with self.device_lock as held:
                assert held is self.device_lock
                await events.put(("in", self._rank), async_op=True)
                await asyncio.sleep(0)
                await events.put(("out", self._rank), async_op=True)

    async def take_until_cancelled(self):
        task = asyncio.ensure_future(self.device_lock.async_acquire())
        await asyncio.sleep(0.2)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return len(self.device_lock._takes)

    async def cancel_when_granted(self):
        """Cancel a take after the manager has granted it, and before the coroutine continues."""
        task = asyncio.ensure_future(self.device_lock.async_acquire())
        await asyncio.sleep(0)
        manager, other = DeviceLockManager.get_proxy(), WorkerAddress.from_name("other:0")
        with contextlib.suppress(ShoalTimeoutError):
            while True:  # this loop must not run: it would deliver the grant
                manager.acquire_devices(other, [0], timeout=0)
                manager.release_devices(other, [0])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def overlap(self):
        """Two coroutines hold the lock, and the first release does not free it."""
        await self.device_lock.async_acquire()
        await self.device_lock.async_acquire()
        await self.device_lock.async_release()

    async def block(self):
        with self.device_lock:
            return "done"


@pytest.fixture
def cluster():
    with local_cluster(accelerators=2) as made:
        yield made


class NoPort(PortLock):
    def acquire(self, _port):
        return False


def launch(cluster, cls=Locks, name="locks", strategy=TWO):
    return cls.create_group().launch(cluster, strategy, name=name)


def on(group, rank):
    return group.execute_on(rank)


def is_free(group, rank):
    try:
        on(group, rank).take(timeout=0).wait()
    except ShoalTimeoutError:
        return False
    on(group, rank).give().wait()
    return True


@pytest.mark.parametrize("cls", [Locks, AsyncLocks])
def test_one_worker_at_a_time_has_the_devices(cluster, cls):
    group = launch(cluster, cls, strategy=SAME)
    events = Channel.create("events")
    group.work(events, 20).wait()
    seen = [events.get() for _ in range(events.qsize())]
    assert len(seen) == 3 * 20 * 2
    for entered, left in zip(seen[::2], seen[1::2], strict=True):
        assert (entered[0], left[0]) == ("in", "out")
        assert entered[1] == left[1]


@pytest.mark.parametrize("cls", [Locks, AsyncLocks])
def test_a_long_wait_is_logged_with_the_holder(cluster, cls, timing, caplog):
    timing("deadline", first_logs_s=(2.0, 60.0))
    timing("worker", first_look_s=0.1)
    group = launch(cluster, cls)
    on(group, 0).take().wait()
    with caplog.at_level(logging.WARNING, "shoal"):
        waiting = on(group, 1).take(timeout=60)
        until(lambda: "waiting for" in caplog.text)
    on(group, 0).give().wait()
    waiting.wait()
    lines = [line for line in caplog.messages if "waits for the lock" in line]
    assert len(lines) == 1
    held = r"device 0 is held by locks:0 for \d+ s: waiting"
    assert re.match(f"locks:1: waits for the lock of device 0: {held}", lines[0])


@pytest.mark.parametrize("cls", [Locks, AsyncLocks])
def test_the_page_shows_the_devices_from_the_first_take_to_the_last_release(
    cluster, cls, tmp_path, monkeypatch
):
    monkeypatch.setenv("SHOAL_SHM_DIR", str(tmp_path))
    group = launch(cluster, cls, strategy=FlexiblePlacementStrategy([[0, 1]]))
    show_process("job", "locks:0", 0)
    seen = []
    for step in (group.take, group.take, group.give, group.give):
        step().wait()
        seen.append(states()[0].held_devices)
    hide_process()
    assert seen == [(0, 1), (0, 1), (0, 1), ()]


def test_takes_of_two_coroutines_are_counted(cluster):
    group = launch(cluster, AsyncLocks)
    on(group, 0).overlap().wait()
    assert not is_free(group, 1)
    on(group, 0).give().wait()
    assert is_free(group, 1)


def test_a_release_without_a_take_is_an_error(cluster):
    for group in (launch(cluster), launch(cluster, AsyncLocks, "others")):
        with pytest.raises(LockError, match=r"Lock is not acquired\. .*:0 has released it"):
            on(group, 0).give().wait()


def test_an_error_inside_releases_the_lock(cluster):
    group = launch(cluster)
    with pytest.raises(KeyError, match="inside"):
        on(group, 0).fail_inside().wait()
    assert is_free(group, 1)


class FailsWithLock(Worker):
    def __init__(self):
        super().__init__()
        self.device_lock.acquire()
        raise KeyError("with the lock")


def test_a_constructor_that_fails_releases_the_lock(cluster):
    with pytest.raises(KeyError, match="with the lock"):
        launch(cluster, FailsWithLock, "failed", FlexiblePlacementStrategy([[0]])).ready()
    assert is_free(launch(cluster), 0)


def test_a_cancelled_coroutine_leaves_the_queue(cluster):
    group = launch(cluster, AsyncLocks, strategy=SAME)
    on(group, 0).take().wait()
    cancelled = on(group, 1).take_until_cancelled()
    behind = on(group, 2).take()
    assert cancelled.wait() == [0]
    on(group, 0).give().wait()
    behind.wait()
    on(group, 2).give().wait()
    assert is_free(group, 1)


def test_devices_that_arrive_with_a_cancellation_are_given_back(cluster):
    group = launch(cluster, AsyncLocks)
    on(group, 0).cancel_when_granted().wait()
    until(lambda: is_free(group, 1))


@pytest.mark.parametrize("cls", [Locks, AsyncLocks])
def test_a_take_that_was_late_is_not_cancelled_as_well(cluster, cls):
    group = launch(cluster, cls)
    on(group, 0).take().wait()
    for timeout in (0, 0.1):
        with pytest.raises(ShoalTimeoutError, match="not granted within"):
            on(group, 1).take(timeout=timeout).wait()
    assert not is_free(group, 1)  # a cancellation would have arrived before
    assert DeviceLockManager.get_proxy()._manager._cancelled == {}


@pytest.mark.parametrize("cls", [Locks, AsyncLocks])
def test_a_take_that_fails_after_the_grant_is_ended(cluster, cls, monkeypatch):
    group = launch(cluster, cls)

    def fail(_):
        monkeypatch.undo()
        raise KeyError("on the way")

    monkeypatch.setattr(lock, "hold_devices", fail)
    with pytest.raises(KeyError, match="on the way"):
        on(group, 0).take().wait()
    assert is_free(group, 1)
    with pytest.raises(LockError, match="Lock is not acquired"):
        on(group, 0).give().wait()


@pytest.mark.parametrize("cls", [Locks, AsyncLocks])
def test_a_release_that_fails_can_be_repeated(cluster, cls, monkeypatch):
    group = launch(cluster, cls)
    on(group, 0).take().wait()

    async def late(*_, **__):
        monkeypatch.undo()
        raise ShoalTimeoutError("an error on the way")

    monkeypatch.setattr(DeviceLockManager, "release_devices", late)
    with pytest.raises(ShoalTimeoutError, match="on the way"):
        on(group, 0).give().wait()
    assert not is_free(group, 1)
    on(group, 0).give().wait()
    assert is_free(group, 1)


def test_a_blocking_take_in_an_event_loop_is_warned_of(cluster, caplog):
    holder, group = launch(cluster), launch(cluster, AsyncLocks, "loops")
    on(holder, 0).take().wait()
    with caplog.at_level(logging.WARNING, "shoal"):
        blocked = on(group, 0).block()
        until(lambda: "stops all its coroutines" in caplog.text)
    on(holder, 0).give().wait()
    assert blocked.wait() == ["done"]


def test_the_end_of_the_holder_releases_the_devices(cluster):
    one = FlexiblePlacementStrategy([[0]])
    holder, other = launch(cluster, strategy=one), launch(cluster, name="other", strategy=one)
    holder.take().wait()
    waiting = other.take()
    holder.close()
    waiting.wait()
    # The group that is launched again is another owner.
    again = launch(cluster, strategy=one)
    assert not is_free(again, 0)
    other.give().wait()
    assert is_free(again, 0)


def test_a_lock_that_no_worker_will_release_is_a_stall(cluster, timing):
    timing("testing", work_s=1.0)
    timing("worker", first_look_s=0.1)
    group = launch(cluster)
    on(group, 0).take().wait()
    with pytest.raises(StalledError, match=r"locks:1: waits for the lock of device 0: .*locks:0"):
        on(group, 1).take().wait()


def test_a_forked_child_cannot_use_the_lock(cluster):
    texts = launch(cluster, strategy=FlexiblePlacementStrategy([[0]])).use_in_a_child().wait()[0]
    for text in texts:
        assert "which made the device lock of locks:0; a child cannot use it" in text
        assert f"forked from process {os.getpid()}" in text


def test_a_worker_without_accelerators_waits_for_nothing():
    with local_cluster() as cluster:
        for cls, name in ((Locks, "locks"), (AsyncLocks, "others")):
            group = launch(cluster, cls, name, NodePlacementStrategy([0, 0]))
            group.take(timeout=0).wait()
            group.give().wait()
            group.give().wait()


def test_locks_outside_a_worker_are_refused():
    with pytest.raises(RuntimeError, match=r"^Cannot lock accelerators when not running in a"):
        DeviceLock(None).acquire()
    with pytest.raises(RuntimeError, match=r"^Cannot unlock accelerators when not running in a"):
        DeviceLock(None).release()
    with pytest.raises(RuntimeError, match=r"^Cannot lock ports when not running in a worker\.$"):
        PortLock(None).acquire(5000)


# --- ports and liveness ---


def test_ports_are_different_and_reserved_for_their_worker(cluster):
    group = launch(cluster)
    ports = [port for ports in group.ports(20).wait() for port in ports]
    assert len(set(ports)) == 40
    assert not any(PortLockManager.get_proxy().acquire(0, "g:0", port) for port in ports)
    assert on(group, 0).limited_port(20_000).wait()[0] <= 20_000
    with pytest.raises(ShoalValueError, match="max_port_num=80"):
        on(group, 0).limited_port(80).wait()


def test_a_port_that_another_worker_has_reserved_is_not_given(cluster):
    asked = []

    def acquire(port):
        asked.append(port)
        return len(asked) > 3

    assert hold_port(None, acquire, 5) == asked[3]
    group = launch(cluster)
    with pytest.raises(RuntimeError, match="Failed to acquire a free port after 10000 attempts"):
        on(group, 0).no_port().wait()


def test_a_worker_is_alive_until_its_group_is_closed(cluster):
    group, other = launch(cluster), launch(cluster, name="other")
    names = ["other:1", "other:7", "nobody:0"]
    assert [on(group, 0).is_alive(name).wait()[0] for name in names] == [True, False, False]
    on(other, 0).take().wait()
    on(other, 1).take()  # it is busy
    assert Worker.check_worker_alive("other:1")
    other.close()
    assert not Worker.check_worker_alive("other:1")


def test_a_worker_whose_process_has_ended_is_not_alive_before_ray_notices(cluster):
    launch(cluster).ready()  # its actors still answer
    manager, address = WorkerManager.get_proxy(), WorkerAddress.from_name("locks:0")
    info, own = manager.get_worker_info(address), own_process()
    ended = ProcessId(own.host, own.pid, own.started - 1)  # its pid was given again
    manager.register_worker(address, dataclasses.replace(info, process=ended))
    assert not Worker.check_worker_alive("locks:0")
    assert Worker.check_worker_alive("locks:1")
