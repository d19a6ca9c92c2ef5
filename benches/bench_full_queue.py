"""The cost of a put into a full queue: the processor time of the thread that puts.

Row *waits*: the put waits until a message is taken. The memory that it holds meanwhile is measured
too, just before that. Row *refused*: `put_nowait` finds no room. A put that encodes or copies its
message before it looks for room costs as much as one into an empty queue, for nothing.
"""

import os
import threading
import time
from contextlib import contextmanager

import pytest

from harness.lines import Load
from harness.row import Measured, Row
from shoal import Channel, shm
from shoal.errors import ChannelFull

MIB = 2**20
LOADS = {"64 B": Load("bytes"), "tensor of 64 MiB": Load("array", 64 * MIB)}
# Seconds that a put waits, and memory for the message in the queue and for the one that waits.
WAITS_S = 0.5
MEMORY = 512 * MIB
MEMORY_NAME = "memory while it waits, MiB"


@contextmanager
def one_place_queue():
    """A queue with room for one message."""
    with shm.Session.create(max_bytes=MEMORY) as session:
        yield session.queue("full", maxsize=1)


@contextmanager
def one_place_channel():
    """A channel with room for one item."""
    channel = Channel.create("full", maxsize=1)
    try:
        yield channel
    finally:
        channel.delete()


CONTENDERS = {"shoal.shm": one_place_queue, "channel": one_place_channel}


@pytest.fixture
def measure_put(measure, cluster):  # a channel needs a cluster
    """Measure a row: a function that puts one message into a full queue."""

    def run(name, load, put):
        message = load.make(0, "torch")
        row = Row(name, "shoal.shm", load=load, anywhere=True)

        def opener(place):
            def open_(stack):
                queue = stack.enter_context(place())
                queue.put(message)
                # The memory is measured here: later puts use memory that earlier ones used.
                memory = put(queue, message).extra
                return lambda count: Measured(put(queue, message).samples, memory)

            return open_

        measure(row, {contender: opener(place) for contender, place in CONTENDERS.items()})

    return run


def put_waiting(queue, message):
    """Put while another thread takes the message that is there after a while."""
    before, during = shared_memory(), []

    def take():
        time.sleep(WAITS_S)
        during.append(shared_memory())
        queue.get()

    taker = threading.Thread(target=take)
    taker.start()
    start = time.thread_time_ns()
    queue.put(message)
    spent = time.thread_time_ns() - start
    taker.join()
    return Measured([spent], {MEMORY_NAME: (during[0] - before) / MIB})


def put_refused(queue, message):
    """Try to put."""
    start = time.thread_time_ns()
    with pytest.raises(ChannelFull):
        queue.put_nowait(message)
    return Measured([time.thread_time_ns() - start])


def shared_memory():
    """Return the bytes of shared memory that all processes of the machine use."""
    found = os.statvfs("/dev/shm")
    return (found.f_blocks - found.f_bfree) * found.f_frsize


all_contenders = pytest.mark.parametrize("contender", CONTENDERS)


@all_contenders
@pytest.mark.parametrize("load", LOADS)
def test_waits(load, contender, measure_put):
    measure_put(f"put that waits, {load}", LOADS[load], put_waiting)


@all_contenders
@pytest.mark.parametrize("load", LOADS)
def test_refused(load, contender, measure_put):
    measure_put(f"put_nowait refused, {load}", LOADS[load], put_refused)
