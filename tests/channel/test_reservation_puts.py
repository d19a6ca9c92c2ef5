"""Puts of reservations: waiting, policies, `async_op`, other processes."""

import asyncio
import gc
import logging
import os
import time

import pytest

from shoal.errors import (
    ChannelClosed,
    ChannelFull,
    ChannelMemoryError,
    ShoalTimeoutError,
    ShoalValueError,
)
from support.in_thread import in_thread
from support.log_lines import once_logged
from support.processes import DEADLINE_S, in_a_child, until

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)
shared = pytest.mark.parametrize("transport", ["shm"], indirect=True)
apart = pytest.mark.parametrize("transport", ["shm", "lane"], indirect=True)

LARGE = 100_000
"""Bytes of an array that lies in shared memory; a smaller one is copied into a message."""
MB = 2**20


@everywhere
@pytest.mark.parametrize("size", [3, LARGE])
def test_a_put_that_fails_leaves_the_reservation_open(channel, key, size):
    one = channel(maxsize=1)
    one.put("first", key=key)
    reservation = one.reserve(size, "u1", key=key, timeout=0.1)
    reservation.array[:] = 9
    with pytest.raises(ShoalTimeoutError, match=r"put: no room in .* within 0.1 s"):
        reservation.put()
    with pytest.raises(ShoalTimeoutError, match=r"put: no room in .* within 0.2 s"):
        one.put(reservation, timeout=0.2)
    with pytest.raises(ChannelFull):
        reservation.put_nowait()
    with pytest.raises(ChannelFull):
        one.put_nowait(reservation)
    with pytest.raises(ShoalTimeoutError, match=r"within 0.1 s"), reservation:
        pass
    with pytest.raises(ShoalTimeoutError):
        reservation.put(async_op=True).wait(timeout=DEADLINE_S)
    assert one.get(key) == "first"
    reservation.array[0] = 8
    reservation.put()
    arrived = one.get(key)
    assert (int(arrived[0]), int(arrived[-1])) == (8, 9)


@shared
@pytest.mark.parametrize("size", [3, LARGE])
def test_an_interrupted_put_that_happened_is_not_repeated(channel, key, size, monkeypatch):
    one = channel()
    reservation = one.reserve(size, "u1", key=key)
    queues = one._queues(key)
    put = queues.put

    def put_and_interrupt(*args):
        put(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(queues, "put", put_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        reservation.put()
    with pytest.raises(ShoalValueError, match="was put"):
        reservation.put()
    assert one.get(key).size == size
    assert one.empty(key)


@everywhere
def test_a_put_waits_for_room(channel, key):
    one = channel(maxsize=1)
    one.put("first", key=key)
    reservation = one.reserve(LARGE, "u1", key=key)
    putting = in_thread(reservation.put)
    until(lambda: "is being put" in repr(reservation))
    with pytest.raises(ShoalValueError, match="the reservation is being put"):
        reservation.put()
    reservation.cancel()  # does nothing
    assert one.get(key) == "first"
    putting.result(DEADLINE_S)
    assert one.get(key, timeout=DEADLINE_S).size == LARGE


@shared
def test_memory_is_waited_for_and_comes_back(channel, key):
    one = channel(max_bytes=4 * MB)
    kept = one.reserve(3 * MB, "u1", key=key)
    with pytest.raises(ShoalTimeoutError, match=r"driver .*reserve: no room in .* within 0.2 s"):
        one.reserve(3 * MB, "u1", key=key, timeout=0.2)
    making = in_thread(one.reserve, 3 * MB, "u1", key=key, timeout=DEADLINE_S)
    time.sleep(0.1)
    kept.cancel()
    making.result(DEADLINE_S).put()
    del making
    dropped = one.get(key)
    del dropped
    gc.collect()
    one.reserve(3 * MB, "u1", key=key)  # dropped without a put
    gc.collect()
    one.reserve(3 * MB, "u1", key=key, timeout=0).cancel()
    assert one.stats(key).memory_used == 0


@shared
def test_a_long_wait_for_memory_is_logged(channel, key, caplog, timing):
    timing("deadline", first_logs_s=(0.2, 60.0))
    one = channel(max_bytes=4 * MB)
    kept = one.reserve(3 * MB, "u1", key=key)
    with (
        caplog.at_level(logging.WARNING, "shoal"),
        once_logged(caplog, "waits for", kept.cancel),
    ):
        one.reserve(3 * MB, "u1", key=key, timeout=DEADLINE_S).cancel()
    (line,) = [r.getMessage() for r in caplog.records if "waits for" in r.getMessage()]
    assert "reserve waits for memory in the channel 'c', key" in line
    assert f"limit {DEADLINE_S:g} s" in line


@apart
def test_an_array_that_can_never_fit_is_refused(channel, key):
    one = channel(max_bytes=4 * MB)
    with pytest.raises(ChannelMemoryError, match="never fits"):
        one.reserve(8 * MB, "u1", key=key).put()


@shared
def test_memory_policies_apply_to_the_reservation(channel, key):
    one = channel(max_bytes=4 * MB, memory_policy="error")
    kept = one.reserve(3 * MB, "u1", key=key)
    with pytest.raises(ChannelMemoryError, match=r"driver .*reserve: "):
        one.reserve(3 * MB, "u1", key=key)
    kept.put()
    assert one.get(key).size == 3 * MB


@shared
def test_with_spill_the_array_lies_on_disk(channel, key):
    one = channel(max_bytes=4 * MB, memory_policy="spill")
    for n in range(4):
        with one.reserve(2 * MB, "u1", key=key, timeout=DEADLINE_S) as array:
            array[:] = n
    for n in range(4):
        item = one.get(key)
        assert (int(item.min()), int(item.max())) == (n, n)


@everywhere
def test_a_closed_channel_refuses(channel, key):
    one = channel()
    reservation = one.reserve(LARGE, "u1", key=key)
    one.put("keeps the channel", key=key)
    one.close()
    for put in (reservation.put, reservation.put_nowait):
        with pytest.raises(ChannelClosed):
            put()
    with pytest.raises(ChannelClosed):
        one.reserve(LARGE, "u1", key=key).put()
    reservation.cancel()
    assert one.get(key) == "keeps the channel"


# Asynchronous puts.


@everywhere
@pytest.mark.parametrize("size", [3, LARGE])
def test_asynchronous_puts_keep_the_order_of_the_calls(channel, key, size):
    one = channel(maxsize=2)
    works, last = [], one.reserve(size, "u1", key=key)
    last.array[:] = 6
    for n in range(6):
        reservation = one.reserve(size, "u1", key=key)
        reservation.array[:] = n
        works.append(
            one.put(reservation, async_op=True) if n % 2 else reservation.put(async_op=True)
        )
    putting = in_thread(last.put)
    assert [int(one.get(key, timeout=DEADLINE_S)[-1]) for _ in range(7)] == list(range(7))
    putting.result(DEADLINE_S)
    for work in works:
        work.wait(timeout=DEADLINE_S)


@everywhere
def test_a_pending_put_holds_the_reservation(channel, key):
    one = channel(maxsize=1)
    one.put("first", key=key)
    reservation = one.reserve(LARGE, "u1", key=key)
    work = reservation.put(async_op=True)
    for use in (reservation.put, lambda: reservation.array, lambda: one.put(reservation)):
        with pytest.raises(ShoalValueError, match="the reservation is being put"):
            use()
    reservation.cancel()  # does nothing: cancel the work instead
    work.cancel()
    until(work.done)
    until(lambda: "open" in repr(reservation))
    reservation.array[:] = 4
    assert one.get(key) == "first"
    assert one.empty(key)
    reservation.put()
    assert (one.get(key) == 4).all()


@everywhere
def test_a_put_is_awaited(channel, key):
    one = channel(maxsize=1)

    async def main():
        for n in range(3):
            reservation = one.reserve(LARGE, "u1", key=key)
            reservation.array[:] = n
            await reservation.put(async_op=True)
            with pytest.raises(ShoalValueError, match="was put"):
                _ = reservation.array
            assert (await one.get(key, async_op=True))[0] == n

    asyncio.run(main())


@everywhere
def test_a_pending_put_outlives_the_reservation(channel, key):
    one = channel(maxsize=1)
    one.put("first", key=key)
    reservation = one.reserve(LARGE, "u1", key=key)
    reservation.array[:] = 3
    work = reservation.put(async_op=True)
    del reservation
    gc.collect()
    assert one.get(key) == "first"
    work.wait(timeout=DEADLINE_S)
    assert (one.get(key) == 3).all()


# Other processes.


@everywhere
def test_a_forked_child_cannot_use_the_parents_reservation(channel, key):
    one = channel()
    reservation = one.reserve(LARGE, "u1", key=key)
    reservation.array[:] = 5
    refused = f"the reservation was made by process {os.getpid()}, not by this one"

    def leave_the_block():
        with reservation:
            pass

    uses = [
        reservation.put,
        reservation.put_nowait,
        lambda: reservation.array,
        lambda: one.put(reservation),
        lambda: reservation.put(async_op=True),
        leave_the_block,
    ]
    for use in uses:
        assert in_a_child(use).rstrip().endswith(refused)

    def cancel_and_drop():
        nonlocal reservation
        reservation.cancel()
        uses.clear()
        del reservation
        gc.collect()

    assert in_a_child(cancel_and_drop) == "None"
    assert one.empty(key)
    reservation.put()
    assert (one.get(key) == 5).all()


@shared
def test_the_memory_of_a_killed_producer_comes_back(channel, key):
    one, kept = channel(max_bytes=4 * MB), []

    def reserve():
        one.put("put", key=key)
        kept.append(one.reserve(3 * MB, "u1", key=key))
        kept[0].array[:] = 1
        return one.stats(key).memory_reserved >= 3 * MB

    assert in_a_child(reserve) == "True"
    one.reserve(3 * MB, "u1", key=key, timeout=DEADLINE_S).cancel()
    assert one.get(key) == "put"
    assert one.empty(key)
