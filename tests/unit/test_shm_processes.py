"""Several processes in a shared-memory session: deaths, forks, signals and leftovers."""

import gc
import os
import signal

import numpy as np
import pytest

from shoal.errors import ChannelClosed, ShoalTimeoutError, ShoalValueError
from support.in_thread import in_thread
from support.processes import DEADLINE_S, in_a_child, kernel_state, killed, until

pytestmark = [pytest.mark.nightly, pytest.mark.process]


ATTACH = "import sys, time, os\nfrom shoal import shm\nsession = shm.Session.attach(sys.argv[1])\n"


def test_a_child_can_leave_a_session_while_its_threads_begin_to_use_it(session):
    full = session.queue("full", maxsize=1)
    full.put(1)

    def use_and_leave():
        puts = [in_thread(full.put, 2) for _ in range(4)]
        session.stats()  # it begins in this thread too
        session.close()
        return {type(put.exception(DEADLINE_S / 2)) for put in puts} == {ChannelClosed}

    assert [in_a_child(use_and_leave) for _ in range(200)] == ["True"] * 200


def test_an_array_that_another_process_made_in_place_arrives(session, start, line):
    program = ATTACH + (
        "import numpy as np\nq = session.queue('k')\nr = q.reserve((300, 200), 'u2')\n"
        "r.array[...] = np.arange(60_000).reshape(300, 200)\nq.put(r)\nprint('put', flush=True)\n"
    )
    process = start(program, session.token)
    line(process)
    assert process.wait(DEADLINE_S) == 0
    array = session.queue("k").get(timeout=DEADLINE_S)
    assert np.array_equal(array, np.arange(60_000, dtype="u2").reshape(300, 200))


def test_the_messages_of_a_dead_producer_stay(session, start, line):
    queue = session.queue("k")
    program = ATTACH + (
        "q = session.queue('k')\nq.put_many([1, bytearray(200_000), 3])\n"
        "held = q.reserve(500_000, 'u1')\nprint('put', flush=True)\ntime.sleep(60)\n"
    )
    process = start(program, session.token)
    line(process)
    killed(process)
    swept = session.sweep()
    assert (swept["dead"], swept["redelivered"], swept["lost"]) == (1, 0, 0)
    assert swept["recovered"] >= 1
    assert [queue.get(timeout=DEADLINE_S) for _ in range(3)] == [1, bytearray(200_000), 3]
    stats = session.stats()
    assert (stats["bytes_in_use"], stats["descriptors_in_use"], stats["participants"]) == (0, 0, 1)
    assert stats["recovered"] == swept["recovered"]


LEASE = ATTACH + (
    "q = session.queue('k')\nm = q.get(lease=True)\n"
    "print(m.redelivered, m.value if len(m.value) < 9 else len(m.value), flush=True)\ntime.sleep(60)\n"
)


def test_leases_of_a_dead_consumer_return_to_the_end_of_the_queue(session, start, line):
    queue = session.queue("k")
    queue.put_many(["first", "second"])
    process = start(LEASE, session.token)
    assert line(process) == "False first"
    assert queue.qsize() == 1
    killed(process)
    assert session.sweep() == {"dead": 1, "recovered": 1, "redelivered": 1, "lost": 0}
    with queue.get(lease=True) as second:
        assert (second.value, second.redelivered) == ("second", False)
    with queue.get(lease=True, timeout=DEADLINE_S) as first:
        assert (first.value, first.redelivered) == ("first", True)
    stats = session.stats()
    assert (stats["descriptors_in_use"], stats["lost_messages"], stats["recovered"]) == (0, 0, 1)


def test_messages_taken_by_a_dead_consumer_count_as_lost(session, start, line):
    queue = session.queue("k")
    queue.put(np.zeros(100_000, "u1"))
    process = start(LEASE.replace("lease=True", "").replace("m.redelivered, m.value if len(m.value) < 9 else len(m.value)", "len(m)"), session.token)  # fmt: skip
    assert line(process) == "100000"
    killed(process)
    assert session.sweep() == {"dead": 1, "recovered": 1, "redelivered": 0, "lost": 1}
    assert session.stats()["lost_messages"] == 1
    assert session.stats()["bytes_in_use"] == 0


def test_a_stopped_process_is_alive(session, start, line):
    queue = session.queue("k")
    queue.put("leased")
    program = LEASE.replace("time.sleep(60)", "sys.stdin.read()\nm.ack()\nsession.close()")
    process = start(program, session.token)
    line(process)
    process.send_signal(signal.SIGSTOP)
    until(lambda: kernel_state(process.pid) == "T")
    with pytest.raises(ShoalTimeoutError):
        queue.get(timeout=1)  # it looks for dead processes meanwhile
    assert session.sweep()["dead"] == 0
    assert session.stats()["participants"] == 2
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert queue.empty()
    assert session.stats()["participants"] == 1


def test_a_message_that_is_not_acknowledged_stays_leased(shm, session):
    queue = session.queue("k")
    queue.put([1])
    with pytest.raises(RuntimeError, match="mine"), queue.get(lease=True):
        raise RuntimeError("mine")
    gc.collect()
    assert queue.empty()
    assert session.stats()["descriptors_in_use"] == 1
    for kind in (shm.Message, shm.Reservation):
        with pytest.raises(TypeError, match="cannot create"):
            kind()


def test_leaving_a_session_gives_back_leases(session, start, line):
    queue = session.queue("k")
    queue.put("x")
    process = start(LEASE.replace("time.sleep(60)", ""), session.token)
    line(process)
    assert process.wait(DEADLINE_S) == 0
    message = queue.get_nowait(lease=True)
    assert message.redelivered
    message.ack()
    message.ack()
    assert session.stats()["participants"] == 1


def test_a_child_made_by_fork_is_another_participant(session):
    queue = session.queue("k")
    queue.put_many([np.zeros(100_000, "u1"), "leased"])
    loan, leased = queue.get(), queue.get(lease=True)

    def in_child():
        nonlocal loan
        queue.put((session.stats()["participants"], len(loan)))
        del loan
        gc.collect()
        try:
            leased.ack()
        except ShoalValueError as error:
            queue.put(str(error))
        session.close()

    assert in_a_child(in_child) == "None"
    assert queue.get(timeout=DEADLINE_S) == (2, 100_000)
    assert queue.get(timeout=DEADLINE_S) == (
        f"ack: the message was leased by process {os.getpid()}, not by this one"
    )
    assert session.stats()["bytes_in_use"] >= 100_000
    assert len(loan) == 100_000
    leased.ack()
    del loan
    gc.collect()
    assert session.stats()["bytes_in_use"] == 0
    assert session.stats()["participants"] == 1


def test_a_child_that_is_killed_gives_nothing_of_its_parent_back(session):
    queue = session.queue("k")
    queue.put_many(["a", "b"])
    kept = queue.get(lease=True)

    def in_child():
        queue.get(lease=True)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(in_child) == ""
    assert session.sweep() == {"dead": 1, "recovered": 1, "redelivered": 1, "lost": 0}
    message = queue.get_nowait(lease=True)
    assert (message.value, message.redelivered) == ("b", True)
    message.ack()
    kept.ack()
    assert queue.empty()


def test_ctrl_c_ends_a_call_that_waits_and_loses_nothing(session, start, line):
    queue, seen = session.queue("k", maxsize=1), session.queue("seen")
    program = ATTACH + (
        "q, seen = session.queue('k'), session.queue('seen')\n"
        "for call in (q.get, lambda: q.get_batch(5), lambda: session.queue('full', 1).put(2)):\n"
        "    print('waits', flush=True)\n"
        "    try: call()\n"
        "    except KeyboardInterrupt: seen.put('interrupted')\n"
    )
    session.queue("full", 1).put(1)
    process = start(program, session.token)
    for _ in range(3):
        assert line(process) == "waits"
        # Asleep, not about to sleep.
        until(lambda: kernel_state(process.pid) == "S")
        process.send_signal(signal.SIGINT)
        assert seen.get(timeout=DEADLINE_S) == "interrupted"
    assert process.wait(DEADLINE_S) == 0
    queue.put("there")
    assert queue.get() == "there"
    assert session.queue("full").get_many(5) == [1]


INTERRUPTED = (
    ATTACH
    + """
import signal
source, sink = session.queue('source'), session.queue('sink')
inside, held = False, None

def interrupt(*_):
    if inside:  # outside, nothing in this program catches it
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
print('ready', flush=True)
while True:
    try:
        inside = True
        while True:
            if held is None:
                held = source.get(lease=True)
            if held.value < 0:
                inside = False
                held.ack()
                session.close()
                os._exit(0)
            sink.put(held.value)
            held.ack()
            held = None
    except KeyboardInterrupt:
        inside = False
"""
)


def test_interrupts_at_any_moment_lose_nothing(session, start, line):
    """Each number arrives, although the consumer is interrupted many times."""
    source, sink = session.queue("source"), session.queue("sink")
    process = start(INTERRUPTED, session.token)
    line(process)
    for i in range(200):
        source.put(i)
        if i % 3 == 0:
            process.send_signal(signal.SIGINT)
    source.put(-1)
    assert process.wait(DEADLINE_S) == 0
    # A number that an interrupt kept from being stored was on lease. After an interrupt in a put it
    # is unknown whether the put was done, so some numbers come twice.
    got = []
    while not (sink.empty() and source.empty()):
        got += (sink if source.empty() else source).get_many(1000)
    assert set(got) == set(range(200))
    assert session.stats()["descriptors_in_use"] == 0
