"""What has no reference left is gone, before Python collects cycles."""

import gc
import weakref
from concurrent.futures import Future

import pytest

from shoal.collective.broadcast import _all_of
from shoal.collective.outbox import _Sending
from shoal.collective.pending_receive import PendingReceive
from shoal.deadline import Deadline
from shoal.work import AsyncCollWork, AsyncFuncWork, AsyncWork
from support.processes import until


class Large:
    """An object that can have weak references."""


@pytest.fixture(autouse=True)
def _no_collections():
    gc.disable()
    yield
    gc.enable()


def test_the_results_of_combined_works():
    parts = [AsyncWork(), AsyncWork()]
    whole = AsyncCollWork(parts)
    for part in parts:
        part.future.set_result(Large())
    gone = weakref.ref(whole.wait()[0])
    del part, parts, whole
    until(lambda: gone() is None)


@pytest.mark.parametrize("pass_self", [False, True])
def test_the_result_of_a_function(pass_self):
    work = AsyncFuncWork(lambda *_: Large(), pass_self=pass_self)
    work()
    gone = weakref.ref(work.wait())
    del work
    assert gone() is None


def test_the_object_of_an_asynchronous_broadcast_at_its_source():
    put, send = Future(), _Sending("message", Deadline(60), TimeoutError)
    send.follow(put, lambda error, _: error)
    whole = _all_of(Large(), [(send, None)], [])
    put.set_result(None)
    gone = weakref.ref(whole.result(timeout=0))
    del put, send, whole
    assert gone() is None


def test_the_tensor_of_a_receive_that_was_cancelled():
    tensor = Large()
    receive = PendingReceive(print, None, None, Deadline(60), TimeoutError, tensor)
    receive.cancel()
    gone = weakref.ref(tensor)
    del receive, tensor
    assert gone() is None
