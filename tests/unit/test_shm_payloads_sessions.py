"""Payload files in a session's folder are removed with the session, on either core."""

import json
from pathlib import Path

import numpy as np
import pytest

from shoal.process import own_process
from shoal.shm.shared_files import PayloadWriter, open_payload
from support.processes import killed

pytestmark = [pytest.mark.nightly, pytest.mark.process]


PEER = """
import json, sys, threading
import numpy as np
from shoal import shm
from shoal.process import ProcessId, own_process
from shoal.shm.shared_files import PayloadWriter
session = shm.Session.create(dir=sys.argv[1])
session.keep()
readers = [own_process(), ProcessId(*json.loads(sys.argv[2]))]
writer = PayloadWriter(session.token)
refs = writer.write(b"", [np.full(50_000, 3.0)], readers)
session.queue("refs").put(refs)
print(session.token, flush=True)
threading.Event().wait()
"""


def test_the_last_process_of_a_session_removes_its_payloads(shm, place):
    session = shm.Session.create(dir=place)
    writer = PayloadWriter(session.token)
    refs = writer.write(b"", [np.ones(50_000)], [own_process()] * 2)
    received = np.frombuffer(open_payload(refs[0])[1][0])
    assert len(list(Path(session.token).iterdir())) > 2
    session.close()
    assert not Path(refs[1][0]).parent.exists()
    assert received.all()


def test_remove_removes_payloads(shm, place):
    with shm.Session.create(dir=place) as session:
        writer = PayloadWriter(session.token)
        writer.write(b"", [np.ones(50_000)], [own_process()] * 2)
        session.remove()
        assert not Path(session.token).exists()


def test_gc_removes_payloads_of_killed_processes(shm, place, start, line):
    process = start(PEER, place, json.dumps(own_process()))
    token = line(process)
    assert shm.gc(place) == []
    killed(process)
    assert list(Path(token).glob("p*"))
    assert shm.gc(place) == [token]
    assert list(Path(place).iterdir()) == []


def test_a_payload_that_a_dead_member_announced_can_be_opened(shm, place, start, line):
    process = start(PEER, place, json.dumps(own_process()))
    with shm.Session.attach(line(process)) as session:
        killed(process)
        session.sweep()
        its, mine = session.queue("refs").get()
        PayloadWriter(session.token).close()
        assert not Path(its[0]).exists()
        assert (np.frombuffer(open_payload(mine)[1][0]) == 3.0).all()
