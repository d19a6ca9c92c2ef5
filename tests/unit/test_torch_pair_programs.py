"""`TorchPair` in programs: forked children, the interpreter's end and the user's own groups."""

import textwrap

import pytest

from support.processes import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(120)]

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


def run(body):
    done = run_program("-c", PROGRAM + textwrap.dedent(body), seconds=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_forked_children_cannot_use_or_harm_pairs(tmp_path):
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
def test_the_default_group_of_the_user_is_not_changed(first, tmp_path):
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
