"""The managers of locks, used directly: order, counting, deadlines, deaths, ports."""

import asyncio
import logging
import re
import signal
from collections import Counter

import pytest

from shoal import NodePlacementStrategy, WorkerAddress
from shoal.errors import (
    LockError,
    NameTakenError,
    PlacementIndexError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
)
from shoal.manager import (
    Caller,
    DeviceLockManager,
    JobManager,
    PortLockManager,
    process_watch,
)
from shoal.manager.lock_manager import WorkerDeviceLock
from shoal.manager.process_watch import ProcessWatch, ProcessWatches
from shoal.process import ProcessId, own_process, process_of
from shoal.testing import local_cluster
from support.processes import killed, programs

A, B, C = (WorkerAddress.from_name(f"{name}:0") for name in "abc")
HERE = NodePlacementStrategy([0])


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 60))


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def begin(manager, who, devices, **options):
    return asyncio.ensure_future(manager.acquire_devices(who, devices, **options))


async def is_free(manager, device):
    try:
        await manager.acquire_devices(WorkerAddress.from_name("probe:0"), [device], timeout=0)
    except ShoalTimeoutError:
        return False
    await manager.release_devices(WorkerAddress.from_name("probe:0"), [device])
    return True


@pytest.fixture
def other_processes():
    """Start processes that sleep; returns their callers."""

    def start():
        process = begin("-c", "import time; time.sleep(600)")
        return process, Caller(process_of(process.pid), 0)

    with programs() as begin:
        yield start


# --- devices ---


def test_the_steps_of_three_workers():
    async def scenario():
        locks = DeviceLockManager(3)
        assert await locks.acquire_devices(A, [0, 1]) is None
        await locks.acquire_devices(A, [0, 1])  # its own, and not counted
        b = begin(locks, B, [1, 2])
        await settle()
        c = begin(locks, C, [2])
        await settle()
        assert not b.done()
        assert not c.done()
        text = "The lock is owned by worker a:0, but b:0 is trying to release it."
        with pytest.raises(RuntimeError, match=text):
            await locks.release_devices(B, [1])
        assert await locks.release_devices(A, [0, 1]) is None
        await b
        await settle()
        assert not c.done()
        with pytest.raises(RuntimeError, match=r"Lock is not acquired\."):
            await locks.release_devices(A, [0])
        await locks.release_devices(B, [1, 2])
        await c
        with pytest.raises(IndexError, match=r"device 7 does not exist.*accelerators 0 to 2"):
            await locks.acquire_devices(A, [7])
        for call in (locks.acquire_devices, locks.release_devices):
            with pytest.raises(
                ShoalValueError, match="worker_address='a:0': expected a WorkerAddress"
            ):
                await call("a:0", [0])
        await locks.acquire_devices(A, [])
        await locks.release_devices(A, [])
        await locks.acquire_devices(A, [0, 0])
        with pytest.raises(RuntimeError, match=r"Lock is not acquired\."):
            await locks.release_devices(A, [0, 0])
        assert await is_free(locks, 0)

    run(scenario())


def test_a_request_holds_nothing_while_it_waits():
    async def scenario():
        locks = DeviceLockManager(3)
        await locks.acquire_devices(A, [1])
        b = begin(locks, B, [1, 2])
        await settle()
        with pytest.raises(LockError, match=r"b:0 released device 2 without holding it"):
            await locks.release_devices(B, [2])
        c = begin(locks, C, [2])
        await settle()
        assert not c.done()
        b.cancel()
        await c
        assert not await is_free(locks, 1)

    run(scenario())


def test_requests_are_granted_in_the_order_of_arrival():
    async def scenario():
        locks, order = DeviceLockManager(2), []
        await locks.acquire_devices(A, [0, 1])

        async def work(number):
            who = WorkerAddress.from_name(f"w:{number}")
            await locks.acquire_devices(who, [number % 2] if number % 3 else [0, 1])
            order.append(number)
            await asyncio.sleep(0)
            await locks.release_devices(who, [number % 2] if number % 3 else [0, 1])

        tasks = []
        for number in range(60):
            tasks.append(asyncio.ensure_future(work(number)))
            await asyncio.sleep(0)
        await locks.release_devices(A, [0, 1])
        await asyncio.gather(*tasks)
        return order

    order = run(scenario())
    for device in (0, 1):
        mine = [n for n in order if n % 3 == 0 or n % 2 == device]
        assert mine == sorted(mine)


def test_takes_with_numbers_are_counted():
    async def scenario():
        locks = DeviceLockManager(1)
        await locks.acquire_devices(A, [0], number=1)
        await locks.acquire_devices(A, [0], number=2)
        await locks.release_devices(A, [0], number=1)
        with pytest.raises(LockError, match="Lock is not acquired"):
            await locks.release_devices(A, [0], number=1)
        assert not await is_free(locks, 0)
        await locks.release_devices(A, [0], number=2)
        assert await is_free(locks, 0)

    run(scenario())


def test_an_owner_that_takes_more_passes_workers_that_wait_for_it():
    async def scenario():
        locks = DeviceLockManager(3)
        await locks.acquire_devices(A, [0])
        b = begin(locks, B, [0, 1])
        await settle()
        await locks.acquire_devices(A, [0, 1, 2], timeout=5)
        assert not b.done()
        await locks.release_devices(A, [0, 1, 2])
        await b

    run(scenario())


def test_a_late_take_names_the_holder_and_earlier_requests():
    async def scenario():
        locks = DeviceLockManager(3)
        await locks.acquire_devices(A, [0, 1], caller=Caller(own_process(), 4))
        b = begin(locks, B, [1, 2])
        await settle()
        c = begin(locks, C, [0, 1, 2], timeout=0.05, number=3)
        await settle()
        assert (await locks.explain_wait(C, 3))[1] == ["a:0", "b:0"]
        with pytest.raises(ShoalTimeoutError) as late:
            await c
        held = rf"held by a:0 \(process {own_process().pid} on node 4\) for \d+ s"
        text = (
            r"c:0: acquiring the lock of devices 0, 1 and 2: not granted within 0\.05 s: "
            f"devices 0 and 1 are {held}; device 2 is kept for b:0, which asked earlier"
        )
        assert re.fullmatch(text, str(late.value))
        with pytest.raises(ShoalTimeoutError, match="not granted within 0 s"):
            await locks.acquire_devices(C, [0], timeout=0)
        await locks.acquire_devices(C, [], timeout=0)
        # The requests that timed out have left the queue.
        await locks.release_devices(A, [0, 1], caller=Caller(own_process(), 4))
        await b
        await locks.release_devices(B, [1, 2])
        assert await is_free(locks, 2)

    run(scenario())


def test_a_cancelled_take_is_ended_whenever_the_cancellation_arrives():
    async def scenario():
        locks = DeviceLockManager(1)
        await locks.cancel_acquire(A, 5)
        await locks.acquire_devices(A, [0], number=5)  # its cancellation was faster
        assert await is_free(locks, 0)
        await locks.acquire_devices(A, [0], number=6)
        waiting = begin(locks, B, [0], number=7)
        await settle()
        reason, awaited = await locks.explain_wait(B, 7)
        assert "held by a:0" in reason
        assert awaited == ["a:0"]
        await locks.cancel_acquire(B, 7)
        await waiting
        assert await locks.explain_wait(B, 7) == ("", [])
        await locks.cancel_acquire(A, 6)
        assert await is_free(locks, 0)

    run(scenario())


@pytest.mark.parametrize("devices", [["a"], 3, [1.5]])
def test_a_rank_that_is_no_integer_is_refused(devices):
    with pytest.raises(ShoalTypeError, match=r"accel_ids=.*expected a list"):
        run(DeviceLockManager(3).acquire_devices(A, devices))


def test_a_cluster_without_accelerators_has_no_devices():
    with pytest.raises(PlacementIndexError, match="this cluster has no accelerators"):
        run(DeviceLockManager(0).acquire_devices(A, [0]))


def test_the_manager_asks_how_many_accelerators_there_are():
    with local_cluster(accelerators=[1, 2]):
        locks = DeviceLockManager()
        run(locks.acquire_devices(A, [2]))
        with pytest.raises(IndexError, match="accelerators 0 to 2"):
            run(locks.acquire_devices(A, [3]))


def test_the_lock_of_one_device():
    async def scenario():
        lock = WorkerDeviceLock()
        await lock.acquire(A)
        with pytest.raises(ShoalTimeoutError):
            await lock.acquire(B, timeout=0.01)
        with pytest.raises(RuntimeError, match=r"owned by worker a:0, but b:0 is trying"):
            await lock.release(B)
        await lock.release(A)
        await lock.acquire(B)

    run(scenario())


# --- deaths ---


def test_the_death_of_the_owner_releases_its_devices(other_processes, caplog):
    async def scenario():
        locks = DeviceLockManager(2)
        process, caller = other_processes()
        await locks.acquire_devices(A, [0, 1], caller=caller)
        b = begin(locks, B, [1])
        await settle()
        assert not b.done()
        process.send_signal(signal.SIGKILL)
        await b
        return process.pid

    with caplog.at_level(logging.WARNING, "shoal"):
        pid = run(scenario())
    assert f"a:0 (process {pid} on node 0) ended while it held devices 0 and 1" in caplog.text


def test_the_death_of_a_waiting_process_removes_its_request(other_processes):
    async def scenario():
        locks = DeviceLockManager(1)
        process, caller = other_processes()
        await locks.acquire_devices(A, [0])
        b = begin(locks, B, [0], caller=caller)
        await settle()
        c = begin(locks, C, [0])
        await settle()
        process.kill()
        await b
        await locks.release_devices(A, [0])
        await c

    run(scenario())


def test_a_request_of_a_process_that_has_ended_is_forgotten(other_processes):
    async def scenario():
        locks = DeviceLockManager(1)
        process, caller = other_processes()
        killed(process)
        await locks.acquire_devices(A, [0], caller=caller)
        await locks.acquire_devices(B, [0], timeout=30)

    run(scenario())


def test_a_worker_that_was_started_again_is_another_owner(other_processes):
    async def scenario():
        locks = DeviceLockManager(1)
        (first, of_first), (_, of_second) = other_processes(), other_processes()
        await locks.acquire_devices(A, [0], caller=of_first)
        second = begin(locks, A, [0], caller=of_second)
        await settle()
        assert not second.done()
        with pytest.raises(LockError, match="owned by worker a:0, but a:0"):
            await locks.release_devices(A, [0], caller=of_second)
        first.kill()
        await second
        await locks.release_devices(A, [0], caller=of_second)

    run(scenario())


FAR = Caller(ProcessId("another machine", 12, 34), 1)


class Remote:
    """An actor's method, whose replies are futures of the running loop."""

    def __init__(self, function):
        self._function = function

    def remote(self, *args, **kwargs):
        return asyncio.ensure_future(self._function(*args, **kwargs))


class Far:
    """A job with a second node: its NodeManager, and the watching actor that it starts there."""

    def __init__(self):
        self.ended = asyncio.Event()
        self.started = []
        self.failures = []
        self.start_host = Remote(self._start_host)
        self.watch = Remote(self._watch)

    async def _start_host(self, name, cls, **options):
        self.started.append((name, cls, options["node_rank"]))
        return self

    async def _watch(self, process):
        assert process == FAR.process
        if self.failures:
            raise self.failures.pop()
        await self.ended.wait()

    def watches(self):
        """Return the watch of processes of the job."""
        return ProcessWatches("job", lambda *_: self)


@pytest.fixture
def far(timing):
    timing("manager", watch_again_s=0.01, retry_s=0.01)
    return Far()


def test_an_owner_on_another_node_is_watched_there(far):
    async def scenario():
        far.failures.append(process_watch.ActorUnavailableError("restarting", b"1" * 16))
        locks = DeviceLockManager(1, far.watches())
        await locks.acquire_devices(A, [0], caller=FAR)
        b = begin(locks, B, [0])
        await asyncio.sleep(0.1)
        assert not b.done()
        assert far.started == [("shoal-watch-1", ProcessWatch, 1)]
        far.ended.set()
        await b

    run(scenario())


def test_the_end_of_a_node_ends_its_owners(far):
    async def scenario():
        far.failures.append(process_watch.LOST[0]())
        locks = DeviceLockManager(1, far.watches())
        await locks.acquire_devices(A, [0], caller=FAR)
        await locks.acquire_devices(B, [0], timeout=30)

    run(scenario())


def test_an_owner_is_watched_although_its_watch_ended_or_fails(far, caplog):
    async def scenario():
        far.ended.set()
        far.failures.append(ValueError("not expected"))
        # Another request starts the actor, which has ended when it is looked up.
        answers = [NameTakenError("another request was faster")]
        start_host = far._start_host

        async def start(*args, **kwargs):
            if answers:
                raise answers.pop()
            return await start_host(*args, **kwargs)

        def find(name, _namespace):
            return None if name == "shoal-watch-1" else far

        far.start_host = Remote(start)
        locks = DeviceLockManager(1, ProcessWatches("job", find))
        await locks.acquire_devices(A, [0], caller=FAR)
        await locks.acquire_devices(B, [0], timeout=30)
        assert not far.failures

    run(scenario())
    assert "cannot be noticed" in caplog.text
    assert "shoal-watch-1, which watches the processes of node 1 of the job 'job'" in caplog.text


# --- ports ---


def test_ports_are_reserved_by_node():
    ports = PortLockManager()
    assert ports.acquire(0, "g:0", 5000) is True
    assert ports.acquire(0, "g:1", 5000) is False
    assert ports.acquire(0, "g:0", 5000) is False
    assert ports.acquire(1, "g:0", 5000) is True
    with pytest.raises(LockError, match="g:1 releases port 5000 of node 0, but g:0 has it"):
        ports.release(0, "g:1", 5000)
    ports.release(0, "g:0", 5000)
    with pytest.raises(RuntimeError, match="no worker has it"):
        ports.release(0, "g:0", 5000)
    assert ports.acquire(0, "g:1", 5000)
    ports.release_all_ports("g:1")
    assert ports.acquire(0, "g:2", 5000)


def test_the_ports_of_a_dead_process_are_free_for_the_worker_that_replaces_it(other_processes):
    ports = PortLockManager()
    (first, of_first), (_, of_second) = other_processes(), other_processes()
    assert ports.acquire(0, "g:0", 5000, caller=of_first)
    assert not ports.acquire(0, "g:0", 5000, caller=of_second)
    killed(first)
    assert ports.acquire(0, "g:0", 5000, caller=of_second)
    assert not ports.acquire(0, "g:0", 5000, caller=of_first)


def test_a_port_of_another_node_is_free_a_moment_after_the_question(far):
    async def scenario():
        ports = PortLockManager(far.watches())
        assert ports.acquire(1, "g:0", 5000, caller=FAR)
        assert not ports.acquire(1, "g:1", 5000)  # its process runs
        await asyncio.sleep(0.1)
        assert not ports.acquire(1, "g:1", 5000)
        far.ended.set()
        assert not ports.acquire(1, "g:1", 5000)
        while not ports.acquire(1, "g:1", 5000):  # noqa: ASYNC110  (there is no event for it)
            await asyncio.sleep(0.01)

    run(scenario())


@pytest.mark.parametrize("port", [0, 65_536, -1, True, "80"])
def test_a_port_that_is_no_integer_is_refused(port):
    with pytest.raises(ShoalValueError, match="expected a number from 1 to 65535"):
        PortLockManager().acquire(0, "g:0", port)


# --- the actor ---


def test_the_actor_of_a_job_is_all_its_managers():
    async def scenario():
        job = JobManager("job", 1)
        await job.acquire_devices(A, [0])
        assert job.acquire(0, "g:0", 5000)
        assert job.get_worker_info(A) is None
        assert await job.is_process_running(Caller(own_process(), 0))

    run(scenario())
    assert len(Counter(cls.MANAGER_NAME for cls in JobManager.__mro__[:-2])) == 1
