"""Messages, broadcasts and collective groups between workers of one node, on Ray."""

import dataclasses
import os
import signal
import time

import numpy as np
import pytest

from shoal import NodePlacementStrategy, Worker, WorkerAddress
from shoal.errors import PeerLostError, ShoalTimeoutError
from shoal.manager import CollectiveManager

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

    def pid(self):
        return os.getpid()

    def start_recv(self, group, rank):
        self._work = self.recv(group, rank, async_op=True)

    def end_recv(self):
        return self._work.wait(timeout=20)

    def give(self, value, *args, **kwargs):
        return self.broadcast(
            value if self._rank == kwargs.pop("source", 0) else None, *args, **kwargs
        )

    def exchange(self, value):
        """Make a collective group with the other rank, and send it something."""
        members = [WorkerAddress(self._group_name, [rank]) for rank in range(2)]
        group = self._collective.create_collective_group(members, "exchange", timeout=60)
        received = group.send(value) if self._rank == 0 else group.recv(timeout=60)
        return group.group_info, received


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
    with pytest.raises(PeerLostError, match="mortal:0") as lost:
        on(peers, 1, "end_recv").wait()
    assert "peers:1" in str(lost.value)
    assert on(peers, 0, "do", "recv", "mortal", 0).wait() == ["last words"]
    # No message is left, and the sender was dead before this call.
    for call in (("recv",), ("send", 1)):
        with pytest.raises(PeerLostError, match="mortal:0"):
            on(peers, 0, "do", *call, "mortal", 0).wait()


@pytest.mark.nightly
def test_a_peer_that_was_started_again_before_the_recv_is_no_loss(peers, launch):
    first = launch(Peer, name="again")
    # Time for the receiver to start watching the process.
    with pytest.raises(ShoalTimeoutError):
        on(peers, 0, "do", "recv", "again", 0, timeout=2).wait()
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


def test_the_manager_knows_a_collective_group_until_its_workers_are_closed(launch):
    group = launch(Peer, ranks=2, name="members")
    first, second = group.exchange("v").wait()
    assert second == (first[0], "v")
    manager = CollectiveManager.get_proxy()
    assert manager.get_collective_group("exchange") == first[0]
    group._close()
    assert manager.get_collective_group("exchange") is None
