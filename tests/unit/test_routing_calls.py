"""Routing with `send_to` and `recv_from` in fixed mode, by channel and from worker to worker."""

import asyncio
import concurrent.futures
import gc
import threading
from collections import defaultdict, deque
from functools import partial

import numpy as np
import pytest

from shoal import Channel
from shoal.errors import ShoalTimeoutError, ShoalValueError
from shoal.loop import submit
from shoal.work import AsyncRouteWork
from support.last_references import check_that_its_caller_is_freed
from support.routing_doubles import Manager, Peer, Plain, peers

PREFIX = ("scheduler_route", "env", "rollout")
BACK = ("scheduler_route", "rollout", "env")


@pytest.fixture
def manager():
    return Manager(env=4, rollout=2)


@pytest.fixture
def env(manager):
    return peers(manager, "env")


@pytest.fixture
def rollout(manager):
    return peers(manager, "rollout")


@pytest.fixture(params=["plain", "local"])
def channel(request):
    """A channel with only what routing needs, and one with leases and deadlines."""
    return Plain() if request.param == "plain" else Channel.create("routes", local=True)


@pytest.fixture
def local():
    return Channel.create("routes", local=True)


def observations(rank):
    return np.array([10 * rank, 10 * rank + 1])


def send_all(env, channel, rounds=1, **options):
    for step in range(rounds):
        for peer in env:
            peer.send_to("rollout", channel, observations(peer._rank) + 100 * step, **options)


def receive_rounds(rollout, channel, **options):
    """Receive the two rounds that two environments sent; nothing was lost or mixed."""
    for step in (0, 100):
        received = rollout[0].recv_from("env", channel, batch_size=8, **options)
        assert (received - step).tolist() == [0, 1, 10, 11]


# The table of the contract.


def test_sources_put_under_the_keys_of_their_destinations(env):
    channel = Plain()
    send_all(env, channel, route_key=1, tag="obs")
    assert [(key, [list(item) for item in items]) for key, items in channel.held().items()] == [
        ((*PREFIX, "obs", "1", 0, 0), [[0, 1]]),
        ((*PREFIX, "obs", "1", 1, 0), [[10, 11]]),
        ((*PREFIX, "obs", "1", 2, 1), [[20, 21]]),
        ((*PREFIX, "obs", "1", 3, 1), [[30, 31]]),
    ]


@pytest.mark.parametrize("batch_size", [8, None])
def test_destinations_receive_their_block(env, rollout, channel, batch_size):
    names = {"route_key": 1, "tag": "obs"}
    send_all(env, channel, **names)
    for rank, rows in enumerate([[0, 1, 10, 11], [20, 21, 30, 31]]):
        received = rollout[rank].recv_from("env", channel, batch_size=batch_size, **names)
        assert received.tolist() == rows


def test_a_list_is_split_for_its_destinations(rollout):
    channel = Plain()
    rollout[1].send_to("env", channel, [0, 1, 2, 3], tag="a")
    assert channel.held() == {
        (*BACK, "a", "", 1, 2): [[0, 1]],
        (*BACK, "a", "", 1, 3): [[2, 3]],
    }


@pytest.mark.parametrize(
    ("mode", "tag", "joined"),
    [
        ("train", "obs", "train_obs"),
        (None, "obs", "obs"),
        ("", "obs", "obs"),
        ("train", None, "train_default"),
        (None, None, "default"),
    ],
)
def test_the_tag_of_a_key_starts_with_the_mode(env, rollout, mode, tag, joined):
    channel = Plain()
    send_all(env[:2], channel, mode=mode, tag=tag)
    assert [key[3] for key in channel.held()] == [joined, joined]
    received = rollout[0].recv_from("env", channel, tag=joined, batch_size=8)
    assert received.tolist() == [0, 1, 10, 11]


def test_point_to_point_sends_to_each_peer_in_the_order_of_the_plan(rollout):
    rollout[0].send_to("env", None, [0, 1, 2, 3], enable_p2p=True, options="options")
    assert rollout[0].sent == [
        ([0, 1], "env", 0, "options"),
        ([2, 3], "env", 1, "options"),
    ]


def test_point_to_point_in_both_directions(manager, done):
    mailboxes = defaultdict(deque)
    env = [Peer(manager, "env", rank, mailboxes) for rank in range(4)]
    rollout = [Peer(manager, "rollout", rank, mailboxes) for rank in range(2)]
    options = {"enable_p2p": True, "tag": "obs", "route_key": 2}
    for peer in env:
        assert done(peer.send_to, "rollout", None, observations(peer._rank), **options) is None
    received = done(rollout[1].recv_from, "env", None, batch_size=8, **options)
    assert received.tolist() == [20, 21, 30, 31]


def test_functions_of_the_user_replace_the_defaults(env, rollout):
    channel = Plain()

    def halves(data, sizes):
        assert sizes == [2]
        return [data.upper()]

    for peer in env:
        peer.send_to("rollout", channel, f"{peer._rank}x", batch_size=8, split_fn=halves)
    received = rollout[0].recv_from(
        "env", channel, batch_size=8, merge_fn="".join, infer_batch_size_fn=len
    )
    assert received == "0X1X"


def test_merge_fn_is_called_for_one_piece_too(manager):
    channel = Plain()
    manager.sizes = {"a": 1, "b": 1}
    Peer(manager, "a", 0).send_to("b", channel, [1])
    received = Peer(manager, "b", 0).recv_from("a", channel, batch_size=1, merge_fn=tuple)
    assert received == ([1],)


def test_no_message_is_sent_without_rows(env, rollout, done):
    channel = Plain()
    sent = done(env[0].send_to, "rollout", channel, [])
    received = done(rollout[0].recv_from, "env", channel, batch_size=0)
    assert (sent, received, channel.held()) == (None, None, {})


# Asynchronous calls.


def test_asynchronous_calls(env, rollout, channel):
    works = [
        peer.send_to("rollout", channel, observations(peer._rank), async_op=True) for peer in env
    ]
    assert [type(work) for work in works] == [AsyncRouteWork] * 4
    assert [work.wait(timeout=10) for work in works] == [None] * 4
    work = rollout[0].recv_from("env", channel, async_op=True)
    assert isinstance(work, AsyncRouteWork)
    assert work.wait(timeout=10).tolist() == [0, 1, 10, 11]
    assert work.wait(timeout=10) is work.wait(timeout=10)
    assert work.done()


def test_an_asynchronous_receive_waits_for_all_pieces_at_once(env, rollout, local):
    work = rollout[0].recv_from("env", local, batch_size=8, async_op=True)
    keys = [(*PREFIX, "default", "", rank, 0) for rank in range(2)]
    assert [local.stats(key).waiting_consumers for key in keys] == [1, 1]
    env[1].send_to("rollout", local, observations(1))
    assert not work.done()
    env[0].send_to("rollout", local, observations(0))
    assert work.wait(timeout=10).tolist() == [0, 1, 10, 11]


def test_an_asynchronous_receive_is_awaited(env, rollout, local):
    async def main():
        waiting = asyncio.ensure_future(
            rollout[0].recv_from("env", local, batch_size=8, async_op=True).async_wait()
        )
        await asyncio.sleep(0)
        for peer in env[:2]:
            await peer.send_to("rollout", local, observations(peer._rank), async_op=True)
        return await waiting

    assert asyncio.run(main()).tolist() == [0, 1, 10, 11]


def test_pieces_are_joined_once_and_in_the_thread_that_waits(env, rollout, local):
    threads = []

    def join(items):
        threads.append(threading.current_thread())
        return items

    work = rollout[0].recv_from("env", local, batch_size=8, merge_fn=join, async_op=True)
    send_all(env[:2], local)
    assert len(work.wait(timeout=10)) == 2
    assert len(work.wait(timeout=10)) == 2
    assert threads == [threading.current_thread()]


# Arguments that contradict each other.


@pytest.mark.parametrize(("call", "data"), [("send_to", [[1, 2]]), ("recv_from", [])])
def test_a_channel_is_required(env, call, data):
    with pytest.raises(ValueError, match="requires ``channel`` when enable_p2p is False") as caught:
        getattr(env[3], call)("rollout", None, *data)
    assert str(caught.value).startswith(f"env:3: {call} 'rollout': ")


def test_an_unknown_group_is_named(env):
    for call, data in ((env[0].send_to, [[1, 2]]), (env[0].recv_from, [])):
        with pytest.raises(ValueError, match="Worker group 'other' is not registered"):
            call("other", Plain(), *data, batch_size=8)


def test_a_deadline_holds_for_all_pieces(env, rollout, local):
    env[0].send_to("rollout", local, observations(0), timeout=30)
    for _ in range(2):
        with pytest.raises(ShoalTimeoutError, match=r"0\.0\d* s"):
            rollout[0].recv_from("env", local, batch_size=8, timeout=0.05)
    late = partial(rollout[0].recv_from, "env", local, batch_size=8, timeout=0.05, async_op=True)
    check_that_its_caller_is_freed(ShoalTimeoutError, lambda: late().wait(10))
    check_that_its_caller_is_freed(ShoalTimeoutError, lambda: late().async_wait(), awaits=True)


def test_a_deadline_that_the_channel_cannot_keep_is_an_error(env):
    for call, data in ((env[0].send_to, [[1, 2]]), (env[0].recv_from, [])):
        with pytest.raises(ShoalValueError, match="takes no timeout"):
            call("rollout", Plain(), *data, batch_size=8, timeout=1)


# No row is lost.


@pytest.mark.parametrize("make", [list, np.array])
@pytest.mark.parametrize("batch_size", [4, 16])
def test_a_batch_size_other_than_all_rows_sends_nothing(rollout, make, batch_size):
    channel = Plain()
    with pytest.raises(ShoalValueError) as caught:
        rollout[1].send_to("env", channel, make([0, 1, 2, 3]), tag="a", batch_size=batch_size)
    assert f"batch_size={batch_size} is {batch_size // 2} rows" in str(caught.value)
    assert "its data has 4" in str(caught.value)
    assert channel.held() == {}
    rollout[1].send_to("env", channel, make([0, 1, 2, 3]), batch_size=8)
    assert sum(len(items[0]) for items in channel.held().values()) == 4


def test_rows_that_the_other_group_cannot_share_are_an_error(manager, env):
    manager.sizes["rollout"] = 8
    with pytest.raises(AssertionError, match=r"batch_size \(12\) must be divisible by .* \(8\)"):
        env[0].send_to("rollout", Plain(), [1, 2, 3])


def test_a_split_fn_that_leaves_a_piece_out_is_an_error(rollout):
    channel = Plain()
    with pytest.raises(ShoalValueError, match="split_fn returned 1 pieces"):
        rollout[0].send_to("env", channel, [1, 2], split_fn=lambda data, sizes: [data])
    with pytest.raises(ShoalValueError, match="split_fn returned a NoneType: expected a list"):
        rollout[0].send_to("env", channel, [1, 2], split_fn=lambda data, sizes: None)
    assert channel.held() == {}


def test_data_whose_rows_cannot_be_counted_needs_a_batch_size(rollout):
    with pytest.raises(ShoalValueError, match="or pass batch_size="):
        rollout[0].send_to("env", Plain(), (1, 2), split_fn=lambda data, _: data)
    channel = Plain()
    rollout[0].send_to("env", channel, (1, 2), split_fn=lambda data, _: data, batch_size=4)
    assert list(channel.held().values()) == [[1], [2]]


@pytest.mark.parametrize("batch_size", [8, None])
def test_numbers_and_texts_before_the_rows_belong_to_every_row(env, rollout, batch_size, done):
    channel = Plain()
    for peer in env:
        batch = {"task": "pick", "at": {"step": 3, "mask": None}, "obs": [peer._rank, 9]}
        peer.send_to("rollout", channel, batch, batch_size=batch_size)
    received = done(rollout[1].recv_from, "env", channel, batch_size=8)
    assert received == {"task": "pick", "at": {"step": 3, "mask": None}, "obs": [2, 9, 3, 9]}
    with pytest.raises(ShoalValueError, match=r"Expected batch size 4, but received 2\."):
        rollout[0].recv_from("env", channel, batch_size=16)


def test_a_dict_without_rows_needs_a_batch_size_and_each_piece_is_a_copy(env):
    channel = Plain()
    batch = {"task": "pick", "mask": None}
    with pytest.raises(ShoalValueError, match=r"a dict with the keys \['task', 'mask'\]"):
        env[0].send_to("rollout", channel, batch)
    with pytest.raises(ShoalValueError, match=r"tuple \(data\['obs'\]\)"):
        env[0].send_to("rollout", channel, {"obs": (1, 2)}, batch_size=8)
    assert channel.held() == {}
    env[0].send_to("rollout", channel, batch, batch_size=8)
    assert list(channel.held().values()) == [[batch]]


def test_a_wrong_size_loses_no_item_and_keeps_the_order(env, rollout, channel, done):
    send_all(env, channel, rounds=3)
    text = r"from env:2: Expected batch size 4, but received 2\."
    for _ in range(2):
        with pytest.raises(ValueError, match=text):
            done(rollout[1].recv_from, "env", channel, batch_size=16)
    for step in (0, 100, 200):
        received = done(rollout[1].recv_from, "env", channel, batch_size=8)
        assert (received - step).tolist() == [20, 21, 30, 31]


def test_a_failed_merge_loses_no_item(env, rollout, channel, done):
    send_all(env, channel, rounds=2)

    def fail(_):
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose") as caught:
        done(rollout[0].recv_from, "env", channel, batch_size=8, merge_fn=fail)
    assert "not lost" in caught.value.__notes__[0]
    receive_rounds(rollout, channel)


def test_a_peer_that_is_late_does_not_mix_two_rounds_of_another(env, rollout, local, done):
    send_all(env[:1], local, rounds=2)
    for _ in range(2):
        with pytest.raises(ShoalTimeoutError):
            done(rollout[0].recv_from, "env", local, batch_size=8, timeout=0.05)
    send_all(env[1:2], local, rounds=2)
    receive_rounds(rollout, local, timeout=10)


def test_a_cancelled_receive_keeps_the_items(env, rollout, local):
    send_all(env[:1], local, rounds=2)

    async def give_up():
        work = rollout[0].recv_from("env", local, batch_size=8, async_op=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work.async_wait(), 0.05)
        with pytest.raises(concurrent.futures.CancelledError):
            work.wait(timeout=10)

    asyncio.run(give_up())
    send_all(env[1:2], local, rounds=2)
    receive_rounds(rollout, local, timeout=10)


@pytest.mark.parametrize("way", ["abandoned", "dropped"])
def test_an_unused_receive_keeps_the_items(env, rollout, channel, way):
    send_all(env[:2], channel, rounds=2)
    work = rollout[0].recv_from("env", channel, batch_size=8, async_op=True)
    assert work.future.exception(10) is None
    if way == "abandoned":
        work.abandon()
        with pytest.raises(concurrent.futures.CancelledError, match="given up"):
            work.wait(timeout=10)
    else:
        del work
        gc.collect()
        submit(asyncio.sleep(0)).result(10)  # the finalizer's task has run by now
    receive_rounds(rollout, channel)


def test_a_received_item_is_acknowledged_and_a_kept_one_is_not(env, rollout, local):
    leases = []
    take = local.get

    def get(**options):
        leases.append(take(**options))
        return leases[-1]

    acknowledged = []
    local.get = get
    send_all(env[:1], local)
    with pytest.raises(ShoalTimeoutError):
        rollout[0].recv_from("env", local, batch_size=8, timeout=0)
    (lease,) = leases
    lease.ack = lambda: acknowledged.append(lease)
    send_all(env[1:2], local)
    received = rollout[0].recv_from("env", local, batch_size=8, timeout=10)
    assert received.tolist() == [0, 1, 10, 11]
    assert acknowledged == [lease]
    assert len(leases) == 2


def test_a_receipt_that_does_not_arrive_does_not_lose_the_batch(env, rollout, local, caplog):
    take = local.get

    def broken():
        raise ShoalTimeoutError("the host is gone on purpose")

    def get(**options):
        lease = take(**options)
        lease.ack = broken
        return lease

    local.get = get
    send_all(env[:2], local)
    assert rollout[0].recv_from("env", local, batch_size=8).tolist() == [0, 1, 10, 11]
    assert "may be delivered twice" in caplog.text


def test_a_failed_send_names_the_number_of_sent_pieces(rollout):
    class Second(Plain):
        def put(self, item, key, async_op=False):
            self.failures = len(self.queues) == 1
            super().put(item, key)

    channel = Second()
    with pytest.raises(OSError, match="on purpose") as caught:
        rollout[0].send_to("env", channel, [1, 2])
    assert caught.value.__notes__ == ["1 of the 2 pieces of this batch were sent before"]
    with pytest.raises(OSError, match="on purpose"):
        rollout[0].send_to("env", Second(), [1, 2], async_op=True).wait(timeout=10)


# From worker to worker, kinds of messages are told apart.


def test_a_message_with_another_tag_is_refused(manager, done):
    mailboxes = defaultdict(deque)
    manager.sizes = {"a": 1, "b": 1}
    sender = Peer(manager, "a", 0, mailboxes)
    receiver = Peer(manager, "b", 0, mailboxes)

    def receive(**options):
        return done(receiver.recv_from, "a", None, enable_p2p=True, batch_size=1, **options)

    sender.send_to("b", None, ["plain"], enable_p2p=True)
    sender.send_to("b", None, ["x"], enable_p2p=True, tag="x", mode="m")
    sender.send_to("b", None, ["y"], enable_p2p=True, tag="x", route_key=1)
    with pytest.raises(
        ShoalValueError, match=r"a:0 has no tag and no route_key, .* expects tag 'm_x'"
    ):
        receive(tag="m_x")
    assert receive() == ["plain"]
    with pytest.raises(ShoalValueError, match=r"has tag 'm_x', .*expects tag 'x', route_key '1'"):
        receive(tag="x", route_key=1)
    assert receive(tag="m_x") == ["x"]
    assert receive(tag="x", route_key=1) == ["y"]


# The manager is asked once.


def test_the_size_of_a_group_is_looked_up_once(manager, env, rollout, channel):
    for _ in range(5):
        send_all(env, channel)
        for peer in rollout:
            peer.recv_from("env", channel, batch_size=8)
    assert sorted(manager.asked) == sorted(["rollout:0"] * 4 + ["env:0"] * 2)


def test_the_size_of_a_group_is_looked_up_again_after_an_error(manager, env):
    channel = Plain()
    env[0].send_to("rollout", channel, [1, 2])
    manager.sizes["rollout"] = 8
    channel.failures = 1
    with pytest.raises(OSError, match="on purpose"):
        env[0].send_to("rollout", channel, [1, 2])
    channel.queues.clear()
    env[0].send_to("rollout", channel, [1, 2])
    assert {key[5:] for key in channel.held()} == {(0, 0), (0, 1)}
