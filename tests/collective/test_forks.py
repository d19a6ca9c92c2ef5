"""Messages and processes: children forked while their parent sends, and the interpreter's end."""

import os
import pickle
import sys
import time

import pytest

from shoal import shm
from support.collective_crew import Crew, collective
from support.in_thread import in_thread
from support.processes import in_a_child, run_program

pytestmark = [pytest.mark.nightly, pytest.mark.process]


def fork_while_busy(me, peer):
    """Fork during operations of all kinds, and let the child try them."""
    held = [me.recv(peer, 0, async_op=True, timeout=30) for _ in range(3)]
    held += [me.send(number, peer, 0, async_op=True, timeout=30) for number in range(20)]
    held.append(me.send(1, "nobody", 0, async_op=True, timeout=30))
    group = [("a", 0), ("b", 0)]
    found = [
        in_a_child(lambda: None),
        in_a_child(lambda: me.send("child", peer, 0, timeout=5)),
        in_a_child(lambda: me.send("child", peer, 0, async_op=True, timeout=5).wait(timeout=5)),
        in_a_child(lambda: me.recv(peer, 0, timeout=5)),
        in_a_child(lambda: me.recv(peer, 0, async_op=True, timeout=5).wait(timeout=5)),
        in_a_child(lambda: me.broadcast("child", group, timeout=5)),
        in_a_child(lambda: held[0].wait(timeout=0.1)),
        in_a_child(lambda: me.transport_to(peer, 0) and None),
        in_a_child(me.close),
    ]
    values = [work.wait(timeout=30) for work in held[:3]]
    for work in held[3:-1]:
        work.wait(timeout=30)
    return found, values


def answer_a_fork(me, peer):
    found = [me.recv(peer, 0, timeout=60) for _ in range(20)]
    time.sleep(2)  # the other worker and its child wait meanwhile
    for number in range(3):
        me.send(number, peer, 0)
    return found


@pytest.mark.parametrize("transport", ["shm", "torch"])
def test_a_forked_child_neither_hangs_nor_disturbs_its_parent(nursery, transport):
    environment = {} if transport == "shm" else {"SHOAL_TRANSPORT": transport}
    with Crew(nursery, **environment) as crew:
        a, b = crew.member("a:0"), crew.member("b:0")
        b.begin(answer_a_fork, "a")
        a.begin(fork_while_busy, "b")
        said, values = a.end()
        found = [text.rpartition("shoal.errors.")[2].partition(":")[0] for text in said]
        refused = "TransportError"
        assert found[0] == "None"
        assert found[1:6] == [refused] * 5
        assert found[6] == "ShoalTimeoutError"
        assert found[7] == refused
        assert found[8] == "None"
        assert values == [0, 1, 2]
        assert b.end() == list(range(20))


def own_in_child(me, name):
    """Register the child as a separate worker, and send to the parent."""

    def main():
        mine = collective(me.directory, name)
        mine.send("from the child", "a", 0, timeout=20)
        got = mine.recv("a", 0, timeout=20)
        mine.close()
        return got

    answer = in_thread(in_a_child, main)
    got = me.recv("child", 0, timeout=20)
    me.send("from the parent", "child", 0, timeout=20)
    return got, answer.result(30)


def test_a_child_can_be_a_worker_of_its_own(crew):
    a = crew.member("a:0")
    assert a.run(own_in_child, "child:0") == ("from the child", "'from the parent'")


PROGRAM = """
import pickle, sys, os
from support.collective_crew import SharedDirectory, collective
me = collective(pickle.loads(bytes.fromhex(sys.argv[1])), "a:0")
works = [
    me.recv("b", 0, async_op=True),
    me.recv("nobody", 0, async_op=True),
    me.send(b"x" * 100, "nobody", 0, async_op=True),
    me.broadcast(1, [("a", 0), ("nobody", 0)], async_op=True),
    me.broadcast(1, [("a", 0), ("b", 0)], async_op=True),
]
works += [me.send(number, "b", 0, async_op=True) for number in range(40)]
works += [me.send(b"x" * (70 * 2**20), "b", 0, async_op=True) for number in range(2)]
works[5].wait(timeout=20)
print("ready", flush=True)
if sys.argv[2] == "exception":
    raise RuntimeError("on purpose")
if sys.argv[2] == "dropped":
    del works
"""


def join_memory(me):
    me.routes.memory.queues()


@pytest.mark.parametrize("how", ["end", "dropped", "exception"])
def test_an_interpreter_ends_while_works_are_pending(crew, folder, backend, how):
    b = crew.member("b:0")
    b.run(join_memory)  # the last process to leave removes the memory with all messages
    variables = {
        "SHOAL_BACKEND": backend.__name__.rpartition("._")[2],
        "SHOAL_SHM_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    directory = pickle.dumps(crew.directory).hex()
    process = run_program("-c", PROGRAM, directory, how, seconds=40, env=os.environ | variables)
    assert "ready" in process.stdout, process.stderr
    assert process.returncode == (1 if how == "exception" else 0), process.stderr
    assert "Fatal Python error" not in process.stderr
    assert b.run(lambda me: me.recv("a", 0, timeout=10)) == 0


def make_traffic(me, peer):
    me.send(b"x" * 1000, "c", 0)
    me.send(b"x" * (70 * 2**20), peer, 0)  # over the bound of its queue, which is empty
    me.broadcast(b"x" * 2**20, [("a", 0), ("b", 0), ("c", 0)], src=("a", 0))


def take_part(me):
    me.broadcast(None, [("a", 0), ("b", 0), ("c", 0)], src=("a", 0), timeout=30)


def test_killed_processes_leave_no_memory_after_collection(nursery, folder):
    with Crew(nursery, SHOAL_SHM_DIR=str(folder)) as crew:
        members = [crew.member(f"{name}:0") for name in "abc"]
        for member in members[1:]:
            member.begin(take_part)
        members[0].run(make_traffic, "b")
        for member in members:
            member.kill()
        assert list(folder.iterdir())
        other = crew.member("d:0")
        other.run(lambda _: shm.gc(os.environ["SHOAL_SHM_DIR"]))
    assert list(folder.iterdir()) == []
