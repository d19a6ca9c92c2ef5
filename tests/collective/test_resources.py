"""The cost of a peer: threads, descriptors, and the time of a message with many peers."""

import os
import threading
import time

import pytest

from support.collective_crew import Crew, collective

pytestmark = [pytest.mark.nightly, pytest.mark.process]


def count(folder):
    return len(os.listdir(folder))  # noqa: PTH208  (a generator would add its own descriptor to the count)


def cost_of_peers(me, number, async_op):
    """Exchange messages with peers in this process; return the threads and descriptors added."""
    peers = [collective(me.directory, f"p:{rank}") for rank in range(number)]

    def exchange(rank, peer):
        if async_op:
            works = [me.recv("p", rank, async_op=True), peer.recv("a", 0, async_op=True)]
            me.send(rank, "p", rank, async_op=True).wait(timeout=30)
            peer.send(rank, "a", 0, async_op=True).wait(timeout=30)
            return [work.wait(timeout=30) for work in works]
        me.send(rank, "p", rank)
        peer.send(rank, "a", 0)
        return [me.recv("p", rank), peer.recv("a", 0)]

    warm = collective(me.directory, "warm:0")
    me.send(0, "warm", 0)
    warm.recv("a", 0)
    works = [me.recv("warm", 0, async_op=True)]
    warm.send(0, "a", 0, async_op=True).wait(timeout=30)
    works[0].wait(timeout=30)
    time.sleep(1.2)  # the thread of the task that watches operations has started
    before = threading.active_count(), count("/proc/self/task"), count("/proc/self/fd")
    for rank, peer in enumerate(peers):
        assert exchange(rank, peer) == [rank, rank]
    end = time.monotonic() + 10
    while count("/proc/self/task") > before[1] + 1 and time.monotonic() < end:
        time.sleep(0.05)  # a thread that looked up a peer has finished but still exists
    found = count("/proc/self/task") - before[1], count("/proc/self/fd") - before[2]
    for each in (warm, *peers):
        each.close()
    return found


@pytest.mark.parametrize(
    ("number", "async_op"), [(1, False), (10, False), (100, False), (1, True), (20, True)]
)
def test_a_peer_costs_no_thread_and_at_most_two_descriptors(crew, number, async_op):
    threads, descriptors = crew.member("a:0").run(cost_of_peers, number, async_op)
    assert threads <= 1  # one for the process, for any number of peers
    assert descriptors <= 2 * number + 4  # 4: those of the threads that looked up peers


def time_of_a_message(me, number):
    """Return the fastest round trip in seconds, with few and with many peers."""
    peers = [collective(me.directory, f"p:{rank}") for rank in range(number)]

    def fastest():
        best = 1.0
        for _ in range(300):
            start = time.perf_counter()
            me.send(1, "p", 0)
            peers[0].recv("a", 0)
            best = min(best, time.perf_counter() - start)
        return best

    fastest()
    few = fastest()
    for rank, peer in enumerate(peers[:number]):
        me.send(rank, "p", rank)
        peer.recv("a", 0)
    return few, fastest()


def test_a_thousand_links_do_not_slow_a_message(nursery):
    with Crew(nursery) as crew:
        few, many = crew.member("a:0").run(time_of_a_message, 1000)
    assert many < 10 * few
