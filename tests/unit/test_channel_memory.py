"""A channel whose memory is used up, on either core: waiting puts and batches, and wake-ups."""

import contextlib
import time

import pytest

from shoal.deadline import Deadline
from shoal.errors import ChannelFull, ShoalTimeoutError
from support.in_thread import in_thread
from support.processes import DEADLINE_S, until

MB = 2**20

ways = ("shm", "lane")


@pytest.fixture(autouse=True)
def nothing_comes_by_itself(channel, timing):
    """Make event loops retry only when a doorbell rings."""
    timing("shm", tick_s=1000)


@pytest.mark.parametrize("kind", ways)
def test_a_put_that_was_given_up_keeps_no_batch_from_waiting(actors, channel, kind):
    actors.start(max_bytes=4 * MB)
    queues = actors.way(kind)
    for _ in range(3):
        queues.put("other", bytes(MB), 0, None)
    with pytest.raises(ChannelFull, match="memory is used up"):
        queues.put("k", bytes(2 * MB), 0, None)
    with pytest.raises((ChannelFull, ShoalTimeoutError)):  # depends on the transport
        queues.put("k", bytes(2 * MB), 0, Deadline(0))
    queues.put("k", "small", 1, None)
    with pytest.raises(ShoalTimeoutError):
        queues.take("k", channel.protocol.Want("batch", 8), Deadline(0.05))
    assert queues.qsize("k") == 1


@contextlib.contextmanager
def putting(queues, items, how):
    """Put items during the block, by synchronous or asynchronous calls; all are put at its end."""

    def put():
        for item in items:
            queues.put("k", item, 1, Deadline(DEADLINE_S))

    if how == "async":
        puts = [queues.start_put("k", item, 1, Deadline(DEADLINE_S)) for item in items]
        yield
    else:
        puts = [in_thread(put)]
        yield
    for future in puts:
        future.result(DEADLINE_S)


@pytest.mark.parametrize("get", ["before", "async", "sync"])
@pytest.mark.parametrize("consumer", ways)
@pytest.mark.parametrize("put", ["async", "sync"])
@pytest.mark.parametrize("producer", ways)
def test_a_batch_does_not_wait_for_an_item_without_memory(
    actors, channel, producer, put, consumer, get
):
    actors.start(max_bytes=4 * MB)
    queues, want = actors.way(consumer), channel.protocol.Want("batch", 8)
    items = [bytes([n]) * MB for n in range(5)]
    begun = queues.start_take("k", want, Deadline(DEADLINE_S)) if get == "before" else None
    with putting(actors.way(producer), items, put):
        if get == "sync":
            got = queues.take("k", want, Deadline(DEADLINE_S))
        else:
            begun = begun or queues.start_take("k", want, Deadline(DEADLINE_S))
            taken = begun.result(DEADLINE_S)
            taken.deliver()
            got = taken.value
        assert 3 <= len(got) < 5

        def all_are_got():
            # Memory that is freed after its item was taken wakes no process.
            channel.shm.bells.bells_of(actors.worker._session.token).wake_all()
            with contextlib.suppress(ShoalTimeoutError):
                got.append(queues.take("k", channel.protocol.ONE, Deadline(0.05)))
            return len(got) == 5

        until(all_are_got)
    assert got == items


# The policy "error": a put to a full key raises, but a put without memory waits.

both_ways = pytest.mark.parametrize("way", ways)
both_calls = pytest.mark.parametrize("how", ["async", "sync"])


def begin(queues, item, seconds, how):
    """Begin a put by a synchronous or an asynchronous call; return its future."""
    if how == "async":
        return queues.start_put("k", item, 1, Deadline(seconds))
    return in_thread(queues.put, "k", item, 1, Deadline(seconds))


@pytest.fixture
def used_up(actors, channel):
    """Start an actor whose memory is used up by items of another key; return the queues."""

    def start(way, **settings):
        actors.start(policy="error", max_bytes=4 * MB, **settings)
        queues = actors.way(way)
        with contextlib.suppress(ChannelFull):
            while True:
                queues.put("other", bytes(MB), 0, None)
        return queues

    return start


@pytest.fixture
def tried(actors, channel):
    """Wait until a put has ended; ring it so that it retries."""

    def wait(put):
        def ended():
            channel.shm.bells.bells_of(actors.worker._session.token).wake_all()
            return put.done()

        until(ended)
        return put

    return wait


@both_calls
@both_ways
def test_a_put_waits_for_memory_although_a_full_key_is_an_error(used_up, tried, channel, way, how):
    queues = used_up(way)
    put = begin(queues, bytes(MB), DEADLINE_S, how)
    assert not put.done()
    queues.take("other", channel.protocol.ONE, None)
    tried(put).result()
    assert queues.qsize("k") == 1


@both_calls
@both_ways
def test_a_put_that_waited_in_vain_for_memory_is_late(used_up, way, how):
    put = begin(used_up(way), bytes(MB), 0.1, how)
    with pytest.raises(
        ShoalTimeoutError, match=r"put: no room in .* within 0.1 s: the session's memory is used up"
    ):
        put.result(DEADLINE_S)


@both_calls
@both_ways
def test_a_key_that_gets_full_is_an_error_for_a_put_that_waits_for_memory(
    actors, used_up, tried, way, how
):
    queues = used_up(way, maxsize=5)
    put = begin(queues, bytes(MB), DEADLINE_S, how)
    time.sleep(0.2)  # now the put waits for memory
    others = actors.way(way)
    for n in range(5):
        others.put("k", n, 0, None)
    with pytest.raises(ChannelFull, match="put: no room in"):
        tried(put).result()


@pytest.mark.parametrize("policy", ["drop_oldest", "keep_latest"])
def test_a_put_that_waits_for_memory_drops_newer_items_of_others(actors, channel, policy):
    actors.start(policy=policy, max_bytes=4 * MB, maxsize=2)
    queues = actors.way("shm")
    with contextlib.suppress(ChannelFull):
        for key in range(99):
            queues.put(key, bytes(MB), 0, None)
    put = begin(queues, bytes(MB), DEADLINE_S, "sync")
    time.sleep(0.2)  # now the put waits for memory
    others = actors.way("shm")
    for n in range(2):
        others.put("k", n, 0, None)
    queues.take(0, channel.protocol.ONE, None)
    put.result(DEADLINE_S)
    held = [each.item for each in queues.peek_all("k")]
    assert len(held) <= 2
    assert held[-1] == bytes(MB)


@both_ways
def test_a_timeout_says_in_numbers_what_was_missing(actors, channel, way):
    queues = actors.start(maxsize=2).way(way)
    with pytest.raises(ShoalTimeoutError) as caught:
        queues.take("k", channel.protocol.ONE, Deadline(0))
    assert caught.value.refusal == ("empty", 0, 0, 0)
    queues.put("k", 1, 1, None)
    with pytest.raises(ShoalTimeoutError) as caught:
        queues.take("k", channel.protocol.Want("batch", 5), Deadline(0.05))
    assert caught.value.refusal == ("weight", 1, 5, 0)
    queues.put("k", 2, 1, None)
    with pytest.raises(ShoalTimeoutError) as caught:
        queues.put("k", 3, 1, Deadline(0.05))
    assert caught.value.refusal == ("messages", 2, 2, 0)
    with pytest.raises(ChannelFull) as caught:
        queues.put("k", 3, 1, None)
    assert caught.value.refusal == ("messages", 2, 2, 0)
