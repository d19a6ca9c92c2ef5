"""Ends of a `TorchPair`: peers that die, stop or never start, deadlines; and the cost of a pair."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from shoal.errors import PeerLostError, ShoalTimeoutError, TransportError
from shoal.transport.torch.pair import TorchPair
from shoal.transport.torch.store import server_at
from support.in_thread import in_thread
from support.processes import until
from support.torch_peer import (
    IP,
    LIMIT_S,
    Peer,
    close,
    connect,
    connected,
    frame_of,
    join,
    limit,
    offer,
    pid,
    raw,
    receive,
    recv_frame,
    send,
)

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(120)]

torch = pytest.importorskip("torch")

LARGE = 200 * 2**20


@pytest.fixture(scope="module")
def peer():
    process = Peer()
    yield process
    process.end()


@pytest.fixture(scope="module")
def victims():
    """Processes that tests kill, started together because each of them imports torch."""
    processes = [Peer() for _ in range(5)]
    yield processes
    for process in processes:
        process.end()


@pytest.fixture
def victim(victims):
    return next(process for process in victims if process.process.is_alive())


def receiving_from(peer):
    """A pair in which this process receives."""
    address = peer.run(offer)
    peer.start(connect)
    pair = TorchPair.join(address, IP, "a:0", "b:0", limit())
    peer.result()
    return pair


def works(peer):
    """Whether a new pair with a process works."""
    pair = connected(peer, "new:0", "new:1")
    tensors = [torch.rand(70_000)]
    peer.start(receive, "new:1")
    pair.send(frame_of(tensors), tensors, limit())
    got = peer.result()
    pair.close()
    peer.run(close, "new:1")
    return got == [[(torch.float32, (70_000,), raw(tensors[0]))]]


# Peers that die.


def test_a_peer_that_died_before_the_connection_is_lost(victim):
    address = victim.run(offer)
    victim.kill()
    with pytest.raises(PeerLostError, match=r"a:0: connect to b:0: no connection after \d"):
        TorchPair.join(address, IP, "a:0", "b:0", limit())


def test_a_watch_ends_a_rendezvous():
    pair = TorchPair.offer(IP, "a:0", "b:0")
    died = PeerLostError("b:0 died")
    with pytest.raises(PeerLostError) as caught:
        pair.connect(limit(), lambda: died)
    assert caught.value is died
    assert pair.closed


def test_a_receiver_that_is_killed_is_lost(victim):
    pair = connected(victim)
    sending = in_thread(pair.send, b"", [torch.ones(LARGE, dtype=torch.uint8)], limit())
    victim.run(recv_frame)
    victim.kill()
    text = r"a:0: send to b:0: the connection was lost after \d+\.\d s of waiting \(.*Connection"
    with pytest.raises(PeerLostError, match=text):
        sending.result(60)
    with pytest.raises(PeerLostError, match="a:0: send to b:0: this pair is closed: its connect"):
        pair.send(b"", [], limit())


def test_a_sender_that_is_killed_is_lost(victim):
    pair = receiving_from(victim)
    receiving = in_thread(pair.recv_frame, limit())
    time.sleep(0.2)
    victim.kill()
    with pytest.raises(PeerLostError, match=r"a:0: receive from b:0: the connection was lost"):
        receiving.result(60)
    with pytest.raises(PeerLostError, match=r"this pair is closed: its connection was lost"):
        pair.recv_frame(limit())


def test_a_message_arrives_although_its_sender_died(victim):
    pair = receiving_from(victim)
    victim.run(send, [torch.ones(3)], b"last words")
    victim.kill()
    assert pair.recv_frame(limit()) == b"last words"
    into = torch.zeros(3)
    pair.recv_tensors([into], limit())
    assert into.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(PeerLostError):
        pair.recv_frame(limit())


class ForgetsSends:
    """Stands before a group of gloo, whose sends it forgets, as gloo does in a rare moment."""

    def __init__(self, group):
        self._group = group
        self._never = threading.Event()

    def __getattr__(self, name):
        return getattr(self._group, name)

    def send(self, *_):
        return self

    def wait(self, limit):
        self._never.wait(min(limit.total_seconds(), LIMIT_S))


@pytest.mark.parametrize("dies", [False, True], ids=["closes", "dies"])
def test_a_send_that_gloo_forgot_ends_with_its_receiver(peer, victims, dies):
    victim = next(p for p in victims if p.process.is_alive()) if dies else peer
    pair = connected(victim)
    pair._group = ForgetsSends(pair._group)
    sending = in_thread(pair.send, b"", [torch.ones(3)], limit(float("inf")))
    if dies:
        victim.kill()
    else:
        victim.run(close)
    with pytest.raises(PeerLostError, match=r"a:0: send to b:0: the connection was lost .*closed"):
        sending.result(60)


# Peers that do not answer.


def test_a_missing_peer_is_named(peer):
    pair = TorchPair.offer(IP, "a:0", "b:0")
    with pytest.raises(ShoalTimeoutError, match=r"a:0: connect to b:0: .* within 0.3 s"):
        pair.connect(limit(0.3))
    with pytest.raises(PeerLostError, match="this pair is closed: it could not be connected"):
        pair.send(b"", [], limit())
    with pytest.raises(ShoalTimeoutError, match=r"b:0: connect to a:0: .* within 0.3 s"):
        peer.run(join, TorchPair.offer(IP, "a:0", "b:0").address, timeout=0.3)


@pytest.mark.parametrize("receives", [True, False], ids=["receiver", "sender"])
def test_a_deadline_closes_the_pair_at_both_ends_and_a_new_one_works(peer, receives):
    pair = connected(peer)
    if receives:
        with pytest.raises(ShoalTimeoutError, match=r"b:0: receive from a:0: not done within 0"):
            peer.run(recv_frame, timeout=0.3)
        with pytest.raises(PeerLostError, match="a:0: send to b:0: "):
            pair.send(b"", [torch.ones(100_000)], limit())
    else:
        with pytest.raises(ShoalTimeoutError, match=r"a:0: send to b:0: not done within 0.3 s"):
            pair.send(b"", [torch.ones(100_000)], limit(0.3))
        # The frame had arrived; the tensor had not.
        peer.run(recv_frame)
        with pytest.raises(PeerLostError, match="b:0: receive from a:0: "):
            peer.run(recv_frame)
    assert pair.closed
    peer.run(close)
    assert works(peer)


@pytest.mark.parametrize("seconds", [LIMIT_S, float("inf")])
def test_a_watch_ends_a_wait_with_its_own_error(peer, seconds):
    pair = connected(peer)
    died = PeerLostError("the node of b:0 is gone")
    asked = []

    def watch():
        asked.append(threading.current_thread())
        return died if len(asked) > 1 else None

    with pytest.raises(PeerLostError) as caught:
        pair.send(b"", [torch.ones(100_000)], limit(seconds), watch)
    assert caught.value is died
    assert {thread.name for thread in asked} == {"shoal-loop"}
    peer.run(close)
    assert works(peer)


def test_a_watch_that_fails_ends_the_wait_with_that_error(peer):
    pair = connected(peer)
    with pytest.raises(ZeroDivisionError):
        pair.send(b"", [torch.ones(100_000)], limit(), lambda: 1 / 0)
    assert pair.closed
    peer.run(close)


def test_a_long_wait_is_logged(peer, timing, caplog):
    timing("deadline", first_logs_s=(0.5, 60.0))
    pair = connected(peer)
    tensors = [torch.ones(100_000)]
    peer.start(receive, delay=2.0)
    pair.send(frame_of(tensors), tensors, limit())
    peer.result()
    lines = [record.getMessage() for record in caplog.records if record.name == "shoal"]
    assert len(lines) == 1
    assert lines[0].startswith("a:0: send to b:0: waiting for ")
    assert lines[0].endswith("(limit 30 s)")
    pair.close()
    peer.run(close)


def test_closing_ends_the_waits_of_other_threads_and_of_the_peer(peer):
    pair = connected(peer)
    peer.start(recv_frame)
    sending = in_thread(pair.send, bytes(5000), [torch.ones(100_000)], limit())
    time.sleep(0.2)
    peer.result()
    pair.close()
    with pytest.raises(TransportError, match=r"a:0: send to b:0: this pair is closed: close\(\)"):
        sending.result(60)
    with pytest.raises(PeerLostError, match="b:0: receive from a:0: the connection was lost"):
        peer.run(recv_frame)
    peer.run(close)


def test_a_peer_that_is_stopped_does_not_outlast_the_deadline(peer):
    pair = connected(peer)
    other = peer.run(pid)
    os.kill(other, signal.SIGSTOP)
    try:
        with pytest.raises(ShoalTimeoutError):
            pair.send(b"", [torch.ones(100_000)], limit(0.5))
    finally:
        os.kill(other, signal.SIGCONT)
    peer.run(close)
    assert works(peer)


# The cost of a pair.


def test_a_pair_costs_one_connection_and_no_thread(peer):
    first = connected(peer, "first:0", "first:1")  # makes the store and device of the process
    time.sleep(0.1)

    own = Path("/proc/self")

    def threads():
        return len(list((own / "task").iterdir()))

    def descriptors():
        """Return what is open; descriptors of earlier tests may be closed meanwhile."""
        found = set()
        for path in (own / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the one that lists the folder
                found.add(str(path.readlink()))
        return found

    threads_before, before = threads(), descriptors()
    pairs = [connected(peer, f"a:{n}", f"b:{n}") for n in range(20)]
    # The threads of the rendezvous end after their answers, and their descriptors with them.
    until(lambda: threads() <= threads_before and len(descriptors() - before) == 20)
    for pair in pairs:
        pair.close()
        peer.run(close, pair.peer)
    assert threads() <= threads_before
    assert not descriptors() - before
    first.close()
    peer.run(close, "first:1")


def test_a_pair_leaves_nothing_in_the_store(peer):
    before = server_at(IP).store.num_keys()
    for used in (True, False):
        pair = connected(peer)
        if used:
            peer.start(receive)
            pair.send(frame_of([]), [], limit())
            peer.result()
            assert server_at(IP).store.num_keys() == before
        pair.close()
        peer.run(close)
    assert server_at(IP).store.num_keys() == before
