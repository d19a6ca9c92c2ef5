"""How pairs of workers end: peers that die or never come, deadlines, children, the interpreter."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from channels import in_a_child
from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalTimeoutError, TransportError
from shoal.transport.torch.pair import TorchPair
from torch_peer import (
    IP,
    LIMIT_S,
    Peer,
    close,
    connect,
    connected,
    frame_of,
    in_thread,
    join,
    offer,
    pid,
    raw,
    receive,
    recv_frame,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

LARGE = 200 * 2**20


def limit(seconds=LIMIT_S):
    return Deadline(seconds)


@pytest.fixture(scope="module")
def peer():
    process = Peer()
    yield process
    process.end()


@pytest.fixture(scope="module")
def victims():
    """Processes that a test kills, started together because each of them imports torch."""
    processes = [Peer() for _ in range(4)]
    yield processes
    for process in processes:
        process.end()


@pytest.fixture
def victim(victims):
    return next(process for process in victims if process.process.is_alive())


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


def test_a_peer_that_died_before_it_was_joined_is_lost(victim):
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


def test_a_peer_that_is_killed_while_it_is_sent_to_is_lost(victim):
    pair = connected(victim)
    sending = in_thread(pair.send, b"", [torch.ones(LARGE, dtype=torch.uint8)], limit())
    victim.run(recv_frame)
    victim.kill()
    text = r"a:0: send to b:0: the connection was lost after \d+\.\d s of waiting \(Connection"
    with pytest.raises(PeerLostError, match=text):
        sending()
    with pytest.raises(PeerLostError, match="a:0: send to b:0: this pair is closed: its connect"):
        pair.send(b"", [], limit())


def test_a_peer_that_is_killed_while_it_is_received_from_is_lost(victim):
    address = victim.run(offer)
    victim.start(connect)
    pair = TorchPair.join(address, IP, "a:0", "b:0", limit())
    victim.result()
    receiving = in_thread(pair.recv_frame, limit())
    time.sleep(0.2)
    victim.kill()
    with pytest.raises(PeerLostError, match=r"a:0: receive from b:0: the connection was lost"):
        receiving()
    with pytest.raises(PeerLostError, match=r"this pair is closed: its connection was lost"):
        pair.recv_frame(limit())


def test_what_a_peer_sent_before_it_died_arrives(victim):
    address = victim.run(offer)
    victim.start(connect)
    pair = TorchPair.join(address, IP, "a:0", "b:0", limit())
    victim.result()
    from torch_peer import send

    victim.run(send, [torch.ones(3)], b"last words")
    victim.kill()
    assert pair.recv_frame(limit()) == b"last words"
    (into,) = [torch.zeros(3)]
    pair.recv_tensors([into], limit())
    assert into.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(PeerLostError):
        pair.recv_frame(limit())


# Peers that do not answer.


def test_a_peer_that_never_comes_is_named(peer):
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
        with pytest.raises(
            ShoalTimeoutError, match=r"b:0: receive from a:0: not done within 0.3 s"
        ):
            peer.run(recv_frame, timeout=0.3)
        with pytest.raises(PeerLostError, match="a:0: send to b:0: "):
            pair.send(b"", [torch.ones(100_000)], limit())
    else:
        with pytest.raises(ShoalTimeoutError, match=r"a:0: send to b:0: not done within 0.3 s"):
            pair.send(b"", [torch.ones(100_000)], limit(0.3))
        # The frame was there; the tensor was not.
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


def test_a_long_wait_is_logged(peer, monkeypatch, caplog):
    monkeypatch.setattr("shoal.deadline._FIRST_LOGS_S", (0.5, 60.0))
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
        sending()
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


# What a pair costs.


def test_a_pair_costs_one_connection_and_no_thread(peer):
    first = connected(peer, "first:0", "first:1")  # the process's store and device
    time.sleep(0.1)

    def costs():
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    threads, descriptors = costs()
    pairs = [connected(peer, f"a:{n}", f"b:{n}") for n in range(20)]
    for _ in range(100):  # the threads of the rendezvous end when they have answered
        if costs() == (threads, descriptors + 20):
            break
        time.sleep(0.05)
    assert costs() == (threads, descriptors + 20)
    for pair in pairs:
        pair.close()
        peer.run(close, pair.peer)
    assert costs() == (threads, descriptors)
    first.close()
    peer.run(close, "first:1")


def test_a_pair_leaves_nothing_in_the_store(peer):
    from shoal.transport.torch.store import server_at

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


# Children, the interpreter's end, the user's groups: each in a process of its own.

PROGRAM = """
import os, sys, threading, time
import torch
from shoal.deadline import Deadline
from shoal.transport.torch.pair import TorchPair

torch.set_num_threads(1)  # OpenMP hangs in forked children
LIMIT = Deadline(60)

def both_ends():
    sender = TorchPair.offer("127.0.0.1", "a:0", "b:0")
    ends = [sender]
    join = lambda: ends.append(
        TorchPair.join(sender.address, "127.0.0.1", "b:0", "a:0", LIMIT))
    thread = threading.Thread(target=join)
    thread.start()
    sender.connect(LIMIT)
    thread.join()
    return ends

def check(sender, receiver, size=100_000):
    sent = torch.rand(size)
    thread = threading.Thread(target=sender.send, args=(b"frame", [sent], LIMIT))
    thread.start()
    assert receiver.recv_frame(LIMIT) == b"frame"
    into = torch.zeros(size)
    receiver.recv_tensors([into], LIMIT)
    thread.join()
    assert torch.equal(sent, into)
"""


def run(body, *, code=0, limit_s=60):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_children_can_neither_use_pairs_nor_harm_them(tmp_path):
    out = run("""
        sender, receiver = both_ends()
        check(sender, receiver)
        waiting = threading.Thread(target=receiver.recv_frame, args=(LIMIT,), daemon=True)
        waiting.start()
        time.sleep(0.1)
        for way in ("raise", "return", "exit"):
            sys.stdout.flush()
            child = os.fork()
            if not child:
                try:
                    for use in (
                        lambda: sender.send(b"", [], LIMIT),
                        lambda: sender.start_send(b"", [], LIMIT),
                        lambda: receiver.recv_frame(LIMIT),
                        lambda: receiver.recv_tensors([], LIMIT),
                    ):
                        try:
                            use()
                        except Exception as error:
                            print(type(error).__name__, str(error).partition(" was forked")[2][:20])
                    sender.close()
                    receiver.close()
                    # A child makes pairs of its own.
                    check(*both_ends())
                    if way == "exit":
                        sys.stdout.flush()
                        os._exit(0)
                    del sender, receiver, waiting
                    if way == "raise":
                        raise SystemExit(0)
                except SystemExit:
                    raise
                except BaseException as error:
                    print(repr(error))
                    os._exit(3)
                break
            print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if child:
            sender.send(b"ends the wait", [], LIMIT)
            waiting.join()
            check(sender, receiver)
            print("parent well")
    """)
    assert out.count("TransportError  from process") == 12
    assert out.count("child 0") == 3
    assert out.endswith("parent well\n")


def test_the_interpreter_ends_with_pairs_alive_and_threads_waiting():
    out = run("""
        ends = [both_ends() for _ in range(3)]
        check(*ends[0])
        for sender, receiver in ends:
            threading.Thread(target=receiver.recv_frame, args=(Deadline(3600),), daemon=True).start()
        big = torch.ones(10_000_000)
        threading.Thread(target=ends[1][0].send, args=(bytes(5000), [big], LIMIT), daemon=True).start()
        lonely = TorchPair.offer("127.0.0.1", "a:0", "c:0")
        threading.Thread(target=lonely.connect, args=(Deadline(3600),), daemon=True).start()
        time.sleep(0.3)
        print("end")
    """)
    assert out == "end\n"


def test_ctrl_c_ends_a_rendezvous():
    out = run("""
        import signal
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        pair = TorchPair.offer("127.0.0.1", "a:0", "b:0")
        try:
            pair.connect(Deadline(3600))
        except KeyboardInterrupt:
            print("interrupted", pair.closed)
    """)
    assert out == "interrupted True\n"


@pytest.mark.parametrize("first", [True, False], ids=["group-first", "pair-first"])
def test_the_users_default_group_is_left_alone(first, tmp_path):
    out = run(f"""
        import torch.distributed as dist
        group = lambda: dist.init_process_group(
            "gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
        if {first}:
            group()
        ends = both_ends()
        check(*ends)
        assert dist.is_initialized() is {first}
        if not {first}:
            group()
        check(*ends)
        ones = torch.ones(3)
        dist.all_reduce(ones)
        others = both_ends()
        dist.destroy_process_group()
        check(*ends)
        check(*others)
        assert not dist.is_initialized()
        dist.init_process_group(
            "gloo", init_method="file://{tmp_path}/again", rank=0, world_size=1)
        dist.all_reduce(ones)
        dist.barrier()
        check(*ends)
        for end in (*ends, *others):
            end.close()
        dist.all_reduce(ones)
        dist.destroy_process_group()
        print(ones.tolist())
    """)
    assert out == "[1.0, 1.0, 1.0]\n"
