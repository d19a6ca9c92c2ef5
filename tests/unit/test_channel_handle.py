"""Channel handles on both transports, with a thread instead of Ray: draining, errors, forks."""

import asyncio
import gc
import os
import weakref

import pytest

from shoal import _ray
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelFull,
    ChannelMemoryError,
    PeerLostError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
    TransportError,
)
from shoal.shm.keys import canonical
from shoal.work import AsyncCollWork
from support.items import Unloadable
from support.processes import DEADLINE_S, in_a_child, until

MB = 2**20

ways = pytest.mark.parametrize("kind", ["shm", "lane"])
everywhere = pytest.mark.parametrize("kind", ["local", "shm", "lane"])


# Draining.


@ways
def test_draining_loses_nothing_to_what_cannot_be_rebuilt(actors, kind):
    channel = actors.start().handle_of(kind)
    channel.put_many([1, Unloadable(), 2])
    with pytest.raises(ChannelDecodeError, match="not here") as failed:
        channel.drain()
    assert list(failed.value.items) == [1, 2]
    channel.put(3)
    assert channel.drain() == [3]


def test_a_transport_that_does_not_exist_is_named(actors, monkeypatch):
    channel = actors.start().handle_of("shm")
    monkeypatch.setenv("SHOAL_TRANSPORT", "carrier pigeon")
    with pytest.raises(
        ShoalValueError, match="SHOAL_TRANSPORT='carrier pigeon': expected one of shm"
    ):
        channel.qsize()


def received(work, how):
    if how == "await":
        return asyncio.run(work.async_wait())
    if how == "then":
        return work.then(print).wait(DEADLINE_S)
    if how == "together":
        return AsyncCollWork([work]).wait(DEADLINE_S)
    return work.wait(DEADLINE_S)


@ways
@pytest.mark.parametrize("how", ["wait", "await", "then", "together"])
def test_the_items_of_an_error_are_delivered_with_it_or_again_if_no_call_gets_it(actors, kind, how):
    channel = actors.start().handle_of(kind)
    channel.put_many([1, Unloadable(), 2], [1, 1, 1])
    work = channel.get_batch(3, async_op=True, timeout=DEADLINE_S)
    until(work.done, DEADLINE_S)
    del work
    until(lambda: channel.qsize() == 2, DEADLINE_S)
    channel.put(Unloadable(), 1)
    work = channel.get_batch(3, async_op=True, timeout=DEADLINE_S)
    with pytest.raises(ChannelDecodeError, match="not here") as failed:
        received(work, how)
    assert list(failed.value.items) == [1, 2]
    del work
    gc.collect()
    assert channel.stats().depth == 0


def test_draining_keeps_what_it_has_when_the_actor_is_lost(actors):
    channel = actors.start().handle_of("ray")
    channel.put_many([1, 2])
    get_many = channel.get_many
    lost = []

    def one(n, *args, **kwargs):
        if lost:
            raise PeerLostError("on purpose")
        lost.append(n)
        return get_many(1, *args, **kwargs)

    channel.get_many = one
    assert channel.drain() == [1]
    with pytest.raises(PeerLostError):
        channel.drain()


# The handle as an object.


@everywhere
def test_a_handle_is_gone_with_its_last_reference(actors, kind):
    channel = actors.start().handle_of(kind)
    channel.put("a")
    channel.put("b", async_op=True).wait()
    assert (channel.get(), channel.get(async_op=True).wait(timeout=DEADLINE_S)) == ("a", "b")
    gone = weakref.ref(channel)
    gc.disable()
    try:
        del channel
        assert gone() is None
    finally:
        gc.enable()


class Large:
    """An item that can have weak references."""


@everywhere
def test_an_item_is_gone_with_its_last_reference_after_a_get_that_waited(actors, kind):
    channel = actors.start().handle_of(kind)

    def got():
        work = channel.get(async_op=True)
        until(lambda: channel.stats().waiting_consumers)
        channel.put(Large())
        return weakref.ref(work.wait(timeout=DEADLINE_S))

    gc.disable()
    try:
        gone = got()
        until(lambda: gone() is None)  # another thread may be about to drop its reference
    finally:
        gc.enable()


@everywhere
def test_a_subclass_may_override_put_and_get(actors, channel, kind):
    plain = actors.start().handle_of(kind)
    base = channel.channel.Channel

    class Noting(base):
        def put(self, item, *args, **kwargs):
            return super().put(("noted", item), *args, **kwargs)

        def get(self, *args, **kwargs):
            return super().get(*args, **kwargs)[1]

    noting = Noting._made(plain._settings, plain._routes, plain._local_channel)
    for _ in range(2):  # the second put finds an open queue
        noting.put("a", timeout=DEADLINE_S)
        assert noting.get(timeout=DEADLINE_S) == "a"
    noting.put_nowait("b")
    assert noting.get_nowait() == "b"


# Errors for bad arguments.


@pytest.fixture
def warm(actors, kind):
    """A channel whose key `k` was used before, so that no call has to open it."""
    channel = actors.start().handle_of(kind)
    channel.put("a", key="k")
    assert channel.get("k") == "a"
    return channel


CALLS = {
    "put": lambda channel, key: channel.put(1, key=key),
    "put_nowait": lambda channel, key: channel.put_nowait(1, key=key),
    "put_many": lambda channel, key: channel.put_many([1], key=key),
    "get": lambda channel, key: channel.get(key, timeout=DEADLINE_S),
    "get_nowait": lambda channel, key: channel.get_nowait(key),
    "get_many": lambda channel, key: channel.get_many(1, key),
    "get_batch": lambda channel, key: channel.get_batch(1, key, timeout=DEADLINE_S),
    "drain": lambda channel, key: channel.drain(key),
    "qsize": lambda channel, key: channel.qsize(key),
    "empty": lambda channel, key: channel.empty(key),
    "full": lambda channel, key: channel.full(key),
    "peek_all": lambda channel, key: channel.peek_all(key),
    "stats": lambda channel, key: channel.stats(key),
    "create_queue": lambda channel, key: channel.create_queue(key, 1),
}


NAN = float("nan")
BAD_KEYS = [
    ([], r"key=\[\]: a list cannot be a key"),
    ((1, {2}), r"key=\(1, \{2\}\): a tuple cannot be a key"),
    (range(3), r"key=range\(0, 3\): a range cannot be a key"),
    (NAN, "key=nan: a NaN does not equal itself"),
    ((1, NAN), r"key=\(1, nan\): a NaN does not equal itself"),
]


@everywhere
def test_every_call_refuses_a_bad_key(warm):
    for key, text in BAD_KEYS:
        for name, call in CALLS.items():
            with pytest.raises((ShoalTypeError, ShoalValueError), match=text):
                pytest.fail(f"{name} returned {call(warm, key)!r}")


@ways
@pytest.mark.parametrize("key", [10**5000, ("a", 10**5000)], ids=["int", "within"])
def test_every_call_refuses_a_key_that_has_no_text(warm, key):
    for name, call in CALLS.items():
        with pytest.raises(
            ShoalValueError, match=r"key: an? \w+ with an integer: Exceeds the limit"
        ):
            pytest.fail(f"{name} returned {call(warm, key)!r}")


@everywhere
@pytest.mark.parametrize("timeout", [None, DEADLINE_S], ids=["no limit", "limit"])
def test_how_many_to_get_is_an_integer_from_1(warm, timeout):
    warm.put_many([1, 2, 3], key="k")
    for bad in (0, -1, 2.0, "2", None, 2**63):
        with pytest.raises(ShoalValueError, match=f"n={bad!r}: expected"):
            warm.get_many(bad, "k", timeout=timeout)
    assert warm.get_many(True, "k", timeout=timeout) == [1]
    assert warm.get_many(2**63 - 1, "k", timeout=timeout) == [2, 3]


@everywhere
def test_the_bound_of_a_key_is_an_integer_from_0(warm):
    for bad in (-1, 1.5, None, "1", 2**20 + 1):
        with pytest.raises(ShoalValueError, match=f"maxsize={bad!r}: expected"):
            warm.create_queue("bad", bad)
    warm.create_queue("bounds", 2**20)
    warm.create_queue("one", True)
    warm.put(1, key="one")
    assert warm.full("one")


@everywhere
def test_how_long_a_batch_lingers_is_named_as_it_is_called(warm):
    for bad in (-1, float("nan"), True, "1"):
        with pytest.raises(ShoalValueError, match=f"linger={bad!r}: expected seconds"):
            warm.get_batch(1, "k", linger=bad, timeout=DEADLINE_S)


# Forked children cannot make calls: operations that need calls raise errors.


@pytest.fixture
def fork(monkeypatch):
    """Make this process look like a forked child from then on."""
    return lambda: monkeypatch.setattr(_ray, "_forked_from", 1)


def test_a_forked_child_closes_a_channel_of_its_node(actors, fork):
    channel = actors.start().handle_of("shm")
    channel.put("left")
    fork()
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.put("late")
    assert channel.drain() == ["left"]


@pytest.mark.parametrize("here", [[False, True], [True, False]])
def test_a_forked_child_cannot_close_a_channel_of_another_node(actors, fork, here):
    channel = actors.start(num_actors=2).handle_of("shm", *here)
    queues = actors.way("shm")
    fork()
    with pytest.raises(TransportError, match="was forked from process 1"):
        channel.close()
    with pytest.raises(ChannelClosed):
        queues.put("k", "late", 0, None)


def test_a_forked_child_cannot_delete_the_channel_that_it_closed(actors, fork):
    channel = actors.start().handle_of("shm")
    channel.put("left")
    fork()
    with pytest.raises(TransportError, match="was forked from process 1"):
        channel.delete()
    with pytest.raises(ChannelClosed):
        channel.put("late")
    assert channel.drain() == ["left"]


@everywhere
def test_a_deleted_channel_is_ended(actors, kind):
    channel = actors.start().handle_of(kind)
    channel.put("left")
    channel.delete()
    with pytest.raises(ChannelClosed):
        channel.put("late")


def test_a_child_uses_the_keys_of_a_distributed_channel_that_were_used_before(actors, fork):
    actors.start(num_actors=2)
    assert actors.ask("route", canonical("used"), 1) == 1
    channel = actors.handle_of("shm")
    fork()
    channel.put("a", key="used")
    assert channel.get("used", timeout=DEADLINE_S) == "a"
    with pytest.raises(TransportError, match="was forked from process 1"):
        channel.put("a", key="new")


# Memory that is used up.


@ways
@pytest.mark.process
@pytest.mark.parametrize("largest", ["child", "parent"])
def test_an_error_about_memory_names_the_largest_holder(actors, kind, largest):
    actors.start(max_bytes=4 * MB, memory_policy="error")
    here, channel = actors.handle_of("shm"), actors.handle_of(kind)
    sizes = (MB, MB // 2) if largest == "child" else (MB // 2, MB)

    def put_by_child():
        here.put(bytes(sizes[0]), key="of the child")
        return os.getpid()

    holders = [in_a_child(put_by_child), os.getpid()]
    channel.put(bytes(sizes[1]), key="of the parent")
    first, second = holders if largest == "child" else reversed(holders)
    text = rf"of {4 * MB} bytes\).*; process {first} holds 10\d+ bytes, process {second} holds 5\d+ bytes$"
    with pytest.raises(ChannelMemoryError, match=text):
        channel.put(bytes(3 * MB))


# A put with a timeout of 0.


@ways
@pytest.mark.parametrize("how", ["put", "async", "put_many"])
def test_a_put_with_no_time_for_room_is_late(actors, kind, how):
    channel = actors.start(maxsize=1).handle_of(kind)
    channel.put(0)
    put = {
        "put": lambda: channel.put(1, timeout=0),
        "async": lambda: channel.put(1, timeout=0, async_op=True).wait(timeout=DEADLINE_S),
        "put_many": lambda: channel.put_many([1, 2], timeout=0),
    }[how]
    with pytest.raises(ShoalTimeoutError, match="within 0 s"):
        put()
    with pytest.raises(ChannelFull, match="put_nowait"):
        channel.put_nowait(1)
    assert channel.drain() == [0]
