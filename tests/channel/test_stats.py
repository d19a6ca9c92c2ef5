"""Channel figures: `stats`, `peek_all`, the text of a handle, and the log lines of long waits."""

import functools
import logging
import time

import numpy as np
import pytest

from support.in_thread import in_thread
from support.log_lines import once_logged
from support.processes import DEADLINE_S, until

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)


@everywhere
def test_depth_puts_gets_and_the_age_of_the_oldest(channel, key):
    one = channel()
    before = one.stats(key)
    assert (before.depth, before.puts, before.gets, before.oldest_s) == (0, 0, 0, 0)
    one.put_many(range(5), key=key)
    time.sleep(0.1)  # the clock of ages has ticks of 16 ms, and may be late
    one.get(key)
    now = one.stats(key)
    assert (now.depth, now.puts, now.gets) == (4, 5, 1)
    assert 0.04 < now.oldest_s < DEADLINE_S
    assert now.put_rate > now.get_rate > 0
    one.drain(key)
    then = one.stats(key)
    assert (then.depth, then.puts, then.gets, then.oldest_s, then.put_rate) == (0, 5, 5, 0, 0)


@everywhere
def test_waiting_calls_are_counted(channel, key, transport):
    one = channel(maxsize=3)
    # Shared memory reports only whether any process waits: counting would make waits slower.
    least = 2 if transport == "local" else 1
    one.put_many(range(3), key=(key, "full"))
    calls = [in_thread(one.get, (key, "empty")) for _ in range(2)]
    calls += [in_thread(one.put, n, 0, (key, "full")) for n in range(2)]
    until(lambda: one.stats((key, "empty")).waiting_consumers >= least)
    until(lambda: one.stats((key, "full")).waiting_producers >= least)
    one.put_many(range(2), key=(key, "empty"))
    for _ in range(5):
        one.get((key, "full"), timeout=DEADLINE_S)
    for call in calls:
        call.result(DEADLINE_S)
    if transport == "local":
        assert one.stats((key, "empty")).waiting_consumers == 0
        assert one.stats((key, "full")).waiting_producers == 0


def test_bytes_are_those_of_the_items(channel, key):
    one = channel(private=True, max_bytes=16 * 2**20)
    assert one.stats(key).memory_limit == 16 * 2**20
    one.put(np.zeros(2**20, np.uint8), key=key)
    held = one.stats(key)
    assert 2**20 <= held.bytes <= held.memory_used <= held.memory_limit
    one.get(key)
    assert one.stats(key).bytes == 0


@everywhere
def test_a_long_wait_names_the_waiter_and_its_peer(channel, key, caplog, timing):
    timing("deadline", first_logs_s=(0.2, 60.0))
    one = channel()
    with (
        caplog.at_level(logging.WARNING, "shoal"),
        once_logged(caplog, "waits for", one.put_many, range(3), [1, 1, 1], key=key),
    ):
        one.get_batch(3, key, timeout=DEADLINE_S)
    (line,) = [r.getMessage() for r in caplog.records if "waits for" in r.getMessage()]
    assert line.startswith("driver")
    assert one.name in line
    assert key in line
    assert f"limit {DEADLINE_S:g} s" in line


@pytest.mark.parametrize("transport", ["shm"], indirect=True)
@pytest.mark.parametrize("call", ["put", "put_many", "get_many"])
def test_a_long_wait_in_the_core_is_logged(channel, key, caplog, timing, call):
    timing("deadline", first_logs_s=(0.2, 60.0))
    one = channel(maxsize=1)
    one.put("opens the queue", key=key)
    if call == "get_many":
        one.get(key)
    end = functools.partial(one.put, 1) if call == "get_many" else one.get
    with (
        caplog.at_level(logging.WARNING, "shoal"),
        once_logged(caplog, "waits for", end, key=key),
    ):
        {
            "put": lambda: one.put(1, key=key),
            "put_many": lambda: one.put_many([1], key=key),
            "get_many": lambda: one.get_many(1, key),
        }[call]()
    (line,) = [r.getMessage() for r in caplog.records if "waits for" in r.getMessage()]
    awaited = "an item" if call == "get_many" else "room"
    assert f"waits for {awaited} in the channel {one.name!r}, key {key!r}: waiting for" in line
    assert "(no limit)" in line
