"""Channels on a cluster: from the driver, from workers, and when processes die."""

import asyncio
import contextlib
import dataclasses
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import ray

from shoal import Worker
from shoal.channel import Channel, WeightedItem
from shoal.errors import (
    ChannelClosed,
    ChannelEmpty,
    ChannelExistsError,
    ChannelFull,
    ChannelNotFoundError,
    ShoalTimeoutError,
    ShoalValueError,
)

pytestmark = pytest.mark.ray


@dataclasses.dataclass(frozen=True)
class Key:
    name: str
    rank: int


class Peer(Worker):
    """Does with a channel what it is told to."""

    def create(self, *args, **kwargs):
        self._channel = self.create_channel(*args, **kwargs)
        return self._channel

    def call(self, channel, method, *args, **kwargs):
        return getattr(channel, method)(*args, **kwargs)

    def start(self, channel, method, *args, **kwargs):
        self._work = getattr(channel, method)(*args, async_op=True, **kwargs)

    def result(self, timeout=None):
        return self._work.wait(timeout=timeout)

    def reach(self, *args, **kwargs):
        return self.connect_channel(*args, **kwargs).name

    def pid(self):
        return os.getpid()

    def put_all(self, channel, items, key):
        works = [channel.put(item, key=key, async_op=True) for item in items]
        for work in works:
            work.wait(timeout=30)


@pytest.fixture(scope="module")
def shared(cluster):
    """Channels by their bound: starting a host takes longer than most tests."""
    made = {}
    yield made
    for one in made.values():
        end(one, cluster)


def end(one, cluster):
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(f"{one.name}:0", namespace=cluster.NAMESPACE))


@pytest.fixture
def channel(cluster, shared, request):
    """Return a channel: a shared one, emptied after the test, or one of the test's own."""
    own, borrowed = [], []

    def make(maxsize=0, *, private=False, **kwargs):
        if private or kwargs:
            name = kwargs.pop("name", f"{request.node.name}-{len(own)}")
            own.append(Channel.create(name, maxsize, **kwargs))
            return own[-1]
        if maxsize not in shared:
            shared[maxsize] = Channel.create(f"shared-{maxsize}", maxsize)
        borrowed.append(shared[maxsize])
        return shared[maxsize]

    yield make
    for one in borrowed:
        with contextlib.suppress(ChannelEmpty):
            while True:
                one.get_nowait()
    for one in own:
        end(one, cluster)


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


def test_none_is_a_key_and_an_item_and_so_is_any_hashable(channel):
    one = channel()
    one.put(None, key=None)
    one.put(1, key=Key("x", 1))
    assert one.qsize(None) == 1
    assert one.get(None) is None
    assert one.get(Key("x", 1)) == 1


def test_nowait_calls_say_full_and_empty(channel):
    one = channel(maxsize=1)
    with pytest.raises(ChannelEmpty, match="holds nothing"):
        one.get_nowait()
    one.put_nowait("a")
    assert one.full()
    with pytest.raises(asyncio.QueueFull, match="1 items"):
        one.put_nowait("b")
    assert one.get_nowait() == "a"
    assert (one.maxsize, one.qsize()) == (1, 0)


def test_deadlines_name_the_channel_and_lose_nothing(channel):
    one = channel(maxsize=1)
    start = time.monotonic()
    with pytest.raises(ShoalTimeoutError, match=r"driver .*get: no item within 0.3 s"):
        one.get(timeout=0.3)
    one.put("a")
    with pytest.raises(ShoalTimeoutError, match=r"key 'default_queue': put: no room within 0.3 s"):
        one.put("b", timeout=0.3)
    with pytest.raises(ShoalTimeoutError):
        one.put("c", timeout=0.3, async_op=True).wait()
    with pytest.raises(ShoalTimeoutError):
        one.get_batch(5, key="b", timeout=0.3)
    assert time.monotonic() - start < 4
    assert one.get() == "a"
    assert one.empty()


def test_an_async_get_of_one_key_does_not_change_what_a_sync_get_of_another_returns(channel):
    one = channel()
    pending = one.get(key="A", async_op=True)
    one.put("forB", key="B")
    assert one.get(key="B", timeout=5) == "forB"
    one.put("forA", key="A")
    assert pending.wait(timeout=5) == "forA"


def test_a_full_key_does_not_block_another_one(channel):
    one = channel(maxsize=1)
    one.put(0, key="A")
    blocked = [one.put(n, key="A", async_op=True) for n in range(1, 4)]
    one.put("b", key="B", timeout=5)
    assert one.get(key="B", timeout=5) == "b"
    assert [one.get(key="A", timeout=5) for _ in range(4)] == [0, 1, 2, 3]
    for work in blocked:
        assert work.wait(timeout=5) is None


def test_async_puts_and_gets_keep_their_order_with_sync_ones_among_them(channel):
    one = channel()
    works = [one.put(n, async_op=True) for n in range(200)]
    one.put(200)
    works += [one.put(n, async_op=True) for n in range(201, 250)]
    for work in reversed(works):
        work.wait(timeout=30)
    gets = [one.get(async_op=True) for _ in range(100)]
    assert one.get(timeout=10) == 100
    assert [work.wait(timeout=10) for work in gets] == list(range(100))
    assert [one.get() for _ in range(149)] == list(range(101, 250))


def test_async_errors_reach_the_caller_and_later_puts_go_on(channel):
    one = channel(maxsize=1)
    one.put(1)
    late = one.put(2, async_op=True, timeout=0.2)
    behind = one.put(3, async_op=True)
    with pytest.raises(ShoalTimeoutError):
        late.wait(timeout=5)
    assert one.get() == 1
    behind.wait(timeout=5)
    assert one.get(timeout=5) == 3


def test_works_can_be_awaited_in_any_loop_and_cancelled(channel):
    one = channel()

    async def gather():
        gets = [one.get(async_op=True) for _ in range(3)]
        for n in range(3):
            await one.put(n, async_op=True)
        return await asyncio.gather(*(work.async_wait() for work in gets))

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.get(async_op=True).async_wait(), 0.3)

    assert asyncio.run(gather()) == [0, 1, 2]
    asyncio.run(give_up())
    one.put("kept")
    assert one.get(timeout=5) == "kept"


def test_a_chained_function_runs_after_the_put(channel):
    one = channel()
    sizes = []
    work = one.put("a", async_op=True)
    chained = work.then(lambda: sizes.append(one.qsize()))
    chained.wait(timeout=10)
    assert sizes == [1]
    assert work.get_next_work() is chained is work.get_last_work()


def test_batches(channel):
    one = channel()
    one.put("heavy", weight=50)
    for n in range(5):
        one.put(n, weight=4)
    assert one.get_batch(target_weight=10) == ["heavy"]
    assert one.get_batch(10) == [0, 1]
    assert one.get_batch(batch_weight=8, queue_name="default_queue") == [2, 3]
    pending = one.get_batch(8, async_op=True)
    assert not pending.done()
    one.put(5, weight=4)
    assert pending.wait(timeout=5) == [4, 5]
    one.put("single", weight=9)
    assert one.get_batch() == ["single"]


def test_a_full_channel_gives_a_batch_what_it_has(channel):
    one = channel(maxsize=2)
    one.put("a", weight=1)
    one.put("b", weight=1)
    assert one.get_batch(100, timeout=5) == ["a", "b"]


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_arrays_arrive_writable_and_alone(channel, size):
    one = channel()
    sent = np.arange(size)
    one.put((sent, "text"))
    peeked = one.peek_all()[0].item[0]
    peeked[:] = -1
    received, _ = one.get()
    received += 1
    assert np.array_equal(received, sent + 1)


def test_bad_arguments_are_named(channel):
    one = channel()
    with pytest.raises(ShoalValueError, match=r"weight=1\.5"):
        one.put("a", weight=1.5)
    with pytest.raises(ShoalValueError, match="cannot be sent"):
        one.put(threading.Lock())
    with pytest.raises(ShoalValueError, match="node 7 does not exist"):
        Channel.create("nowhere", node_rank=7)
    with pytest.raises(ShoalValueError, match="no ':'"):
        Channel.create("a:b")


def test_an_existing_name_connects_or_is_an_error(channel, launch, caplog):
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
    launch(Peer, name="somegroup")
    with pytest.raises(ChannelExistsError, match="worker group"):
        Channel.create("somegroup")


def test_close_drains_and_frees_the_name(channel):
    one = channel(private=True)
    one.put("left")
    pending = one.get(key="empty", async_op=True)
    one.close()
    with pytest.raises(ChannelClosed, match=one.name):
        pending.wait(timeout=5)
    with pytest.raises(ChannelClosed):
        one.put("late")
    assert one.get() == "left"
    fresh = channel(name=one.name, maxsize=2)
    fresh.put("new", timeout=5)
    assert fresh.get() == "new"


def test_the_death_of_the_host_ends_every_wait_within_two_seconds(channel, cluster):
    one = channel(maxsize=1, private=True)
    one.put(1)
    pending = [one.get(key="a", async_op=True), one.put(2, async_op=True)]
    time.sleep(0.3)
    ray.kill(ray.get_actor(f"{one.name}:0", namespace=cluster.NAMESPACE))
    start = time.monotonic()
    for work in pending:
        with pytest.raises(ChannelClosed, match=f"{one.name}:0"):
            work.wait(timeout=5)
    with pytest.raises(ChannelClosed):
        one.get(timeout=5)
    assert time.monotonic() - start < 2


def test_handles_are_small_and_work_in_workers_and_tasks(channel, launch):
    one = channel()
    assert len(pickle.dumps(one)) < 2048
    peers = launch(Peer, ranks=2)
    peers.execute_on(0).call(one, "put", Key("from worker", 0)).wait()
    assert peers.execute_on(1).call(one, "get", timeout=10).wait() == [Key("from worker", 0)]

    @ray.remote(num_cpus=0)
    def task(handle):
        handle.put("from task")
        return handle

    back = ray.get(task.remote(one))
    assert back.get(timeout=10) == "from task"


def test_older_spellings_of_creating_and_connecting(launch, cluster):
    (peer,) = [launch(Peer)]
    (one,) = peer.create(name="older", group_affinity=None, maxsize=3).wait()
    assert (one.name, one.maxsize) == ("older", 3)
    (same,) = peer.create("older", None, None, 3).wait()
    one.put("x")
    assert same.get(timeout=10) == "x"
    assert peer.reach(name="older").wait() == peer.reach("older").wait() == ["older"]
    end(one, cluster)


def test_what_a_producer_put_survives_it(channel, launch):
    one = channel()
    peer = launch(Peer)
    peer.call(one, "put", np.ones(500_000)).wait()
    os.kill(peer.pid().wait()[0], signal.SIGKILL)
    assert one.get(timeout=5).sum() == 500_000


def test_a_consumer_that_died_while_it_waited_takes_nothing(channel, launch):
    one = channel()
    peer = launch(Peer)
    peer.start(one, "get").wait()
    pid = peer.pid().wait()[0]
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    one.put("first")
    one.put("second")
    assert [one.get(timeout=5), one.get(timeout=5)] == ["first", "second"]


def test_a_worker_creates_connects_and_takes_the_older_spellings(launch, cluster):
    peers = launch(Peer, ranks=2, name="peers")
    made = peers.execute_on(0).create("made-by-worker", 2).wait()[0]
    near = peers.execute_on(1).create("near", "peers", 0, 5).wait()[0]
    own = peers.execute_on(1).create("own", None).wait()[0]
    try:
        assert (made.maxsize, near.maxsize, own.maxsize) == (2, 5, 0)
        peers.execute_on(0).put_all(made, [1, 2], "k").wait()
        assert made.qsize("k") == 2
        made.create_queue("narrow", 1)
        made.put("a", queue_name="narrow")
        with pytest.raises(ChannelFull):
            made.put_nowait("b", queue_name="narrow")
        # The creator's end is not the channel's.
        peers._close()
        assert made.get("k", timeout=5) == 1
    finally:
        for one in (made, near, own):
            end(one, cluster)


def test_a_distributed_channel_on_one_node(channel):
    one = channel(distributed=True)
    one.put("a", key="k")
    assert one.get(key="k") == "a"


def test_many_pending_gets_do_not_starve_each_other(channel):
    one = channel()
    gets = {n: one.get(key=n, async_op=True) for n in range(300)}
    for n in reversed(range(300)):
        one.put(n, key=n, async_op=True)
    assert [gets[n].wait(timeout=30) for n in range(300)] == list(range(300))
