"""The work queue of a collective group: runs works in order; a failed one does not stop others."""

import threading
import time

import pytest

from shoal.collective import AsyncFuncWork, CollectiveWorkQueue
from shoal.errors import ShoalValueError
from support.processes import until


def test_works_run_in_the_order_of_their_calls():
    queue, order = CollectiveWorkQueue(CollectiveWorkQueue.SEND), []
    works = [AsyncFuncWork(order.append, n) for n in range(200)]
    assert queue.done
    for work in works:
        queue.enqueue(work, 0)
    works[-1].wait(timeout=30)
    assert order == list(range(200))


def test_one_work_runs_at_a_time_and_the_queue_is_done_after_the_last():
    queue, gate = CollectiveWorkQueue(CollectiveWorkQueue.RECV), threading.Event()
    first, second = AsyncFuncWork(gate.wait, 30), AsyncFuncWork(lambda: "second")
    queue.enqueue(first, 0)
    queue.enqueue(second, 0)
    time.sleep(0.05)
    assert not queue.done
    assert not second.done()
    gate.set()
    assert second.wait(timeout=30) == "second"
    until(lambda: queue.done)
    again = AsyncFuncWork(lambda: "again")
    queue.enqueue(again, 0)
    assert again.wait(timeout=30) == "again"


def test_a_failing_work_does_not_stop_the_next():
    queue = CollectiveWorkQueue(CollectiveWorkQueue.BROADCAST)
    failing, following = AsyncFuncWork(lambda: 1 / 0), AsyncFuncWork(lambda: "fine")
    queue.enqueue(failing, 0)
    queue.enqueue(following, 0)
    assert following.wait(timeout=30) == "fine"
    with pytest.raises(ZeroDivisionError):
        failing.wait(timeout=30)
    until(lambda: queue.done)


def test_a_work_waits_for_the_event_of_its_stream():
    class Recorded:
        def wait(self):
            order.append("event")

    class Broken:
        def wait(self):
            raise RuntimeError("the stream failed")

    queue, order = CollectiveWorkQueue(CollectiveWorkQueue.SEND), []
    work, failing = AsyncFuncWork(order.append, "work"), AsyncFuncWork(order.append, "never")
    queue.enqueue(work, 0, event=Recorded())
    queue.enqueue(failing, 0, event=Broken())
    work.wait(timeout=30)
    with pytest.raises(RuntimeError, match="the stream failed"):
        failing.wait(timeout=30)
    assert order == ["event", "work"]


def test_unknown_numbers_are_refused():
    kinds = CollectiveWorkQueue.SEND, CollectiveWorkQueue.RECV, CollectiveWorkQueue.BROADCAST
    assert kinds == (0, 1, 2)
    with pytest.raises(ShoalValueError, match=r"comm_type=3: expected SEND \(0\), RECV"):
        CollectiveWorkQueue(3)
    with pytest.raises(ShoalValueError, match="comm_id=1: expected 0"):
        CollectiveWorkQueue(0).enqueue(AsyncFuncWork(print), 1)
