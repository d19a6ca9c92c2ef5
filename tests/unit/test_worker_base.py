"""`WorkerBase`, the fast path of a worker's messages: calls that it completes or hands on."""

import gc
import inspect
import math
import signal
import threading
import time
import weakref

import pytest

from shoal import Worker
from shoal._pure.shm import WorkerBase
from shoal.errors import ChannelDecodeError, ShoalValueError
from support.core_calls import Slow, Stop, Stopping, fast, queue

__all__ = ["fast", "queue"]
FOR_EVER = math.inf


def fail(*_):
    raise ValueError("cannot be rebuilt")


class Spoilt:
    def __reduce__(self):
        return fail, ()


@pytest.fixture
def worker(backend, queue):
    """A worker whose messages to and from rank 0 of the group `a` take the queue."""
    made = type("Peer", (Slow, backend.WorkerBase), {})()
    made._direct_sends["a"] = {0: (queue, FOR_EVER, False)}
    made._direct_receives["a"] = {0: queue}
    return made


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("message", ["x", 7, None, {"a": 1}, [1, 2], ("a", 1), ([], 2), ("", 1)])
def test_a_usual_message_is_sent_and_received_in_the_core(worker, message):
    assert worker.send(message, "a", 0) is None
    assert worker.recv("a", 0) == message
    assert worker.send(message, "a", dst_rank=0, async_op=False, timeout=1) is None
    assert worker.recv(src_group_name="a", src_rank=0, timeout=0) == message
    assert worker.calls == []


@pytest.mark.parametrize(("group", "rank"), [("b", 0), ("a", 1), ("a", [0]), ([], 0)])
def test_a_message_of_a_worker_without_an_entry_is_handed_on(worker, group, rank):
    assert worker.send(1, group, rank, timeout=3) == "send"
    assert worker.recv(group, rank, timeout=4) == "recv"
    assert worker.calls == [
        ("send", 1, group, rank, False, None, None, 3),
        ("recv", group, rank, False, None, 4, None),
    ]


def test_an_unusual_call_is_handed_on_as_it_came(worker, queue):
    queue.put("stays")
    for odd in (True, None, 0):
        worker.send(1, "a", 0, odd)
        worker.recv("a", 0, async_op=odd)
    worker.send(1, "a", 0, options="o")
    worker.send(1, "a", 0, piggyback_payload="p")
    worker.recv("a", 0, options="o")
    assert worker.calls == [
        *[("send", 1, "a", 0, True, None, None, None), ("recv", "a", 0, True, None, None, None)],
        *[("send", 1, "a", 0, None, None, None, None), ("recv", "a", 0, None, None, None, None)],
        *[("send", 1, "a", 0, 0, None, None, None), ("recv", "a", 0, 0, None, None, None)],
        ("send", 1, "a", 0, False, "o", None, None),
        ("send", 1, "a", 0, False, None, "p", None),
        ("recv", "a", 0, False, "o", None, None),
    ]
    assert queue.qsize() == 1


@pytest.mark.parametrize("timeout", [True, "1", -1, math.nan])
def test_a_call_whose_timeout_is_not_valid_seconds_is_handed_on(worker, queue, timeout):
    queue.put("stays")
    assert worker.send(1, "a", 0, timeout=timeout) == "send"
    assert worker.recv("a", 0, timeout=timeout) == "recv"
    assert [call[-1 - receives] is timeout for receives, call in enumerate(worker.calls)] == [
        True
    ] * 2
    assert queue.qsize() == 1


@pytest.mark.parametrize("message", [(), (object,), ("\0shoal", 1), ("\0", 1)])
def test_a_tuple_that_may_need_an_envelope_is_handed_on(worker, queue, message):
    assert worker.send(message, "a", 0) == "send"
    assert queue.empty()


def test_an_object_that_may_be_made_of_tensors_is_handed_on_where_they_take_another_way(
    worker, queue
):
    worker._direct_sends["a"][0] = (queue, FOR_EVER, True)
    for message in (object, [object], {"a": object, "b": 1}):
        assert worker.send(message, "a", 0) == "send"
    assert queue.empty()


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("message", [[], {}, [1, object], {"a": "b"}, b"x", 1.5, True, None])
def test_an_object_that_is_not_made_of_tensors_is_sent_in_the_core(worker, queue, message):
    worker._direct_sends["a"][0] = (queue, FOR_EVER, True)
    assert worker.send(message, "a", 0) is None
    assert queue.get_nowait() == message


def test_a_send_after_the_time_of_its_entry_is_handed_on(worker, queue):
    worker._direct_sends["a"][0] = (queue, time.monotonic() - 1, False)
    assert worker.send(1, "a", 0) == "send"
    assert queue.empty()


def test_a_send_that_the_queue_refuses_is_handed_on(worker, queue):
    queue.put_many([1, 2])
    assert worker.send(3, "a", 0, timeout=9) == "send"
    assert worker.send(3, "a", 0) == "send"  # after 0.1 s
    queue.close()
    assert worker.send(4, "a", 0) == "send"
    assert [call[1] for call in worker.calls] == [3, 3, 4]


def test_a_receive_without_a_message_is_handed_on(worker, queue):
    assert worker.recv("a", 0, timeout=5) == "recv"
    assert worker.recv("a", 0) == "recv"  # after 0.1 s
    queue.close()
    assert worker.recv("a", 0) == "recv"
    assert [call[-2:] for call in worker.calls] == [(5, None), (None, None), (None, None)]


@pytest.mark.usefixtures("fast")
def test_a_received_message_that_may_be_an_envelope_is_handed_on(worker, queue):
    queue.put(("\0shoal", "pair", 1, 2))
    assert worker.recv("a", 0, timeout=3) == "recv"
    assert worker.calls == [("recv", "a", 0, False, None, 3, ("\0shoal", "pair", 1, 2))]


@pytest.mark.usefixtures("fast")
def test_the_error_of_a_lost_message_is_handed_on(worker, queue):
    queue.put(Spoilt())
    assert worker.recv("a", 0) == "recv"
    assert isinstance(worker.calls[0][-1], ChannelDecodeError)


@pytest.mark.usefixtures("fast")
def test_an_object_that_cannot_be_sent_fails_in_the_core(worker, queue):
    with pytest.raises(Stop):
        worker.send(Stopping(), "a", 0)
    with pytest.raises(ShoalValueError, match="lock"):
        worker.send(threading.Lock(), "a", 0)
    assert worker.calls == []
    assert queue.empty()


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("call", ["send", "recv"])
def test_the_exception_of_a_signal_ends_a_call_that_waits_in_the_core(worker, queue, call):
    def stop(*_):
        raise LookupError("a signal")

    def wait_for_the_alarm():
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        worker.send(3, "a", 0) if call == "send" else worker.recv("a", 0)

    queue.put_many([1, 2] if call == "send" else [])
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(LookupError, match="a signal"):
            wait_for_the_alarm()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert worker.calls == []


def test_a_worker_in_a_cycle_is_collected(worker):
    made = type(worker)()
    made.itself = made._direct_sends["itself"] = made._direct_receives["itself"] = made
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("call", ["send", "recv"])
def test_a_worker_has_the_documentation_and_the_signature_of_the_call(call):
    pure, made = getattr(WorkerBase, call), getattr(Worker, call)
    assert inspect.getdoc(made) == inspect.getdoc(pure)
    assert list(inspect.signature(made).parameters) == list(inspect.signature(pure).parameters)
