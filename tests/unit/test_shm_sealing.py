"""Closing all queues of a shared-memory session at once, including later ones."""

import pytest

from shoal.errors import ChannelClosed
from support.in_thread import in_thread
from support.processes import DEADLINE_S


def test_all_queues_refuse_puts_and_what_they_hold_can_still_be_taken(session):
    one, two = session.queue("one"), session.queue("two", maxsize=1)
    one.put("held")
    assert not session.sealed
    session.close_queues()
    session.close_queues()
    assert session.sealed
    for queue in (one, two, session.queue("one"), session.queue("made later")):
        assert queue.closed
        with pytest.raises(ChannelClosed, match=r"^put_nowait: queue .* is closed$"):
            queue.put_nowait("more")
    assert one.get(timeout=0) == "held"
    with pytest.raises(ChannelClosed, match=r"^get: queue 'made later' is closed and empty$"):
        session.queue("made later").get(timeout=0)


def test_a_waiting_call_is_woken(session):
    full, empty = session.queue("full", maxsize=1), session.queue("empty")
    full.put(0)
    calls = [in_thread(*call) for call in ((full.put, 1), (empty.get,), (empty.get_batch, 5))]
    session.close_queues()
    for call in calls:
        assert isinstance(call.exception(DEADLINE_S), ChannelClosed)


def test_a_sealed_session_is_sealed_in_all_processes(session, start, line):
    program = (
        "import sys\nfrom shoal import shm\n"
        "session = shm.Session.attach(sys.argv[1])\nqueue = session.queue('k')\n"
        "print(session.sealed, queue.closed, flush=True)\nqueue.get(timeout=20)\n"
        "session.close_queues()\nprint(session.sealed, queue.closed, flush=True)\n"
    )
    queue = session.queue("k")
    other = start(program, session.token)
    assert line(other) == "False False"
    queue.put("go on")
    assert line(other) == "True True"
    assert session.sealed
    assert queue.closed
