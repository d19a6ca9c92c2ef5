"""What has no reference left is freed, before Python collects cycles."""

import asyncio
import contextlib
import gc
import weakref
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from shoal import Worker, WorkerAddress
from shoal.collective.broadcast import _all_of, _Series
from shoal.collective.inbox import Inbox
from shoal.collective.message import expects_object
from shoal.collective.outbox import _Sending
from shoal.collective.pending_receive import PendingReceive
from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalTimeoutError
from shoal.queues.local import LocalQueues
from shoal.queues.settings import ChannelSettings
from shoal.work import AsyncCollWork, AsyncFuncWork, AsyncWork
from support.processes import until


class Large:
    """An object that can have weak references."""


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

    async def late():
        mine = Large()
        with contextlib.suppress(ShoalTimeoutError):
            match how:
                case "get":
                    channel.get(timeout=0.01)
                case "wait":
                    channel.get(async_op=True, timeout=0.01).wait()
                case "await":
                    await channel.get(async_op=True, timeout=0.01)
                case "put":
                    channel.put(mine, key="full", async_op=True, timeout=0.01).wait()
        return weakref.ref(mine)

    gone = asyncio.run(late())
    until(lambda: gone() is None)


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


def test_a_receive_that_was_late_frees_the_variables_of_its_caller():
    peers = SimpleNamespace(found=lambda _: None, check=lambda *_: None)
    routes = SimpleNamespace(name="b:0", peers=peers, directory=None, info=None)
    inbox = Inbox(routes, "p2p", WorkerAddress("a", [0]), "recv from")
    inbox._route = SimpleNamespace(queues=LocalQueues(ChannelSettings("m")), key="key")

    def late():
        mine = Large()
        with contextlib.suppress(ShoalTimeoutError):
            inbox.recv(expects_object, Deadline(0.01))
        return weakref.ref(mine)

    assert late()() is None


class Failing(Worker):
    """Raises an error."""

    def divide(self):
        return 1 / 0


def test_a_call_of_a_worker_that_failed_frees_the_variables_of_its_caller(cluster):
    group = Failing.create_group().launch(cluster, name="failing")

    def failed():
        mine = Large()
        with contextlib.suppress(ZeroDivisionError):
            group.divide().wait()
        return weakref.ref(mine)

    assert failed()() is None
