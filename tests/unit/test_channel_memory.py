"""A channel whose memory is used up, on either core: who waits for what, and who is told."""

import contextlib
import threading

import pytest

from channel_host import DEADLINE_S
from channels import until
from shoal.deadline import Deadline
from shoal.errors import ShoalTimeoutError

MB = 2**20

ways = ("shm", "ray")


@pytest.fixture(autouse=True)
def nothing_comes_by_itself(channel, monkeypatch):
    """Let event loops try again only when they are rung."""
    monkeypatch.setattr(channel.shm.bells, "_TICK_S", 1000)


@contextlib.contextmanager
def putting(queues, items, how):
    """Put items meanwhile, by one of the two kinds of calls; all are put at the end."""

    def put():
        for item in items:
            queues.put("k", item, 1, Deadline(DEADLINE_S))

    if how == "async":
        puts = [queues.start_put("k", item, 1, Deadline(DEADLINE_S)) for item in items]
        yield
        for future in puts:
            future.result(DEADLINE_S)
        return
    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    yield
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("get", ["before", "async", "sync"])
@pytest.mark.parametrize("consumer", ways)
@pytest.mark.parametrize("put", ["async", "sync"])
@pytest.mark.parametrize("producer", ways)
def test_a_batch_does_not_wait_for_what_there_is_no_memory_for(
    hosts, channel, producer, put, consumer, get
):
    hosts.start(max_bytes=4 * MB)
    queues, want = hosts.way(consumer), channel.want.Want("batch", 8)
    items = [bytes([n]) * MB for n in range(5)]
    begun = queues.start_take("k", want, Deadline(DEADLINE_S)) if get == "before" else None
    with putting(hosts.way(producer), items, put):
        if get == "sync":
            got = queues.take("k", want, Deadline(DEADLINE_S))
        else:
            begun = begun or queues.start_take("k", want, Deadline(DEADLINE_S))
            taken = begun.result(DEADLINE_S)
            taken.deliver()
            got = taken.value
        assert 3 <= len(got) < 5

        def all_are_got():
            # Memory that gets free after its item was taken rings nobody.
            channel.shm.bells.bells_of(hosts.worker._session.token).wake_all()
            with contextlib.suppress(ShoalTimeoutError):
                got.append(queues.take("k", channel.want.ONE, Deadline(0.05)))
            return len(got) == 5

        until(all_are_got)
    assert got == items
