"""Messages with workers that die, never start, or start again."""

import os
import signal
import threading
import time

import pytest

from shoal.errors import PeerLostError, ShoalTimeoutError
from support.collective_crew import Crew

pytestmark = pytest.mark.process


def error_of(call):
    try:
        return "returned", repr(call())
    except Exception as error:  # noqa: BLE001  (the test looks at it)
        return type(error).__name__, str(error)


def attempts_at_an_absent_peer(me):
    import torch

    return [
        error_of(lambda: me.send(1, "nobody", 3, timeout=0.1)),
        error_of(lambda: me.recv("nobody", 3, timeout=0.1)),
        error_of(lambda: me.send_tensor(torch.ones(1), "nobody", 3, timeout=0.1)),
        error_of(lambda: me.recv_tensor(torch.ones(1), "nobody", 3, timeout=0.1)),
        error_of(lambda: me.send(1, "nobody", 3, async_op=True, timeout=0.1).wait(timeout=20)),
        error_of(lambda: me.recv("nobody", 3, async_op=True, timeout=0.1).wait(timeout=20)),
        error_of(lambda: me.broadcast(1, [("a", 0), ("nobody", 3)], timeout=0.1)),
        error_of(lambda: me.recv("nobody", 3, async_op=True).wait(timeout=0.1)),
    ]


@pytest.mark.nightly
def test_a_missing_peer_ends_the_call_at_its_deadline(crew):
    found = crew.member("a:0").run(attempts_at_an_absent_peer)
    assert [name for name, _ in found] == ["ShoalTimeoutError"] * 8
    assert all("nobody:3" in text for _, text in found)
    assert "members that have not come: nobody:3" in found[-2][1]


def late_behind_others(me):
    """Start operations whose deadlines pass in a different order from their start."""
    patient = [
        me.send(1, "nobody", 0, async_op=True, timeout=40),
        me.recv("nobody", 0, async_op=True, timeout=40),
    ]
    hasty = [
        me.send(2, "nobody", 0, async_op=True, timeout=0.2),
        me.recv("nobody", 0, async_op=True, timeout=0.2),
    ]
    errors = [error_of(lambda work=work: work.wait(timeout=20))[1] for work in hasty]
    return errors, [work.done() for work in patient]


def test_an_operation_behind_a_patient_one_ends_at_its_own_deadline(crew):
    errors, patient = crew.member("a:0").run(late_behind_others)
    assert all("within 0.2 s" in text for text in errors)
    assert patient == [False, False]


def send_some(me, count, async_op):
    works = [me.send(number, "b", 0, async_op=async_op) for number in range(count)]
    for work in works:
        if work is not None:
            work.wait(timeout=30)


def recv_until_lost(me, count, async_op):
    if async_op:
        works = [me.recv("a", 0, async_op=True) for _ in range(count + 3)]
        found = [error_of(lambda work=work: work.wait(timeout=30)) for work in works]
        assert all(work.done() for work in works)
    else:
        found = [error_of(lambda: me.recv("a", 0, timeout=30)) for _ in range(count + 3)]
    return [value for name, value in found if name == "returned"], [
        name for name, _ in found if name != "returned"
    ]


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_messages_of_a_dead_sender_arrive_before_the_error_of_its_death(crew, async_op):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.run(send_some, 10, async_op)
    a.kill()
    values, errors = b.run(recv_until_lost, 10, async_op)
    assert values == [str(number) for number in range(10)]
    assert errors == ["PeerLostError"] * 3


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_receives_that_wait_end_with_the_sender(crew, async_op):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.run(send_some, 1, False)
    b.run(recv_value)
    b.begin(recv_until_lost, 0, async_op)
    time.sleep(0.3)
    a.kill()
    assert b.end() == ([], ["PeerLostError"] * 3)


def send_until_lost(me, async_op):
    works = [me.send(number, "b", 0, async_op=async_op, timeout=30) for number in range(40)]
    found = {error_of(lambda work=work: work.wait(timeout=30))[0] for work in works}
    assert found <= {"PeerLostError", "returned"}
    works[-1].wait(timeout=0)


@pytest.mark.nightly
@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_sends_to_a_receiver_that_dies_end(crew, async_op, known):
    a, b = crew.member("a:0"), crew.member("b:0")
    if known:
        a.run(send_value, "hello")
        a.begin(send_until_lost, async_op)
        time.sleep(0.3)
        b.kill()
    else:
        b.kill()
        a.begin(send_until_lost, async_op)
    with pytest.raises(PeerLostError, match="b:0 died"):
        a.end()


def send_in_vain(me, nbytes, count):
    for _ in range(count):
        me.send(b"x" * nbytes, "b", 0)
    before = memory_of(me)
    time.sleep(0.1)
    return before


def memory_of(me):
    return me.routes.memory._session.stats()["bytes_in_use"]


def notice(me, async_op):
    def attempt():
        if async_op:
            me.send(b"x", "b", 0, async_op=True, timeout=10).wait(timeout=10)
        else:
            me.send(b"x", "b", 0, timeout=10)

    found = error_of(attempt)[0]
    end = time.monotonic() + 10
    while found != "returned" and memory_of(me) > 2**20 and time.monotonic() < end:
        time.sleep(0.05)  # an asynchronous send fails before its memory is freed
    return found, memory_of(me)


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_the_memory_of_messages_to_a_dead_receiver_is_freed(crew, async_op):
    a, b = crew.member("a:0"), crew.member("b:0")
    before = a.run(send_in_vain, 2**20, 8)
    b.kill()
    found, after = a.run(notice, async_op)
    assert before >= 8 * 2**20
    while found == "returned":  # sent before the death was noticed
        found, after = a.run(notice, async_op)
    assert found == "PeerLostError"
    assert after < 2**20


def exchange(me, peer, value):
    me.send(value, peer, 0, timeout=30)
    return me.recv(peer, 0, timeout=30)


def send_value(me, value):
    me.send(value, "b", 0, timeout=30)


def recv_value(me, async_op=False):
    work = me.recv("a", 0, async_op=async_op, timeout=30)
    return work.wait(timeout=30) if async_op else work


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_a_successor_of_the_receiver_gets_only_what_was_sent_to_it(crew, async_op):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.run(send_value, "for the first")
    b.kill()
    b = crew.member("b:0")
    time.sleep(0.2)
    b.begin(recv_value, async_op)
    a.run(send_value, "for the second")
    assert b.end() == "for the second"
    a.begin(exchange, "b", 1)
    assert b.run(exchange, "a", 2) == 1
    assert a.end() == 2


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_a_successor_of_the_sender_is_received_from(crew, async_op):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.run(send_value, "first")
    assert b.run(recv_value, async_op) == "first"
    a.run(send_value, "last words")
    a.kill()
    a = crew.member("a:0")
    a.run(send_value, "second")
    assert b.run(recv_value, async_op) == "last words"
    assert b.run(recv_value, async_op) == "second"
    a.begin(exchange, "b", 1)
    assert b.run(exchange, "a", 2) == 1
    assert a.end() == 2


def interrupted(me, what):
    """Get SIGINT during a wait, and continue afterwards."""
    calls = {
        "recv": lambda: me.recv("a", 0, timeout=30),
        "recv behind another": lambda: me.recv("a", 0, timeout=30),
        "send": lambda: [me.send(n, "a", 0, timeout=30) for n in range(40)],
        "send to nobody": lambda: me.send(1, "nobody", 0, timeout=30),
        "recv from nobody": lambda: me.recv("nobody", 0, timeout=30),
        "broadcast": lambda: me.broadcast(None, [("a", 0), ("b", 0)], timeout=30),
    }
    first = me.recv("a", 0, async_op=True, timeout=30) if what == "recv behind another" else None
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        calls[what]()
    except KeyboardInterrupt:
        return "interrupted", first.cancel() if first else None
    return "returned", None


WAITS = [
    "recv",
    "recv behind another",
    "send",
    "send to nobody",
    "recv from nobody",
    "broadcast",
]


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_a_wait_and_loses_nothing(crew, what):
    a, b = crew.member("a:0"), crew.member("b:0")
    assert b.run(interrupted, what)[0] == "interrupted"
    a.run(send_value, "after")
    assert b.run(recv_value) == "after"


def recv_tensor_late(me):
    import torch

    into = torch.zeros(100_000)
    late = error_of(lambda: me.recv_tensor(into, "a", 0, timeout=0.2))[0]
    other = torch.zeros(100_000)
    me.recv_tensor(other, "a", 0, timeout=30)
    return late, float(into.sum()), float(other.sum())


def send_tensor_later(me):
    import torch

    me.send_tensor(torch.ones(100_000), "b", 0)
    time.sleep(0.5)
    me.send_tensor(torch.ones(100_000), "b", 0)


def recv_tensor_first(me):
    import torch

    me.recv_tensor(torch.zeros(100_000), "a", 0, timeout=30)


def test_a_tensor_that_comes_after_the_deadline_is_for_the_next_receive(pair):
    a, b = pair
    a.begin(send_tensor_later)
    b.run(recv_tensor_first)
    late, untouched, total = b.run(recv_tensor_late)
    a.end()
    assert (late, untouched, total) == ("ShoalTimeoutError", 0.0, 100_000.0)


@pytest.mark.nightly
def test_frames_end_with_their_sender_and_begin_again_with_its_successor(nursery):
    with Crew(nursery, SHOAL_TRANSPORT="torch") as crew:
        a, b = crew.member("a:0"), crew.member("b:0")
        a.begin(send_tensors, 3)
        assert b.run(recv_tensor_sums, 3) == [0.0, 1000.0, 2000.0]
        a.end()
        b.begin(recv_until_lost, 0, True)
        time.sleep(0.3)
        a.kill()
        assert b.end() == ([], ["PeerLostError"] * 3)
        a = crew.member("a:0")
        a.begin(send_tensors, 3)
        assert b.run(recv_tensor_sums, 3) == [0.0, 1000.0, 2000.0]
        a.end()
        b.kill()
        a.begin(send_tensors, 40)
        with pytest.raises((PeerLostError, ShoalTimeoutError), match="b:0"):
            a.end()
        b = crew.member("b:0")
        a.begin(send_tensors, 3)
        assert b.run(recv_tensor_sums, 3) == [0.0, 1000.0, 2000.0]
        a.end()


def send_tensors(me, count):
    import torch

    for number in range(count):
        me.send(torch.full((1000,), float(number)), "b", 0, timeout=20)


def recv_tensor_sums(me, count):
    return [float(me.recv("a", 0, timeout=30).sum()) for _ in range(count)]
