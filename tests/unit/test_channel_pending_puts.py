"""The order of asynchronous puts: deadlines of puts that wait behind others, and memory."""

import gc
import math
import threading
import time
import weakref

import pytest

from shoal.channel.pending import PutSequence
from shoal.deadline import Deadline
from shoal.errors import ShoalTimeoutError

pytestmark = pytest.mark.nightly


def too_late(_seconds):
    return ShoalTimeoutError("TIMEOUT")


class _NeverCancelled:
    def cancel(self):
        raise AssertionError


class FullQueue:
    """Refuses batches until it is opened; a single item waits for that."""

    def __init__(self):
        self.opened = threading.Event()
        self.taken = []
        self.asked = 0
        self.sequence = PutSequence(
            self._many, self._one, _NeverCancelled, lambda error: error, self._look, too_late
        )

    def _look(self):
        """The actor answers."""

    def _many(self, entries):
        accepted = entries if self.opened.is_set() else []
        self.taken += [payload.head for _, payload in accepted]
        return len(accepted)

    def _one(self, payload, weight, deadline, cancel):
        self.asked += 1
        while not self.opened.wait(0.01):
            if deadline.expired:
                raise ShoalTimeoutError("its own deadline")
        self.taken.append(payload)

    def add(self, *puts):
        return [self.sequence.add(0, head, len(head), Deadline(seconds)) for head, seconds in puts]

    def wait_until_asked(self, times):
        end = time.monotonic() + 5
        while self.asked < times and time.monotonic() < end:
            time.sleep(0.01)
        assert self.asked == times


def test_a_put_is_overdue_although_the_one_before_it_waits_on():
    queue = FullQueue()
    (first,) = queue.add((b"1", 0.3))
    queue.wait_until_asked(1)
    # These are tried together, once the first one has ended.
    patient, hasty, late = queue.add((b"2", math.inf), (b"3", 0.8), (b"4", math.inf))
    for future in (first, hasty):
        with pytest.raises(ShoalTimeoutError):
            future.result(timeout=5)
    assert not patient.done()
    queue.opened.set()
    for future in (patient, late):
        future.result(timeout=5)
    assert queue.taken == [b"2", b"4"]


def test_a_put_that_fails_does_not_fail_later_puts():
    queue = FullQueue()
    (first,) = queue.add((b"1", 0.2))
    queue.wait_until_asked(1)
    second, third = queue.add((b"2", 0.6), (b"3", math.inf))
    for future in (first, second):
        with pytest.raises(ShoalTimeoutError):
            future.result(timeout=5)
    queue.wait_until_asked(3)
    queue.opened.set()
    third.result(timeout=5)
    assert queue.taken == [b"3"]


class SlowQueue(FullQueue):
    """Answers calls for several items when told to; only the first `room` items have room."""

    def __init__(self, room):
        super().__init__()
        self._room = room
        self.calls = 0
        self.answers = threading.Event()

    def _many(self, entries):
        self.calls += 1
        self.answers.wait(5)
        self.taken += [payload for _, payload in entries[: self._room]]
        return min(self._room, len(entries))

    def add_while_one_waits(self, *puts):
        (first,) = self.add((b"1", math.inf))
        self.wait_until_asked(1)
        futures = self.add(*puts)
        self.opened.set()
        first.result(timeout=5)
        self.opened.clear()
        end = time.monotonic() + 5
        while not self.calls and time.monotonic() < end:
            time.sleep(0.01)
        assert self.calls == 1
        return futures


def test_a_put_whose_time_ends_in_the_middle_of_a_call_does_not_wait_for_the_one_before_it():
    queue = SlowQueue(room=0)
    patient, hasty = queue.add_while_one_waits((b"2", math.inf), (b"3", 1.0))
    time.sleep(1.1)  # its timer fires while the put is in the call, not in the list of waiting ones
    queue.answers.set()
    with pytest.raises(ShoalTimeoutError):
        hasty.result(timeout=5)
    assert not patient.done()
    queue.opened.set()
    patient.result(timeout=5)
    assert queue.taken == [b"1", b"2"]


def test_a_put_whose_time_ends_in_the_middle_of_a_call_is_not_tried_again():
    queue = SlowQueue(room=1)
    patient, hasty = queue.add_while_one_waits((b"2", math.inf), (b"3", 1.0))
    time.sleep(1.1)  # as above: its time ends during the call
    queue.opened.set()
    queue.answers.set()
    with pytest.raises(ShoalTimeoutError):
        hasty.result(timeout=5)
    patient.result(timeout=5)
    assert queue.taken == [b"1", b"2"]


def test_a_message_is_not_kept_until_its_deadline():
    class Message(bytearray):
        """Bytes that can have weak references."""

    queue = FullQueue()
    queue.opened.set()
    message = Message(b"large")
    gone = threading.Event()
    weakref.finalize(message, gone.set)
    queue.sequence.add(0, message, len(message), Deadline(3600)).result(timeout=5)
    queue.taken.clear()
    del message
    end = time.monotonic() + 5
    while not gone.wait(0.05) and time.monotonic() < end:
        gc.collect()
    assert gone.is_set()
