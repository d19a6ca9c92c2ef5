"""Channels behind emulated links, on a local cluster."""

import asyncio
import time

import pytest

from shoal import Channel, NodePlacementStrategy, Worker
from shoal.channel.routes import DelayedQueues
from shoal.errors import ChannelEmpty, ChannelFull, ShoalTimeoutError
from shoal.testing import local_cluster

pytestmark = pytest.mark.nightly

DELAY_S = 0.2


def section(*links, num_nodes=1, **rates):
    groups = [{"members": name, "bandwidth_mbps": rate} for name, rate in rates.items()]
    emulation = {"enabled": True, "crossdc_pairs": list(links), "bandwidth_groups": groups}
    return {"num_nodes": num_nodes, "component_placement": {}, "net_emulation": emulation}


def link(src, dst, delay_ms=1000 * DELAY_S):
    return {"src": src, "dst": dst, "delay_ms": delay_ms}


class Env(Worker):
    def put(self, channel, count=1, async_op=False, key="default_queue", timeout=None):
        begin = time.monotonic()
        works = [
            channel.put((time.monotonic(), number), key=key, async_op=async_op, timeout=timeout)
            for number in range(count)
        ]
        took = time.monotonic() - begin
        for work in works if async_op else ():
            work.wait(timeout=30)
        return took

    def put_many(self, channel, count):
        begin = time.monotonic()
        channel.put_many([(begin, number) for number in range(count)])
        return time.monotonic() - begin

    def mixed(self, channel):
        works = [channel.put((time.monotonic(), number), async_op=True) for number in range(5)]
        channel.put((time.monotonic(), 5))
        return [work.done() for work in works]

    def put_nowait(self, channel):
        channel.put_nowait((time.monotonic(), 0))

    def cancel(self, channel):
        work = channel.put((time.monotonic(), 0), async_op=True)
        channel.put((time.monotonic(), 1), async_op=True).wait(timeout=30) if work.cancel() else 0
        return work.future.cancelled()


class Rollout(Worker):
    def get(self, channel, count=1, timeout=None):
        found = []
        for _ in range(count):
            sent, number = channel.get(timeout=timeout)
            found.append((time.monotonic() - sent, number))
        return found

    def get_leased(self, channel):
        with channel.get(lease=True) as lease:
            return lease.value[1]

    def get_nowait(self, channel):
        begin = time.monotonic()
        found = channel.get_nowait()
        return time.monotonic() - begin, found

    async def get_batch(self, channel, count):
        works = [channel.get(async_op=True) for _ in range(count)]
        begin = time.monotonic()
        items = await asyncio.gather(*works)
        return time.monotonic() - begin, items


@pytest.fixture
def start():
    """Start a local cluster with groups `EnvGroup` and `RolloutGroup` of two workers each."""
    clusters = []

    def make(*links, **rates):
        cluster = local_cluster(cluster_cfg=section(*links, **rates))
        made = cluster.__enter__()
        clusters.append(cluster)
        two = NodePlacementStrategy([0, 0])
        env = Env.create_group().launch(made, two, "EnvGroup")
        return env, Rollout.create_group().launch(made, two, "RolloutGroup")

    yield make
    for cluster in clusters:
        cluster.__exit__(None, None, None)


def numbers(found):
    return [number for _, number in found]


@pytest.mark.parametrize(
    ("name", "target"),
    [("obs", "channel/obs"), ("Rollout", "Rollout:0"), ("Rollout", "Rollout:1"), ("obs", "obs:0")],
)
def test_a_put_is_over_when_its_item_has_arrived(start, name, target):
    env, rollout = start(link("Env:1", target))
    channel = Channel.create(name)
    gets = rollout.execute_on(0).get(channel)
    took = env.execute_on(1).put(channel).wait()[0]
    assert took >= DELAY_S
    assert gets.wait()[0][0][0] >= DELAY_S
    assert channel.transport == "local"


def test_a_name_can_mean_the_group_alone(start):
    start(link("Env:0", "group/Rollout:0"))
    channel = Channel.create("Rollout")
    assert not isinstance(channel._queues("default_queue"), DelayedQueues)


@pytest.mark.timed
def test_asynchronous_puts_are_on_their_way_together_and_in_order(start):
    env, rollout = start(link("Env:0", "channel/obs", 1000))
    channel = Channel.create("obs")
    begin = time.monotonic()
    gets = rollout.execute_on(0).get(channel, 12)
    env.execute_on(0).put(channel, 12, async_op=True).wait()
    found = gets.wait()[0]
    assert time.monotonic() - begin < 12  # one after the other they would take 12 s
    assert numbers(found) == list(range(12))
    assert all(took >= 1 for took, _ in found)


def test_a_put_comes_after_asynchronous_ones(start):
    env, rollout = start(link("Env:0", "channel/obs"))
    channel = Channel.create("obs")
    assert env.execute_on(0).mixed(channel).wait()[0][:4] == [True] * 4
    assert numbers(rollout.execute_on(0).get(channel, 6).wait()[0]) == list(range(6))


def test_several_puts_in_one_call(start):
    env, rollout = start(link("Env:0", "channel/obs"))
    channel = Channel.create("obs")
    assert env.execute_on(0).put_many(channel, 20).wait()[0] >= DELAY_S
    assert numbers(rollout.execute_on(0).get(channel, 20).wait()[0]) == list(range(20))


def test_a_get_takes_the_way_to_the_consumer(start):
    env, rollout = start(link("channel/obs", "Rollout:0"))
    channel = Channel.create("obs")
    env.execute_on(0).put(channel, 4).wait()
    took, item = rollout.execute_on(0).get_nowait(channel).wait()[0]
    assert took >= DELAY_S
    assert item[1] == 0
    took, items = rollout.execute_on(0).get_batch(channel, 2).wait()[0]
    assert took >= DELAY_S
    assert [item[1] for item in items] == [1, 2]
    assert rollout.execute_on(0).get_leased(channel).wait() == [3]
    with pytest.raises(ChannelEmpty):
        channel.get_nowait()


def test_a_get_without_time_for_the_way_takes_nothing(start):
    env, rollout = start(link("channel/obs", "Rollout:0", 500))
    channel = Channel.create("obs")
    env.execute_on(0).put(channel, 3).wait()
    for timeout in (0.1, 0.2):
        with pytest.raises(ShoalTimeoutError, match=f"get: .*'obs'.* within {timeout:g} s"):
            rollout.execute_on(0).get(channel, timeout=timeout).wait()
    assert channel.qsize() == 3
    assert numbers(rollout.execute_on(0).get(channel, 3, 30).wait()[0]) == [0, 1, 2]


@pytest.mark.parametrize("async_op", [False, True], ids=["put", "async put"])
def test_a_put_without_time_for_the_way_puts_nothing(start, async_op):
    env, _ = start(link("Env:0", "channel/obs", 60_000))
    channel = Channel.create("obs")
    with pytest.raises(ShoalTimeoutError, match=r"nothing arrived within 0\.1 s over the link"):
        env.execute_on(0).put(channel, async_op=async_op, timeout=0.1).wait()
    assert channel.empty()


def test_the_policy_of_a_full_channel_holds_at_the_arrival(start):
    env, rollout = start(link("Env:0", "channel/obs"))
    channel = Channel.create("obs", maxsize=1)
    env.execute_on(0).put_nowait(channel).wait()
    with pytest.raises(ChannelFull):
        env.execute_on(0).put_nowait(channel).wait()
    puts = env.execute_on(0).put(channel)
    assert numbers(rollout.execute_on(0).get(channel, 2).wait()[0]) == [0, 0]
    puts.wait()


def test_a_put_on_its_way_can_be_cancelled(start):
    env, rollout = start(link("Env:0", "channel/obs", 1500))
    channel = Channel.create("obs")
    assert env.execute_on(0).cancel(channel).wait() == [True]
    assert numbers(rollout.execute_on(0).get(channel).wait()[0]) == [1]
    assert channel.empty()


def test_keys_do_not_wait_for_each_other(start):
    start(link("Env:0", "channel/obs", 60_000))
    channel = Channel.create("obs")
    channel.put("from the driver", key="k")
    assert channel.get(key="k", timeout=30) == "from the driver"


def test_links_between_nodes_hold_for_channels():
    cfg = section(link("node:0", "node:1"), num_nodes=2)
    with local_cluster(cluster_cfg=cfg) as cluster:
        env = Env.create_group().launch(cluster, NodePlacementStrategy([0, 1]), "EnvGroup")
        rollout = Rollout.create_group().launch(cluster, NodePlacementStrategy([1, 0]), "Rollout")
        channel = Channel.create("x", node_rank=1)
        assert env.execute_on(0).put(channel).wait()[0] >= DELAY_S
        env.execute_on(1).put(channel).wait()
        assert len(rollout.execute_on(0).get(channel).wait()[0]) == 1
        assert rollout.execute_on(1).get(channel).wait()[0][0][0] >= DELAY_S


def test_bandwidth_of_a_channel():
    cfg = section(link("driver:0", "channel/x", 0), **{"channel/x": 8})
    with local_cluster(cluster_cfg=cfg):
        channel = Channel.create("x")
        begin = time.monotonic()
        works = [channel.put(bytes(100_000), async_op=True) for _ in range(3)]
        for place, work in enumerate(works, 1):
            work.wait(timeout=30)
            assert time.monotonic() - begin >= 0.1 * place
        assert [len(channel.get(timeout=30)) for _ in works] == [100_000] * 3
        begin = time.monotonic()
        channel.put({1j, (1, 2), bytes(100_000)})  # only its pickle has a size
        assert time.monotonic() - begin >= 0.1
        channel.put(bytes(100_000))
        begin = time.monotonic()
        assert len(channel.get(timeout=30)) == 3
        assert time.monotonic() - begin >= 0.1


def test_a_reservation_is_put_over_the_link():
    numpy = pytest.importorskip("numpy")
    cfg = section(link("driver:0", "channel/x"))
    with local_cluster(cluster_cfg=cfg):
        channel = Channel.create("x")
        begin = time.monotonic()
        with channel.reserve(4, "float32") as array:
            array[:] = 7
        assert time.monotonic() - begin >= DELAY_S
        assert numpy.array_equal(channel.get(timeout=30), [7, 7, 7, 7])


def test_the_time_of_items_on_their_way_is_no_stall(start):
    env, rollout = start(link("Env:0", "channel/obs", 1500))
    channel = Channel.create("obs")
    gets = rollout.execute_on(0).get(channel)
    env.execute_on(0).put(channel).wait()
    assert numbers(gets.wait()[0]) == [0]
