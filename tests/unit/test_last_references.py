"""What has no reference left is freed, before Python collects cycles."""

import contextlib
import gc
import threading
import weakref
from concurrent.futures import Future
from functools import partial
from operator import methodcaller
from types import SimpleNamespace

import pytest

from shoal import (
    Channel,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    Worker,
    WorkerAddress,
)
from shoal.collective.broadcast import _all_of, _Series
from shoal.collective.inbox import Inbox
from shoal.collective.message import expects_object
from shoal.collective.outbox import _Sending
from shoal.collective.pending_receive import PendingReceive
from shoal.deadline import Deadline, LongWait
from shoal.errors import ChannelClosed, PeerLostError, ShoalTimeoutError
from shoal.queues.local import LocalQueues
from shoal.queues.settings import ChannelSettings
from shoal.testing import local_cluster
from shoal.testing.stall import StallMonitor, _Wait
from shoal.work import AsyncCollWork, AsyncFuncWork, AsyncRouteWork, AsyncWork
from shoal.worker.routing.route_queues import started
from support.in_thread import in_thread
from support.last_references import Large, check_that_its_caller_is_freed
from support.processes import until


@pytest.fixture(autouse=True)
def _no_collections():
    gc.disable()
    yield
    gc.enable()


def test_the_results_of_combined_works_are_freed():
    parts = [AsyncWork(), AsyncWork()]
    whole = AsyncCollWork(parts)
    for part in parts:
        part.future.set_result(Large())
    gone = weakref.ref(whole.wait()[0])
    del part, parts, whole
    until(lambda: gone() is None)


@pytest.mark.parametrize("pass_self", [False, True])
def test_the_result_of_a_function_is_freed(pass_self):
    work = AsyncFuncWork(lambda *_: Large(), pass_self=pass_self)
    work()
    gone = weakref.ref(work.wait())
    del work
    assert gone() is None


def test_the_source_of_an_asynchronous_broadcast_frees_the_object():
    put, send = Future(), _Sending("message", Deadline(60), TimeoutError)
    send.follow(put, lambda error, _: error)
    whole = _all_of(Large(), [(send, None)], [])
    put.set_result(None)
    gone = weakref.ref(whole.result(timeout=0))
    del put, send, whole
    assert gone() is None


def test_a_broadcast_to_members_that_died_frees_the_object():
    def offer(_):
        raise PeerLostError("dead")

    sends = [(SimpleNamespace(offer=offer), "message", None)] * 2
    values = {"_links": {}, "_copies_on_device": lambda *_: False, "_messages": lambda *_: sends}
    value = Large()
    gone = weakref.ref(value)
    with contextlib.suppress(PeerLostError):
        _Series._give(SimpleNamespace(**values), value, Deadline(60))
    del value
    assert gone() is None


def test_a_receive_that_was_cancelled_frees_its_tensor():
    tensor = Large()
    receive = PendingReceive(print, None, None, Deadline(60), TimeoutError, tensor)
    receive.cancel()
    gone = weakref.ref(tensor)
    del receive, tensor
    assert gone() is None


@pytest.mark.parametrize("kind", ["local", "shm", "lane"])
@pytest.mark.parametrize("how", ["get", "wait", "await", "put"])
def test_a_call_that_was_late_frees_the_variables_of_its_caller(actors, kind, how):
    channel = actors.start(maxsize=1).handle_of(kind)
    if kind == "local":
        channel.create_queue("full", 1)
    channel.put(0, key="full")
    calls = {
        "get": lambda: channel.get(timeout=0.01),
        "wait": lambda: channel.get(async_op=True, timeout=0.01).wait(),
        "await": lambda: channel.get(async_op=True, timeout=0.01).async_wait(),
        "put": lambda: channel.put(Large(), key="full", async_op=True, timeout=0.01).wait(),
    }
    check_that_its_caller_is_freed(ShoalTimeoutError, calls[how], awaits=how == "await")


def test_a_call_that_was_refused_frees_the_variables_of_its_caller():
    channel = Channel.create("closed", local=True)
    channel.close()
    check_that_its_caller_is_freed(ChannelClosed, lambda: channel.get(async_op=True).wait())
    refuse = partial(channel.get, "key")
    check_that_its_caller_is_freed(ChannelClosed, lambda: started(refuse).wait())


def test_a_function_that_failed_frees_its_arguments():
    first, argument = AsyncWork(), Large()
    gone = weakref.ref(argument)
    last = first.then(lambda _: 1 / 0, argument)
    first.future.set_result(None)
    with contextlib.suppress(ZeroDivisionError):
        first.get_next_work().wait()
    del first, last, argument
    until(lambda: gone() is None)


@pytest.mark.parametrize("cls", [ZeroDivisionError, ShoalTimeoutError])
def test_the_error_of_a_function_keeps_the_frames_of_the_function(cls):
    def fails():
        raise cls

    first = AsyncWork()
    last = first.then(fails)
    first.future.set_result(None)
    with pytest.raises(cls) as failed:
        last.wait()
    assert failed.traceback[-1].name == "fails"


def divide(*_):
    return 1 / 0


@pytest.mark.parametrize("join", [None, list, divide])
@pytest.mark.parametrize("awaits", [False, True])
def test_a_combined_work_that_failed_frees_the_variables_of_its_caller(join, awaits):
    def failed():
        parts = [AsyncWork(), AsyncWork()]
        whole = AsyncCollWork(parts) if join is None else AsyncRouteWork(parts, join)
        parts[0].future.set_result(0)
        if join is divide:
            parts[1].future.set_result(0)
        else:
            parts[1].future.set_exception(ZeroDivisionError())
        return whole

    wait = methodcaller("async_wait" if awaits else "wait")
    check_that_its_caller_is_freed(ZeroDivisionError, lambda: wait(failed()), awaits=awaits)


def test_a_receive_that_was_late_frees_the_variables_of_its_caller():
    peers = SimpleNamespace(found=lambda _: None, check=lambda *_: None)
    routes = SimpleNamespace(name="b:0", peers=peers, directory=None, info=None)
    inbox = Inbox(routes, "p2p", WorkerAddress("a", [0]), "recv from")
    inbox._route = SimpleNamespace(queues=LocalQueues(ChannelSettings("m")), key="key")

    check_that_its_caller_is_freed(
        ShoalTimeoutError, lambda: inbox.recv(expects_object, Deadline(0.01))
    )


class Failing(Worker):
    """Raises errors."""

    def divide(self):
        return divide()

    def receive_late(self):
        first = self.recv("failing", 1, async_op=True)
        behind = partial(self.recv, "failing", 1, timeout=0.05)
        check_that_its_caller_is_freed(ShoalTimeoutError, behind)
        first.cancel()

    def broadcast_late(self):
        groups, source = [("failing", [0, 1])], ("failing", 1)
        late = partial(self.broadcast, None, groups, source, async_op=True, timeout=0.05)
        check_that_its_caller_is_freed(ShoalTimeoutError, lambda: late().wait())

    def lock(self):
        self.device_lock.acquire()

    def lock_late(self):
        check_that_its_caller_is_freed(
            ShoalTimeoutError, lambda: self.device_lock.acquire(timeout=0.01)
        )

    def lock_late_in_a_loop(self):
        check_that_its_caller_is_freed(
            ShoalTimeoutError,
            lambda: self.device_lock.async_acquire(timeout=0.01),
            awaits=True,
        )


def test_a_call_of_a_worker_that_failed_frees_the_variables_of_its_caller(cluster):
    group = Failing.create_group().launch(cluster, name="failing")
    check_that_its_caller_is_freed(ZeroDivisionError, lambda: group.divide().wait())


@pytest.mark.parametrize("method", ["receive_late", "broadcast_late"])
def test_a_message_that_was_late_frees_the_variables_of_its_caller(cluster, method):
    two = NodePlacementStrategy([0, 0])
    group = Failing.create_group().launch(cluster, two, name="failing")
    getattr(group.execute_on(0), method)().wait()


def test_a_device_lock_that_was_late_frees_the_variables_of_its_caller():
    with local_cluster(accelerators=1) as cluster:
        same = FlexiblePlacementStrategy([[0], [0]])
        group = Failing.create_group().launch(cluster, same, name="failing")
        group.execute_on(0).lock().wait()
        group.execute_on(1).lock_late().wait()
        group.execute_on(1).lock_late_in_a_loop().wait()


def test_the_detector_of_stalls_frees_what_was_waited_for():
    with local_cluster():
        work = AsyncWork()
        timer = threading.Timer(0.3, work.future.set_result, [Large()])
        timer.start()
        gone = weakref.ref(work.wait())
        del timer, work
        until(lambda: gone() is None)


def test_the_detector_of_stalls_frees_a_wait_that_ends_after_its_lock(timing):
    timing("testing", quiet_s=0.0)
    monitor, went_on = StallMonitor(), []

    class Ending:
        """A wait that ends while it is looked at; at its end another thread needs the detector."""

        @property
        def deadline(self):
            ends.clear()
            return Deadline(0)

        def __del__(self):
            went_on.append(in_thread(monitor.submitted).result(1))

    ends = [Ending()]
    monitor._running[0] = 1
    monitor._waits[0] = _Wait(weakref.ref(ends[0]), in_loop=False)
    monitor.tick(LongWait(str, Deadline(60)))
    assert went_on == [None]
