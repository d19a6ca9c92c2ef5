"""Channels with an actor behind emulated links, in shared memory and by calls."""

import threading
import time

import pytest

from shoal.errors import ChannelClosed, ChannelDecodeError, ChannelEmpty, ShoalTimeoutError
from shoal.net_emulation import (
    EmulatedNetwork,
    NetEmulationConfig,
    NetEmulationManager,
    network as network_module,
)
from shoal.work import AsyncChannelWork
from support.items import Unloadable
from support.last_references import check_that_its_caller_is_freed

DELAY_S = 0.15
# Links are put before the queues of either transport, which the first and the last test show.
shared = pytest.mark.parametrize("transport", ["shm"], indirect=True)


@pytest.fixture
def links(monkeypatch):
    """Give the process of the test the links of a job: from the driver to the channel `c`."""

    def make(rate=0, symmetric=False, delay_s=DELAY_S, back_s=None):
        pair = {"src": "driver:0", "dst": "channel/c", "delay_ms": 1000 * delay_s}
        pairs = [pair]
        if back_s is not None:
            pairs.append({"src": "channel/c", "dst": "driver:0", "delay_ms": 1000 * back_s})
        config = NetEmulationConfig.from_cfg(
            {
                "enabled": True,
                "symmetric": symmetric,
                "crossdc_pairs": pairs,
                "bandwidth_groups": [{"members": "driver:0", "bandwidth_mbps": rate}],
            }
        )
        manager = NetEmulationManager(config)
        network = EmulatedNetwork(config, lambda: manager)
        monkeypatch.setattr(network_module, "find_namespace", lambda: "job")
        monkeypatch.setitem(network_module._networks, "job", network)
        return network

    return make


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_items_of_a_batch_that_cannot_be_rebuilt_take_their_way_too(channel, links, key, async_op):
    links(rate=100, delay_s=0, back_s=DELAY_S)
    c = channel()
    c.put_many([1, Unloadable(), 2], [1, 1, 1], key=key)
    begin = time.monotonic()

    def get():
        batch = c.get_batch(3, key, async_op, timeout=30)
        return batch.wait(timeout=30) if async_op else batch

    with pytest.raises(ChannelDecodeError, match="not here") as failed:
        get()
    assert time.monotonic() - begin >= DELAY_S
    assert list(failed.value.items) == [1, 2]
    assert c.empty(key)


def test_puts_take_the_time_of_the_way(channel, transport, links, key):
    links()
    c = channel()
    assert c.transport == transport
    begin = time.monotonic()
    c.put(0, key=key)
    assert time.monotonic() - begin >= DELAY_S
    works = [c.put(number, key=key, async_op=True) for number in range(1, 20)]
    begin = time.monotonic()
    assert all(isinstance(work, AsyncChannelWork) for work in works)
    c.put(20, key=key)
    assert time.monotonic() - begin >= DELAY_S
    assert [c.get(key=key, timeout=30) for _ in range(21)] == list(range(21))
    assert key not in c._direct_puts
    assert key not in c._direct_gets


@shared
@pytest.mark.nightly
def test_gets_take_the_time_of_the_way(channel, links, key):
    links(symmetric=True)
    c = channel()
    c.put_many(list(range(10)), key=key)
    for take in (
        lambda: [c.get(key)],
        lambda: [c.get_nowait(key)],
        lambda: [c.get(key, async_op=True).wait(timeout=30)],
        lambda: c.get_many(2, key, timeout=30),
        lambda: c.get_batch(0, key),
        lambda: [c.get(key, timeout=0)],
        lambda: [c.get(key, async_op=True, timeout=0).wait(timeout=30)],
        lambda: c.drain(key) == [8, 9],
    ):
        begin = time.monotonic()
        assert take()
        assert time.monotonic() - begin >= DELAY_S
    assert c.qsize(key) == 0
    with pytest.raises(ShoalTimeoutError):
        c.get(key, timeout=0)
    with pytest.raises(ShoalTimeoutError):
        c.get(key, async_op=True, timeout=0).wait(timeout=30)
    with pytest.raises(ChannelEmpty):
        c.get_nowait(key)


@shared
def test_items_come_in_order_when_gets_have_too_little_time(channel, links, key):
    links(symmetric=True)
    c = channel()
    c.put_many(list(range(4)), key=key)
    for _ in range(2):
        with pytest.raises(ShoalTimeoutError, match=r"get: no message in .* within 0\.05 s"):
            c.get(key, timeout=0.05)
    assert [c.get(key, timeout=30) for _ in range(4)] == [0, 1, 2, 3]


@shared
def test_an_item_is_encoded_once(channel, links, key):
    links(rate=80)
    made = []

    class Item:
        def __reduce__(self):
            made.append(1)
            return (bytes, (1000,))

    c = channel()
    c.put(Item(), key=key)
    c.put(Item(), key=key, async_op=True).wait(timeout=30)
    assert len(made) == 2
    assert [len(c.get(key, timeout=30)) for _ in range(2)] == [1000, 1000]


@shared
def test_a_limited_uplink_holds_for_all_keys(channel, links, key):
    links(rate=8)
    c = channel()
    begin = time.monotonic()
    works = [c.put(bytes(100_000), key=(key, n), async_op=True) for n in range(3)]
    for place, work in enumerate(works, 1):
        work.wait(timeout=30)
        assert time.monotonic() - begin >= 0.1 * place + DELAY_S


@shared
def test_arrays_arrive_whole(channel, links, key):
    numpy = pytest.importorskip("numpy")
    links(rate=800, symmetric=True)
    c = channel()
    c.put({"a": numpy.arange(100_000)}, key=key)
    begin = time.monotonic()
    with c.reserve(50_000, "int64", key=key) as array:
        array[:] = 3
    assert time.monotonic() - begin >= DELAY_S
    assert numpy.array_equal(c.get(key, timeout=30)["a"], numpy.arange(100_000))
    assert numpy.array_equal(c.get(key, timeout=30), numpy.full(50_000, 3))


@shared
def test_leases_are_delivered_again(channel, links, key):
    links(symmetric=True)
    c = channel()
    c.put("item", key=key)
    lease = c.get(key, lease=True)
    assert lease.value == "item"
    lease.give_back()
    with c.get(key, lease=True) as again:
        assert again.redelivered
    assert c.qsize(key) == 0


@shared
def test_a_cancelled_get_takes_nothing(channel, links, key):
    links(symmetric=True, delay_s=0.5)
    c = channel()
    work = c.get(key, async_op=True)
    c.put("item", key=key)
    work.cancel()
    assert c.get(key, timeout=30) == "item"


@shared
@pytest.mark.nightly
def test_a_closed_channel_refuses_an_item_when_it_arrives(channel, links, key):
    links(delay_s=1.5)
    c = channel()
    c.put(1, key=key)
    work = c.put(2, key=key, async_op=True)
    c.close()
    with pytest.raises(ChannelClosed):
        work.wait(timeout=30)
    assert c.get(key, timeout=30) == 1


@shared
def test_a_deadline_ends_the_way(channel, links, key):
    links(delay_s=60)
    c = channel()
    with pytest.raises(ShoalTimeoutError, match=r"nothing arrived within 0\.1 s"):
        c.put(1, key=key, timeout=0.1)
    works = [c.put(n, key=key, async_op=True, timeout=0.1) for n in range(3)]
    for work in works:
        with pytest.raises(ShoalTimeoutError, match=r"nothing arrived within 0\.1 s"):
            work.wait(timeout=30)
    assert c.qsize(key) == 0


@pytest.mark.parametrize("how", ["put", "put on its way", "get", "asynchronous get"])
def test_a_call_that_is_late_frees_the_variables_of_its_caller(channel, links, key, how):
    links(delay_s=0.02, back_s=0.02)
    c = channel(maxsize=1)
    c.put(0, key="full")
    calls = {
        "put": lambda: c.put(1, key="full", async_op=True, timeout=0.05).wait(),
        "put on its way": lambda: c.put(1, key=key, timeout=0.01),
        "get": lambda: c.get(key, timeout=0.05),
        "asynchronous get": lambda: c.get(key, async_op=True, timeout=0.05).wait(),
    }
    check_that_its_caller_is_freed(ShoalTimeoutError, calls[how])


@shared
def test_the_event_loop_does_not_call_the_manager(channel, links, key, monkeypatch):
    network = links(rate=80, symmetric=True)
    seconds, threads = network.seconds, set()

    def noted(*arguments):
        threads.add(threading.current_thread().name)
        return seconds(*arguments)

    monkeypatch.setattr(network, "seconds", noted)
    c = channel()
    works = [c.put(number, key=key, async_op=True) for number in range(2)]
    for work in works:
        work.wait(timeout=30)
    assert [c.get(key, timeout=30) for _ in works] == [0, 1]
    assert threads
    assert "shoal-loop" not in threads  # all channels of the process would wait for the manager


@shared
@pytest.mark.nightly
def test_a_deadline_ends_the_wait_for_an_earlier_put(channel, links, key):
    links(delay_s=2.0)
    c = channel()
    first = c.put("first", key=key, async_op=True)
    second = c.put("second", key=key, async_op=True, timeout=0.1)
    third = c.put("third", key=key, async_op=True)
    with pytest.raises(ShoalTimeoutError, match=r"put: .*nothing arrived within 0\.1 s"):
        second.wait(timeout=30)
    for work in (third, first):
        work.wait(timeout=30)
    assert [c.get(key=key, timeout=30) for _ in range(2)] == ["first", "third"]
    assert c.qsize(key) == 0


@shared
def test_a_get_that_does_not_wait_ignores_puts_on_their_way(channel, links, key):
    links(delay_s=0.0, back_s=0.01)
    c = channel()
    c.put_many(["first", "second"], key=key)
    links(delay_s=600.0, back_s=0.01)
    c._routes.network, c._routes._emulated = network_module.emulated_network(), {}
    on_its_way = c.put("third", key=key, async_op=True)
    assert c.get_nowait(key) == "first"
    assert c.get(key, timeout=0) == "second"
    assert on_its_way.cancel()
    with pytest.raises(ChannelEmpty):
        c.get_nowait(key)


def test_a_channel_without_links_is_used_directly(channel, transport, monkeypatch, key):
    config = NetEmulationConfig.from_cfg(
        {"enabled": True, "crossdc_pairs": [{"src": "a:0", "dst": "b:0", "delay_ms": 10}]}
    )
    network = EmulatedNetwork(config, lambda: NetEmulationManager(config))
    monkeypatch.setattr(network_module, "find_namespace", lambda: "job")
    monkeypatch.setitem(network_module._networks, "job", network)
    c = channel()
    c.put(1, key=key)
    assert (key in c._direct_puts) == (transport == "shm")
    assert key not in c._direct_gets
    assert c.get(key) == 1
    assert (key in c._direct_gets) == (transport == "shm")
