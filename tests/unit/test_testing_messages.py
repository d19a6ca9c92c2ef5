"""`shoal.testing`: channels, messages between ranks, and waits that can never end."""

import re
import threading
import time

import numpy as np
import pytest

from shoal import Channel, NodePlacementStrategy, Worker, WorkerAddress
from shoal.channel.create import node_of_worker
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelEmpty,
    ChannelExistsError,
    ChannelFull,
    ChannelNotFoundError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
    TransportError,
    WorkerGroupError,
)
from shoal.testing import StalledError, local_cluster

TWO = NodePlacementStrategy([0] * 2)


class Peer(Worker):
    """Sends and receives as it is told."""

    def put(self, name, *items):
        channel = Channel.connect(name)
        for item in items:
            channel.put(item)

    def get(self, channel, timeout=None):
        return channel.get(timeout=timeout)

    def create(self, name):
        return self.create_channel(name, maxsize=4)

    def exchange(self, item):
        other = 1 - self._rank
        work = self.send(item, "peers", other, async_op=True)
        found = self.recv("peers", other)
        work.wait()
        return found

    def send_many(self, count):
        if self._rank == 0:
            for number in range(count):
                self.send(number, "peers", 1)
            return None
        return [self.recv("peers", 0) for _ in range(count)]

    def send_one(self, item):
        self.send(item, "peers", 1 - self._rank)

    def receive(self, timeout=None):
        return self.recv("peers", 1 - self._rank, timeout=timeout)

    def receive_later(self, timeout=None):
        return self.recv("peers", 1 - self._rank, async_op=True, timeout=timeout).wait()

    def receive_absent(self):
        return self.recv("absent", 0)

    def group_with(self, rank):
        members = [self.worker_address, WorkerAddress("peers", [rank])]
        return self._collective.create_collective_group(members)

    def start(self, method, *args, **options):
        return getattr(self, method)(*args, **options)

    def start_and_wait(self, method, *args):
        return getattr(self, method)(*args, async_op=True).wait()

    def send_without_reader(self):
        for number in range(20):
            self.send(number, "peers", 1 - self._rank)

    def tensors(self, shape):
        import torch

        if self._rank == 0:
            self.send_tensor(torch.ones(2, 3), "peers", 1)
            return None
        into = torch.zeros(shape)
        self.recv_tensor(into, "peers", 0)
        return into

    def mix(self):
        import torch

        if self._rank == 0:
            self.send("text", "peers", 1)
            return None
        return self.recv_tensor(torch.zeros(1), "peers", 0)

    def share(self, item):
        mine = item if self._rank == 0 else None
        return self.broadcast(mine, groups=[("peers", [0, 1])], src=("peers", 0))

    def start_broadcast(self, groups, **options):
        self.broadcast(1, groups, **options)

    def send_lock(self):
        self.send(threading.Lock(), "peers", 1 - self._rank)


@pytest.fixture
def peers(cluster):
    return Peer.create_group().launch(cluster, TWO, name="peers")


# Channels.


def test_a_channel_is_found_by_its_name_and_by_its_handle(cluster, peers):
    channel = Channel.create("queue")
    peers.execute_on(0).put("queue", 1, 2).wait()
    assert peers.execute_on(1).get(channel).wait() == [1]
    assert channel.get() == 2
    (made,) = peers.execute_on(0).create("of a worker").wait()
    assert made.name == "of a worker"
    assert Channel.connect("of a worker").maxsize == 4
    made.put("item")
    assert Channel.connect("of a worker").qsize() == 1


def test_items_are_copied(cluster):
    channel = Channel.create("queue")
    item = {"array": np.zeros(100_000), "list": [1]}
    channel.put(item)
    item["list"].append(2)
    assert channel.peek_all()[0].item["list"] == [1]
    found = channel.get()
    assert found["list"] == [1]
    found["array"][0] = 1.0  # it is writable, and the receiver's own
    assert item["array"][0] == 0.0


def test_an_item_that_cannot_be_pickled_is_refused(cluster):
    channel = Channel.create("queue")
    for put in (channel.put, channel.put_nowait, lambda item: channel.put(item, async_op=True)):
        with pytest.raises(ShoalValueError, match="cannot be sent"):
            put(threading.Lock())
    assert channel.empty()


def test_bounds_weights_leases_and_policies_are_those_of_channels(cluster):
    channel = Channel.create("queue", maxsize=2)
    channel.put_many(["a", "b"], weights=[1, 2])
    with pytest.raises(ChannelFull, match="the channel 'queue'"):
        channel.put_nowait("c")
    assert channel.get_batch(target_weight=3) == ["a", "b"]
    with pytest.raises(ChannelEmpty):
        channel.get_nowait()
    channel.put(["leased"])
    with pytest.raises(KeyError), channel.get(lease=True) as lease:
        raise KeyError
    lease.give_back()
    assert channel.get() == ["leased"]
    newest = Channel.create("newest", maxsize=1, policy="keep_latest")
    newest.put(1)
    newest.put(2)
    assert newest.drain() == [2]


def test_a_name_of_another_channel_or_group_is_refused(cluster, peers):
    Channel.create("queue", maxsize=1)
    assert Channel.create("queue", maxsize=1).maxsize == 1
    with pytest.raises(ChannelExistsError, match=r"maxsize=1 \(asked for: 2\)"):
        Channel.create("queue", maxsize=2)
    for use in (Channel.create, Channel.connect):
        with pytest.raises(ChannelExistsError, match="'peers' is the name of a worker group"):
            use("peers")
    with pytest.raises(ShoalValueError, match="node 3 does not exist"):
        Channel.create("elsewhere", node_rank=3)


def test_a_missing_channel_is_not_found(cluster):
    with pytest.raises(ChannelNotFoundError, match="no channel 'queue'"):
        Channel.connect("queue")
    with pytest.raises(ChannelNotFoundError, match=r"within 0\.1 s"):
        Channel.connect("queue", timeout=0.1)


def test_a_worker_waits_for_a_channel_to_appear(cluster, peers):
    timer = threading.Timer(0.2, lambda: Channel.create("late").put("item"))
    timer.start()
    assert Channel.connect("late", timeout=30).get() == "item"
    timer.join()


def test_the_name_of_a_closed_channel_is_free_once_it_is_empty(cluster):
    channel = Channel.create("queue")
    channel.put(1)
    channel.close()
    with pytest.raises(ChannelExistsError, match="closed and still holds items"):
        Channel.create("queue")
    assert channel.get() == 1
    with pytest.raises(ChannelClosed):
        channel.get()
    assert Channel.create("queue").empty()


# Messages.


def test_ranks_exchange_objects(peers):
    item = {"array": np.arange(3)}
    for found in peers.exchange(item).wait():
        assert found["array"].tolist() == [0, 1, 2]


class Fails(Worker):
    def __init__(self):
        super().__init__()
        raise ValueError("constructor")


def test_the_end_of_a_group_leaves_the_messages_to_the_others(cluster, peers):
    peers.execute_on(0).send_one("early").wait()
    with pytest.raises(ValueError, match="constructor"):
        Fails.create_group().launch(cluster, name="failed").ready()
    Peer.create_group().launch(cluster, name="other", wait=True).close()
    assert peers.execute_on(1).receive().wait() == ["early"]
    assert peers.exchange(7).wait() == [7, 7]


def test_more_messages_than_the_bound_arrive_in_order(peers):
    assert peers.send_many(40).wait() == [None, list(range(40))]


def test_a_broadcast_gives_each_member_a_copy(peers):
    assert peers.share([1, 2]).wait() == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("groups", "kwargs", "kind", "text"),
    [
        (None, {}, ShoalValueError, "groups is missing"),
        ([], {}, ShoalValueError, "empty"),
        ([("peers", [])], {}, ShoalValueError, "the list of ranks is empty"),
        ([("others", [0, 1])], {}, ShoalValueError, "peers:0 is not a member"),
        ([("peers", [0, 0])], {}, ShoalValueError, "names peers:0 twice"),
        ("peers", {}, ShoalTypeError, "groups='peers'"),
        ([("peers", "0")], {}, ShoalTypeError, "groups[0]"),
        ([(1, [0])], {}, ShoalTypeError, "text"),
        (
            [("peers", [0, 1])],
            {"src": ("peers", 5)},
            ShoalValueError,
            "expected one of the members",
        ),
        ([("peers", [0, 1])], {"options": "fast"}, ShoalTypeError, "CollectiveGroupOptions"),
    ],
)
def test_a_broadcast_of_another_form_is_an_error(peers, groups, kwargs, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        peers.execute_on(0).start_broadcast(groups, **kwargs).wait()


def test_tensors_are_checked_as_between_processes(peers):
    torch = pytest.importorskip("torch")
    assert torch.equal(peers.tensors((2, 3)).wait()[1], torch.ones(2, 3))
    with pytest.raises(WorkerGroupError) as caught:
        peers.tensors((3, 2)).wait()
    (error,) = caught.value.exceptions
    assert isinstance(error, TransportError)
    assert re.search(r"\(2, 3\).*\(3, 2\)|\(3, 2\).*\(2, 3\)", str(error))


def test_an_object_is_not_received_as_a_tensor(peers):
    pytest.importorskip("torch")
    with pytest.raises(WorkerGroupError) as caught:
        peers.mix().wait()
    assert isinstance(caught.value.exceptions[0], TransportError)


def test_a_message_that_cannot_be_pickled_is_an_error_of_the_sender(peers):
    with pytest.raises(ShoalValueError, match="cannot be sent"):
        peers.execute_on(0).send_lock().wait()


@pytest.mark.parametrize("start", ["start", "start_and_wait"])
@pytest.mark.parametrize(
    ("method", "args", "operation"),
    [
        ("recv", ("peers", 7), "recv from peers:7"),
        ("send", (1, "peers", 7), "send to peers:7"),
        ("recv_tensor", (None, "peers", 7), "recv from peers:7"),
        ("send_tensor", (None, "peers", 7), "send to peers:7"),
        ("broadcast", (1, [("peers", [0, 7])]), "broadcast from peers:0"),
    ],
)
def test_a_rank_that_the_group_does_not_have_is_an_error_at_once(
    peers, start, method, args, operation
):
    if "tensor" in method:
        zeros = pytest.importorskip("torch").zeros(1)
        args = tuple(zeros if arg is None else arg for arg in args)
    with pytest.raises(ShoalValueError, match="the group peers has ranks 0-1") as caught:
        getattr(peers.execute_on(0), start)(method, *args).wait()
    assert f": {operation}" in str(caught.value)
    assert peers.share(1).wait() == [1, 1]  # the ranks go on


def test_a_collective_group_with_a_rank_that_does_not_exist_is_an_error_at_once(peers):
    with pytest.raises(ShoalValueError, match="the group peers has ranks 0-1"):
        peers.execute_on(0).group_with(7).wait()


def test_a_channel_beside_a_rank_that_the_group_does_not_have_is_an_error_at_once(peers):
    assert node_of_worker("peers", 1, Deadline(60)) == 0
    with pytest.raises(ShoalValueError, match="no worker 'peers:7': the group peers has ranks 0-1"):
        node_of_worker("peers", 7, Deadline(60))


# Waits.


def test_a_wait_for_an_unknown_group_names_those_there_are(peers):
    says = "(it never registered) within 0.1 s; no group pears was launched; there is peers; did"
    with pytest.raises(ShoalTimeoutError, match=re.escape(says)):
        peers.execute_on(0).start("recv", "pears", 0, timeout=0.1).wait()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("method", "limit"), [("receive", 0.2), ("receive_later", 0.2), ("receive", 2)]
)
def test_a_wait_with_a_deadline_ends_there_and_is_not_a_stall(peers, method, limit):
    begin = time.monotonic()
    with pytest.raises(ShoalTimeoutError, match=f"no answer from peers:1 within {limit}") as caught:
        getattr(peers.execute_on(0), method)(limit).wait()
    assert not isinstance(caught.value, StalledError)
    assert time.monotonic() - begin >= limit


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("receive", "recv from peers:1"),
        ("receive_absent", "absent:0, which is not registered yet (no group absent was launched"),
        ("send_without_reader", "send to peers:1"),
    ],
)
def test_a_wait_for_an_idle_rank_is_a_stall(peers, method, says):
    with pytest.raises(StalledError, match=re.escape(says)):
        getattr(peers.execute_on(0), method)().wait()
    assert peers.share(1).wait() == [1, 1]  # the ranks go on


def test_a_get_that_cannot_end_is_a_stall(cluster, peers):
    channel = Channel.create("queue")
    with pytest.raises(StalledError, match="waits for an item in the channel 'queue'"):
        peers.execute_on(0).get(channel).wait()
    with pytest.raises(StalledError, match="driver"):
        channel.get()
    channel.put("not lost")
    assert channel.get() == "not lost"


def test_a_wait_that_a_rank_will_end_is_not_a_stall(cluster):
    class Slow(Worker):
        def put_later(self, channel, seconds):
            time.sleep(seconds)
            channel.put("item")

        def take(self, channel):
            return channel.get()

    channel = Channel.create("queue")
    group = Slow.create_group().launch(cluster, TWO)
    taken = group.execute_on(0).take(channel)
    group.execute_on(1).put_later(channel, 1.0)
    assert taken.wait() == ["item"]


@pytest.mark.nightly
def test_a_batch_that_settles_for_less_after_its_linger_is_not_a_stall(cluster):
    channel = Channel.create("queue")
    channel.put("alone", weight=1)
    assert channel.get_batch(5, min_weight=1, linger=1.5) == ["alone"]


@pytest.mark.parametrize("by_thread", [True, False])
def test_a_wait_that_the_test_or_its_thread_will_end_is_not_a_stall(cluster, peers, by_thread):
    channel = Channel.create("queue")
    taken = peers.execute_on(0).get(channel)
    timer = threading.Timer(1.0, channel.put, ["item"])
    if by_thread:
        timer.start()
    else:
        time.sleep(1.0)  # longer than a stall needs to be found
        assert not taken.done()
        channel.put("item")
    assert taken.wait() == ["item"]


def test_the_end_of_a_cluster_ends_the_waits():
    with local_cluster() as cluster:
        group = Peer.create_group().launch(cluster, TWO, name="peers")
        group.receive()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("peers")]
