"""Shared-memory sessions: creating, attaching, refused arguments and leftovers."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import (
    ChannelClosed,
    ChannelNotFoundError,
    ShoalTypeError,
    ShoalValueError,
)
from support.processes import DEADLINE_S, killed, run_program

pytestmark = [pytest.mark.nightly, pytest.mark.process]


def test_the_end_of_a_process_removes_its_session(run_python, environment, place):
    program = (
        "import sys, threading\nfrom shoal import shm\n"
        "session = shm.Session.create(dir=sys.argv[1])\n"
        "q = session.queue('k')\nq.put(bytearray(200_000))\nheld = q.get()\n"
        "threading.Thread(target=session.queue('never').get, daemon=True).start()\n"
    )
    run_python("-c", program, place, env=environment)
    assert list(Path(place).iterdir()) == []


def test_gc_removes_sessions_of_killed_processes(shm, place, start, line):
    program = (
        "import sys, time\nfrom shoal import shm\n"
        "session = shm.Session.create(dir=sys.argv[1])\nsession.queue('k').put(b'x' * 200_000)\n"
        "print(session.token, flush=True)\ntime.sleep(60)\n"
    )
    dead, alive = start(program, place), start(program, place)
    folders = [line(dead), line(alive)]
    killed(dead)
    alive.send_signal(signal.SIGSTOP)
    assert shm.gc(place) == folders[:1]
    assert [str(path) for path in Path(place).iterdir()] == folders[1:]
    killed(alive)
    with shm.Session.create(dir=place) as session:
        assert [str(path) for path in Path(place).iterdir()] == [session.token]
        assert shm.gc(place) == []


def test_wrong_tokens_are_refused(shm, place):
    with pytest.raises(
        ShoalValueError, match=r"^token='x': expected what Session\.token returned$"
    ):
        shm.Session.attach("x")
    with pytest.raises(ShoalTypeError, match=r"^token=3: expected a str"):
        shm.Session.attach(3)
    session = shm.Session.create(dir=place)
    token = session.token
    assert Path(token).parent == Path(place)
    assert Path(token).stat().st_mode & 0o777 == 0o700
    session.close()
    text = f"^no session at {re.escape(token)}: it was closed, or is on another host$"
    with pytest.raises(ChannelNotFoundError, match=text):
        shm.Session.attach(token)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dir": "/nowhere"}, "dir='/nowhere': expected a folder that can be written to"),
        ({"max_bytes": 0}, "max_bytes=0: expected 1 to"),
        ({"max_bytes": True}, "max_bytes=True: expected an int"),
        ({"memory_policy": "x"}, "memory_policy='x': expected one of block, error, spill"),
        ({"spill_dir": "/tmp"}, "spill_dir='/tmp': it needs memory_policy='spill'"),
        ({"backlog": 0}, "backlog=0: expected 1 to"),
        ({"overfill": 1}, "overfill=1: expected True or False"),
    ],
)
def test_wrong_arguments_of_a_session_are_refused(shm, arguments, text):
    with pytest.raises((ShoalValueError, ShoalTypeError)) as wrong:
        shm.Session.create(**arguments)
    assert str(wrong.value).startswith(text)


def test_a_token_stands_alone(backend):
    with pytest.raises(ShoalValueError, match=r"^max_bytes with a token: the session has its own$"):
        backend.ShmSession("/x", max_bytes=3)


def test_few_descriptors_are_enough(start, line, place):
    program = (
        "import resource, sys\nfrom shoal import shm\nimport numpy as np\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "with shm.Session.create(dir=sys.argv[1]) as session:\n"
        "    q = session.queue('k')\n"
        "    for i in range(200): q.put(np.full(70_000, i % 100, 'u1'))\n"
        "    held = [q.get() for _ in range(200)]\n"
        "    print(all(a[-1] == i % 100 for i, a in enumerate(held)), flush=True)\n"
    )
    process = start(program, place)
    assert line(process) == "True"
    assert process.wait(DEADLINE_S) == 0


def test_a_closed_session_leaves_received_arrays_alone(shm, place):
    session = shm.Session.create(dir=place)
    queue = session.queue("k")
    queue.put(np.arange(100_000))
    held = queue.get()
    session.close()
    held += 1
    assert held[-1] == 100_000
    with pytest.raises(ChannelClosed):
        queue.qsize()


def test_the_module_needs_the_standard_library_only(environment):
    program = (
        "import sys\nbefore = set(sys.modules)\nfrom shoal import shm\n"
        "shm.Session.create().queue('k').put({'a': [1, b'x']})\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(tops - sys.stdlib_module_names - {'shoal'}))\n"
    )
    result = run_program("-c", program, env=environment)
    assert (result.stdout, result.stderr) == ("[]\n", "")
