"""Channels on a cluster: basic operations, creating a channel, and connecting to it by name."""

import asyncio
import contextlib

import pytest

from shoal import Channel, Worker
from shoal.channel import WeightedItem
from shoal.errors import (
    ChannelEmpty,
    ChannelExistsError,
    ChannelFull,
    ChannelNotFoundError,
    ShoalError,
    ShoalTimeoutError,
    ShoalValueError,
)
from support.processes import DEADLINE_S

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "ray"], indirect=True)
shm = pytest.mark.parametrize("transport", ["shm"], indirect=True)
pytestmark = pytest.mark.ray


@everywhere
def test_items_keep_order_keys_and_weights(channel):
    one = channel()
    for n in range(3):
        one.put({"n": n}, weight=n)
    one.put("other", key=("a", 1))
    assert one.qsize() == 3
    assert one.peek_all() == [WeightedItem(n, {"n": n}) for n in range(3)]
    assert "{'n': 2}" in str(one)
    assert [one.get()["n"] for _ in range(3)] == [0, 1, 2]
    assert one.empty()
    assert one.get(key=("a", 1.0)) == "other"


def test_a_handle_says_how_it_reaches_the_channel(channel, transport):
    assert channel().transport == transport
    assert Channel.create("within", local=True).transport == "local"


def test_a_transport_that_does_not_exist_is_named(channel, monkeypatch):
    one = channel()
    monkeypatch.setenv("SHOAL_TRANSPORT", "carrier pigeon")
    with pytest.raises(
        ShoalValueError, match="SHOAL_TRANSPORT='carrier pigeon': expected one of shm"
    ):
        one.qsize()


@everywhere
def test_nowait_calls_say_full_and_empty(channel, key):
    one = channel(maxsize=1)
    with pytest.raises(asyncio.QueueEmpty, match="empty"):
        one.get_nowait(key)
    one.put_nowait("a", key=key)
    assert one.full(key)
    with pytest.raises(asyncio.QueueFull, match="maxsize=1"):
        one.put_nowait("b", key=key)
    assert one.get_nowait(key) == "a"
    assert (one.maxsize, one.qsize(key)) == (1, 0)
    with pytest.raises(ChannelEmpty):
        one.get_nowait(key)


@everywhere
def test_deadlines_name_the_channel_and_lose_nothing(channel, key):
    one = channel(maxsize=1)
    with pytest.raises(ShoalTimeoutError, match=r"driver .*get: no message in .* within 0.1 s"):
        one.get(key, timeout=0.1)
    one.put("a", key=key)
    with pytest.raises(ShoalTimeoutError, match=r"put: no room in .*key .* within 0.1 s") as caught:
        one.put("b", key=key, timeout=0.1)
    assert key in str(caught.value)
    with pytest.raises(ShoalTimeoutError):
        one.put("c", key=key, timeout=0.1, async_op=True).wait(timeout=DEADLINE_S)
    assert one.get(key) == "a"
    assert one.empty(key)


@everywhere
def test_async_errors_reach_the_caller_and_later_puts_go_on(channel, key):
    one = channel(maxsize=1)
    one.put(1, key=key)
    late = one.put(2, key=key, async_op=True, timeout=0.1)
    behind = one.put(3, key=key, async_op=True)
    with pytest.raises(ShoalTimeoutError):
        late.wait(timeout=DEADLINE_S)
    assert one.get(key) == 1
    behind.wait(timeout=DEADLINE_S)
    assert one.get(key, timeout=DEADLINE_S) == 3


@everywhere
def test_a_chained_function_runs_after_the_put(channel, key):
    one = channel()
    sizes = []
    work = one.put("a", key=key, async_op=True)
    chained = work.then(lambda: sizes.append(one.qsize(key)))
    chained.wait(timeout=DEADLINE_S)
    assert sizes == [1]
    assert work.get_next_work() is chained is work.get_last_work()
    assert one.drain(key) == ["a"]


def fill(channel, key, count):
    for n in range(count):
        with channel.reserve((300, 200), "float32", weight=n, key=key) as array:
            array[:] = n


def test_arrays_that_a_worker_made_in_place_arrive(channel, key, peers):
    one = channel()
    peers.run(0, fill, one, key, 3)
    assert [entry.weight for entry in one.peek_all(key)] == [0, 1, 2]
    for n in range(3):
        array = one.get(key)
        assert array.shape == (300, 200)
        assert (array == n).all()
    waiting = peers.start(1, read_one, one, key)
    reservation = one.reserve(100_000, "uint8", key=key)
    reservation.array[:] = 7
    with pytest.raises(ShoalValueError, match="not for key 'another'"):
        one.put(reservation, key="another")
    one.put(reservation)
    assert waiting.wait()[0] == (100_000, 700_000)
    assert one.empty(key)


def read_one(channel, key):
    array = channel.get(key, timeout=DEADLINE_S)
    return len(array), int(array.sum())


@everywhere
def test_bad_arguments_are_named(channel, key):
    one = channel()
    with pytest.raises(ShoalValueError, match=r"weight=1\.5"):
        one.put("a", weight=1.5, key=key)
    with pytest.raises(ShoalValueError, match=r"weight=-1"):
        one.put("a", weight=-1, key=key)
    with pytest.raises(ShoalValueError, match="timeout=-1"):
        one.get(key, timeout=-1)
    with pytest.raises(ShoalValueError, match="no ':'"):
        Channel.create("a:b", local=True)
    assert one.empty(key)


@everywhere
def test_the_older_names_of_arguments(channel):
    one = channel(private=True)
    one.put("a", 3, queue_name="q")
    one.put_nowait("b", 3, queue_name="q")
    one.put("c", 3, queue_name="q")
    assert one.get_batch(batch_weight=6, queue_name="q") == ["a", "b"]
    assert one.get(queue_name="q") == "c"
    with pytest.raises(ChannelEmpty):
        one.get_nowait(queue_name="q")


@shm
def test_an_existing_name_connects_or_is_an_error(channel, caplog):
    one = channel(maxsize=3, private=True)
    one.put("here")
    again = Channel.create(one.name, 3)
    assert "exists already" in caplog.text
    assert again.get() == "here"
    with pytest.raises(ChannelExistsError, match=r"maxsize=3 \(asked for: 4\)"):
        Channel.create(one.name, 4)
    assert Channel.connect(one.name).maxsize == 3
    with pytest.raises(ChannelNotFoundError, match="no channel 'misspelt'"):
        Channel.connect("misspelt")
    with pytest.raises(ShoalValueError, match="node 7 does not exist"):
        Channel.create("nowhere", node_rank=7)


def create(*args, **kwargs):
    return Worker.current_worker.create_channel(*args, **kwargs)


def create_older():
    worker = Worker.current_worker
    made = worker.create_channel(name="older", group_affinity=None, maxsize=3)
    same = worker.create_channel("older", None, None, 3)
    found = [worker.connect_channel(name="older"), worker.connect_channel("older")]
    return made, same, [each.name for each in found]


@shm
def test_older_spellings_of_creating_and_connecting(peers):
    one, same, found = peers.run(0, create_older)
    try:
        assert (one.name, one.maxsize) == ("older", 3)
        one.put("x")
        assert same.get(timeout=DEADLINE_S) == "x"
        assert found == ["older", "older"]
    finally:
        one.delete()


@shm
def test_a_worker_creates_channels_near_others(peers):
    made = [
        peers.run(0, create, "made-by-worker", 2),
        peers.run(1, create, "near", "channel-peers", 0, 5),
        peers.run(1, create, "own", None),
    ]
    try:
        assert [one.maxsize for one in made] == [2, 5, 0]
        made[0].create_queue("narrow", 1)
        made[0].put("a", queue_name="narrow")
        with pytest.raises(ChannelFull):
            made[0].put_nowait("b", queue_name="narrow")
    finally:
        for one in made:
            with contextlib.suppress(ShoalError):
                one.delete()


@shm
def test_a_distributed_channel_on_one_node(channel):
    one = channel(distributed=True)
    one.put("a", key="k")
    assert one.get(key="k") == "a"
    assert one.transport == "shm"
    with one.reserve(100_000, "uint8", key="k") as array:
        array[:] = 3
    assert (one.get("k") == 3).all()


def test_a_handle_of_another_policy_is_not_handed_out(channel):
    one = channel(maxsize=3, policy="drop_oldest")
    with pytest.raises(ChannelExistsError, match="policy='drop_oldest'"):
        Channel.create(one.name, 3)
