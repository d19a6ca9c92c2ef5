"""Point-to-point messages and broadcasts between workers of one node, on Ray."""

import asyncio
import dataclasses
import os
import signal
import time

import numpy as np
import pytest

from shoal import NodePlacementStrategy, Worker
from shoal.collective import AsyncCollWork, CollectiveGroupOptions
from shoal.errors import (
    ShoalError,
    TransportError,
)

pytestmark = pytest.mark.ray


@dataclasses.dataclass
class Batch:
    states: np.ndarray
    names: tuple


class Peer(Worker):
    """Sends and receives for the test, over a transport as between nodes if one is given."""

    def __init__(self, transport=""):
        if transport:
            os.environ["SHOAL_TRANSPORT"] = transport
        super().__init__()

    def do(self, method, *args, **kwargs):
        return getattr(self, method)(*args, **kwargs)

    def catch(self, method, *args, **kwargs):
        start = time.monotonic()
        try:
            getattr(self, method)(*args, **kwargs)
        except ShoalError as error:
            names = [cls.__name__ for cls in type(error).__mro__]
            return names, str(error), time.monotonic() - start
        return None

    def pid(self):
        return os.getpid()

    def send_many(self, count, rank):
        works = [self.send(n, "peers", rank, async_op=True) for n in range(count)]
        self.send(count, "peers", rank)
        for work in works:
            work.wait(timeout=30)

    def recv_many(self, count, rank):
        works = [self.recv("peers", rank, async_op=True) for _ in range(count)]
        last = self.recv("peers", rank, timeout=30)
        return [work.wait(timeout=30) for work in works] + [last]

    def cancel_then_recv(self, rank):
        async def give_up():
            try:
                await asyncio.wait_for(self.recv("peers", rank, async_op=True).async_wait(), 0.3)
            except TimeoutError:
                return "gave up"
            return "received"

        gave_up = asyncio.run(give_up())
        self.send("now", "peers", rank)
        return gave_up, self.recv("peers", rank, timeout=30)

    def answer(self, rank):
        self.recv("peers", rank, timeout=30)
        self.send("kept", "peers", rank)

    def start_recv(self, group, rank):
        self._work = self.recv(group, rank, async_op=True)

    def work_error(self):
        start = time.monotonic()
        try:
            self._work.wait(timeout=20)
        except ShoalError as error:
            return type(error).__name__, str(error), time.monotonic() - start
        return None

    def tensors(self, rank, *, sender):
        import torch

        if sender:
            self.send_tensor(torch.arange(6.0).reshape(2, 3), "peers", rank)
            self.send((torch.ones(2), torch.zeros(1)), "peers", rank)
            self.send({"a": torch.ones(300, 300, dtype=torch.bfloat16)}, "peers", rank)
            self.send(torch.ones(3), "peers", rank, piggyback_payload={"step": 1})
            self.send(torch.arange(20.0).reshape(4, 5).t(), "peers", rank)
            return None
        wrong = torch.full((3, 2), 7.0)
        errors = []
        for take in (
            lambda: self.recv_tensor(wrong, "peers", rank),
            lambda: self.recv_tensor(torch.zeros(2, 3, dtype=torch.int64), "peers", rank),
            lambda: self.recv("peers", rank),
        ):
            try:
                take()
            except TransportError as error:
                errors.append(str(error))
        right = torch.zeros(2, 3)
        self.recv_tensor(right, "peers", rank)
        listed = self.recv("peers", rank)
        try:
            self.recv_tensor(right, "peers", rank)
        except TransportError as error:
            errors.append(str(error))
        mapping = self.recv("peers", rank)
        pair = self.recv("peers", rank)
        slanted = self.recv("peers", rank)
        mapping["a"] += 1
        return {
            "errors": errors,
            "wrong untouched": bool((wrong == 7).all()),
            "right": right.flatten().tolist(),
            "listed": (type(listed).__name__, [t.tolist() for t in listed]),
            "sum": float(mapping["a"].float().sum()),
            "pair": (pair[0].tolist(), pair[1]),
            "slanted": slanted[1].tolist(),
        }

    def give(self, value, *args, **kwargs):
        return self.broadcast(
            value if self._rank == kwargs.pop("source", 0) else None, *args, **kwargs
        )

    def give_many(self, count):
        works = [
            self.broadcast(n if self._rank == 0 else None, [("peers", [0, 1])], async_op=True)
            for n in range(count)
        ]
        return AsyncCollWork(works).wait(timeout=60)


@pytest.fixture(scope="module")
def peers(cluster, request):
    group = Peer.create_group(getattr(request, "param", ""))
    group.launch(cluster, NodePlacementStrategy([0, 0]), name="peers", wait=True)
    yield group
    group._close()


def on(group, rank, method, *args, **kwargs):
    return getattr(group.execute_on(rank), method)(*args, **kwargs)


near_and_far = pytest.mark.parametrize("peers", ["", "lane"], ids=["shm", "lane"], indirect=True)


@near_and_far
def test_objects_arrive_as_sent(peers):
    batch = Batch(np.arange(10.0), ("a", "b"))
    for sent in (None, {"k": [1, (2,)]}, batch, b"x" * 2_000_000):
        on(peers, 0, "do", "send", sent, "peers", 1).wait()
        received = on(peers, 1, "do", "recv", "peers", 0).wait()[0]
        assert type(received) is type(sent)
        assert repr(received) == repr(sent)


def test_a_piggyback_makes_a_pair(peers):
    on(peers, 0, "do", "send", "object", "peers", [1], piggyback_payload=0).wait()
    assert on(peers, 1, "do", "recv", "peers", [0]).wait() == [("object", 0)]


@near_and_far
def test_messages_keep_their_order_also_asynchronous_ones(peers):
    sent = on(peers, 0, "send_many", 100, 1)
    received = on(peers, 1, "recv_many", 100, 0)
    assert received.wait() == [list(range(101))]
    sent.wait()


@near_and_far
def test_a_send_is_buffered_up_to_16_messages_then_waits(peers):
    for n in range(16):
        on(peers, 0, "do", "send", n, "peers", 1, timeout=5).wait()
    names, text, _ = on(peers, 0, "catch", "send", 16, "peers", 1, timeout=0.5).wait()[0]
    assert "ShoalTimeoutError" in names
    assert "peers:0" in text
    assert "peers:1" in text
    assert [on(peers, 1, "do", "recv", "peers", 0).wait()[0] for _ in range(16)] == list(range(16))


def test_a_cancelled_recv_loses_nothing(peers):
    answering = on(peers, 1, "answer", 0)
    assert on(peers, 0, "cancel_then_recv", 1).wait() == [("gave up", "kept")]
    answering.wait()


def test_tensors(peers):
    pytest.importorskip("torch")
    sending = on(peers, 0, "tensors", 1, sender=True)
    received = on(peers, 1, "tensors", 0, sender=False).wait()[0]
    shape, dtype, kind, mixed = received.pop("errors")
    assert "shape (2, 3), float32, on cpu" in shape
    assert "shape (3, 2)" in shape
    assert "peers:0" in shape
    assert "peers:1" in shape
    assert "int64" in dtype
    assert "recv_tensor" in kind
    assert "sent with send and received with recv_tensor" in mixed
    assert received == {
        "wrong untouched": True,
        "right": [0, 1, 2, 3, 4, 5],
        "listed": ("list", [[1, 1], [0]]),
        "sum": 180_000.0,
        "pair": ([1, 1, 1], {"step": 1}),
        "slanted": [1, 6, 11, 16],
    }
    sending.wait()


def test_a_peer_that_never_comes_ends_with_the_deadline(peers):
    names, text, _ = on(peers, 0, "catch", "send", 1, "nobody", 3, timeout=0.5).wait()[0]
    assert "ShoalTimeoutError" in names
    assert "peers:0" in text
    assert "nobody:3" in text
    names, text, _ = on(peers, 0, "catch", "recv", "nobody", 3, timeout=0.5).wait()[0]
    assert "ShoalTimeoutError" in names
    assert "nobody:3" in text


def test_recv_waits_for_a_peer_that_is_still_to_come(peers, launch):
    waiting = on(peers, 0, "do", "recv", "late", 0, timeout=60)
    late = launch(Peer, name="late")
    late.do("send", "here", "peers", 0).wait()
    assert waiting.wait() == ["here"]


def test_a_message_outlives_its_sender_whose_death_is_seen(peers, launch):
    mortal = launch(Peer, name="mortal")
    mortal.do("send", "last words", "peers", 0).wait()
    pid = mortal.pid().wait()[0]
    on(peers, 1, "start_recv", "mortal", 0).wait()
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    name, text, _ = on(peers, 1, "work_error").wait()[0]
    assert name == "PeerLostError"
    assert "mortal:0" in text
    assert "peers:1" in text
    assert on(peers, 0, "do", "recv", "mortal", 0).wait() == ["last words"]
    # No message is left, and the sender was dead before this call.
    names, _, _ = on(peers, 0, "catch", "recv", "mortal", 0).wait()[0]
    assert "PeerLostError" in names
    names, _, _ = on(peers, 0, "catch", "send", 1, "mortal", 0).wait()[0]
    assert "PeerLostError" in names


@pytest.mark.nightly
def test_a_peer_that_was_started_again_before_the_recv_is_no_loss(peers, launch):
    first = launch(Peer, name="again")
    # Time for the receiver to start watching the process.
    names, _, _ = on(peers, 0, "catch", "recv", "again", 0, timeout=2).wait()[0]
    assert "ShoalTimeoutError" in names
    first._close()
    second = launch(Peer, name="again")
    waiting = on(peers, 0, "do", "recv", "again", 0, timeout=30)
    time.sleep(2)
    second.do("send", "here again", "peers", 0).wait()
    assert waiting.wait() == ["here again"]


def test_a_broadcast_reaches_all_members(peers):
    groups = [("peers", [1, 0])]
    assert peers.give("a", groups, src=("peers", 0)).wait() == ["a", "a"]
    assert peers.give("b", [("peers", 0), ("peers", (1,))]).wait() == ["b", "b"]
    assert peers.give("c", ranks=[1, 0], source=1).wait() == ["c", "c"]
    assert peers.give("d", [0, 1]).wait() == ["d", "d"]
    assert peers.give_many(20).wait() == [list(range(20))] * 2


@pytest.mark.parametrize(
    ("groups", "kwargs", "kind", "text"),
    [
        (None, {}, "ValueError", "groups is missing"),
        ([], {}, "ValueError", "empty"),
        ([("peers", [])], {}, "ValueError", "the list of ranks is empty"),
        ([("others", [0, 1])], {}, "ValueError", "peers:0 is not a member"),
        ([("peers", [0, 0])], {}, "ValueError", "names peers:0 twice"),
        ("peers", {}, "TypeError", "groups='peers'"),
        ([("peers", "0")], {}, "TypeError", "groups[0]"),
        ([(1, [0])], {}, "TypeError", "text"),
        ([("peers", [0, 1])], {"src": ("peers", 5)}, "ValueError", "expected one of the members"),
        ([("peers", [0, 1])], {"options": "fast"}, "TypeError", "CollectiveGroupOptions"),
    ],
)
def test_a_broadcast_of_another_form_is_an_error(peers, groups, kwargs, kind, text):
    names, message, _ = on(peers, 0, "catch", "broadcast", 1, groups, **kwargs).wait()[0]
    assert kind in names
    assert text in message


def test_options_are_checked():
    assert CollectiveGroupOptions().is_empty_options()
    assert not CollectiveGroupOptions(accel_max_ctas=4).is_empty_options()
    with pytest.raises(AssertionError, match="accel_cluster_size=9: expected 0 to 8"):
        CollectiveGroupOptions(accel_cluster_size=9)
    with pytest.raises(AssertionError, match="accel_max_ctas=2 is less than accel_min_ctas=3"):
        CollectiveGroupOptions(accel_max_ctas=2, accel_min_ctas=3)
