"""Many and long shared-memory queues: their cost and their correctness."""

from pathlib import Path

import pytest

from support.processes import DEADLINE_S

BACKLOG = 262_144


@pytest.fixture
def session(shm, place):
    with shm.Session.create(dir=place, max_bytes=64 * 2**20, backlog=BACKLOG) as session:
        yield session


def memory(session):
    files = [path for path in Path(session.token).iterdir() if path.is_file()]
    return sum(path.stat().st_blocks * 512 for path in files)


def test_a_thousand_queues_with_a_long_backlog_take_little_memory(session):
    before = memory(session)
    queues = [session.queue(("key", number)) for number in range(1000)]
    for number, queue in enumerate(queues):
        queue.put(number)
    assert memory(session) - before < 8 * 2**20
    assert [queue.get(timeout=0) for queue in queues] == list(range(1000))


def test_other_processes_see_what_grew(session, start, line):
    program = (
        "import sys\nfrom shoal import shm\n"
        "session = shm.Session.attach(sys.argv[1])\nqueue = session.queue('a')\n"
        "print('here', flush=True)\ngot = []\n"
        "while len(got) < 3000:\n    got += queue.get_many(3000, timeout=20)\n"
        "print(got == list(range(3000)), flush=True)\n"
    )
    queue = session.queue("a")
    other = start(program, session.token)
    assert line(other) == "here"
    for number in range(3000):
        queue.put(number, timeout=DEADLINE_S)
    assert line(other) == "True"
