"""The order of items that the gets of one process take when one of the gets is cancelled."""

import threading

import pytest

from shoal.deadline import Deadline

DEADLINE_S = 10


class HeldUp:
    """Delays the first get that takes an item, just after it took the item."""

    def __init__(self, take):
        self._take = take
        self.has_one = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, queue, want):
        found = self._take(queue, want)
        if not self.has_one.is_set():
            self.has_one.set()
            assert self.may_end.wait(DEADLINE_S)
        return found


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_get_is_not_cancelled_once_it_took_an_item(actors, channel, monkeypatch, how):
    queues = actors.start().way("shm")
    first = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
    held = HeldUp(channel.shared.take_now)
    monkeypatch.setattr(channel.shared, "take_now", held)
    queues.put("k", "first", 0, None)
    queues.put("k", "second", 0, None)
    assert held.has_one.wait(DEADLINE_S)
    threading.Timer(0.05, held.may_end.set).start()
    assert not first.cancel()

    if how == "sync":
        assert queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)) == "second"
    else:
        second = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S)).result(
            DEADLINE_S
        )
        second.deliver()
        assert second.value == "second"
    taken = first.result(DEADLINE_S)
    taken.deliver()
    assert taken.value == "first"
    assert queues.qsize("k") == 0
