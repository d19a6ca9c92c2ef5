"""Channels behind emulated links, on a local cluster; `tests/channel` has more about their calls."""

import contextlib
import time

import pytest

from shoal import Channel, NodePlacementStrategy, Worker
from shoal.errors import ChannelFull
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
    def put(self, channel, count=1, async_op=False):
        begin = time.monotonic()
        works = [
            channel.put((time.monotonic(), number), async_op=async_op) for number in range(count)
        ]
        took = time.monotonic() - begin
        for work in works if async_op else ():
            work.wait(timeout=30)
        return took

    def put_many(self, channel, count):
        begin = time.monotonic()
        channel.put_many([(begin, number) for number in range(count)])
        return time.monotonic() - begin

    def put_nowait(self, channel):
        channel.put_nowait((time.monotonic(), 0))

    def cancel(self, channel):
        work = channel.put((time.monotonic(), 0), async_op=True)
        channel.put((time.monotonic(), 1), async_op=True).wait(timeout=30) if work.cancel() else 0
        return work.future.cancelled()


class Rollout(Worker):
    def get(self, channel, count=1):
        found = []
        for _ in range(count):
            sent, number = channel.get()
            found.append((time.monotonic() - sent, number))
        return found


@pytest.fixture
def start():
    """Start a local cluster with groups `EnvGroup` and `RolloutGroup` of two workers each."""

    def make(*links, **rates):
        made = clusters.enter_context(local_cluster(cluster_cfg=section(*links, **rates)))
        two = NodePlacementStrategy([0, 0])
        env = Env.create_group().launch(made, two, "EnvGroup")
        return env, Rollout.create_group().launch(made, two, "RolloutGroup")

    with contextlib.ExitStack() as clusters:
        yield make


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


def test_several_puts_in_one_call(start):
    env, rollout = start(link("Env:0", "channel/obs"))
    channel = Channel.create("obs")
    assert env.execute_on(0).put_many(channel, 20).wait()[0] >= DELAY_S
    assert numbers(rollout.execute_on(0).get(channel, 20).wait()[0]) == list(range(20))


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


def test_the_time_of_items_on_their_way_is_no_stall(start):
    env, rollout = start(link("Env:0", "channel/obs", 1500))
    channel = Channel.create("obs")
    gets = rollout.execute_on(0).get(channel)
    env.execute_on(0).put(channel).wait()
    assert numbers(gets.wait()[0]) == [0]
