"""Point-to-point messages and broadcasts between workers of one node, on Ray."""

import dataclasses
import os
import signal
import time

import numpy as np
import pytest

from shoal import NodePlacementStrategy, Worker
from shoal.errors import (
    ShoalError,
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

    def start_recv(self, group, rank):
        self._work = self.recv(group, rank, async_op=True)

    def work_error(self):
        start = time.monotonic()
        try:
            self._work.wait(timeout=20)
        except ShoalError as error:
            return type(error).__name__, str(error), time.monotonic() - start
        return None

    def give(self, value, *args, **kwargs):
        return self.broadcast(
            value if self._rank == kwargs.pop("source", 0) else None, *args, **kwargs
        )


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
    time.sleep(1)  # the receive waits when its sender dies
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
    time.sleep(2)  # the receive waits for the new worker, and sees that the old one has ended
    second.do("send", "here again", "peers", 0).wait()
    assert waiting.wait() == ["here again"]


def test_a_broadcast_reaches_all_members(peers):
    groups = [("peers", [1, 0])]
    assert peers.give("a", groups, src=("peers", 0)).wait() == ["a", "a"]
    assert peers.give("b", [("peers", 0), ("peers", (1,))]).wait() == ["b", "b"]
    assert peers.give("c", ranks=[1, 0], source=1).wait() == ["c", "c"]
    assert peers.give("d", [0, 1]).wait() == ["d", "d"]
